"""`myriad topology`: do the nodes stand where the description says? Their cables are asked."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from myriad.cli.output import console, emit_json, err_console
from myriad.cli.validate import InventoryOption, print_problems
from myriad.errors import InputError, MyriadError
from myriad.fleet import Fleet, check
from myriad.fleet.crosscheck import Report, cross_check
from myriad.fleet.neighbours import NeighbourFormatError, Sighting, ib_sightings, lldp_sightings, nvlink_sightings
from myriad.fleet.problems import host_ranges
from myriad.inventory import read_inventory

LLDPCLI = "lldpcli -f json0 show neighbors details"
#: `gpu1 | CHANGED | rc=0 >>`, or `gpu1 | UNREACHABLE! => {`: a host's answer to one command, as ansible prints it.
_ANSWER = re.compile(r"^(?P<host>\S+) \| (?P<state>[A-Z]+)!?(?: \| rc=(?P<rc>-?\d+))? (?:>>|=>)", re.MULTILINE)


def register(app: typer.Typer) -> None:
    """Add the verb."""

    @app.command()
    def topology(
        inventory: InventoryOption,
        ssh: Annotated[
            bool, typer.Option("--ssh", help="Ask lldpd on every GPU node over ssh; needs no cluster.")
        ] = False,
        ibnetdiscover: Annotated[
            Path | None, typer.Option("--ibnetdiscover", help="File with the output of ibnetdiscover.")
        ] = None,
        kubeconfig: Annotated[str | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")] = None,
        json_: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    ) -> None:
        """Compare room, block and rack of every node with its switches. Exit 4 where a cable says otherwise.

        Neighbours come from the NodePortraits of the cluster, or over ssh from lldpd itself.
        """
        checked = check(read_inventory(*inventory))
        if checked.errors:
            print_problems(checked.errors, to=err_console)
            raise InputError("the description is wrong; nothing was asked", hint="`myriad validate` says the same")
        fleet = checked.fleet
        silent: dict[str, str] = {}
        sightings: list[Sighting] = []
        if ibnetdiscover is not None:
            sightings += _read_ibnetdiscover(ibnetdiscover)
        if ssh:
            found, silent = ask_over_ssh(inventory)
            sightings += found
        elif ibnetdiscover is None or kubeconfig or os.environ.get("KUBECONFIG"):
            sightings += from_portraits(kubeconfig)
        report = compare(fleet, sightings)
        if json_:
            emit_json(report.as_dict() | {"did_not_answer": silent})
        else:
            for line in lines(fleet, report, silent):
                console.print(line, markup=False)
        if not report.ok:
            raise typer.Exit(4)


def compare(fleet: Fleet, sightings: Iterable[Sighting]) -> Report:
    """The description's GPU nodes against what was seen."""
    return cross_check(
        {name: host.location for name, host in fleet.hosts.items() if host.location},
        sightings,
        switches=fleet.topology.switches,
        accept=fleet.topology.accept,
        hosts=fleet.hosts,
    )


def lines(fleet: Fleet, report: Report, silent: Mapping[str, str]) -> list[str]:
    """The report for people."""
    told = [mismatch.message for mismatch in report.open]
    told += [f"accepted: {mismatch.message}" for mismatch in report.mismatches if mismatch.accepted]
    by_cause: dict[str, list[str]] = {}
    for host, cause in silent.items():
        by_cause.setdefault(cause, []).append(host)
    told += [f"{host_ranges(hosts)} did not answer: {cause}" for cause, hosts in by_cause.items()]
    unseen = [node for node in report.unseen if node not in silent]
    if unseen:
        told.append(
            f"{host_ranges(unseen)} sees no switch: `lldpcli show neighbors` there; is LLDP on at the switch's port?"
        )
    strangers: dict[tuple[str, ...], list[str]] = {}
    for node, switches in report.unknown.items():
        if not any(mismatch.node == node for mismatch in report.mismatches):
            strangers.setdefault(switches, []).append(node)
    told += [
        f"{host_ranges(nodes)} hangs on {', '.join(switches)}, which myriad_topology.switches does not name"
        for switches, nodes in strangers.items()
    ]
    if report.unused:
        told.append(f"no node hangs on {host_ranges(report.unused)}, which myriad_topology.switches names")
    if report.inferred:
        shown = list(report.inferred.items())[:4]
        more = f" and {len(report.inferred) - len(shown)} more" if len(report.inferred) > len(shown) else ""
        told.append(
            "inferred from most of their nodes: "
            + ", ".join(f"{switch} in {'/'.join(place)}" for switch, place in shown)
            + more
        )
    total = sum(bool(host.location) for host in fleet.hosts.values())
    wrong = len(report.open)
    told.append(
        f"{len(report.agreeing)} of {total} nodes stand where the description says, "
        f"{wrong} {'does' if wrong == 1 else 'do'} not, {total - len(report.agreeing) - wrong} not told by any cable"
    )
    return told


def _read_ibnetdiscover(path: Path) -> tuple[Sighting, ...]:
    try:
        return ib_sightings(path.read_text(errors="replace"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except NeighbourFormatError as error:
        raise InputError(
            str(error), where=str(path), hint=f"on a node of the fabric: ibnetdiscover > {path.name}"
        ) from error


def portrait_sightings(portrait: Mapping[str, Any]) -> list[Sighting]:
    """What a NodePortrait's status says about cables, in the words of its document."""
    node = str(portrait.get("node") or "")
    observation = (portrait.get("observations") or {}).get("neighbours") or {}
    at = str(observation.get("at") or "")
    found = [
        Sighting(
            node,
            str(seen.get("chassis") or seen.get("chassisId") or ""),
            "LLDP",
            str(seen.get("interface") or ""),
            str(seen.get("port") or ""),
            str(seen.get("chassisId") or ""),
            at,
        )
        for seen in portrait.get("neighbours") or []
    ]
    fabric = portrait.get("fabric") or {}
    if fabric.get("clusterUuid"):
        found += nvlink_sightings(node, [(str(fabric["clusterUuid"]), str(fabric.get("clique") or 0))])
    return [sighting for sighting in found if sighting.peer]


def from_portraits(kubeconfig: str | None) -> list[Sighting]:
    """Neighbours of every NodePortrait in the cluster.

    Raises:
        MyriadError: no cluster answers, or it has no portraits.
    """
    from myriad.cli import _cluster as cluster

    items = cluster.node_portraits(
        cluster.reach(kubeconfig),
        without="`myriad site` installs the node agent; `myriad topology --ssh` asks the nodes without one",
    )
    return [
        sighting
        for item in items
        for sighting in portrait_sightings({"node": item["metadata"]["name"], **(item.get("status") or {})})
    ]


def ask_over_ssh(inventory: Sequence[Path]) -> tuple[list[Sighting], dict[str, str]]:
    """Ask lldpd of every GPU node. Returns what was seen, and host -> why it said nothing."""
    program = Path(sys.executable).with_name("ansible")
    if not program.exists():
        raise MyriadError("ansible is not in this Python environment", where=str(program.parent), hint="`make env`")
    command = [str(program), "gpu_nodes", "-m", "ansible.builtin.command", "-a", LLDPCLI, "-f", "50"]
    for source in inventory:
        command += ["-i", str(source)]
    environment = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.minimal"}
    err_console.print(shlex.join(["ansible", *command[1:]]), style="dim", markup=False)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    found, silent = read_answers(done.stdout, at=at)
    if not found and not silent:
        raise MyriadError(
            "ansible asked no node: " + (" ".join(done.stderr.split())[-300:] or "it said nothing"),
            where=", ".join(str(source) for source in inventory),
            hint="`ansible gpu_nodes -m ping -i INVENTORY` tells more",
        )
    return found, silent


def read_answers(text: str, *, at: str) -> tuple[list[Sighting], dict[str, str]]:
    """Sightings and silent hosts from what `ansible -m command` printed. Pure.

    Args:
        text: its standard output, by the callback `minimal`.
        at: the time of asking.
    """
    found: list[Sighting] = []
    silent: dict[str, str] = {}
    heads = list(_ANSWER.finditer(text))
    for place, head in enumerate(heads):
        end = heads[place + 1].start() if place + 1 < len(heads) else len(text)
        body = text[head.end() : end].strip()
        host = head["host"]
        if head["rc"] == "0":
            try:
                seen = lldp_sightings(host, body)
            except NeighbourFormatError as error:
                silent[host] = str(error)
                continue
            found += [
                Sighting(one.node, one.peer, one.source, one.interface, one.port, one.chassis, at) for one in seen
            ]
            if not seen:
                silent[host] = "lldpd sees nobody yet (a switch speaks every 30 s); is LLDP on at the switch's port?"
        elif head["state"] == "UNREACHABLE":
            silent[host] = "not reached over ssh"
        elif "No such file" in body or "not found" in body:
            silent[host] = "lldpd is not installed; role fabric installs it (fabric_lldp_enabled)"
        else:
            silent[host] = " ".join(body.split())[:160] or "lldpcli failed without a word"
    return found, silent
