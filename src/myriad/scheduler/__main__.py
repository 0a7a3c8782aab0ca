"""`python -m myriad.scheduler`: the extension. With `detach` it leaves the cluster unsteered."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from myriad.errors import MyriadError
from myriad.kube.client import Api, connect
from myriad.scheduler.attach import detach_all
from myriad.scheduler.cache import Cache
from myriad.scheduler.decisions import DecisionLog
from myriad.scheduler.eta.observer import estimating
from myriad.scheduler.events import EventSink
from myriad.scheduler.inputs import InputsFolder, Keeper
from myriad.scheduler.leader import LeaderElection
from myriad.scheduler.ledger.start import Accounting
from myriad.scheduler.metrics import Metrics
from myriad.scheduler.notices.book import Book
from myriad.scheduler.notices.start import noticing, tending
from myriad.scheduler.observers import Observing, observers_of
from myriad.scheduler.records import Copier, RecordBook, every
from myriad.scheduler.settings import Settings
from myriad.scheduler.shadow import ShadowApi, Withdrawing
from myriad.scheduler.steering import Steering
from myriad.scheduler.surroundings import Surroundings
from myriad.scheduler.web.accounts import Accounts
from myriad.scheduler.web.auth import gate_of

log = logging.getLogger("myriad.scheduler")

_STUCK_S = 120.0
_LEADS_WITHIN_S = 45.0
_COPY_INTERVAL_S = 2.0
_EVICTIONS_INTERVAL_S = 5.0
_SETTLE_MOST_S = 2.0
_LET_IN_S = 0.05


class Extension:
    """One replica: cache, election, steering and the HTTP server, started and stopped together."""

    def __init__(self, api: Api, settings: Settings) -> None:
        self.api = api
        self.settings = settings
        self.stop = threading.Event()
        self.cache = Cache(check_name=settings.admission_check)
        self.metrics = Metrics()
        self._log = DecisionLog(settings.decisions, max_bytes=settings.decisions_max_bytes)
        self.decisions = RecordBook(self._log)
        self._inputs = InputsFolder(settings.decisions.with_name("inputs"))
        self.leader = LeaderElection(
            api,
            namespace=settings.namespace,
            name=settings.lease,
            identity=settings.identity,
            lease_duration_s=settings.lease_duration_s,
            renew_deadline_s=settings.renew_deadline_s,
            retry_period_s=settings.retry_period_s,
            stop=self.stop,
            changed=lambda leading: self.metrics.leading.set(1 if leading else 0),
            fit=self._can_lead,
        )
        # The election and the callers' identities go past it: a Lease and questions change nothing for anybody.
        guarded = ShadowApi(api, namespace=settings.namespace) if settings.shadow else api
        events = EventSink(guarded, interval_s=settings.event_interval_s)
        self.steering = Steering(
            api=guarded,
            cache=self.cache,
            settings=settings,
            decisions=self.decisions,
            events=events,
            metrics=self.metrics,
            inputs=Keeper(self._inputs),
            leads=self._still_leads,
        )
        surroundings = Surroundings(guarded, self.cache, settings, self.decisions, events, self.metrics)
        self.evictions = Book(guarded, namespace=settings.namespace)
        estimates = estimating(surroundings)
        self.accounting = Accounting(surroundings, may_act=self._may_act, stop=self.stop)
        # What beside steering has a thread of its own, in the order in which they begin and are waited for.
        self.metrics.brake_on.set(settings.brake)
        watchers = observers_of(surroundings)
        telling: list[Observing] = []
        if settings.shadow:
            log.info("in shadow: plans are recorded, nothing is changed")
            watchers.insert(0, Withdrawing(api=api, cache=self.cache, check=settings.admission_check))
        else:
            # In shadow nobody is told of evictions or shielded from one.
            book, may_act, stop = self.evictions, self._may_act, self.stop
            telling.append(noticing(surroundings, book, may_act=may_act, stop=stop, eta=estimates.of_evicted))
            telling.append(tending(surroundings, book, may_act=may_act, stop=stop))
        self._workers: tuple[Observing | Accounting, ...] = (
            Observing(watchers, cache=self.cache, may_act=self._may_act, stop=self.stop),
            *telling,
            Observing([estimates], cache=self.cache, may_act=self._may_act, stop=self.stop),
            self.accounting,
        )
        self.gate = gate_of(api, settings, self.cache)
        self._copier = Copier(
            api, self.decisions, namespace=settings.namespace, port=settings.port, token=settings.peer_token
        )
        # Where both replicas write into one database, there is nothing to copy.
        self._ledger_copier = self.accounting.copier()
        self._evictions_due = every(_EVICTIONS_INTERVAL_S, time.monotonic)
        self._copy_due = every(_COPY_INTERVAL_S, time.monotonic)
        self._beat = time.monotonic()

    def _may_act(self) -> bool:
        return self.leader.is_leader() and not self.not_ready()

    def _still_leads(self) -> bool:
        # A pass over thousands of gangs takes its time; as long as it gets on it does not hang.
        self._beat = time.monotonic()
        return self.leader.is_leader()

    def _can_lead(self) -> bool:
        # A pass that hangs steers nobody: another replica takes over long before this one is restarted (`faults`).
        return not self.not_ready() and time.monotonic() - self._beat < _LEADS_WITHIN_S

    def not_ready(self) -> list[str]:
        """Kinds that the cache does not follow yet."""
        return self.cache.out_of_step(lost_limit_s=self.settings.lost_limit_s)

    def faults(self) -> list[str]:
        """What a restart of this process would mend."""
        found = []
        if time.monotonic() - self._beat > _STUCK_S:
            found.append(f"no pass has got on for {_STUCK_S:.0f} s")
        if not self.leader.is_alive() and not self.stop.is_set():
            found.append("the election has ended")
        return found

    def run(self) -> None:
        """Serve and steer until `stop` is set; then give the Lease back."""
        server = self._serve()
        self.cache.follow(self.api, self.stop)
        self.leader.start()
        for worker in self._workers:
            worker.start()
        seen, last, took_s = -1, float("-inf"), 0.0
        ready = False
        while not self.stop.is_set():
            version = self.cache.wait(seen, timeout_s=0.5)
            self._beat = now = time.monotonic()
            if version == seen and now - last < self.settings.replan_interval_s:
                continue
            missing = self.not_ready()
            if ready != (not missing):
                ready = not missing
                log.info("the cache follows" if ready else f"the cache does not follow: {', '.join(missing)}")
            if missing or not self.leader.is_leader():
                # The leader records them.
                self.cache.passed()
                if self._copy_due() and self.leader.holder not in ("", self.settings.identity):
                    self._copier.copy(self.leader.holder)
                    if self._ledger_copier is not None:
                        self._ledger_copier.copy(self.leader.holder)
                # Followers keep the cache warm; the version is not taken as seen, so that a new leader starts at once.
                self.stop.wait(0.25)
                continue
            try:
                # Changes come in bursts: one pass for all of them, and half of the time at most is spent on passes.
                self._settle(min(max(self.settings.settle_s, took_s), _SETTLE_MOST_S))
                seen, last = self.cache.version, time.monotonic()
                self.steering.run_pass()
                took_s = time.monotonic() - last
            except MyriadError as error:
                log.warning("the pass ended early: %s", error)
                seen = -1
                self.stop.wait(1.0)
        for worker in self._workers:
            worker.join(5.0)
        self.leader.join(timeout=5.0)
        server()
        self._log.close()
        self.api.close()

    def _settle(self, wait_s: float) -> None:
        """Wait so long for further changes; who holds quota meanwhile is let in at once."""
        end = time.monotonic() + wait_s
        version = self.cache.version
        while not self.stop.is_set() and (left := end - time.monotonic()) > 0:
            self.stop.wait(min(left, _LET_IN_S))
            if self.cache.version != version and self.leader.is_leader():
                version = self.cache.version
                self.steering.let_in()

    def _eviction_records(self) -> list[dict[str, Any]]:
        # The leader's book is what it wrote; a follower reads what the leader wrote, now and then.
        if not self.leader.is_leader() and self._evictions_due():
            self.evictions.load()
        return [r.facts["eviction"] for r in self.evictions.records() if "eviction" in r.facts]

    def _serve(self) -> Stopper:
        # Imported here: `detach` needs neither, and a pod that starts shows its faults sooner.
        import uvicorn

        from myriad.scheduler.server import Parts, build_app, uvicorn_config

        app = build_app(
            Parts(
                api=self.api,
                cache=self.cache,
                decisions=self.decisions,
                metrics=self.metrics,
                gate=self.gate,
                not_ready=self.not_ready,
                faults=self.faults,
                leader=lambda: (self.leader.holder, self.leader.is_leader()),
                evictions=self._eviction_records,
                inputs=self._inputs.get,
                accounts=Accounts(self.accounting.ledger, self.accounting.state),
                shadow=self.settings.shadow,
                brake=self.settings.brake,
            )
        )
        server = uvicorn.Server(uvicorn_config(app, port=self.settings.port))
        thread = threading.Thread(target=server.run, name="http", daemon=True)
        thread.start()
        return Stopper(server, thread)


class Stopper:
    """Ends the HTTP server."""

    def __init__(self, server: object, thread: threading.Thread) -> None:
        self._server = server
        self._thread = thread

    def __call__(self) -> None:
        self._server.should_exit = True  # type: ignore[attr-defined]
        self._thread.join(timeout=3.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m myriad.scheduler", description=__doc__)
    parser.add_argument("command", nargs="?", choices=["serve", "detach"], default="serve")
    parser.add_argument("--kubeconfig", help="a kubeconfig; in a pod the service account is used")
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args(arguments)
    logging.basicConfig(
        level=logging.DEBUG if options.verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    for noisy in ("httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        settings = Settings.from_env()
        api = connect(options.kubeconfig)
        if options.command == "detach":
            done, kept = detach_all(api, settings.admission_check)
            print(f"detached from {', '.join(done) or 'no ClusterQueue: none had the check'}")
            if kept:
                print(f"another field manager keeps the check in {', '.join(kept)}: remove it there", file=sys.stderr)
            return 2 if kept else 0
        return _serve_until_signal(Extension(api, settings))
    except MyriadError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def _serve_until_signal(extension: Extension) -> int:
    """Run in a thread of its own and wait here for the end: a handler that ran between two instructions of the main
    loop could meet a lock that the loop holds."""
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    worker = threading.Thread(target=extension.run, name="extension")
    worker.start()
    while worker.is_alive() and signal.sigtimedwait(ends, 0.5) is None:
        pass
    died = not worker.is_alive()
    extension.stop.set()
    worker.join()
    return 2 if died else 0


if __name__ == "__main__":
    sys.exit(main())
