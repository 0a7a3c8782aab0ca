"""Leader election by a Lease: one replica writes, the others keep a warm cache and serve reads.

Own code, some hundred lines: the election in the `kubernetes` package neither releases the Lease at the end of a
process nor tells a leader whose renewal fails to stop in time. The rules are those of client-go: whether a Lease
has run out is judged by this machine's monotonic clock since the record last changed, so clocks need not agree.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from myriad.errors import MyriadError
from myriad.kube.client import Api, ApiError, Json
from myriad.kube.kinds import LEASES

log = logging.getLogger("myriad.leader")


class LeaderElection(threading.Thread):
    """Takes and renews the Lease; `is_leader` may be asked from any thread before each write.

    Args:
        api: the client.
        namespace, name: the Lease.
        identity: this replica.
        lease_duration_s, renew_deadline_s, retry_period_s: see `Settings`.
        stop: ends the thread, which then gives the Lease back so that another replica goes on at once.
        changed: called with True or False when leadership is won or lost.
        fit: whether this replica could do a leader's work now. One that could not neither takes the Lease nor keeps it:
            another replica may be better off, and where none is, the dead-man sees that nobody leads.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        api: Api,
        *,
        namespace: str,
        name: str,
        identity: str,
        lease_duration_s: float,
        renew_deadline_s: float,
        retry_period_s: float,
        stop: threading.Event,
        changed: Callable[[bool], object] = lambda _leading: None,
        fit: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name="leader", daemon=True)
        self.identity = identity
        self._api = api
        self._namespace = namespace
        self._name = name
        self._lease_duration_s = lease_duration_s
        self._renew_deadline_s = renew_deadline_s
        self._retry_period_s = retry_period_s
        self._stopping = stop
        self._changed = changed
        self._fit = fit
        self._clock = clock
        self._seen: Json | None = None
        self._seen_at = float("-inf")
        self._renewed_at = float("-inf")
        self._leading = False

    @property
    def holder(self) -> str:
        """Who held the Lease when it was last read; empty when nobody does."""
        seen = self._seen
        return str(seen["spec"].get("holderIdentity") or "") if seen else ""

    def is_leader(self) -> bool:
        """Whether this replica may write now: it holds the Lease and renewed it within the deadline."""
        return self._leading and self._clock() - self._renewed_at < self._renew_deadline_s

    def run(self) -> None:
        """Take, renew, and at the end release."""
        while not self._stopping.is_set():
            if self._fit():
                self.step()
            else:
                self.release()
            self._stopping.wait(self._retry_period_s)
        self.release()

    def step(self) -> None:
        """One attempt to take or renew the Lease."""
        try:
            if self._acquire_or_renew():
                self._renewed_at = self._clock()
                self._become(True)
                return
        except ApiError as error:
            if not error.is_conflict:
                log.warning("lease %s/%s: %s", self._namespace, self._name, error.message)
            # A conflict means that somebody else was faster: read again at the next step.
        except MyriadError as error:
            log.warning("lease %s/%s: %s", self._namespace, self._name, error.message)
        if self._leading and (self.holder != self.identity or not self.is_leader()):
            self._become(False)

    def release(self) -> None:
        """Give the Lease back, if it is ours."""
        if not self._leading:
            return
        self._become(False)
        lease = self._seen
        if lease is None:
            return
        lease["spec"]["holderIdentity"] = ""
        lease["spec"]["leaseDurationSeconds"] = 1
        lease["spec"]["renewTime"] = _now()
        try:
            self._api.replace(LEASES, self._name, lease, namespace=self._namespace)
        except MyriadError as error:
            log.warning("lease %s/%s could not be released: %s", self._namespace, self._name, error.message)

    def _become(self, leading: bool) -> None:
        if leading != self._leading:
            self._leading = leading
            log.info("%s %s", self.identity, "leads" if leading else "follows")
            self._changed(leading)

    def _acquire_or_renew(self) -> bool:
        lease = self._api.find(LEASES, self._name, namespace=self._namespace)
        if lease is None:
            spec = self._spec(acquired=_now(), transitions=0)
            body = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": spec,
            }
            self._observe(self._api.create(LEASES, body, namespace=self._namespace))
            return True
        self._observe(lease)
        spec = lease["spec"]
        holder = spec.get("holderIdentity") or ""
        duration_s = float(spec.get("leaseDurationSeconds") or self._lease_duration_s)
        mine = holder == self.identity
        if holder and not mine and self._clock() - self._seen_at < duration_s:
            return False
        transitions = int(spec.get("leaseTransitions") or 0)
        acquired = spec.get("acquireTime") if mine else None
        lease["spec"] = self._spec(
            acquired=str(acquired or _now()), transitions=transitions if mine else transitions + 1
        )
        # The resourceVersion that was read goes along: whoever is second gets a conflict.
        self._observe(self._api.replace(LEASES, self._name, lease, namespace=self._namespace))
        return True

    def _observe(self, lease: Json) -> None:
        if self._seen is None or self._seen["metadata"].get("resourceVersion") != lease["metadata"].get(
            "resourceVersion"
        ):
            self._seen_at = self._clock()
        self._seen = lease

    def _spec(self, *, acquired: str, transitions: int) -> Json:
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, int(self._lease_duration_s)),
            "acquireTime": acquired,
            "renewTime": _now(),
            "leaseTransitions": transitions,
        }


def _now() -> str:
    """Kubernetes' MicroTime."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
