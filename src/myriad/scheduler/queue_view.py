"""The queues as whoever waits in them wants to see them: place, who is ahead, when, and whether anybody looked. Pure.

`inquiry.queue_report` says who waits and why; this adds to each waiting job

- `ahead`: jobs, pods and GPUs in front of it in its queue, and the nearest of them by name;
- `eta`: when it may start (see `myriad.scheduler.eta`), None where nobody can say;
- `evaluation`: refused (Kueue looked and said no), not_reached (nobody has looked since it came or changed), held (its
  queue takes nothing) or unexplained (it fits, was looked at or should have been, and still waits);
- `starts`, `looked_at`: the estimate and the kind of evaluation without anything that changes with the clock;
- `overtaken_by`: jobs of its queue that came later and hold quota; `starving` where that has gone on for too long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from myriad.kube.kinds import CLUSTER_QUEUES, WORKLOADS
from myriad.scheduler.cache import Cache
from myriad.scheduler.eta import published
from myriad.scheduler.eta.estimate import History, estimate
from myriad.scheduler.eta.live import held_back, history_of, pool_states
from myriad.scheduler.eta.model import HORIZON_S, Eta
from myriad.scheduler.facts import Eta as Told
from myriad.scheduler.inquiry import queue_report as plain_report
from myriad.scheduler.model import is_gpu_resource
from myriad.scheduler.objects import REFUSED_ANNOTATION, WorkloadView, seconds_since
from myriad.scheduler.words import duration

Json = dict[str, Any]
Looked = Literal["not_reached", "refused", "held", "unexplained"]

SILENCE_S = 120.0
"""A job that fits and that nobody has spoken of for so long is a fault of the system, not of the job (kueue#2391)."""
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Whether Kueue has looked at a waiting job. `since`: RFC 3339, of the last word or of its submission."""

    kind: Looked
    since: str
    sentence: str
    alarm: bool = False

    def as_dict(self) -> Json:
        """For `--json`."""
        return {"kind": self.kind, "since": self.since, "sentence": self.sentence, "alarm": self.alarm}


def evaluation_of(cache: Cache, view: WorkloadView, *, now: datetime, state: str = "") -> Evaluation:
    """What is known of Kueue's own look at a waiting job.

    Args:
        cache: the cluster.
        view: the job.
        now: the time.
        state: `explain.State` of the answer, where there is one: "fits" makes silence a fault.
    """
    body = cache.object(WORKLOADS, view.key) or {}
    conditions = {c["type"]: c for c in (body.get("status") or {}).get("conditions") or []}
    stopped = held_back(cache, view)
    if stopped:
        return Evaluation("held", view.created, stopped)
    quota = conditions.get("QuotaReserved")
    generation = int((body.get("metadata") or {}).get("generation") or 0)
    seen = int((quota or {}).get("observedGeneration") or generation)
    if quota is None or seen < generation:
        since = view.created if quota is None else str(quota.get("lastTransitionTime") or view.created)
        silent = seconds_since(since, now)
        what = "since it came" if quota is None else "since it was changed"
        text = f"not yet reached: Kueue has not looked at it {what}, {duration(silent)} ago"
        head = _blocking_head(cache, view)
        if head:
            text += f"; the queue is StrictFIFO and {head} stands in front"
        return Evaluation(
            "not_reached", since, text, alarm=silent > SILENCE_S and not head and state in ("", "fits", "not_reached")
        )
    since = str(quota.get("lastTransitionTime") or view.created)
    message = " ".join(str(quota.get("message") or "").split()).rstrip(".")
    silent = seconds_since(since, now)
    if state == "fits" and silent > SILENCE_S:
        said = f"; it said: {message}" if message else ""
        text = f"it fits, and Kueue has not admitted it for {duration(silent)}{said}"
        return Evaluation("unexplained", since, text, alarm=True)
    text = f"looked at and refused ({duration(silent)} ago for the first time)" + (f": {message}" if message else "")
    return Evaluation("refused", since, text)


def _blocking_head(cache: Cache, view: WorkloadView) -> str:
    """The job that holds up a StrictFIFO queue in front of this one; empty where none does."""
    name = cache.cluster_queue_of(view)
    queue = cache.object(CLUSTER_QUEUES, name) or {}
    line = cache.waiting().get(name, [])
    if (queue.get("spec") or {}).get("queueingStrategy") != "StrictFIFO" or not line or line[0].key == view.key:
        return ""
    return f"{line[0].gang.namespace}/{line[0].gang.name}"


def etas_of(cache: Cache, *, now: datetime, history: History | None = None) -> dict[str, Eta]:
    """Estimates by uid: what the extension has put on the Workloads, and our own for whoever has none that is fresh.

    Without a history only the Workloads that are still there are known.
    """
    found = published_etas(cache, now=now)
    lacking = any(view.gang.uid not in found for views in cache.waiting().values() for view in views)
    if lacking:
        past = history or history_of(cache)
        for state in pool_states(cache, now=now, policy=cache.policy()).values():
            for uid, eta in estimate(state, past, now=now.timestamp()).items():
                found.setdefault(uid, eta)
    return found


def published_etas(cache: Cache, *, now: datetime) -> dict[str, Eta]:
    """Estimates by uid that stand on the Workloads: what the extension has told. Cheap."""
    at = now.timestamp()
    found = {}
    for views in cache.waiting().values():
        for view in views:
            known = published.read(cache.object(WORKLOADS, view.key))
            if known is not None and known.fresh(at):
                found[view.gang.uid] = known.eta(at)
    return found


def eta_of(cache: Cache, view: WorkloadView, *, now: datetime, etas: Mapping[str, Eta] | None = None) -> Told | None:
    """The estimate of one job as `myriad why` shows it; None where nobody can say.

    Args:
        cache: the cluster.
        view: the job.
        now: the time.
        etas: estimates at hand; without them the one on the Workload is read.
    """
    at = now.timestamp()
    eta = etas.get(view.gang.uid) if etas is not None else None
    if eta is None:
        known = published.read(cache.object(WORKLOADS, view.key))
        eta = known.eta(at) if known is not None and known.fresh(at) else None
    if eta is None or held_back(cache, view):
        return None
    basis = basis_words(eta)
    if eta.mid_s is None:
        return Told(HORIZON_S, HORIZON_S if eta.low_s is None else eta.low_s, HORIZON_S, f"or later; {basis}")
    if eta.high_s is None:
        return Told(eta.mid_s, eta.low_s or 0.0, HORIZON_S, f"or later; {basis}")
    return Told(eta.mid_s, eta.low_s or 0.0, eta.high_s, basis)


def basis_words(eta: Eta) -> str:
    """What an estimate rests on, and how far its likes were true."""
    if eta.held is not None:
        return f"{eta.held:.0%} of such estimates held last month; {eta.basis}".replace("%", " %", 1)
    return f"not yet judged; {eta.basis}"


def eta_words(eta: Eta | None) -> str:
    """`2 h 10 min (1 h 30 min to 4 h)`, for a table."""
    if eta is None:
        return "nobody can say"
    weeks = duration(HORIZON_S)
    high = f"more than {weeks}" if eta.high_s is None else duration(eta.high_s)
    if eta.mid_s is None:
        return f"more than {weeks}" if eta.low_s is None else f"{duration(eta.low_s)} or much later"
    low, mid = duration(eta.low_s or 0.0), duration(eta.mid_s)
    return mid if low == mid == high else f"{mid} ({low} to {high})"


def queue_report(
    cache: Cache, team: str = "", *, now: datetime | None = None, etas: Mapping[str, Eta] | None = None
) -> list[Json]:
    """`inquiry.queue_report` with the module's additions. `etas`: estimates by uid; made here where not given."""
    now = now or datetime.now(UTC)
    report = plain_report(cache, team, now=now)
    if etas is None:
        etas = etas_of(cache, now=now) if any(entry["waiting"] for entry in report) else {}
    after_s = float(cache.policy().protection.after_s)
    waiting = cache.waiting()
    began = _admissions(cache)
    for entry in report:
        views = waiting.get(entry["cluster_queue"], [])
        gpus = pods = 0
        for i, (job, view) in enumerate(zip(entry["waiting"], views, strict=True)):
            eta = None if job.get("state") == "never" else etas.get(view.gang.uid)
            job["queue"] = view.local_queue
            job["pods"] = view.gang.pods
            job["ahead"] = {
                "jobs": i,
                "pods": pods,
                "gpus": gpus,
                "nearest": [_named(v, k + 1) for k, v in enumerate(views[:i])][-_NAMED:],
            }
            job["eta"] = eta.as_dict() if eta is not None else None
            evaluation = evaluation_of(cache, view, now=now, state=job.get("state") or "")
            job["evaluation"] = evaluation.as_dict()
            job["looked_at"] = evaluation.kind
            job["starts"] = starts_at(eta, now)
            job["overtaken_by"] = sum(created > view.created for created in began.get(entry["cluster_queue"], ()))
            job["starving"] = bool(job["overtaken_by"]) and job["waiting_s"] > after_s and job.get("state") != "never"
            gpus += view.gang.gpus
            pods += view.gang.pods
        entry["waiting_gpus"], entry["waiting_pods"] = gpus, pods
        entry["warnings"] = queue_warnings(cache.object(CLUSTER_QUEUES, entry["cluster_queue"]) or {}, views, now)
    return report


def starts_at(eta: Eta | None, now: datetime) -> Json | None:
    """An estimate as times, to the minute: it changes when the estimate does, not with the clock."""
    if eta is None:
        return None

    def time(seconds: float | None) -> str | None:
        return None if seconds is None else (now + timedelta(seconds=seconds)).isoformat(timespec="minutes")

    return {"low": time(eta.low_s), "mid": time(eta.mid_s), "high": time(eta.high_s)}


def _named(view: WorkloadView, position: int) -> Json:
    g = view.gang
    return {
        "position": position,
        "owner": g.team or g.namespace,
        "namespace": g.namespace,
        "job": g.name,
        "gpus": g.gpus,
        "pods": g.pods,
    }


def _admissions(cache: Cache) -> dict[str, list[str]]:
    """When those that hold quota were submitted, by ClusterQueue."""
    found: dict[str, list[str]] = {}
    for view in cache.views():
        if view.quota_reserved and not view.finished:
            found.setdefault(cache.cluster_queue_of(view), []).append(view.created)
    return found


def queue_warnings(queue: Json, views: Sequence[WorkloadView], now: datetime) -> list[str]:
    """What is wrong with a queue as a queue, beyond its single jobs."""
    found = []
    groups = (queue.get("spec") or {}).get("resourceGroups") or []
    flavors = {f["name"] for g in groups for f in g.get("flavors") or []}
    gives_gpus = any(is_gpu_resource(r) for g in groups for r in g.get("coveredResources") or [])
    without = [v for v in views if not v.gang.gpus]
    if gives_gpus and without:
        behind = next((i for i, v in enumerate(views) if not v.gang.gpus), 0)
        if behind:
            found.append(
                f"{len(without)} jobs without GPUs wait in a queue for GPUs, the first behind {behind} jobs: Kueue may "
                "not reach them while the GPUs are full; give them a ClusterQueue of their own"
            )
    if len(flavors) > 1 and views:
        found.append(
            f"one ClusterQueue for {len(flavors)} flavors ({', '.join(sorted(flavors))}): jobs for one wait behind "
            "jobs for another; a ClusterQueue for each pool keeps them apart"
        )
    untold = [v for v in views if not v.quota_message and seconds_since(v.created, now) > SILENCE_S]
    if len(untold) > 1 and len(untold) == len(views):
        found.append(
            f"Kueue has said nothing of any of the {len(views)} jobs for more than {duration(SILENCE_S)}: look at its "
            "pods (kubectl -n kueue-system get pods)"
        )
    return found


def positions(summary: Json) -> dict[tuple[str, str], int]:
    """Positions in the ClusterQueue from 1, by (namespace, Workload), of Kueue's visibility API."""
    found = {}
    for item in summary.get("items") or []:
        metadata = item.get("metadata") or {}
        place = int(item.get("positionInClusterQueue") or 0) + 1
        found[str(metadata.get("namespace") or ""), str(metadata.get("name") or "")] = place
    return found


def own_report(
    cache: Cache, namespace: str, *, now: datetime, places: Mapping[tuple[str, str], int], missing: Iterable[str]
) -> list[Json]:
    """The queues of one namespace for somebody who may see no more: own jobs, and of others what Kueue counts.

    Args:
        cache: filled with what the caller may read.
        namespace: the caller's.
        now: the time.
        places: of Kueue's visibility API, {} where it does not answer.
        missing: kinds that could not be read.
    """
    found: dict[str, Json] = {}
    own: dict[str, int] = {}
    views = [v for v in cache.views() if v.gang.namespace == namespace and not v.finished]
    for view in sorted(views, key=lambda v: (-v.gang.priority, v.created, v.gang.uid)):
        entry = found.setdefault(
            view.local_queue,
            {"local_queue": view.local_queue, "namespace": namespace, "running": [], "waiting": []},
        )
        body = cache.object(WORKLOADS, view.key)
        row: Json = {"namespace": namespace, "job": view.gang.name, "size": view.gang.size(), "gpus": view.gang.gpus}
        if view.quota_reserved:
            entry["running"].append(row | {"admitted": view.admitted, "nodes": view.nodes})
        elif view.waiting:
            known = published.read(body)
            eta = known.eta(now.timestamp()) if known is not None and known.fresh(now.timestamp()) else None
            own[view.local_queue] = own.get(view.local_queue, 0) + 1
            place = places.get((namespace, view.workload))
            row |= {
                "position": place,
                "position_among_own": own[view.local_queue],
                "waiting_s": round(seconds_since(view.created, now), 1),
                "eta": eta.as_dict() if eta is not None else None,
                "evaluation": evaluation_of(cache, view, now=now).as_dict(),
                "reason": _refused(body) or " ".join(view.quota_message.split()),
            }
            entry["waiting"].append(row)
    for entry in found.values():
        entry["not_readable"] = sorted(missing)
    return list(found.values())


def _refused(workload: Json | None) -> str:
    """The planner's refusal, which the extension writes on the Workload."""
    annotations = ((workload or {}).get("metadata") or {}).get("annotations") or {}
    return str(annotations.get(REFUSED_ANNOTATION) or "")
