"""`myriad prewarm plan|run|status`: images on the nodes before jobs ask for them, in waves."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from myriad.cli._playbook import check_limit, run_playbook
from myriad.cli.output import console, emit_json
from myriad.errors import InputError, MyriadError, NotReadyError
from myriad.fleet.check import check
from myriad.fleet.model import Fleet, pool_group
from myriad.fleet.names import did_you_mean
from myriad.inventory import read_inventory
from myriad.prewarm import report, sizes, waves
from myriad.prewarm.limits import Limits
from myriad.prewarm.registries import Registry, nearest
from myriad.prewarm.rollout import outcomes_of
from myriad.prewarm.simulate import STRATEGIES, Scene, bad_nodes, grid, simulate, table
from myriad.prewarm.verdict import UNREACHABLE, NodeOutcome
from myriad.prewarm.waves import Node
from myriad.prewarm.words import bytes_text
from myriad.runs import RunResult, parse, result_of

Inventory = Annotated[Path, typer.Option("--inventory", "-i", help="Folder or file of the description.")]
Images = Annotated[list[str] | None, typer.Argument(help="Images of myriad_images.warm; all of them without any.")]
Pools = Annotated[list[str] | None, typer.Option("--pool", help="Nodes of this pool only; may be given again.")]
Limit = Annotated[str | None, typer.Option("--limit", help="Hosts or groups, as ansible takes them.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document; progress goes to standard error.")]
LAB = Path("inventories/lab")
MOST_FORKS = 200


def register(app: typer.Typer) -> None:
    """Add the verb."""
    verbs = typer.Typer(
        no_args_is_help=True, help="Images on the nodes before jobs ask for them: by digest, pinned, proven, in waves."
    )
    for verb in (plan, run, status):
        verbs.command()(verb)
    app.add_typer(verbs, name="prewarm")


def plan(
    images: Images = None,
    inventory: Inventory = LAB,
    pool: Pools = None,
    gb: Annotated[
        float | None, typer.Option("--gb", min=0.001, max=100_000, help="Compressed GB that a node fetches.")
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option(help="Bundle that holds the images: their sizes are read there.")
    ] = None,
    seed: Annotated[str, typer.Option(help="Another seed takes other nodes first.")] = "",
    simulate_: Annotated[
        bool, typer.Option("--simulate", help="Play it through, beside all at once and one by one.")
    ] = False,
    bad: Annotated[float, typer.Option(min=0, max=1, help="Share of bad nodes in the simulation.")] = 0.0,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="A made-up site of so many nodes, without an inventory.")
    ] = None,
    racks: Annotated[int | None, typer.Option(min=1, help="Racks of the made-up site; 160 without it.")] = None,
    blocks: Annotated[
        int | None, typer.Option(min=1, help="Blocks of it, each with a registry; 10 without it.")
    ] = None,
    json_: AsJson = False,
) -> None:
    """Show the waves, and with --simulate how long they take and what they draw. Reads the description alone.

    Exit code: 0 planned, 1 wrong input, 2 the simulated rollout stopped itself.
    """
    if nodes is not None:
        racks = min(160, nodes) if racks is None else racks
        blocks = min(10, racks) if blocks is None else blocks
        if racks > nodes or blocks > racks:
            raise InputError(
                f"{nodes} nodes cannot stand in {racks} racks of {blocks} blocks: there are too few of them"
            )
        site, limits = grid(nodes, racks=racks, blocks=blocks), Limits()
    else:
        fleet, limits = _described(inventory)
        site = _nodes(fleet, inventory, _wanted_pools(fleet, images or [], pool or []))
    if not site:
        raise InputError("no node wants an image", where=str(inventory), hint="myriad_images.warm says which pools do")
    weight = gb if gb is not None else _weight(bundle, images or [])
    assumed = gb is None and bundle is None
    rollout = waves.plan(site, seed=seed)
    found: dict[str, Any] = {
        "nodes": len(site),
        "racks": len({node.rack for node in site}),
        "registries": len({node.registry for node in site}),
        "waves": [len(wave) for wave in rollout],
        "first": [node.name for node in rollout[0]],
        "rack_slots": limits.rack_slots,
        "registry_slots": limits.registry_slots,
        "gb": weight,
        "gb_assumed": assumed,
        "least_s": round(_least_s(site, limits, weight), 1),
    }
    outcomes = []
    if simulate_:
        scene = Scene(image_gb=weight, bad=bad_nodes(site, bad, seed=seed))
        outcomes = [simulate(site, limits, scene, strategy, seed=seed) for strategy in STRATEGIES]
        found["simulation"] = [outcome.document() for outcome in outcomes]
    if json_:
        emit_json(found)
    else:
        _print_plan(found, limits)
        for line in table(outcomes, limits) if outcomes else ():
            console.print(line, markup=False)
    if outcomes and outcomes[0].stopped:
        raise MyriadError(
            f"the rollout would stop itself: {outcomes[0].stopped}",
            hint="myriad_images.prewarm.failure_share and failures say how many bad nodes it bears",
        )


def _print_plan(found: dict[str, Any], limits: Limits) -> None:
    rows = [
        f"{found['nodes']} nodes in {found['racks']} racks, {found['registries']} "
        f"{'registry' if found['registries'] == 1 else 'registries'}; {bytes_text(found['gb'] * 1e9)} a node"
        f"{' (assumed: --gb or --bundle says it)' if found['gb_assumed'] else ''}",
        f"waves of {', '.join(map(str, found['waves']))}; the first is {found['first'][0]}",
        f"at a time {found['rack_slots']} of a rack and {found['registry_slots']} from a registry "
        f"(a node draws up to {limits.node_gbit:g} Gbit/s; caps: rack {limits.rack_gbit:g}, "
        f"registry {limits.registry_gbit:g} Gbit/s)",
    ]
    for row in rows:
        console.print(row, markup=False)


def _least_s(site: Sequence[Node], limits: Limits, gb: float) -> float:
    """Below this no order gets: the fullest rack and the busiest registry at their caps."""
    per_rack = max(sum(1 for node in site if node.rack == rack) for rack in {node.rack for node in site})
    per_registry = max(sum(1 for node in site if node.registry == one) for one in {node.registry for node in site})
    rack_s = math.ceil(per_rack / limits.rack_slots) * gb * 8 / limits.node_gbit
    return max(rack_s, math.ceil(per_registry / limits.registry_slots) * gb * 8 / limits.node_gbit)


def _described(inventory: Path) -> tuple[Fleet, Limits]:
    if not inventory.exists():
        raise InputError(
            "there is no such inventory", where=str(inventory), hint="`ls inventories` lists what this project holds."
        )
    result = check(read_inventory(inventory))
    if result.fleet is None or result.errors:
        raise InputError(
            "the description has errors", where=str(inventory), hint=f"`myriad validate -i {inventory}` shows them"
        )
    return result.fleet, Limits.read(dict(result.fleet.images.prewarm))


def _wanted_pools(fleet: Fleet, images: Sequence[str], pools: Sequence[str]) -> set[str]:
    """Pools whose nodes want one of the images."""
    known = [entry.image for entry in fleet.images.warm]
    for name in images:
        if name not in known:
            raise InputError(
                f'"{name}" is no image that myriad_images.warm names{did_you_mean(name, known)}',
                hint=f"it names {', '.join(known) or 'none'}",
            )
    for name in pools:
        if name not in fleet.pools:
            raise InputError(f'"{name}" is not a pool{did_you_mean(name, fleet.pools)}')
    wanted: set[str] = set()
    for entry in fleet.images.warm:
        if not images or entry.image in images:
            wanted |= set(entry.pools or fleet.pools)
    return wanted & set(pools) if pools else wanted


def _nodes(fleet: Fleet, inventory: Path, pools: set[str]) -> tuple[Node, ...]:
    """Nodes of the pools, each with its rack and its nearest registry."""
    read = read_inventory(inventory)
    names = [name for name, host in read.hosts.items() if "registry" in host.groups]
    names = names or [host.name for host in fleet.control_plane][:1]
    places = {name: str(read.hosts[name].variables.get("myriad_location") or "") for name in names}
    registries = [Registry(name, tuple(place.split("/")) if place else ()) for name, place in places.items()]
    result = []
    for host in fleet.hosts.values():
        if host.pool in pools:
            first = nearest(host.name, host.location, registries)
            result.append(Node(host.name, "/".join(host.location), first[0].url if first else ""))
    return tuple(result)


def _weight(bundle: Path | None, images: Sequence[str]) -> float:
    """Compressed GB of the images in a bundle; without one a plain 10, which the output says."""
    if bundle is None:
        return 10.0
    from myriad.stack.bundle import Bundle

    entries = {entry.repo.rpartition("/")[2]: entry for entry in Bundle.load(bundle).manifest.images}
    missing = [name for name in images if name.rpartition("/")[2] not in entries]
    if missing or not images:
        raise InputError(
            f"the bundle has no image {', '.join(missing)}" if missing else "--bundle needs the images to weigh",
            where=str(bundle),
            hint=f"it has {', '.join(sorted(entries))}",
        )
    refs = [entries[name.rpartition("/")[2]].ref for name in images]
    found = sizes.in_bundle(bundle, refs)
    return float(sum(layer["size"] for image in found.values() for layer in image["layers"]) / 1e9)


# On the nodes


def run(
    images: Images = None,
    inventory: Inventory = LAB,
    pool: Pools = None,
    limit: Limit = None,
    check_: Annotated[
        bool, typer.Option("--check", help="Look at the nodes and show the waves; fetch nothing.")
    ] = False,
    proof: Annotated[bool, typer.Option("--proof", help="Start a container also from images proven before.")] = False,
    seed: Annotated[str, typer.Option(help="Another seed takes other nodes first.")] = "",
    json_: AsJson = False,
) -> None:
    """Make images warm on the nodes: one node, 1 %, 10 %, the rest; a node that has them is passed over.

    Exit code: 0 all nodes have them, 1 wrong input, 2 some were refused or failed, or the rollout stopped itself,
    3 some could not be reached and the rest have them.
    """
    fleet, limits = _described(inventory)
    if check_:
        status(images, inventory, pool, limit, json_)
        return
    outcomes, lines, ran, stop = _rollout(images or [], inventory, pool or [], limit, fleet, limits, json_, seed, proof)
    found = report.document(outcomes, lines, limits, stop)
    if json_:
        emit_json(found)
    else:
        for line in report.text(outcomes, lines, limits, stop):
            console.print(line, markup=False)
    if not outcomes and ran.exit_code:
        raise typer.Exit(ran.exit_code)
    raise typer.Exit(max(int(found["exit_code"]), 2 if stop else 0) if found["exit_code"] != 3 or stop else 3)


def _rollout(
    images: Sequence[str],
    inventory: Path,
    pools: Sequence[str],
    limit: str | None,
    fleet: Fleet,
    limits: Limits,
    quiet: bool,
    seed: str = "",
    proof: bool = False,
    look_only: bool = False,
) -> tuple[list[NodeOutcome], list[dict[str, Any]], RunResult, str]:
    _wanted_pools(fleet, images, pools)
    if limit and pools:
        raise InputError("--pool and --limit both say which nodes", hint="give one of them")
    if limit:
        check_limit(inventory, limit)
    pattern = limit or ":".join(pool_group(name) for name in pools)
    folder = Path(tempfile.mkdtemp(prefix="myriad-prewarm-"))
    journal = folder / "journal.jsonl"
    extra = {"image_prewarm_journal": str(journal)}
    if images:
        # What is not named keeps its pin: this run is about these alone.
        extra |= {"prewarm_only": ",".join(images), "image_prewarm_release_enabled": "false"}
    if seed:
        extra["prewarm_seed"] = seed
    if proof:
        extra["image_prewarm_proof_enabled"] = "true"
    if look_only:
        extra["prewarm_look_only"] = "true"
    forks = min(MOST_FORKS, max(50, limits.registry_slots * 4))
    os.environ.setdefault("ANSIBLE_FORKS", str(forks))
    arguments = ["--limit", pattern] if pattern else []
    _code, events = run_playbook("prewarm", inventory=inventory, arguments=arguments, extra=extra, quiet=quiet)
    ran = result_of(parse(events.read_text().splitlines()))
    events.unlink()
    lines = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    journal.unlink(missing_ok=True)
    folder.rmdir()
    planned: dict[str, Any] = next((line["plan"] for line in lines if "plan" in line), {})
    stop = next((str(line["stop"]) for line in lines if line.get("stop")), "")
    rows = [line for line in lines if "host" in line]
    told = {str(line["host"]) for line in rows} | planned.get("refused", {}).keys()
    # Hosts that failed before the plan was made are in no wave and in no line of the journal.
    lost = {name: ran.hosts[name].failures[-1][2] for name in ran.failed_hosts if name not in told}
    planned["failed"] = {**planned.get("failed", {}), **lost}
    unreachable = {name: ran.hosts[name].unreachable for name in ran.unreachable_hosts}
    hosts = sorted({*planned.get("warm", []), *planned.get("order", []), *planned.get("refused", {}),
                    *planned.get("failed", {}), *unreachable})  # fmt: skip
    outcomes = outcomes_of(hosts, planned, rows, unreachable)
    if look_only:
        rows = [{"host": host, **look} for host, look in planned.get("looks", {}).items()]
    return outcomes, rows, ran, stop


def status(
    images: Images = None,
    inventory: Inventory = LAB,
    pool: Pools = None,
    limit: Limit = None,
    json_: AsJson = False,
) -> None:
    """Look at every node: which images are warm, not pinned, missing, or without room. Changes nothing.

    Exit code: 0 all are warm, 1 wrong input, 2 it could not be told, 3 some nodes could not be reached,
    4 some images are not warm.
    """
    fleet, limits = _described(inventory)
    outcomes, looks, ran, _ = _rollout(images or [], inventory, pool or [], limit, fleet, limits, True, look_only=True)
    by_host = {str(look["host"]): look for look in looks}
    rows = []
    for one in outcomes:
        found = by_host.get(one.node, {})
        rows.append(
            {
                "node": one.node,
                "outcome": one.outcome if one.outcome == UNREACHABLE else found.get("outcome", one.outcome),
                "sentence": one.sentence,
                "images": found.get("images", []),
            }
        )
    away = [row for row in rows if row["outcome"] == UNREACHABLE]
    cold = [row for row in rows if row not in away and row["outcome"] != "warm"]
    if json_:
        emit_json({"nodes": rows, "summary": _counted(rows)})
    else:
        for row in rows:
            for line in _status_lines(row):
                console.print(line, markup=False)
        counts = ", ".join(f"{count} {outcome}" for outcome, count in _counted(rows).items())
        console.print(
            f"{len(rows)} {'node' if len(rows) == 1 else 'nodes'}: {counts or 'none was looked at'}", markup=False
        )
    if not rows or (ran.exit_code == 2 and not cold):
        raise typer.Exit(2)
    if away:
        raise typer.Exit(3)
    if cold:
        raise typer.Exit(NotReadyError.exit_code)


_WORDS = {"warm": "warm", "pinned": "not pinned", "cold": "not there", "refused": "no room", "failed": "cannot be told"}


def _counted(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        word = _WORDS.get(str(row["outcome"]), str(row["outcome"]))
        counts[word] = counts.get(word, 0) + 1
    return counts


def _status_lines(row: dict[str, Any]) -> list[str]:
    if not row["images"]:
        return [f"{row['node']}  {_WORDS.get(str(row['outcome']), row['outcome'])}  {row['sentence']}".rstrip()]
    lines = []
    for image in row["images"]:
        name = f"{str(image.get('ref') or '').partition('/')[2]}@{str(image.get('digest'))[7:19]}"
        told = image.get("sentence") or "; ".join(image.get("warnings") or [])
        word = _WORDS.get(str(image.get("outcome")), str(image.get("outcome")))
        lines.append(f"{row['node']}  {name}  {word}{f': {told}' if told else ''}")
    return lines
