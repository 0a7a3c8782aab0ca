"""Why a gang has no place: one sentence with numbers, judged by node and tier and never by a sum. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from myriad.scheduler.model import (
    CPU,
    DEFAULT_LEVELS,
    MEMORY,
    PODS,
    POOL_LABEL,
    Gang,
    NodeInfo,
    PlacementPolicy,
    Refusal,
    is_gpu_resource,
    level_label,
    place,
)
from myriad.scheduler.placement.packing import Demand, Packer, capacity, demands_of, located
from myriad.scheduler.placement.tiers import ranks, tiers
from myriad.scheduler.snapshot import BoolArray, IntArray, Snapshot

_NAMED = 6  # nodes that a sentence names before it only counts


# -- words -------------------------------------------------------------------------------------------------------


def gpu_noun(snapshot: Snapshot, mask: BoolArray) -> str:
    """``H100`` where all these nodes have one model (label myriad.dev/gpu-model, up to the first dash), else GPUs."""
    models = snapshot.label_values("myriad.dev/gpu-model", mask)
    return (models[0].split("-")[0] if len(models) == 1 else "") or "GPUs"


def gpu_name_of(snapshot: Snapshot, gang: Gang) -> str:
    """What to call the gang's GPUs: ``H100`` where every node it could use has that model, else ``GPUs``."""
    masks = [snapshot.label_mask(p, gang.pool) for p in gang.podsets if p.gpus]
    if not masks or not snapshot.nodes:
        return "GPUs"
    return gpu_noun(snapshot, np.logical_or.reduce(masks))


def pool_of(gang: Gang, demand: Demand) -> str:
    """The pool that a demand is bound to, or ""."""
    return gang.pool or demand.spec.node_selector.get(POOL_LABEL, "")


def amount_words(resource: str, amount: int) -> str:
    """An amount with its unit: ``16 GPUs``, ``73 CPUs``, ``512 GiB of memory``."""
    if resource == CPU:
        return f"{amount / 1000:g} {'CPU' if amount == 1000 else 'CPUs'}"
    if resource == MEMORY:
        return f"{amount / 2**30:.4g} GiB of memory"
    if resource == PODS:
        return f"{amount} free pod slots"
    if is_gpu_resource(resource) and "/mig-" not in resource:
        return f"{amount} {'GPU' if amount == 1 else 'GPUs'}"
    return f"{amount} {resource}"


def names_words(names: Sequence[str]) -> str:
    """Up to six node names, the rest counted."""
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"


def _whose(gang: Gang, demand: Demand) -> str:
    pool = pool_of(gang, demand)
    return f"no node of pool {pool}" if pool else "no node"


# -- never -------------------------------------------------------------------------------------------------------


def fits_ever(
    nodes: Snapshot | Iterable[NodeInfo],
    gang: Gang,
    *,
    levels: Sequence[str] = DEFAULT_LEVELS,
    policy: PlacementPolicy | None = None,
) -> Refusal | None:
    """None where the gang fits the cluster when it is empty and healthy; else a refusal of kind "never".

    Cordons, closed gates, NotReady, reservations and missing GPUs of a known node pass, so they do not count here. An
    elastic podset is judged by its smallest count. Where the bounded search could not prove it, the answer is None.
    """
    policy = policy or PlacementPolicy()
    snapshot = nodes if isinstance(nodes, Snapshot) else Snapshot.build(nodes, levels=levels)
    best = snapshot.pristine()
    if not best.nodes:
        return None  # nothing is known yet: an empty cache proves nothing
    rank_of = ranks(best.levels)
    demands = demands_of(best, gang, policy, tier_rank=rank_of, use_min_count=True)
    for d in demands:
        refusal = _never_one_pod(best, gang, d) or _never_count(best, gang, d, tiers(best.levels))
        if refusal:
            return refusal
    if len(demands) > 1:
        packer = Packer(best, demands, policy, None)
        if packer.pack(0, len(best.nodes), len(best.levels) + 1) is None and packer.complete:
            return Refusal(
                "never",
                f"{gang.size()} do not fit together even on an empty cluster, though each podset fits alone",
                numbers={"gpus": gang.gpus, "pods": gang.pods},
                unblocks=("ask for fewer or smaller pods",),
            )
    return None


def _never_one_pod(best: Snapshot, gang: Gang, d: Demand) -> Refusal | None:
    """A pod that no node can hold, whatever else runs."""
    selected = best.label_mask(d.spec, gang.pool)
    pool = pool_of(gang, d)
    label = f"podset {d.spec.name}: " if len(gang.podsets) > 1 else ""
    if not selected.any():
        return Refusal("never", label + _nothing_selected(best, gang, d), unblocks=("correct the selector",))
    if not d.mask.any() and (selected & best.tolerated(d.spec.tolerations)).any():
        names = [best.nodes[i].name for i in np.flatnonzero(selected)]
        levels = ", ".join(level_label(name) for name in best.levels)
        sentence = f"{label}every node that matches lacks a label of its place ({levels}): {names_words(names)}"
        return Refusal("never", sentence, unblocks=("give the nodes their location in the inventory",))
    if not d.mask.any():
        taints = sorted({str(t) for i in np.flatnonzero(selected) for t in best.nodes[i].taints})
        sentence = f"{label}every node that matches has a taint that the job does not tolerate: {names_words(taints)}"
        return Refusal("never", sentence, unblocks=("add the toleration to the job",))
    free = best.free
    if capacity(d, free, d.mask).any():
        return None
    for resource, asked in sorted(d.spec.requests.items(), key=lambda ra: not is_gpu_resource(ra[0])):
        most = max(0, int(best.amounts(free, resource)[d.mask].max()))
        if asked > most:
            what = amount_words(resource, asked)
            numbers: dict[str, Any] = {"resource": resource, "asked_per_pod": asked, "largest_node": most}
            if not most:
                return Refusal("never", f"{label}{_whose(gang, d)} has any {resource}", numbers)
            largest = amount_words(resource, most).split(" ")[0]
            sentence = f"{label}{_whose(gang, d)} has {what} ({largest} at most)"
            if is_gpu_resource(resource):
                return Refusal("never", f"{sentence}; split it into pods of {most} or fewer", numbers)
            return Refusal("never", f"{sentence}; ask for {amount_words(resource, most)} or less a pod", numbers)
    asked_all = " and ".join(amount_words(r, a) for r, a in sorted(d.spec.requests.items()) if a)
    where = f" of pool {pool}" if pool else ""
    return Refusal("never", f"{label}no single node{where} has {asked_all} together, though each is to be had alone")


def _nothing_selected(best: Snapshot, gang: Gang, d: Demand) -> str:
    bare = replace(d.spec, node_selector={}, affinity=())
    if gang.pool and not best.label_mask(bare, gang.pool).any():
        return f"no node belongs to pool {gang.pool}"
    for key, value in sorted(d.spec.node_selector.items()):
        if not best.label_mask(replace(bare, node_selector={key: value}), gang.pool).any():
            return f"{_whose(gang, d)} has the label {key}={value}"
    if d.spec.affinity and not best.label_mask(replace(bare, affinity=d.spec.affinity), gang.pool).any():
        return f"{_whose(gang, d)} satisfies the job's node affinity"
    return f"{_whose(gang, d)} satisfies selector and affinity together"


def _never_count(best: Snapshot, gang: Gang, d: Demand, names: Sequence[str]) -> Refusal | None:
    """More pods than the empty cluster, or the largest domain of a required level, can hold."""
    cap = capacity(d, best.free, d.mask)
    noun = gpu_noun(best, d.mask)
    pool = pool_of(gang, d)
    label = f"podset {d.spec.name}: " if len(gang.podsets) > 1 else ""
    if d.limit < len(names) - 1:
        tier = names[d.limit]
        largest, path = _largest(best, cap, d.limit)
        if largest < d.count:
            numbers = {"pods": d.count, "largest_pods": largest, "tier": tier, "domain": place(path)}
            if d.gpus:
                sentence = f"needs {d.count * d.gpus} {noun} in one {tier}; the largest {tier} has {largest * d.gpus}"
            else:
                sentence = f"needs room for {d.count} pods in one {tier}; the largest {tier} holds {largest}"
            return Refusal("never", label + sentence, numbers, ("ask for a broader level or fewer pods",))
    total = int(_uncapped(d, best.free, d.mask).sum())
    if total < d.count:
        where = f"pool {pool}" if pool else "the cluster"
        numbers = {"pods": d.count, "largest_pods": total, "tier": "cluster"}
        if d.gpus:
            asked = f"{d.count} x {d.gpus} = {d.count * d.gpus} {noun}"
            sentence = f"needs {asked}; {where} can hold {total * d.gpus} of them in pods of {d.gpus}"
        else:
            sentence = f"needs room for {d.count} pods; {where} holds {total} of this size"
        return Refusal("never", label + sentence, numbers, ("ask for fewer pods",))
    return None


def _uncapped(d: Demand, free: IntArray, mask: BoolArray) -> IntArray:
    return capacity(replace(d, count=2**40), free, mask)


def _largest(snapshot: Snapshot, cap: IntArray, rank: int) -> tuple[int, tuple[str, ...]]:
    """The most pods that one domain of a rank holds, and its path."""
    if not len(cap):
        return 0, ()
    if rank == 0:
        i = int(np.argmax(cap))
        return int(cap[i]), snapshot.group_path("node", i)
    if rank > len(snapshot.levels):
        return int(cap.sum()), ()
    level = snapshot.level[len(snapshot.levels) - rank]
    sums = np.where(level.valid, level.sums(cap), 0)
    if not len(sums):
        return 0, ()
    g = int(np.argmax(sums))
    return int(sums[g]), level.paths[g]


# -- not now -----------------------------------------------------------------------------------------------------


def classes_of(snapshot: Snapshot, gang: Gang, demands: Sequence[Demand]) -> dict[str, int]:
    """Nodes by the first reason that keeps every demand away from them; ``eligible`` for the rest."""
    return {name: int(mask.sum()) for name, mask in class_masks(snapshot, gang, demands).items() if mask.any()}


def class_masks(snapshot: Snapshot, gang: Gang, demands: Sequence[Demand]) -> dict[str, BoolArray]:
    """(N,) masks by class: eligible, other_nodes (pool, selector, affinity), not_ready, cordoned, taint, unlabelled."""
    labels = np.logical_or.reduce([snapshot.label_mask(d.spec, gang.pool) for d in demands])
    eligible = np.logical_or.reduce([d.mask for d in demands])
    held = labels & ~eligible
    cordoned = held & snapshot.cordoned
    not_ready = held & ~snapshot.ready
    tolerated = np.logical_or.reduce([snapshot.tolerated(d.spec.tolerations) for d in demands])
    open_now = held & ~cordoned & ~not_ready
    return {
        "eligible": eligible,
        "other_nodes": ~labels,
        "not_ready": not_ready,
        "cordoned": cordoned & ~not_ready,
        "taint": open_now & ~tolerated,
        "unlabelled": open_now & tolerated,
    }


def refuse(
    snapshot: Snapshot, gang: Gang, policy: PlacementPolicy, demands: Sequence[Demand], packer: Packer
) -> Refusal:
    """The refusal of a gang that the planner found no place for."""
    never = fits_ever(snapshot, gang, policy=policy)
    if never is not None:
        return never
    names = tiers(snapshot.levels)
    counts = classes_of(snapshot, gang, demands)
    worst = _worst(snapshot, demands, packer)
    label = f"podset {worst.spec.name}: " if len(demands) > 1 else ""
    tier = names[worst.limit]
    where = "the cluster" if tier == "cluster" else f"one {tier}"
    cap = packer.caps[next(k for k, d in enumerate(demands) if d is worst)]
    largest, path = _largest(snapshot, cap, worst.limit)
    noun = gpu_noun(snapshot, snapshot.label_mask(worst.spec, gang.pool))
    numbers: dict[str, Any] = {
        "tier": tier,
        "domain": place(path),
        "pods": worst.count,
        "largest_pods": largest,
        "gpus": worst.count * worst.gpus,
        "largest_gpus": largest * worst.gpus,
        "gpu_name": noun,
    }
    if largest >= worst.count:
        numbers["together"] = True
        numbers["search_cut_short"] = not packer.complete
        sentence = f"{gang.size()} have no room together in the cluster now, though each podset alone has"
        return Refusal("not_now", sentence, numbers, (), _held_lines(snapshot, gang, demands, packer, path), counts)
    if not worst.mask.any():
        sentence = f"{label}no node can take it now: {_held_words(snapshot, gang, demands)}"
    elif worst.gpus:
        asked = f"{label}needs {worst.count * worst.gpus} {noun}"
        if tier == "cluster":
            pieces = worst.gpus > 1
            free_sum = _free_gpus(snapshot, packer, worst)
            sentence = (
                f"{asked}{f' in pods of {worst.gpus}' if pieces else ''}; room for {largest * worst.gpus} is free now"
            )
            if pieces and free_sum >= worst.count * worst.gpus:
                sentence += f" ({free_sum} are free, but in pieces smaller than {worst.gpus} a node)"
        else:
            at = f", in {place(path)}" if largest else ""
            sentence = f"{asked} in {where}; the largest free set is {largest * worst.gpus}{at}"
    else:
        sentence = f"{label}needs room for {worst.count} pods in {where}; the largest free set holds {largest}"
    scarce = _scarce_words(snapshot, worst, packer)
    if scarce and worst.mask.any():
        sentence += f"; {scarce}"
    if not packer.complete:
        numbers["search_cut_short"] = True
    unblocks = _back_in_service(snapshot, gang, policy, demands, path if tier != "cluster" else ())
    return Refusal("not_now", sentence, numbers, unblocks, _held_lines(snapshot, gang, demands, packer, path), counts)


def _worst(snapshot: Snapshot, demands: Sequence[Demand], packer: Packer) -> Demand:
    """The demand that is farthest from its place: the least share of its pods fits its best domain."""

    def share(k: int) -> float:
        return _largest(snapshot, packer.caps[k], demands[k].limit)[0] / demands[k].count

    return demands[min(range(len(demands)), key=share)]


def _free_gpus(snapshot: Snapshot, packer: Packer, d: Demand) -> int:
    return int(np.maximum(snapshot.amounts(packer.free, d.spec.gpu_resource), 0)[d.mask].sum())


def _scarce_words(snapshot: Snapshot, d: Demand, packer: Packer) -> str:
    """Names CPU, memory or pod slots where those, and not the GPUs, keep pods out."""
    if not d.gpus:
        return ""
    by_gpu = np.where(d.mask, snapshot.amounts(packer.free, d.spec.gpu_resource) // d.gpus, 0)
    words = []
    for row, amount in zip(d.rows, d.amounts, strict=True):
        resource = snapshot.resources[int(row)]
        if resource == d.spec.gpu_resource:
            continue
        short = int((packer.free[row] // amount < by_gpu).sum())
        if short:
            what = {CPU: "few CPUs", MEMORY: "little memory", PODS: "few pod slots"}.get(resource, f"little {resource}")
            words.append(f"{short} {'node has' if short == 1 else 'nodes have'} GPUs free but too {what}")
    return "; ".join(words)


def _groups(
    snapshot: Snapshot, gang: Gang, demands: Sequence[Demand], inside: BoolArray
) -> list[tuple[str, list[str]]]:
    """Nodes held back inside a range, by the words that say why."""
    masks = class_masks(snapshot, gang, demands)
    out: dict[str, list[str]] = {}
    held = masks["cordoned"] | masks["not_ready"] | masks["taint"] | masks["unlabelled"]
    for i in np.flatnonzero(inside & held):
        node = snapshot.nodes[i]
        if masks["not_ready"][i]:
            key = "not ready"
        elif masks["cordoned"][i]:
            key = f"cordoned by {node.cordoned_by}" if node.cordoned_by else "cordoned"
        elif masks["unlabelled"][i]:
            missing = [name for k, name in enumerate(snapshot.levels) if not "".join(node.location[k : k + 1])]
            key = f"without the label of a {' or '.join(missing)}"
        elif node.gate_closed:
            key = "closed by {its} gate" + (f": {node.gate_reason}" if node.gate_reason else "")
        else:
            tolerated = [t for d in demands for t in node.taints if any(x.tolerates(t) for x in d.spec.tolerations)]
            taints = [str(t) for t in node.taints if t not in tolerated and t.effect != "PreferNoSchedule"]
            key = f"tainted {', '.join(taints)}"
        out.setdefault(key, []).append(node.name)
    return list(out.items())


def _held_words(snapshot: Snapshot, gang: Gang, demands: Sequence[Demand], inside: BoolArray | None = None) -> str:
    everywhere = np.ones(len(snapshot.nodes), dtype=np.bool_)
    words = []
    for why, names in _groups(snapshot, gang, demands, everywhere if inside is None else inside):
        head, _, cause = why.replace("{its}", "its" if len(names) == 1 else "their").partition(": ")
        words.append(f"{len(names)} {head} ({names_words(names)}{': ' + cause if cause else ''})")
    return ", ".join(words)


def _held_lines(
    snapshot: Snapshot, gang: Gang, demands: Sequence[Demand], packer: Packer, path: tuple[str, ...]
) -> tuple[str, ...]:
    """What the best domain looks like: whole nodes free, and which nodes are held back by whom."""
    relevant = snapshot.inside(path) & np.logical_or.reduce([snapshot.label_mask(d.spec, gang.pool) for d in demands])
    biggest = demands[0]
    gpus = snapshot.amounts(snapshot.alloc, biggest.spec.gpu_resource)
    free = snapshot.amounts(packer.free, biggest.spec.gpu_resource)
    parts = []
    if biggest.gpus:
        whole = int((relevant & biggest.mask & (gpus > 0) & (free >= gpus)).sum())
        partly = int((relevant & biggest.mask & (free > 0) & (free < gpus)).sum())
        parts.append(f"{whole} whole {'node' if whole == 1 else 'nodes'} free")
        if partly:
            pieces = int(free[relevant & biggest.mask & (free > 0) & (free < gpus)].sum())
            parts.append(f"{partly} free in part ({pieces} GPUs)")
    held = _held_words(snapshot, gang, demands, relevant)
    if held:
        parts.append(held)
    return (f"{place(path)}: {', '.join(parts)}",) if parts else ()


def _back_in_service(
    snapshot: Snapshot, gang: Gang, policy: PlacementPolicy, demands: Sequence[Demand], path: tuple[str, ...]
) -> tuple[str, ...]:
    """``uncordon a, b`` where that alone makes room in the best domain, else ``bring back c`` for all that is out."""
    masks = class_masks(snapshot, gang, demands)
    inside = snapshot.inside(path)
    cordoned = masks["cordoned"] & inside
    gated = masks["taint"] & inside
    gated &= np.array([t.gate_closed for t in snapshot.nodes], dtype=np.bool_) if gated.any() else gated
    out = cordoned | gated | (masks["not_ready"] & inside)
    for extra, verb in ((cordoned, "uncordon"), (out, "bring back")):
        if not extra.any():
            continue
        trial = []
        for d in demands:
            could = snapshot.label_mask(d.spec, gang.pool) & located(snapshot, d.limit, policy)
            could &= gated | snapshot.tolerated(d.spec.tolerations) | masks["not_ready"]
            trial.append(replace(d, mask=d.mask | (extra & could)))
        if _fits_somewhere(snapshot, Packer(snapshot, trial, policy, None), trial):
            return (f"{verb} {names_words([snapshot.nodes[i].name for i in np.flatnonzero(extra)])}",)
    return ()


def _fits_somewhere(snapshot: Snapshot, packer: Packer, demands: Sequence[Demand]) -> bool:
    if any(_largest(snapshot, packer.caps[k], d.limit)[0] < d.count for k, d in enumerate(demands)):
        return False
    return packer.pack(0, len(snapshot.nodes), len(snapshot.levels) + 1) is not None


def numbers_of(refusal: Refusal) -> Mapping[str, Any]:
    """The figures of a refusal, for ``--json``."""
    return {"kind": refusal.kind, **refusal.numbers, "nodes": dict(refusal.counts)}
