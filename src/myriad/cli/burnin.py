"""`myriad burnin run`: bandwidth between the nodes of a rack against the threshold of their pool."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from myriad.cli import _cluster as cluster
from myriad.cli.output import console, emit_json, err_console
from myriad.cli.validate import InventoryOption, print_problems
from myriad.errors import InputError
from myriad.fleet import Fleet, check, names
from myriad.fleet import fabric as fabrics
from myriad.fleet.model import BurnIn, Host
from myriad.fleet.problems import host_ranges
from myriad.inventory import read_inventory

IMAGE = "registry.myriad.internal/myriad/gang-check"


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    group = typer.Typer(no_args_is_help=True, help="Multi-node bandwidth before a rack is opened.")
    group.callback()(lambda: None)
    group.command("run")(run)
    app.add_typer(group, name="burnin")


def run(
    inventory: InventoryOption,
    rack: Annotated[str, typer.Option("--rack", help="A place (room/block/rack, or a part of it): its nodes.")] = "",
    pool: Annotated[str, typer.Option("--pool", help="Only nodes of this pool.")] = "",
    nodes: Annotated[str, typer.Option("--nodes", help="These nodes, separated by commas.")] = "",
    reference: Annotated[
        str, typer.Option("--with", help="Partners from elsewhere that are measured with them and not judged.")
    ] = "",
    threshold: Annotated[
        float | None, typer.Option("--gb-s", min=0, help="Threshold instead of the pool's (myriad_burn_in).")
    ] = None,
    seconds: Annotated[int | None, typer.Option("--seconds", min=1, help="How long each pair sends.")] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=0, help="At most so many partners a node; 0 for all.")] = 0,
    image: Annotated[str, typer.Option("--image", help="Image of the pods; the bundle's own without it.")] = "",
    nccl: Annotated[
        str, typer.Option("--nccl", help="Measure with NCCL: the command in --image that ends as all_reduce_perf does.")
    ] = "",
    among_jobs: Annotated[bool, typer.Option("--among-jobs", help="Also on nodes whose GPUs are in use.")] = False,
    kubeconfig: Annotated[str | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Measure between all pairs of a rack's nodes, one pod a node. Exit 4 where a node is below or slow."""
    from myriad.burnin.judge import judge
    from myriad.burnin.run import absent, busy, measure

    checked = check(read_inventory(*inventory))
    if checked.errors:
        print_problems(checked.errors, to=err_console)
        raise InputError("the description is wrong; nothing was measured", hint="`myriad validate` says the same")
    fleet = checked.fleet
    chosen = choose(fleet, rack=rack, pool=pool, nodes=nodes)
    partners = [host for host in named(fleet, reference) if host not in chosen]
    everyone = [host.name for host in [*chosen, *partners]]
    if len(everyone) < 2:
        raise InputError(
            f"{everyone[0]} is alone there, and a link has two ends",
            where=rack or pool or nodes,
            hint="--with NODE measures it with a node from elsewhere",
        )
    if nccl and not image:
        raise InputError("--nccl needs --image: an image with NCCL's tests, by digest")
    described = fleet.burn_in.get(chosen[0].pool or "", BurnIn())
    limit = threshold if threshold is not None else (float(described.gb_s) if described.gb_s is not None else None)
    settings = make_settings(
        fleet, [*chosen, *partners], described, image=image, nccl=nccl, seconds=seconds, rounds=rounds
    )
    api = cluster.reach(kubeconfig)
    gone = absent(api, everyone)
    if gone:
        raise InputError(
            "; ".join(f"{node} {why}" for node, why in list(gone.items())[:6]),
            hint="--nodes leaves them out; `kubectl get nodes` shows them",
        )
    if not among_jobs and (working := busy(api, everyone, settings.resource)):
        shown = ", ".join(f"{node} ({pods[0]})" for node, pods in list(working.items())[:4])
        raise InputError(
            f"{len(working)} of {len(everyone)} nodes run jobs: {shown}",
            hint="a measurement takes their network; wait, or say --among-jobs",
        )
    pairs = measure(api, everyone, settings, lambda text: err_console.print(text, style="dim", markup=False))
    verdicts = judge(
        [host.name for host in chosen],
        pairs,
        threshold=limit,
        of_median=float(described.of_median),
        reference=[host.name for host in partners],
    )
    bad = [verdict for verdict in verdicts if verdict.word != "ok"]
    if json_:
        emit_json(
            {
                "ok": not bad,
                "threshold_gb_s": limit,
                "nodes": [verdict.as_dict(limit) for verdict in verdicts],
                "pairs": [{"nodes": [pair.one, pair.other], "rail": pair.rail, "gb_s": pair.gb_s} for pair in pairs],
            }
        )
    else:
        show(verdicts, limit)
    if bad:
        raise typer.Exit(4)


def choose(fleet: Fleet, *, rack: str, pool: str, nodes: str) -> list[Host]:
    """The nodes that are judged.

    Raises:
        InputError: nothing was asked for, or no node is there, or they are of several pools.
    """
    if not (rack or pool or nodes):
        raise InputError("say which nodes: --rack hall1/b1/r1, --pool NAME or --nodes A,B")
    found = named(fleet, nodes) if nodes else [host for host in fleet.hosts.values() if host.pool is not None]
    if rack:
        place = tuple(rack.strip("/").split("/"))
        found = [host for host in found if host.location[: len(place)] == place]
        if not found:
            depth = len(place) - 1
            known = ["/".join(one) for one in fleet.places(min(depth, len(fleet.cluster.topology_levels) - 1))]
            raise InputError(f'no node stands in "{rack}"{names.did_you_mean(rack, known)}')
    if pool:
        if pool not in fleet.pools:
            raise InputError(f'"{pool}" is not a pool{names.did_you_mean(pool, fleet.pools)}')
        found = [host for host in found if host.pool == pool]
    if not found:
        raise InputError(f"no node of pool {pool} stands there" if pool else "no node is named", where=nodes or rack)
    pools = sorted({host.pool for host in found if host.pool is not None})
    if len(pools) > 1:
        raise InputError(
            f"these nodes are of several pools ({', '.join(pools)}), which have thresholds of their own",
            hint="--pool chooses one",
        )
    return found


def named(fleet: Fleet, text: str) -> list[Host]:
    """Hosts by name, separated by commas. Raises InputError for one that the description does not have."""
    found = []
    for name in (part.strip() for part in text.split(",") if part.strip()):
        if name not in fleet.hosts:
            raise InputError(f'"{name}" is not a host of the inventory{names.did_you_mean(name, fleet.hosts)}')
        if fleet.hosts[name].pool is None:
            raise InputError(f"{name} is of no pool: it has no GPUs and no threshold", hint="name nodes of a pool")
        found.append(fleet.hosts[name])
    return found


def make_settings(
    fleet: Fleet, hosts: list[Host], described: BurnIn, *, image: str, nccl: str, seconds: int | None, rounds: int
) -> Any:
    """What is measured: over the rails of the pool's fabric where they have addresses, else over the pods' network."""
    from importlib.metadata import version

    from myriad.burnin.job import Settings

    pool = fleet.pools[hosts[0].pool or ""]
    rails: dict[str, dict[str, str]] = {}
    if not nccl:
        for host in hosts:
            fabric = fleet.fabrics.get(host.pool or "")
            for rail in fabrics.plan(host.name, host.address, fabric).rails if fabric else ():
                if rail.ip:
                    rails.setdefault(rail.interface, {})[host.name] = rail.ip
        # A rail counts where all have it: a partner from another pool may not.
        rails = {rail: at for rail, at in rails.items() if len(at) == len(hosts)}
    return Settings(
        image=image or f"{IMAGE}:{version('myriad')}",
        # Each node sends to every partner: the described time is what the whole measurement may take.
        seconds=seconds if seconds is not None else max(1, described.seconds // max(1, (rounds or len(hosts) - 1))),
        rounds=rounds,
        rails=rails,
        gpus=hosts[0].gpus,
        resource=pool.resource,
        command=nccl,
    )


def show(verdicts: list[Any], limit: float | None) -> None:
    """The table, and a sentence for each that is not ok."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in ("node", "rail", "GB/s", "threshold", "verdict", "slowest with"):
        table.add_column(head)
    for verdict in verdicts:
        table.add_row(
            verdict.node,
            verdict.rail,
            "-" if verdict.gb_s is None else f"{verdict.gb_s:.3g}",
            "none" if limit is None else f"{limit:g}",
            escape(verdict.word),
            verdict.slowest,
        )
    cluster.print_table(table)
    bad = [verdict for verdict in verdicts if verdict.word != "ok"]
    for verdict in bad:
        console.print(verdict.cause, markup=False)
    total = sorted({verdict.node for verdict in verdicts})
    if bad:
        slow = sorted({verdict.node for verdict in bad})
        console.print(
            f"{host_ranges(slow)} must not be opened: look at cable, transceiver, PCIe width "
            f"(`myriad portrait {slow[0]}`) and the switch's port, then measure again",
            markup=False,
        )
    else:
        console.print(f"{host_ranges(total)}: all links carry what they should", markup=False)
