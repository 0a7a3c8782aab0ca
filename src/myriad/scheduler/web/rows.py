"""What the page and the API show, as rows with a key: totals, quotas, jobs, nodes. Pure.

Rows hold times instead of ages, so that a row changes only when something happened: the stream sends what changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from myriad.scheduler.cache import Cache
from myriad.scheduler.model import RESERVED_TAINT, UNHEALTHY_TAINT, NodeInfo, is_gpu_resource, place
from myriad.scheduler.snapshot import EXPECTED_LABEL
from myriad.scheduler.web.auth import Scope
from myriad.scheduler.web.scope import OTHERS, THEIR_JOB

Json = dict[str, Any]

NODE_STATES = {
    "ok": "takes work",
    "reserved": "reserved for a gang that has waited too long",
    "cordoned": "cordoned",
    "gate_closed": "gate closed",
    "unhealthy": "unhealthy",
    "not_ready": "NotReady",
}
"""Node states in words, the mildest first."""

_AGES = ("waiting_s", "eta", "evaluation")
"""What changes with the clock alone; `starts` and `looked_at` of a job say the same in times."""
_COUNTS = ("nominal_gpus", "used_gpus", "borrowed_gpus")


def reduced(report: Sequence[Json], scope: Scope) -> tuple[list[Json], Json]:
    """A queue report as a caller may see it, and the totals of the rest.

    Args:
        report: of a cache that was made for the scope: queues of others are there without names.
        scope: what may be seen.

    Returns:
        The caller's queues, each with `waiting_of_others` and `running_of_others` (jobs without names), and
        {"queues", "nominal_gpus", "used_gpus", "borrowed_gpus", "waiting", "running"} of all other queues.
    """
    mine: list[Json] = []
    others: Json = {"queues": 0, **dict.fromkeys(_COUNTS, 0), "waiting": 0, "running": 0}
    for entry in report:
        if not scope.everything and entry.get("team") == OTHERS:
            others["queues"] += 1
            for name in _COUNTS:
                others[name] += entry[name]
            others["waiting"] += len(entry["waiting"])
            others["running"] += len(entry["running"])
            continue
        waiting = [j for j in entry["waiting"] if j["namespace"] != OTHERS]
        running = [j for j in entry["running"] if j["namespace"] != OTHERS]
        mine.append(
            {
                **entry,
                "waiting": waiting,
                "running": running,
                "waiting_of_others": len(entry["waiting"]) - len(waiting),
                "running_of_others": len(entry["running"]) - len(running),
            }
        )
    return mine, others


def quota_rows(report: Iterable[Json]) -> dict[str, Json]:
    """One row a ClusterQueue, with counts instead of jobs."""
    return {
        entry["cluster_queue"]: {k: v for k, v in entry.items() if k not in ("waiting", "running")}
        | {
            "waiting": len(entry["waiting"]) + entry.get("waiting_of_others", 0),
            "running": len(entry["running"]) + entry.get("running_of_others", 0),
        }
        for entry in report
    }


def job_rows(cache: Cache, report: Iterable[Json]) -> dict[str, Json]:
    """One row a job that waits or holds quota, those that wait first, in the order of their queues."""
    created = {(v.gang.namespace, v.gang.name): v.created for v in cache.views()}
    found: dict[str, Json] = {}
    for entry in report:
        where = {"cluster_queue": entry["cluster_queue"], "team": entry["team"], "pool": entry["pool"]}
        for job in entry["waiting"]:
            row = {k: v for k, v in job.items() if k not in _AGES}
            row |= {**where, "phase": "waiting", "since": created.get((job["namespace"], job["job"]), "")}
            found[f"{job['namespace']}/{job['job']}"] = row
    for entry in report:
        where = {"cluster_queue": entry["cluster_queue"], "team": entry["team"], "pool": entry["pool"]}
        for job in entry["running"]:
            row = {k: v for k, v in job.items() if k != "nodes"}
            nodes = list(job["nodes"])
            row |= {
                **where,
                "phase": "running" if job["admitted"] else "starting",
                "since": created.get((job["namespace"], job["job"]), ""),
                "nodes": nodes[:8],
                "nodes_total": len(nodes),
            }
            found[f"{job['namespace']}/{job['job']}"] = row
    return found


def node_state(node: NodeInfo) -> str:
    """The worst that holds of a node; a key of NODE_STATES."""
    keys = {t.key for t in node.taints}
    if not node.ready:
        return "not_ready"
    if UNHEALTHY_TAINT in keys:
        return "unhealthy"
    if node.gate_closed:
        return "gate_closed"
    if node.cordoned:
        return "cordoned"
    return "reserved" if RESERVED_TAINT in keys else "ok"


def node_rows(cache: Cache) -> dict[str, Json]:
    """One row a GPU node, in the order of places.

    `gpus` = the larger of expected and allocatable; of them `used` (of those, `terminating` still hold what a stopping
    pod had) and `missing` (expected, not allocatable). `jobs` = GPUs by owner, `namespace/job`.
    """
    snapshot = cache.snapshot()
    jobs: dict[str, dict[str, int]] = {}
    terminating: dict[str, int] = {}
    for use in snapshot.pods():
        gpus = sum(amount for name, amount in use.requests.items() if is_gpu_resource(name))
        if not gpus:
            continue
        on_node = jobs.setdefault(use.node, {})
        on_node[use.owner] = on_node.get(use.owner, 0) + gpus
        if use.terminating:
            terminating[use.node] = terminating.get(use.node, 0) + gpus
    found: dict[str, Json] = {}
    for i, node in enumerate(snapshot.nodes):
        names = [name for name in node.allocatable if is_gpu_resource(name)]
        allocatable = sum(node.allocatable[name] for name in names)
        text = node.labels.get(EXPECTED_LABEL, "")
        expected = int(text) if text.isdigit() and len(text) < 4 else allocatable
        if not node.pool and not allocatable:
            continue
        found[node.name] = {
            "pool": node.pool,
            "path": [p.rpartition(".")[2] for p in node.location],
            "place": place(node.location),
            "state": node_state(node),
            "reason": node.gate_reason or (f"cordoned by {node.cordoned_by}" if node.cordoned_by else ""),
            "gpus": max(expected, allocatable),
            "used": sum(int(snapshot.used[snapshot.row[name], i]) for name in names),
            "terminating": terminating.get(node.name, 0),
            "missing": max(0, expected - allocatable),
            "jobs": jobs.get(node.name, {}),
        }
    return found


def map_totals(nodes: Mapping[str, Json]) -> Json:
    """Nodes by state and GPUs by state, of the rows of `node_rows`."""
    states = dict.fromkeys(NODE_STATES, 0)
    gpus = {"total": 0, "used": 0, "terminating": 0, "missing": 0, "free": 0, "held_back": 0}
    for row in nodes.values():
        states[row["state"]] += 1
        free = max(0, row["gpus"] - row["used"] - row["missing"])
        gpus["total"] += row["gpus"]
        gpus["used"] += row["used"] - row["terminating"]
        gpus["terminating"] += row["terminating"]
        gpus["missing"] += row["missing"]
        gpus["free" if row["state"] == "ok" else "held_back"] += free
    return {"nodes": states, "gpus": gpus}


def preemption_rows(evictions: Iterable[Json], scope: Scope) -> list[Json]:
    """Evictions of jobs that the caller may see; whoever took the place has a name only for those who may see it."""
    found = []
    for eviction in evictions:
        victim, preemptor = eviction["victim"], eviction.get("preemptor")
        if not scope.sees(victim["namespace"]):
            continue
        if preemptor and not scope.sees(preemptor["namespace"]):
            preemptor = {"namespace": OTHERS, "job": THEIR_JOB, "gpus": preemptor.get("gpus", 0)}
        found.append(
            {**eviction, "preemptor": preemptor, "message": "" if not scope.everything else eviction["message"]}
        )
    return found


_CONDITIONS = {
    "QuotaReserved": ("quota reserved", "quota lost"),
    "Admitted": ("admitted", "no longer admitted"),
    "PodsReady": ("all pods ready", "pods not ready"),
    "Evicted": ("evicted", ""),
    "Preempted": ("preempted", ""),
    "Requeued": ("queued again", ""),
    "Finished": ("finished", ""),
}


def timeline(workload: Json | None, records: Iterable[Json]) -> list[Json]:
    """What happened to a job, oldest first: {"time", "what", "detail"} of its Workload and of the decision records."""
    found: list[Json] = []
    if workload:
        found.append({"time": workload["metadata"].get("creationTimestamp") or "", "what": "queued", "detail": ""})
        for condition in (workload.get("status") or {}).get("conditions") or []:
            words = _CONDITIONS.get(condition["type"], ("", ""))
            what = words[0] if condition["status"] == "True" else words[1]
            if what:
                detail = " ".join(str(condition.get("message") or "").split())
                found.append({"time": condition.get("lastTransitionTime") or "", "what": what, "detail": detail})
    for record in records:
        detail = str(record.get("reason") or "/".join(record.get("domain") or ()))
        found.append({"time": record["time"], "what": str(record["event"]), "detail": detail})
    return sorted(found, key=lambda entry: str(entry["time"]))
