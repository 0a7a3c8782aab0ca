"""Rules about cut and shared GPUs: layouts that fit the pool's model, hosts that are in the pool, one strategy."""

from __future__ import annotations

from collections.abc import Iterable

from myriad.fleet import mig, model, names
from myriad.fleet.problems import Problem, Severity
from myriad.fleet.source import RawInventory


def check_mig(fleet: model.Fleet, raw: RawInventory) -> Iterable[Problem]:
    """Problems of `mig` and `sharing` of the pools."""
    strategies: dict[str, str] = {}
    for name, pool in fleet.pools.items():
        cuts = any(layout for _, layout in pool.mig.layouts)
        fault = mig.cut_fault(pool.mig, model=pool.model, gpus=pool.gpus_per_node, use=pool.use, resource=pool.resource)
        if fault is not None:
            yield _problem(raw, name, ("mig",), fault)
        members = {host.name for host in fleet.hosts_by_pool.get(name, ())}
        for host in pool.mig.hosts:
            if host not in members:
                offer = names.did_you_mean(host, members)
                yield _problem(raw, name, ("mig", "hosts", host), f"is not a node of pool {name}{offer}")
        if cuts:
            strategies.setdefault(pool.mig.strategy, name)
        if pool.sharing.replicas > 1:
            yield from _sharing(raw, name, pool, cuts=cuts)
    if len(strategies) > 1:
        first, second = strategies.values()
        said = f"is another one than pool {first}'s; the device plugin has one strategy for the whole cluster"
        yield _problem(raw, second, ("mig", "strategy"), said)


def _sharing(raw: RawInventory, name: str, pool: model.Pool, *, cuts: bool) -> Iterable[Problem]:
    replicas = pool.sharing.replicas
    if pool.use == "training":
        yield _problem(
            raw,
            name,
            ("sharing",),
            f"lets {replicas} pods take turns on one GPU of a training pool; a gang would wait for the slowest turn in "
            "every step: leave sharing out, or set use: inference",
        )
    elif cuts:
        yield _problem(raw, name, ("sharing",), "is given beside mig; cut the cards or share them, not both")
    elif not pool.resource.startswith("nvidia.com/"):
        yield _problem(
            raw, name, ("sharing",), f"is NVIDIA's time slicing; a pool of {pool.resource} cannot be shared that way"
        )
    else:
        yield _problem(
            raw,
            name,
            ("sharing",),
            f"lets {replicas} pods take turns on one GPU with nothing between their memories: a pod that takes all of "
            "it makes its neighbours fail with out of memory; mig keeps them apart where the card can do it",
            "warning",
        )


def _problem(
    raw: RawInventory, pool: str, below: tuple[str, ...], message: str, severity: Severity = "error"
) -> Problem:
    path = ("myriad_pools", pool, *below)
    return Problem(below[0], message, severity, key=".".join(path), origin=raw.origin_of(path))
