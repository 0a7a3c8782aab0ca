"""`myriad portrait`: what a node was found to be, each fact with its source and time; without a node, all of them."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from myriad.agent.collect.assemble import collectors, portrait_of
from myriad.agent.collect.source import Host, Recorded, Recorder, Source
from myriad.cli import _cluster as cluster
from myriad.cli.output import console, emit_json
from myriad.errors import InputError, MyriadError
from myriad.fleet.derived_labels import derive_labels
from myriad.fleet.names import did_you_mean
from myriad.fleet.portrait import (
    GPUS,
    LEASE_NAMESPACE,
    LEASE_PREFIX,
    Gpu,
    Labelling,
    Nic,
    Portrait,
    Spec,
    facts,
    fresh,
)
from myriad.fleet.portrait_schema import Answer
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import LEASES, NODE_PORTRAITS

Json = dict[str, Any]


def register(app: typer.Typer) -> None:
    """Add the verb."""

    @app.command()
    def portrait(
        node: Annotated[str | None, typer.Argument(help="A node; without it, all that have a portrait.")] = None,
        json_: Annotated[
            bool, typer.Option("--json", help="One JSON document (docs/schema/node-portrait.json).")
        ] = False,
        local: Annotated[bool, typer.Option("--local", help="Look at this machine itself, without a cluster.")] = False,
        fixture: Annotated[
            Path | None, typer.Option("--fixture", metavar="DIR", help="Look at a recorded machine.")
        ] = None,
        record: Annotated[
            Path | None,
            typer.Option("--record", metavar="DIR", help="With --local: keep what was asked as a recording."),
        ] = None,
        kubeconfig: Annotated[str | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")] = None,
    ) -> None:
        """What a node is: GPUs, links, drivers, fabric, network and neighbours, each fact with source and time.

        Exit code 0: it may be relied on. 4: there is no portrait, or its agent has not been heard of.
        """
        if record is not None and not local:
            raise InputError("--record needs --local", hint="myriad portrait --local --record DIR")
        if local and fixture is not None:
            raise InputError("--local and --fixture exclude each other", hint="give one of them")
        if local or fixture is not None:
            answer = looked(node, fixture, record)
        elif node is None:
            _show_all(cluster.reach(kubeconfig), json_=json_)
            return
        else:
            answer = of_cluster(cluster.reach(kubeconfig), node)
        if json_:
            emit_json(answer.document())
        else:
            show(answer)
        if not answer.trusted:
            raise typer.Exit(4)


def looked(node: str | None, fixture: Path | None, record: Path | None) -> Answer:
    """Run the collectors on this machine, or on a recorded one."""
    source: Source = Recorded(fixture) if fixture is not None else Host()
    recorder = Recorder(source) if record is not None else None
    name = node or (fixture.name if fixture is not None else socket.gethostname())
    found, _ = portrait_of(name, recorder or source, _now().strftime("%Y-%m-%dT%H:%M:%SZ"), collectors())
    if recorder is not None and record is not None:
        try:
            recorder.save(record)
        except OSError as error:
            raise InputError(
                f"the recording cannot be kept there: {error.strerror}", where=str(error.filename or record)
            ) from error
    return _answer(name, found, Spec(), "")


def of_cluster(api: Api, name: str) -> Answer:
    """The portrait of a node in the cluster. Raises InputError where nobody described such a node."""
    body = _find(api, name)
    lease = api.find(LEASES, f"{LEASE_PREFIX}{name}", namespace=LEASE_NAMESPACE)
    status = body.get("status")
    found = Portrait.model_validate(status) if status else None
    return _answer(name, found, Spec.model_validate(body.get("spec") or {}), fresh(status, lease, _now()))


def _find(api: Api, name: str) -> Json:
    body = _served(lambda: api.find(NODE_PORTRAITS, name))
    if body is None:
        names = [item["metadata"]["name"] for item in _listed(api)]
        if not names:
            raise InputError(
                "no node has a portrait", hint="`myriad site` installs the agent that makes them (role node_portrait)"
            )
        raise InputError(f'no node "{name}" has a portrait{did_you_mean(name, names)}')
    return dict(body)


def _listed(api: Api) -> list[Json]:
    return list(_served(lambda: api.list(NODE_PORTRAITS)[0]) or [])


def _served(ask: Any) -> Any:
    try:
        return ask()
    except ApiError as error:
        # The kind is not served: the role that brings it has not run.
        if error.is_not_found:
            return None
        raise


def _answer(name: str, found: Portrait | None, spec: Spec, reason: str) -> Answer:
    labels = derive_labels(found, spec, spec.labelling if spec.labels else Labelling()) if found else dict(spec.labels)
    return Answer(
        node=name,
        trusted=not reason,
        reason=reason,
        portrait=found,
        labels=labels,
        facts=tuple(facts(found)) if found else (),
    )


def _now() -> datetime:
    return datetime.now(UTC)


# For people


def _show_all(api: Api, *, json_: bool) -> None:
    items = sorted(_listed(api), key=lambda item: str(item["metadata"]["name"]))
    if not items:
        raise MyriadError(
            "no node has a portrait", hint="`myriad site` installs the agent that makes them (role node_portrait)"
        )
    leases = {lease["metadata"]["name"]: lease for lease in api.list(LEASES, namespace=LEASE_NAMESPACE)[0]}
    rows = []
    for item in items:
        name = item["metadata"]["name"]
        silent = fresh(item.get("status"), leases.get(f"{LEASE_PREFIX}{name}"), _now())
        summary = (item.get("status") or {}).get("summary") or {}
        rows.append({"node": name, "trusted": not silent, "reason": silent, **summary})
    if json_:
        emit_json({"nodes": rows})
    else:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("node", "GPUs", "model", "driver", "gate", "note"):
            table.add_column(column)
        for row in rows:
            note = row["reason"] or row.get("cause", "")
            cells = (row["node"], row.get("gpus", ""), row.get("model", ""), row.get("driver", ""), row.get("gate", ""))
            table.add_row(*(escape(str(cell)) for cell in (*cells, note)))
        cluster.print_table(table)
    if not all(row["trusted"] for row in rows):
        raise typer.Exit(4)


def show(answer: Answer) -> None:
    """Print one node."""
    if answer.reason:
        console.print(f"[yellow]not to be relied on: {escape(answer.reason)}[/yellow]")
    portrait = answer.portrait
    if portrait is None:
        return
    lines = headline(portrait)
    wide = max(len(name) for name, _text in lines)
    for name, text in lines:
        console.print(f"[bold]{name:<{wide}}[/bold]  {escape(text)}")
    if portrait.gpus:
        table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
        for column in ("gpu", "model", "memory", "to the others", "PCIe", "address", "numa", "MIG", "health"):
            table.add_column(column)
        for gpu in portrait.gpus:
            table.add_row(*(escape(cell) for cell in _row(gpu)))
        console.print()
        cluster.print_table(table)
    if portrait.nics:
        console.print()
        for nic in portrait.nics:
            console.print(escape(_nic(nic, portrait)))
    faults = [(look.source, look.fault) for look in portrait.observations.values() if look.fault]
    if faults:
        console.print()
        for source, fault in faults:
            console.print(f"[yellow]{escape(source)}: {escape(fault)}[/yellow]")


def headline(portrait: Portrait) -> list[tuple[str, str]]:
    """Lines about the node as a whole."""
    usable, models = portrait.usable, sorted({gpu.model or gpu.product for gpu in portrait.usable})
    lost = len(portrait.gpus) - len(usable)
    silent = bool(portrait.gpus or (GPUS in portrait.observations and portrait.fault(GPUS)))
    what = f"{len(usable)} x {' and '.join(models)}" if usable else "no GPU answers" if silent else "no GPU"
    lines = [(portrait.node, what + (f", {lost} lost" if lost else "") + f", {len(portrait.pci.gpus)} on the PCI bus")]
    for driver in portrait.drivers:
        parts = [
            f"module {driver.loaded or 'not loaded'}" + (" (open)" if driver.open else ""),
            *([f"library {driver.userspace}"] if driver.userspace else []),
            *([f"fabric manager {driver.fabric_manager}"] if driver.fabric_manager else []),
            *([f"CUDA {driver.cuda}"] if driver.cuda else []),
        ]
        lines.append(("driver", ", ".join(parts)))
    fabric = portrait.fabric
    if fabric.state:
        domain = f", domain {fabric.cluster_uuid} clique {fabric.clique}" if fabric.cluster_uuid else ""
        lines.append(("fabric", f"{fabric.state}, {fabric.status or 'no status'}{domain}"))
    kernel = portrait.kernel
    if kernel.release:
        lines.append(("kernel", f"{kernel.release}, {kernel.cpus or '?'} CPUs, {kernel.numa_nodes or '?'} NUMA nodes"))
    if portrait.host_cuda:
        found = ", ".join(f"{one.path} {one.version}".strip() for one in portrait.host_cuda)
        lines.append(("host CUDA", f"{found} (images bring their own)"))
    return lines


def _row(gpu: Gpu) -> tuple[str, ...]:
    link = gpu.link
    ways = {"nvswitch": "NVSwitch", "nvlink": "NVLink", "hccs": "HCCS", "pcie": "PCIe"}
    way = ways.get(link.kind or "", "?") + (f" x{link.links}" if link.links else "")
    narrow = f" of {link.pcie_width_max}" if (link.pcie_width or 0) < (link.pcie_width_max or 0) else ""
    mig = "" if gpu.mig is None else "off" if gpu.mig.mode == "disabled" else _slices(gpu)
    return (
        str(gpu.index),
        gpu.model or gpu.product or "?",
        f"{gpu.memory_mib / 1024:.0f} GiB" if gpu.memory_mib else "",
        "" if gpu.fault else way,
        f"gen{link.pcie_generation} x{link.pcie_width}{narrow}" if link.pcie_generation else "",
        gpu.pci_address,
        "" if gpu.numa_node is None else str(gpu.numa_node),
        mig,
        health(gpu),
    )


def _slices(gpu: Gpu) -> str:
    names = [piece.profile or "?" for piece in gpu.mig.slices] if gpu.mig else []
    return " ".join(f"{names.count(name)} x {name}" for name in sorted(set(names))) or "on, no slice"


def health(gpu: Gpu) -> str:
    """What is not well with a GPU, in a few words; `ok` where nothing is known to be wrong."""
    if gpu.fault:
        return gpu.fault
    found = []
    if gpu.ecc and (gpu.ecc.uncorrected or gpu.ecc.volatile_uncorrected):
        found.append(f"{gpu.ecc.uncorrected or gpu.ecc.volatile_uncorrected} uncorrected memory errors")
    if gpu.row_remap and (gpu.row_remap.pending or gpu.row_remap.failure):
        found.append("row remapping " + ("failed" if gpu.row_remap.failure else "waits for a reset"))
    if gpu.throttle:
        found.append(f"slowed down ({', '.join(gpu.throttle)})")
    if gpu.temperature and gpu.temperature != "normal":
        found.append("hot" if gpu.temperature == "hot" else "at its slowdown temperature")
    found += [f"Xid {xid.code} (at least {xid.at_least})" for xid in gpu.xids or ()]
    return ", ".join(found) or "ok"


def _nic(nic: Nic, portrait: Portrait) -> str:
    rate = f"{nic.rate_gbit_s:g} Gbit/s" if nic.rate_gbit_s else nic.state
    behind = [f"{seen.chassis} port {seen.port}" for seen in portrait.neighbours if seen.interface == nic.name]
    numa = "" if nic.numa_node is None else f", NUMA {nic.numa_node}"
    return f"{nic.name:<12} {nic.kind:<10} {rate}{numa}" + (f", at {' and '.join(behind)}" if behind else "")
