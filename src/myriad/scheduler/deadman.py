"""The dead-man: where nobody leads the extension, its check is detached, so that the queues go on unsteered.

    python -m myriad.scheduler.deadman [--kubeconfig FILE]

An AdmissionCheck that nobody answers blocks every queue that asks it. This runs outside of the extension, as a CronJob
with rights of its own, and looks at the extension's Lease alone: whoever holds it renews it every two seconds, and a
replica whose cache does not follow holds it not (`leader`). Whether it moves is judged by this machine's monotonic
clock between two looks, so clocks need not agree.

The AdmissionCheck carries since when and by whom it is detached; the extension takes that away when it attaches again.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from myriad.errors import MyriadError
from myriad.kube.client import Api, ApiError, connect
from myriad.kube.kinds import ADMISSION_CHECKS, CLUSTER_QUEUES, LEASES
from myriad.scheduler.attach import detach_all, entry_of
from myriad.scheduler.settings import Settings

log = logging.getLogger("myriad.deadman")

Json = dict[str, Any]

DETACHED_AT = "myriad.dev/detached-at"
DETACHED_BY = "myriad.dev/detached-by"
NAME = "dead-man"
CRON_JOB = "myriad-dead-man"
_SILENT_S = 300.0
_LOOK_EVERY_S = 1.0
_COUNTS_AT_MOST_S = 4.0


@dataclass(frozen=True, slots=True)
class Watch:
    """What was seen of the Lease.

    Attributes:
        alive: it moved while it was watched, and somebody holds it.
        says: in words.
    """

    alive: bool
    says: str


def run(api: Api, settings: Settings) -> int:
    """One run of the CronJob; the exit code."""
    attached = [q["metadata"]["name"] for q in api.list(CLUSTER_QUEUES)[0] if entry_of(q, settings.admission_check)]
    if not attached and detached(api.find(ADMISSION_CHECKS, settings.admission_check)):
        print("no ClusterQueue asks the check: nothing to detach")
        return 0
    found = watch(api, settings)
    if found.alive:
        print(found.says)
        return 0
    mark(api, settings.admission_check)
    if not attached:
        # Nobody is held up, and yet people are told: no gang that waits from now on is led anywhere.
        print(f"{found.says}: no ClusterQueue asks the check, nothing to detach; gangs go on unsteered")
        return 0
    print(f"{found.says}: detaching the check from {', '.join(attached)}")
    done, kept = detach_all(api, settings.admission_check)
    print(f"detached from {len(done)} ClusterQueues; they go on unsteered until the extension is back")
    if kept:
        print(f"another field manager keeps the check in {', '.join(kept)}: remove it there", file=sys.stderr)
    return 2 if kept else 0


def watch(
    api: Api,
    settings: Settings,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> Watch:
    """Look at the Lease for as long as a live leader could leave it alone, plus one round of its election.

    A look that takes long counts as a few seconds: while the API server stands still no leader can renew, and what it
    shows right after says nothing yet. One that is slow for long is judged all the same, later.

    Raises:
        ApiError: the API server refuses to show it. One that is away raises too: then nothing can be judged.
    """
    patience_s = settings.lease_duration_s + 2 * settings.retry_period_s
    before = _look(api, settings)
    last, still_s = clock(), 0.0
    while True:
        sleep(_LOOK_EVERY_S)
        now = _look(api, settings)
        if now is not None and now != before and now[1]:
            return Watch(True, f"the extension lives: {now[1]} leads")
        answered = clock()
        still_s += min(answered - last, _COUNTS_AT_MOST_S)
        last = answered
        if still_s >= patience_s:
            whose = f"{now[1]} has not renewed it" if now and now[1] else "nobody holds it"
            there = f"the Lease {settings.namespace}/{settings.lease} has not moved for {patience_s:.0f} s ({whose})"
            return Watch(False, there if now else f"there is no Lease {settings.namespace}/{settings.lease}")


def mark(api: Api, check: str) -> None:
    """Write on the AdmissionCheck since when the cluster goes unsteered."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    _annotate(api, check, {DETACHED_AT: now, DETACHED_BY: NAME})


def unmark(api: Api, check: Json) -> bool:
    """The check is attached again; True where that had to be written."""
    if not detached(check):
        return False
    _annotate(api, check["metadata"]["name"], {DETACHED_AT: None, DETACHED_BY: None})
    return True


def detached(check: Json | None) -> str:
    """`unsteered since 2026-11-30T12:00:00Z, detached by the dead-man`; empty where nothing says so."""
    annotations = ((check or {}).get("metadata") or {}).get("annotations") or {}
    since = annotations.get(DETACHED_AT)
    return f"unsteered since {since}, detached by the {annotations.get(DETACHED_BY) or NAME}" if since else ""


def asleep(cron_job: Json | None, now: datetime) -> str:
    """Why the dead-man does not look; empty where it does.

    Args:
        cron_job: the CronJob that runs it; None where there is none.
        now: with a time zone.
    """
    if cron_job is None:
        return f"there is no CronJob {CRON_JOB}"
    if cron_job["spec"].get("suspend"):
        return f"the CronJob {CRON_JOB} is suspended"
    # One that has never run counts from when it was made.
    ran = (cron_job.get("status") or {}).get("lastSuccessfulTime") or cron_job["metadata"].get("creationTimestamp")
    if ran and (now - datetime.fromisoformat(ran)).total_seconds() > _SILENT_S:
        return f"no run of the CronJob {CRON_JOB} has ended well since {ran}"
    return ""


def _look(api: Api, settings: Settings) -> tuple[str, str] | None:
    """Version and holder of the Lease; None where it is not there."""
    lease = api.find(LEASES, settings.lease, namespace=settings.namespace)
    if lease is None:
        return None
    return str(lease["metadata"]["resourceVersion"]), str((lease.get("spec") or {}).get("holderIdentity") or "")


def _annotate(api: Api, check: str, values: dict[str, str | None]) -> None:
    try:
        api.patch(ADMISSION_CHECKS, check, {"metadata": {"annotations": values}})
    except ApiError as error:
        # Detaching is what counts; the mark is for people.
        log.warning("AdmissionCheck %s: %s", check, error)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; a program of its own, because every minute the extension's imports would cost two seconds."""
    parser = argparse.ArgumentParser(prog="python -m myriad.scheduler.deadman", description=__doc__)
    parser.add_argument("--kubeconfig", help="a kubeconfig; in a pod the service account is used")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        return run(connect(options.kubeconfig), Settings.from_env())
    except MyriadError as error:
        # An API server that is away says nothing about the extension: nothing is detached, the next run looks again.
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
