"""How long one decision and one snapshot update take at 10,000 and at 50,000 GPUs. `make bench-placement`.

States: nodes of 8 GPUs filled at random with gangs of mixed sizes (1, 2, 4 and 8 GPUs a pod) until between 70 and 95 %
of the GPUs are in use, then 3 % of the nodes cordoned. The gang is 128 nodes x 8 GPUs. With random fill alone a gang
of that size has no place above about 90 % in 10,000 GPUs, so both answers are measured and their shares printed: half
of the states are filled pod by pod anywhere (fragmented), half block by block (one block after the other, as a packing
scheduler leaves them).

Prints JSON lines: kind (decision | update | clone | digest), gpus, gang_gpus, p50_ms, p99_ms, min_ms, samples, fits
(share of states where the gang has a place), seeds; then one line with the growth from 10,000 to 50,000 GPUs. Times are
this machine's and whatever else runs on it shows in p99; compare the ratio, not the milliseconds.

With --quality it prints instead how well plans keep room for large gangs: the same random stream of gangs on 128 nodes
under the planner, first fit (node order) and least loaded node first: mean rank of the tier (0 = node), whole nodes
free in the freest block of 16 and in the cluster, and gangs refused.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np

from myriad.scheduler.model import Gang, NodeInfo, Plan, PodSet, PodUse, TopologyRequest
from myriad.scheduler.placement import fragmentation, plan, tiers
from myriad.scheduler.snapshot import Snapshot

GPU = "nvidia.com/gpu"
T = TypeVar("T")
SIZES = (1, 1, 1, 2, 2, 4, 8, 8, 8, 8)


def site(gpus: int) -> list[NodeInfo]:
    """Nodes of 8 GPUs: 2 rooms, 10 blocks, 160 racks for every 10,000 GPUs (7 or 8 nodes a rack)."""
    nodes, scale = gpus // 8, gpus // 10_000
    racks = 160 * scale
    out = []
    for k in range(nodes):
        rack = k * racks // nodes
        block = rack // 16
        room = block // 5
        location = (f"hall{room + 1}", f"b{block + 1:02d}", f"r{rack + 1:03d}")
        labels = {
            "kubernetes.io/hostname": f"gpu{k:05d}",
            "myriad.dev/pool": "h100",
            "myriad.dev/gpu-model": "H100-SXM5-80GB",
            "myriad.dev/room": location[0],
            "myriad.dev/block": ".".join(location[:2]),
            "myriad.dev/rack": ".".join(location),
        }
        allocatable = {"cpu_milli": 192_000, "memory_bytes": 2 << 40, "pods": 250, GPU: 8}
        out.append(NodeInfo(f"gpu{k:05d}", labels, location=location, pool="h100", allocatable=allocatable))
    return out


def fill(nodes: list[NodeInfo], rng: random.Random, *, packed: bool) -> tuple[list[NodeInfo], list[PodUse]]:
    """A state: 70 to 95 % of the GPUs in use, 3 % of the nodes cordoned."""
    goal = rng.uniform(0.70, 0.95) * len(nodes) * 8
    blocks: dict[tuple[str, ...], list[int]] = {}
    for i, n in enumerate(nodes):
        blocks.setdefault(n.location[:2], []).append(i)
    order = list(blocks.values())
    rng.shuffle(order)
    for members in order:
        rng.shuffle(members)
    sequence = [i for members in order for i in members]
    if not packed:
        rng.shuffle(sequence)
    free = [8] * len(nodes)
    pods: list[PodUse] = []
    used = 0
    # Packed: nodes are filled one after the other. Fragmented: pods come to any node that has room.
    cursor = 0
    while used < goal:
        size = rng.choice(SIZES)
        if packed:
            while cursor < len(sequence) and free[sequence[cursor]] == 0:
                cursor += 1
            i = sequence[min(cursor, len(sequence) - 1)]
        else:
            i = rng.choice(sequence)
        size = min(size, free[i])
        if size == 0:
            continue
        free[i] -= size
        used += size
        requests = {GPU: size, "cpu_milli": 12_000 * size, "memory_bytes": size << 36}
        pods.append(PodUse(f"pod-{len(pods)}", nodes[i].name, requests))
    cordoned = set(rng.sample(range(len(nodes)), len(nodes) * 3 // 100))
    return [replace(n, cordoned=i in cordoned) for i, n in enumerate(nodes)], pods


def states(gpus: int, seeds: range) -> Iterator[tuple[Snapshot, random.Random]]:
    """One snapshot a seed, every second one packed."""
    nodes = site(gpus)
    for seed in seeds:
        rng = random.Random(seed)  # noqa: S311 - a benchmark's dice
        filled, pods = fill(nodes, rng, packed=seed % 2 == 1)
        yield Snapshot.build(filled, pods), rng


def timed(action: Callable[[], T]) -> tuple[float, T]:
    """Milliseconds and result of one call."""
    begin = time.perf_counter()
    result = action()
    return (time.perf_counter() - begin) * 1e3, result


GANG = Gang(
    "big",
    "research",
    (
        PodSet(
            "workers",
            128,
            {GPU: 8, "cpu_milli": 96_000, "memory_bytes": 1 << 40},
            topology=TopologyRequest("preferred", "block"),
        ),
    ),
    uid="big",
    pool="h100",
)


class Measurement:
    """Times of one size of site, state by state, in milliseconds."""

    def __init__(self, gpus: int, seeds: range) -> None:
        self.gpus = gpus
        self.seeds = seeds
        self.states = states(gpus, seeds)
        self.times: dict[str, list[float]] = {"decision": [], "update": [], "clone": [], "digest": []}
        self.by_answer: dict[bool, list[float]] = {True: [], False: []}
        self.answers: dict[str, int] = {}

    def next_state(self, repeats: int) -> None:
        """Take the next state and measure ``repeats`` decisions in it, each after a change of the state."""
        snapshot, rng = next(self.states)
        snapshot.pristine()  # kept in step by updates, so a running extension has it
        plan(snapshot, GANG)  # masks by signature are kept too
        update = self.times["update"]
        for _ in range(repeats):
            # A change before each decision: nothing that a decision computes can be left over from the last one.
            victim = rng.choice(snapshot.nodes).name
            pod = PodUse(f"new-{rng.random()}", victim, {GPU: 1, "cpu_milli": 1000})
            update.append(timed(partial(snapshot.apply_pod, pod))[0])
            ms, outcome = timed(partial(plan, snapshot, GANG))
            self.times["decision"].append(ms)
            self.by_answer[isinstance(outcome, Plan)].append(ms)
            name = outcome.tier if isinstance(outcome, Plan) else outcome.kind
            self.answers[name] = self.answers.get(name, 0) + 1
            update.append(timed(partial(snapshot.remove_pod, pod.uid))[0])
            node = snapshot.nodes[snapshot.index[victim]]
            for cordoned in (not node.cordoned, node.cordoned):
                update.append(timed(partial(snapshot.update_node, replace(node, cordoned=cordoned)))[0])
        self.times["clone"].append(timed(snapshot.clone)[0])
        snapshot.digest()  # the first hashes every node; afterwards only what changed
        snapshot.apply_pod(PodUse("last", snapshot.nodes[0].name, {GPU: 1}))
        self.times["digest"].append(timed(snapshot.digest)[0])

    def lines(self) -> Iterator[dict[str, object]]:
        """One line a kind."""
        for kind, values in self.times.items():
            p50, p99 = np.percentile(values, [50, 99])
            line: dict[str, object] = {
                "kind": kind,
                "gpus": self.gpus,
                "gang_gpus": GANG.gpus,
                "p50_ms": round(float(p50), 4),
                "p99_ms": round(float(p99), 4),
                "min_ms": round(min(values), 4),
                "samples": len(values),
                "seeds": len(self.seeds),
            }
            if kind == "decision":
                line["fits"] = round(len(self.by_answer[True]) / len(values), 3)
                for name, answer in (("fits_p50_ms", True), ("refused_p50_ms", False)):
                    found = self.by_answer[answer]
                    line[name] = round(float(np.median(found)), 4) if found else None
                line["answers"] = self.answers
            yield line

    def p50(self, kind: str) -> float:
        """Median of one kind in milliseconds."""
        return float(np.median(self.times[kind]))


Chooser = Callable[[Snapshot, Gang], dict[str, int] | None]


def planner(snapshot: Snapshot, gang: Gang) -> dict[str, int] | None:
    """Pods by node as `plan` wants them."""
    outcome = plan(snapshot, gang)
    return outcome.nodes if isinstance(outcome, Plan) else None


def by_order(*, most_free_first: bool) -> Chooser:
    """A baseline: fill nodes in the order of their names, or those with the most free GPUs first."""

    def choose(snapshot: Snapshot, gang: Gang) -> dict[str, int] | None:
        spec = gang.podsets[0]
        free = snapshot.amounts(snapshot.free, GPU)
        need, out = spec.count, {}
        for i in np.argsort(-free if most_free_first else np.zeros(len(free)), kind="stable"):
            pods = min(need, int(free[i]) // spec.gpus_per_pod)
            if pods > 0:
                out[snapshot.nodes[i].name] = pods
                need -= pods
            if not need:
                return out
        return None

    return choose


def quality(chooser: Chooser, seed: int) -> tuple[float, float, float, int]:
    """Mean tier rank, free whole nodes in the freest block and in the cluster, gangs refused, of one random stream."""
    rng = random.Random(seed)  # noqa: S311 - a benchmark's dice
    sizes = [(1, 1), (1, 1), (2, 1), (4, 1), (8, 1), (8, 1), (8, 2), (8, 4), (4, 2), (8, 8), (2, 4)]  # GPUs, pods
    nodes = [
        NodeInfo(f"n{k:03d}", location=(f"h{k // 64}", f"b{k // 16}", f"r{k // 4}"), allocatable={GPU: 8, "pods": 110})
        for k in range(128)
    ]
    snapshot = Snapshot.build(nodes)
    order = tiers(snapshot.levels)
    running: list[tuple[int, list[str]]] = []
    ranks: list[int] = []
    blocks: list[int] = []
    wholes: list[int] = []
    refused = 0
    for step in range(600):
        for _, uids in [r for r in running if r[0] <= step]:
            for uid in uids:
                snapshot.remove_pod(uid)
        running = [r for r in running if r[0] > step]
        gpus, pods = rng.choice(sizes)
        ends = step + rng.randint(20, 120)
        placed = chooser(snapshot, Gang("g", "n", (PodSet("main", pods, {GPU: gpus}),)))
        if placed is None:
            refused += 1
            continue
        uids = [f"{step}-{node}-{k}" for node, count in placed.items() for k in range(count)]
        for uid in uids:
            snapshot.apply_pod(PodUse(uid, uid.split("-")[1], {GPU: gpus}))
        running.append((ends, uids))
        ranks.append(order.index(snapshot.tier_of(placed)[0]))
        if step > 150:  # the cluster is full by then
            free = {g.tier: g.nodes for g in fragmentation(snapshot)}
            blocks.append(free["block"])
            wholes.append(free["cluster"])
    return float(np.mean(ranks)), float(np.mean(blocks)), float(np.mean(wholes)), refused


def compare(seeds: range) -> None:
    """Print one quality line for the planner and for each baseline."""
    choosers: dict[str, Chooser] = {
        "planner": planner,
        "first_fit": by_order(most_free_first=False),
        "least_loaded": by_order(most_free_first=True),
    }
    for name, chooser in choosers.items():
        tier, block, cluster, refused = np.mean([quality(chooser, seed) for seed in seeds], axis=0)
        line = {"kind": "quality", "chooser": name, "seeds": len(seeds), "tier_rank": round(float(tier), 3)}
        line |= {"free_nodes_best_block": round(float(block), 2), "free_nodes_cluster": round(float(cluster), 2)}
        print(json.dumps({**line, "refused_of_600": round(float(refused), 1)}), flush=True)


def main() -> None:
    """Measure 10,000 and 50,000 GPUs and print the growth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40, help="states per size (default 40)")
    parser.add_argument("--repeats", type=int, default=10, help="decisions per state (default 10)")
    parser.add_argument("--gpus", type=int, nargs="+", default=[10_000, 50_000], help="sites to measure")
    parser.add_argument("--quality", action="store_true", help="compare placements with two baselines instead")
    args = parser.parse_args()
    if args.quality:
        compare(range(args.seeds))
        return
    found = [Measurement(gpus, range(args.seeds)) for gpus in sorted(args.gpus)]
    for _ in range(args.seeds):
        for size in found:  # in turn, so that whatever else runs on the machine meets every size alike
            size.next_state(args.repeats)
    for size in found:
        for line in size.lines():
            print(json.dumps(line), flush=True)
    small, large = found[0], found[-1]
    if small is not large:
        growth = {k: round(large.p50(k) / small.p50(k), 2) for k in ("decision", "update")}
        ratio = large.gpus / small.gpus
        print(
            json.dumps(
                {
                    "kind": "growth",
                    "from_gpus": small.gpus,
                    "to_gpus": large.gpus,
                    "size_ratio": ratio,
                    **growth,
                    "no_worse_than_linear": growth["decision"] <= ratio,
                }
            )
        )


if __name__ == "__main__":
    main()
