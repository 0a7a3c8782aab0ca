"""The shield: a running job that is young, or about to save, is not evicted for a higher priority for a while.

It is a relabel of the job's priority class from `normal` to `normal-shielded`: Kueue gives the Workload the class's
value at once, which is above every class without a shield. What an owner reclaims of its nominal quota goes by quota
and not by priority (`reclaimWithinCohort: Any`), so no shield stops that.

`wanted` is pure. Whether a job is shielded stands in the cluster alone (its class), and until when follows from when it
was admitted and what it says of its checkpoints: a replica that takes over goes on without being told anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from myriad.errors import MyriadError
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import WORKLOADS
from myriad.scheduler.cache import Cache
from myriad.scheduler.notices.checkpoint import Checkpoint
from myriad.scheduler.notices.facts import SHIELDED, moment
from myriad.scheduler.notices.gather import checkpoint_of, class_of, job_resource, pods_of, read_job
from myriad.scheduler.policy import SitePolicy

log = logging.getLogger("myriad.shield")

Json = dict[str, Any]

PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
ANNOTATION = "myriad.dev/shield"
_SHARE = 0.1
"""Of the checkpoint interval: so long before and after a checkpoint is due, what was gained is worth waiting for."""
_WINDOW_S = (30.0, 600.0)
_LEAST_INTERVAL_S = 300.0
"""A job that saves more often loses little; a promise of one second must not buy a shield for ever."""
_PER_STEP = 20
_KNOWN_S = 60.0
"""What a job says of its checkpoints is read again after so long."""
_KINDS = ("Job", "PyTorchJob")


@dataclass(frozen=True, slots=True)
class Shield:
    """A shield that a job has or should have.

    Attributes:
        until: when it ends at the latest.
        reason: as the end of a sentence that begins with "shielded".
    """

    until: datetime
    reason: str


def window(interval_s: float) -> timedelta:
    """How long around the time at which a checkpoint is due a job is worth waiting for."""
    return timedelta(seconds=min(_WINDOW_S[1], max(_WINDOW_S[0], interval_s * _SHARE)))


def wanted(
    *,
    admitted_at: datetime | None,
    checkpoint: Checkpoint,
    now: datetime,
    min_run_s: float,
    checkpoint_max_age_s: float,
) -> Shield | None:
    """The shield that a running job should have now; None for none.

    Args:
        admitted_at: since when it runs; None where it does not, or is being evicted.
        checkpoint: what it says of its checkpoints.
        now: an aware time.
        min_run_s: so long after its start no job is evicted for a higher priority; 0 switches that off.
        checkpoint_max_age_s: a job that promises to save less often gets no shield for its gain.
    """
    if admitted_at is None:
        return None
    young_until = admitted_at + timedelta(seconds=min_run_s)
    if now < young_until:
        return Shield(young_until, f"until it has run for {min_run_s / 60:.0f} min")
    interval = checkpoint.interval_s
    if interval is None or checkpoint.last is None or not _LEAST_INTERVAL_S <= interval <= checkpoint_max_age_s:
        return None
    due = max(admitted_at, checkpoint.last) + timedelta(seconds=interval)
    half = window(interval)
    if due - half <= now < due + half:
        return Shield(due + half, "until it has saved the checkpoint that is due now")
    return None


class Shields:
    """The observer that puts shields on and takes them off.

    Args:
        api, cache: the cluster.
        policy: the site's, as it is now.
        now: the time.
    """

    name = "shields"
    interval_s = 5.0

    def __init__(
        self,
        *,
        api: Api,
        cache: Cache,
        policy: Callable[[], SitePolicy],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._cache = cache
        self._policy = policy
        self._now = now
        self._last = datetime.min.replace(tzinfo=UTC)
        self._known: dict[str, tuple[datetime, Checkpoint]] = {}
        self._refused: dict[str, str] = {}

    def step(self) -> None:
        """Compare every running job with what it should carry. Changes at most a few at a time: more come next time."""
        now = self._now()
        # Changes of the cache call this far more often than shields begin and end.
        if (now - self._last).total_seconds() < self.interval_s / 2:
            return
        self._last = now
        policy = self._policy()
        changed = 0
        bodies = self._cache.listing(WORKLOADS)
        alive = {str(b["metadata"].get("uid")) for b in bodies}
        self._known = {uid: known for uid, known in self._known.items() if uid in alive}
        self._refused = {uid: why for uid, why in self._refused.items() if uid in alive}
        for workload in bodies:
            if changed >= _PER_STEP:
                break
            changed += self._look(workload, policy, now)

    def _look(self, workload: Json, policy: SitePolicy, now: datetime) -> bool:
        own, shielded = class_of(workload)
        reference = workload["spec"].get("priorityClassRef") or {}
        if not own or reference.get("kind") not in (None, "WorkloadPriorityClass"):
            return False
        admitted_at = running_since(workload)
        shield = None
        # Only a class of the policy has its shielded twin: anybody else's is left as it is.
        if own in policy.priorities and admitted_at is not None:
            shield = wanted(
                admitted_at=admitted_at,
                checkpoint=self._checkpoint(workload, admitted_at, policy, now),
                now=now,
                min_run_s=policy.preemption.min_run_s,
                checkpoint_max_age_s=policy.preemption.checkpoint_max_age_s,
            )
        if (shield is not None) == shielded:
            return False
        return self._relabel(workload, own, shield)

    def _checkpoint(self, workload: Json, admitted_at: datetime, policy: SitePolicy, now: datetime) -> Checkpoint:
        if now < admitted_at + timedelta(seconds=policy.preemption.min_run_s):
            return Checkpoint()
        uid = str(workload["metadata"].get("uid"))
        known = self._known.get(uid)
        if known is None or (now - known[0]).total_seconds() >= _KNOWN_S:
            view = self._cache.view(f"{workload['metadata']['namespace']}/{workload['metadata']['name']}")
            pods = pods_of(self._cache, view) if view else []
            found = checkpoint_of(workload, None, pods, now)
            if view is not None and (found.last is None or found.interval_s is None):
                # One request an hour of promise: a job that says nothing on its pods may say it on itself.
                found = checkpoint_of(workload, read_job(self._api, view), pods, now)
            known = self._known[uid] = (now, found)
        return known[1]

    def _relabel(self, workload: Json, own: str, shield: Shield | None) -> bool:
        metadata = workload["metadata"]
        uid = str(metadata.get("uid"))
        view = self._cache.view(f"{metadata['namespace']}/{metadata['name']}")
        resource = job_resource(view.job) if view else None
        if view is None or resource is None or resource.kind not in _KINDS:
            return False
        target = own + SHIELDED if shield else own
        if self._refused.get(uid) == target:
            return False
        note = f"{target}: {shield.reason}, at the latest {shield.until:%Y-%m-%dT%H:%M:%SZ}" if shield else None
        body = {
            "metadata": {
                # A job that was deleted and made again meanwhile is another.
                "uid": view.job["uid"],
                "labels": {PRIORITY_LABEL: target},
                "annotations": {ANNOTATION: note},
            }
        }
        try:
            self._api.patch(resource, view.job["name"], body, namespace=metadata["namespace"])
        except ApiError as error:
            if error.is_not_found or error.is_conflict:
                return False
            # Tried again when what is wanted changes; every few seconds would fill logs and help nobody.
            self._refused[uid] = target
            log.warning("%s/%s keeps class %s: %s", metadata["namespace"], view.job["name"], own, error.message)
            return False
        except MyriadError as error:
            log.warning("%s/%s: the shield waits: %s", metadata["namespace"], view.job["name"], error.message)
            return False
        self._refused.pop(uid, None)
        log.info("%s/%s: %s", metadata["namespace"], view.job["name"], note or f"back to {own}")
        return True


def running_since(workload: Json) -> datetime | None:
    """Since when a Workload runs; None where it is not admitted, finished, or on its way out."""
    conditions: Mapping[str, Json] = {
        c["type"]: c for c in (workload.get("status") or {}).get("conditions") or [] if c.get("status") == "True"
    }
    if "Admitted" not in conditions or "Evicted" in conditions or "Finished" in conditions:
        return None
    if workload["spec"].get("active") is False or workload["metadata"].get("deletionTimestamp"):
        return None
    return moment(conditions["Admitted"].get("lastTransitionTime"))
