"""How well jobs use what they hold: idle holders, and what slows a job that runs. Pure over measured figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from myriad.kube.kinds import PODS
from myriad.scheduler.cache import Cache
from myriad.scheduler.model import Gang, Plan, gpus_words, is_gpu_resource, place
from myriad.scheduler.objects import owner_of, pod_is_terminal, pod_requests
from myriad.scheduler.placement import plan, tier_of_assignment, tiers
from myriad.scheduler.words import duration

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Usage:
    """How busy GPUs were.

    Attributes:
        window_s: over how long.
        percent: by node, the mean of its GPUs' utilisation over the window.
        source: who measured.
    """

    window_s: float
    percent: Mapping[str, float] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True, slots=True)
class IdleHolder:
    """A job that holds GPUs and does not use them."""

    job: str
    gpus: int
    percent: float
    idle_gpu_hours: float
    sentence: str
    next: str
    owner: Mapping[str, str] = field(default_factory=dict)


def idle_holders(cache: Cache, usage: Usage, *, threshold_percent: float, after_s: float) -> list[IdleHolder]:
    """Jobs whose nodes' GPUs all stayed below the threshold for the whole window.

    Judged by node: a node that it shares with a busy job says nothing about it, so such a job is left out.
    """
    if usage.window_s < after_s:
        return []
    by_job: dict[str, dict[str, int]] = {}
    on_node: dict[str, set[str]] = {}
    teams: dict[str, str] = {}
    for pod in cache.listing(PODS):
        node = (pod.get("spec") or {}).get("nodeName")
        if not node or pod_is_terminal(pod):
            continue
        gpus = sum(n for r, n in pod_requests(pod["spec"]).items() if is_gpu_resource(r))
        if not gpus:
            continue
        job = owner_of(pod)
        by_job.setdefault(job, {})[node] = by_job.get(job, {}).get(node, 0) + gpus
        on_node.setdefault(node, set()).add(job)
        teams[job] = cache.policy().team_of(pod["metadata"]["namespace"]) or pod["metadata"]["namespace"]
    owners = {f"{v.gang.namespace}/{v.gang.name}": v for v in cache.views()}
    found = []
    for job, nodes in by_job.items():
        known = [usage.percent[n] for n in nodes if n in usage.percent]
        alone = all(on_node[n] == {job} for n in nodes)
        if len(known) < len(nodes) or max(known) >= threshold_percent or not alone:
            continue
        gpus = sum(nodes.values())
        cost = gpus * usage.window_s / 3600
        view = owners.get(job)
        owner = {**view.job, "namespace": view.gang.namespace} if view is not None and view.job else {}
        found.append(
            IdleHolder(
                job,
                gpus,
                max(known),
                cost,
                f"holds {gpus_words(gpus)} of {teams[job]} and uses {max(known):.0f} % at most for "
                f"{duration(usage.window_s)}: {cost:.0f} GPU-hours idle so far",
                f"ask its owner; kubectl -n {job.partition('/')[0]} logs job/{job.partition('/')[2]}",
                owner,
            )
        )
    return sorted(found, key=lambda h: (-h.idle_gpu_hours, h.job))


# Advice

Verdict = Literal["spread", "data_starved", "communication", "small_kernels", "well_used", "idle", "unknown"]


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of one job, as means over a window; None = not measured.

    Attributes:
        gpu_percent: time during which the GPUs computed.
        sm_occupancy_percent: share of the SMs that had work.
        memory_percent: time during which the GPUs' memory was read or written.
        communication_percent: share of a step spent in collectives.
        loader_s, step_s: time a step waits for its data, and the whole step.
    """

    gpu_percent: float | None = None
    sm_occupancy_percent: float | None = None
    memory_percent: float | None = None
    communication_percent: float | None = None
    loader_s: float | None = None
    step_s: float | None = None


@dataclass(frozen=True, slots=True)
class UseAdvice:
    """What holds a job back, and the line to run next."""

    verdict: Verdict
    sentence: str
    next: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)


_BUSY = 70.0
_LOADER_SHARE = 0.2
_COMMUNICATION = 30.0
_OCCUPANCY = 30.0
_IDLE = 5.0


def advise(
    measured: Measured, *, levels: Sequence[str], tier: str = "", best_tier: str = "", where: Sequence[str] = ()
) -> UseAdvice:
    """What holds a job back, from what was measured and from where it stands.

    The loader is judged first: a GPU that waits for its data looks idle from everywhere else. A job is called spread
    only where collectives take long *and* it stands wider than it had to: the same share inside one rack is the
    model's own.

    Args:
        measured: means over a window.
        levels: topology levels, broadest first.
        tier: the narrowest tier that holds the job now; best_tier: the narrowest that could.
        where: the place of that tier.
    """
    m = measured
    numbers = {
        k: v
        for k, v in (
            ("gpu_percent", m.gpu_percent), ("communication_percent", m.communication_percent),
            ("sm_occupancy_percent", m.sm_occupancy_percent), ("memory_percent", m.memory_percent),
        )
        if v is not None
    }  # fmt: skip
    busy = f"its GPUs compute {m.gpu_percent:.0f} % of the time" if m.gpu_percent is not None else "it is slow"
    if m.loader_s is not None and m.step_s and m.loader_s / m.step_s >= _LOADER_SHARE:
        share = 100 * m.loader_s / m.step_s
        return UseAdvice(
            "data_starved",
            f"{busy}; {share:.0f} % of a step ({m.loader_s:.2g} of {m.step_s:.2g} s) it waits for data: more loader "
            "workers, data on local disks, or larger shards",
            "nsys profile --trace=cuda,nvtx,osrt --duration=60 -o loader python train.py   # gaps before each step",
            {**numbers, "loader_share_percent": round(share, 1)},
        )
    order = tiers(levels)
    wider = tier in order and best_tier in order and order.index(tier) > order.index(best_tier)
    if m.communication_percent is not None and m.communication_percent >= _COMMUNICATION:
        words = f"{m.communication_percent:.0f} % of a step is communication"
        if wider:
            at = f" ({place(where)})" if where else ""
            return UseAdvice(
                "spread",
                f"{busy}; {words}, and it stands across a {tier}{at} where one {best_tier} could hold it: "
                f"ask for podset-required-topology {best_tier}, or wait for room",
                "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=GRAPH,NET python train.py   # which links its rings take",
                {**numbers, "tier": tier, "best_tier": best_tier},
            )
        return UseAdvice(
            "communication",
            f"{busy}; {words} although it stands as near as it can: overlap collectives with computing, larger "
            "buckets, or gradient accumulation",
            "nsys profile --trace=cuda,nvtx --gpu-metrics-devices=all --duration=60 -o comm python train.py",
            {**numbers, "tier": tier},
        )
    if m.gpu_percent is None:
        return UseAdvice("unknown", "nothing is measured of it: no Prometheus is configured, or the agent does not run")
    if m.gpu_percent < _IDLE:
        return UseAdvice("idle", f"{busy}: it holds them and does not use them", "look at its logs", numbers)
    low = m.sm_occupancy_percent is not None and m.sm_occupancy_percent < _OCCUPANCY
    if low and m.gpu_percent >= _BUSY:
        memory = f", memory is busy {m.memory_percent:.0f} %" if m.memory_percent is not None else ""
        return UseAdvice(
            "small_kernels",
            f"{busy}, but fill {m.sm_occupancy_percent:.0f} % of the SMs{memory}: larger batches, fused kernels or "
            "torch.compile",
            "ncu --set full --launch-skip 200 --launch-count 20 -o kernels python train.py",
            numbers,
        )
    if m.gpu_percent >= _BUSY:
        return UseAdvice("well_used", busy, "", numbers)
    asked = (
        "communication share and loader time are not measured" if m.loader_s is None else "no single cause stands out"
    )
    return UseAdvice(
        "unknown",
        f"{busy}; {asked}",
        "nsys profile --trace=cuda,nvtx,osrt --duration=60 -o step python train.py",
        numbers,
    )


@dataclass(frozen=True, slots=True)
class Standing:
    """A job that runs.

    Attributes:
        gang: what it asked for.
        pods: its pods that hold GPUs, by name, and the node of each.
    """

    gang: Gang
    pods: Mapping[str, str]

    @property
    def nodes(self) -> dict[str, int]:
        """Pods by node."""
        return dict(Counter(self.pods.values()))


def standing(cache: Cache, job: str) -> Standing | None:
    """A job's pods; None where no job of that name runs, or several do.

    Args:
        cache: the cluster.
        job: `namespace/name`, or the name alone.
    """
    views = [
        view
        for view in cache.views()
        if view.admitted and not view.finished and job in (view.gang.name, f"{view.gang.namespace}/{view.gang.name}")
    ]
    if len(views) != 1:
        return None
    gang = views[0].gang
    pods = {
        pod["metadata"]["name"]: pod["spec"]["nodeName"]
        for pod in cache.listing(PODS)
        if (pod.get("spec") or {}).get("nodeName")
        and not pod_is_terminal(pod)
        and owner_of(pod) == f"{gang.namespace}/{gang.name}"
        and any(is_gpu_resource(resource) for resource in pod_requests(pod["spec"]))
    }
    return Standing(gang, pods) if pods else None


def advise_job(cache: Cache, job: Standing, measured: Measured) -> UseAdvice:
    """`advise` with the tiers taken from where the job's pods stand and from what an empty cluster could give it."""
    snapshot = cache.snapshot()
    tier, domain = tier_of_assignment(snapshot, job.nodes)
    best = plan(snapshot.pristine(), job.gang)
    best_tier = best.tier if isinstance(best, Plan) else tier
    return advise(measured, levels=snapshot.levels, tier=tier, best_tier=best_tier, where=domain)
