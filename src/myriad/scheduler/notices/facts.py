"""What an eviction was, read from Kueue's conditions, the pods and the job. Pure.

Texts and reasons are those of Kueue 0.17.0 (pkg/scheduler/preemption/preemption.go, apis/kueue/v1beta2); what another
version words differently is kept as it is and told without the parts that could not be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

Json = dict[str, Any]

SHIELDED = "-shielded"
"""Suffix of a priority class that protects a running job for a while."""

Policy = Literal["InClusterQueue", "InCohortReclamation", "InCohortFairSharing", "InCohortReclaimWhileBorrowing", ""]
POLICIES: tuple[Policy, ...] = (
    "InClusterQueue",
    "InCohortReclamation",
    "InCohortFairSharing",
    "InCohortReclaimWhileBorrowing",
)

_MESSAGE = re.compile(
    r"Preempted to accommodate a workload \(UID: (?P<uid>[^,\s]+), JobUID: (?P<job>[^)\s]+)\)"
    r"(?: due to (?P<why>[^;]+))?(?:; preemptor path: (?P<path>[^;\s]+))?(?:; preemptee path: (?P<mine>[^;\s]+))?"
)
_REASON_OF_WORDS: Mapping[str, Policy] = {
    "prioritization in the ClusterQueue": "InClusterQueue",
    "reclamation within the cohort": "InCohortReclamation",
    "Fair Sharing within the cohort": "InCohortFairSharing",
    "reclamation within the cohort while borrowing": "InCohortReclaimWhileBorrowing",
}
_UNKNOWN = ("", "UNKNOWN")
_DUE = "DueTo"


@dataclass(frozen=True, slots=True)
class Cause:
    """What Kueue's conditions say of an eviction.

    Attributes:
        at: when (RFC 3339).
        reason: Evicted's reason, such as Preempted, PodsReadyTimeout or DeactivatedDueToMaximumExecutionTimeExceeded.
        policy: Preempted's reason, "" for any other eviction.
        message: Kueue's own words.
        preemptor_uid, preemptor_job_uid: of the Workload that took the place and of its job; "" where not said.
        preemptor_queue, victim_queue: the ClusterQueues at the ends of the paths.
        past: the Workload was admitted again since: it is known from what Kueue kept of the condition.
    """

    at: str
    reason: str
    policy: str = ""
    message: str = ""
    preemptor_uid: str = ""
    preemptor_job_uid: str = ""
    preemptor_queue: str = ""
    victim_queue: str = ""
    past: bool = False

    @property
    def is_preemption(self) -> bool:
        """Whether somebody else took the place."""
        return self.reason == "Preempted" or bool(self.policy)


def cause_of(workload: Json) -> Cause | None:
    """The eviction that a Workload's conditions tell of, None where it was never evicted."""
    conditions = {c["type"]: c for c in (workload.get("status") or {}).get("conditions") or []}
    evicted = conditions.get("Evicted")
    if evicted is None:
        return None
    message = str(evicted.get("message") or "")
    past = evicted.get("status") != "True"
    if past and not message.startswith("Previously: "):
        return None
    reason = str(evicted.get("reason") or "")
    preempted = conditions.get("Preempted") or {}
    counts = preempted and preempted.get("status") == evicted.get("status")
    message = message.removeprefix("Previously: ")
    found = _MESSAGE.search(message)
    # When the conditions are reset their reasons are lost, the words stay.
    if past:
        reason = "Preempted" if found else ""
    policy = str(preempted.get("reason") or "") if counts and not past and reason == "Preempted" else ""
    if found:
        policy = policy or _REASON_OF_WORDS.get((found["why"] or "").strip(), "")
    return Cause(
        at=str(evicted.get("lastTransitionTime") or ""),
        reason=reason,
        policy=policy,
        message=message,
        preemptor_uid=_known(found, "uid"),
        preemptor_job_uid=_known(found, "job"),
        preemptor_queue=_known(found, "path").rpartition("/")[2],
        victim_queue=_known(found, "mine").rpartition("/")[2],
        past=past,
    )


def _known(found: re.Match[str] | None, name: str) -> str:
    value = (found[name] or "") if found else ""
    return "" if value in _UNKNOWN else value


def record_id(workload: Json, cause: Cause) -> str:
    """The name of one eviction: the same on every replica, however often it is seen. A key of a ConfigMap."""
    stamp = re.sub(r"[^0-9A-Za-z]", "", cause.at)
    return f"{workload['metadata'].get('uid') or workload['metadata']['name']}.{stamp}"


@dataclass(frozen=True, slots=True)
class Party:
    """A job that takes part.

    Attributes:
        namespace, job, team: who; job is the Workload's name where nobody owns it.
        uid: of its Workload.
        kind: of the job; "" where nobody owns it.
        gpus: of the whole gang.
        priority, priority_class: without a shield.
        queue, pool: its ClusterQueue and pool.
    """

    namespace: str = ""
    job: str = ""
    team: str = ""
    uid: str = ""
    kind: str = ""
    gpus: int = 0
    priority: int = 0
    priority_class: str = ""
    queue: str = ""
    pool: str = ""

    @property
    def key(self) -> str:
        """`namespace/job`."""
        return f"{self.namespace}/{self.job}" if self.namespace else self.job


@dataclass(frozen=True, slots=True)
class Stop:
    """How a gang's pods are stopping.

    Attributes:
        pods: those that still exist and have not ended.
        stopping: how many of them were told to end.
        sigterm_at, kill_at: the first SIGTERM and the last kill; before any pod was told, what to expect.
        grace_s: the longest grace of its pods.
        exact: whether the pods themselves say so.
        nodes: where they stand.
    """

    pods: int = 0
    stopping: int = 0
    sigterm_at: datetime | None = None
    kill_at: datetime | None = None
    grace_s: int = 0
    exact: bool = False
    nodes: tuple[str, ...] = ()


DEFAULT_GRACE_S = 30
"""Kubernetes' own where a pod says nothing."""


def stop_of(pods: Iterable[Json], evicted_at: datetime) -> Stop:
    """When the pods of an evicted gang got SIGTERM and are killed at the latest."""
    alive = [p for p in pods if (p.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
    if not alive:
        return Stop()
    graces = [_grace(p) for p in alive]
    kills: list[datetime] = []
    terms: list[datetime] = []
    for pod, grace in zip(alive, graces, strict=True):
        # The deletion's time is when the grace ends: the request was that much earlier.
        kill = moment(pod["metadata"].get("deletionTimestamp"))
        if kill is not None:
            kills.append(kill)
            terms.append(kill - timedelta(seconds=grace))
    nodes = tuple(sorted({str(p["spec"]["nodeName"]) for p in alive if p["spec"].get("nodeName")}))
    grace_s = max(graces)
    if not kills:
        return Stop(len(alive), 0, evicted_at, evicted_at + timedelta(seconds=grace_s), grace_s, False, nodes)
    return Stop(len(alive), len(kills), min(terms), max(kills), grace_s, len(kills) == len(alive), nodes)


def _grace(pod: Json) -> int:
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    grace = metadata.get("deletionGracePeriodSeconds")
    if grace is None:
        grace = spec.get("terminationGracePeriodSeconds")
    return DEFAULT_GRACE_S if grace is None else int(grace)


@dataclass(frozen=True, slots=True)
class Eviction:
    """One eviction with everything that its notice says: the first fact of a record, never changed.

    Times are RFC 3339 in UTC, "" where not known.

    Attributes:
        id: see `record_id`.
        at, reason, policy, message: as Kueue says.
        seen_at: when the extension saw it.
        victim, preemptor: None = nobody took the place.
        pods: pods of the victim that had not ended; 0: nothing had started or all had ended.
        started_at: of this run.
        sigterm_at, kill_at, grace_s, exact: see `Stop`.
        last_checkpoint, interval_s: as the job reported.
        at_risk_s: seconds of all GPUs that a kill without saving would lose.
        position, eta_s, eta_low_s, eta_high_s: its place afterwards; None where not known.
        count: how many evictions of this job are known, this one included.
        borrowed, reclaimed: GPUs that its queue had borrowed, and how many of them the preemptor takes.
        gpu_name: what its GPUs are called.
        shielded: it was protected when it was evicted.
        late: told afterwards: nobody looked when it happened.
        targets: names of notify targets it goes to.
    """

    id: str
    at: str
    reason: str
    victim: Party
    policy: str = ""
    message: str = ""
    seen_at: str = ""
    preemptor: Party | None = None
    pods: int = 0
    nodes: tuple[str, ...] = ()
    started_at: str = ""
    sigterm_at: str = ""
    kill_at: str = ""
    grace_s: int = 0
    exact: bool = False
    last_checkpoint: str = ""
    interval_s: float | None = None
    at_risk_s: float = 0.0
    position: int | None = None
    eta_s: float | None = None
    eta_low_s: float | None = None
    eta_high_s: float | None = None
    count: int = 1
    borrowed: int = 0
    reclaimed: int = 0
    gpu_name: str = "GPUs"
    shielded: bool = False
    late: bool = False
    targets: tuple[str, ...] = ()
    cluster: str = ""

    @property
    def at_risk_gpu_h(self) -> float:
        """GPU-hours that a kill without saving would lose."""
        return self.victim.gpus * self.at_risk_s / 3600.0

    @property
    def is_preemption(self) -> bool:
        """Whether somebody else took the place."""
        return self.reason == "Preempted" or bool(self.policy)

    def as_dict(self) -> Json:
        """A JSON-able mapping without empty fields (the message is always there)."""
        body = {k: v for k, v in asdict(self).items() if k == "message" or v not in (None, "", (), [], {}, False)}
        body["at_risk_gpu_h"] = round(self.at_risk_gpu_h, 3)
        return body

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Eviction:
        """Read back; fields of a newer version are left out. Raises KeyError, TypeError where it is no eviction."""
        known = {f.name for f in fields(cls)}
        values = {k: v for k, v in body.items() if k in known}
        for name in ("victim", "preemptor"):
            if values.get(name) is not None:
                party = {f.name for f in fields(Party)}
                values[name] = Party(**{k: v for k, v in values[name].items() if k in party})
        for name in ("nodes", "targets"):
            values[name] = tuple(values.get(name) or ())
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job that was evicted (volcano#394, jobset#1117): told by the Workload, not by exit codes."""

    kind: Literal["running", "preempted", "evicted", "finished", "failed", "waiting"]
    sentence: str = ""
    exit_zero: tuple[str, ...] = field(default=())


def moment(text: str | None) -> datetime | None:
    """An aware time of a Kubernetes timestamp; None for an empty or unreadable one."""
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def stamp(at: datetime | None) -> str:
    """RFC 3339 in UTC to the second; "" for None."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if at else ""


def classify(workload: Json, pods: Sequence[Json] = ()) -> Outcome:
    """How a job stands, by its Workload's conditions. Pods that exit 0 after SIGTERM made no success of it."""
    conditions = {c["type"]: c for c in (workload.get("status") or {}).get("conditions") or []}
    cause = cause_of(workload)
    finished = conditions.get("Finished") or {}
    if finished.get("status") == "True":
        ok = finished.get("reason") != "Failed"
        return Outcome("finished" if ok else "failed", str(finished.get("message") or ""))
    if cause and not cause.past:
        zero = tuple(sorted(p["metadata"]["name"] for p in pods if _ended_zero_after_sigterm(p)))
        words = ""
        if zero:
            words = (
                f"{', '.join(zero[:4])}{f' and {len(zero) - 4} more' if len(zero) > 4 else ''} exited 0 after SIGTERM: "
                "Kubernetes counts that as work done and will not run it again; save, then exit with another code "
                "(143 is usual)"
            )
        return Outcome("preempted" if cause.is_preemption else "evicted", words, zero)
    if (conditions.get("Admitted") or {}).get("status") == "True":
        return Outcome("running")
    return Outcome("waiting")


def _ended_zero_after_sigterm(pod: Json) -> bool:
    if not pod["metadata"].get("deletionTimestamp"):
        return False
    states = (pod.get("status") or {}).get("containerStatuses") or []
    ended = [(s.get("state") or {}).get("terminated") for s in states]
    return bool(ended) and all(e is not None and int(e.get("exitCode") or 0) == 0 for e in ended)
