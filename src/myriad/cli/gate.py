"""`myriad gate`: what a node's gate found, check by check, and what to do; without a node, all gates."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from myriad.agent import brake
from myriad.agent.gate import Check, agent_log
from myriad.agent.report import OWN_TAINTS, RUN_ANNOTATION, Record, foreign_taints, own_taints
from myriad.cli import _cluster as cluster
from myriad.cli.output import console, emit_json
from myriad.errors import InputError, MyriadError
from myriad.fleet.labels import GPU_EXPECTED_LABEL, POOL_LABEL, place_text
from myriad.fleet.names import did_you_mean
from myriad.fleet.portrait import LEASE_NAMESPACE, LEASE_PREFIX, fresh
from myriad.kube.client import Api
from myriad.kube.kinds import CONFIG_MAPS, LEASES, NODES

Json = dict[str, Any]

_RUN_TIMEOUT_S = 180.0
_FIELD_MANAGER = "myriad-cli"


def register(app: typer.Typer) -> None:
    """Add the verb."""

    @app.command()
    def gate(
        node: Annotated[str | None, typer.Argument(help="A node; without it, all nodes with GPUs.")] = None,
        json_: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
        run: Annotated[bool, typer.Option("--run", help="Have it judged afresh, from a container too.")] = False,
        release: Annotated[
            str | None, typer.Option("--release", metavar="POOL", help="Let the brake of a pool go.")
        ] = None,
        all_: Annotated[bool, typer.Option("--all", help="Open gates too, where no node is named.")] = False,
        kubeconfig: Annotated[str | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")] = None,
    ) -> None:
        """Why a node takes work or not: each check with expected, found, cause and next command.

        Exit code 0: open. 4: closed, or held open by the brake although checks fail.
        """
        api = cluster.reach(kubeconfig)
        if release is not None:
            _release(api, release, json_=json_)
            return
        if run and node is None:
            raise InputError("--run needs a node", hint="myriad gate NODE --run")
        report = _one(api, node, run=run) if node else _all(api)
        if json_:
            emit_json(report)
        elif node:
            _show_one(report)
        else:
            _show_all(report, every=all_)
        if not report["ok"]:
            raise typer.Exit(4)


# One node


def _one(api: Api, name: str, *, run: bool) -> Json:
    body = api.find(NODES, name)
    if body is None:
        names = [item["metadata"]["name"] for item in api.list(NODES)[0]]
        raise InputError(f'there is no node "{name}"{did_you_mean(name, names)}')
    if run:
        body = _run(api, name)
    lease = api.find(LEASES, f"{LEASE_PREFIX}{name}", namespace=LEASE_NAMESPACE)
    return report_of(body, lease, datetime.now(UTC))


def _run(api: Api, name: str) -> Json:
    """Ask the node's agent for a fresh verdict and wait for it."""
    wanted = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    annotation = {"metadata": {"annotations": {RUN_ANNOTATION: wanted}}}
    body = api.patch(NODES, name, annotation, field_manager=_FIELD_MANAGER)
    end = time.monotonic() + _RUN_TIMEOUT_S
    while True:
        record = Record.of(body)
        if record.run == wanted and (record.probe is None or record.probe.done) and not _only_waits(record):
            return body
        if time.monotonic() > end:
            raise MyriadError(
                f"its agent did not judge it within {_RUN_TIMEOUT_S:.0f} s",
                where=name,
                hint=agent_log(name),
            )
        time.sleep(1.0)
        body = api.get(NODES, name)


def _only_waits(record: Record) -> bool:
    """Whether all agrees but for the container that has not looked yet."""
    return record.verdict.failing == ("devices",) and record.probe is None


def report_of(node: Json, lease: Json | None, now: datetime) -> Json:
    """One node's gate as a document. Pure.

    Args:
        node: the Node.
        lease: its agent's Lease; None where there is none.
        now: an aware time.
    """
    record = Record.of(node)
    labels = node["metadata"].get("labels") or {}
    spec = node.get("spec") or {}
    taints = sorted(own_taints(node))
    silent = fresh({"node": node["metadata"]["name"]}, lease, now)
    cause, step = _cause(record, taints, silent, node["metadata"]["name"], labels.get(POOL_LABEL, "POOL"))
    others = [t for t in spec.get("taints") or [] if t["key"] not in OWN_TAINTS]
    return {
        "node": node["metadata"]["name"],
        "place": place_text(brake.deepest_place(labels)),
        "pool": labels.get(POOL_LABEL, ""),
        "gate": "closed" if taints else "open",
        "ok": not taints and not cause,
        "since": record.since,
        "cause": cause,
        "next": step,
        "held": record.held,
        "taints": taints,
        "foreign_taints": [*foreign_taints(node), *others],
        "cordoned": bool(spec.get("unschedulable")),
        "agent": silent or "heard of",
        "checks": [_check(check) for check in record.checks],
    }


def _cause(record: Record, taints: list[str], silent: str, name: str, pool: str) -> tuple[str, str]:
    """What is wrong and what to do; empty where the gate is open and nothing is."""
    logs = agent_log(name)
    if silent and taints:
        return f"{silent}: nobody can open the gate", f"kubectl get pods -n myriad-system -o wide | grep {name}"
    if record.held.startswith(brake.ON):
        return record.held, f"myriad gate --release {pool}"
    if record.held:
        return record.held, logs
    if record.verdict.first is not None:
        return record.verdict.cause, record.verdict.next
    if taints and not record.checks:
        return "the node agent has not judged it yet", logs
    if taints:
        return "the agent is about to take the taint back", logs
    return "", ""


def _check(check: Check) -> Json:
    return {
        "check": check.check, "expected": check.expected, "found": check.found, "ok": check.ok, "cause": check.cause,
        "next": check.next, "follows": check.follows or None,
    }  # fmt: skip


def _show_one(report: Json) -> None:
    head = [report["node"], report["place"], report["pool"] and f"pool {report['pool']}"]
    state = f"gate {report['gate']}" + (f" since {report['since']}" if report["since"] else "")
    console.print("  ".join(filter(None, [*head, state])), markup=False)
    if report["checks"]:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for title in ("check", "expected", "found", ""):
            table.add_column(title)
        for check in report["checks"]:
            follows = f"follows from {check['follows']}" if check["follows"] else check["cause"]
            words = "ok" if check["ok"] else follows
            table.add_row(
                *(escape(_cell(value)) for value in (check["check"], check["expected"], check["found"], words))
            )
            if not check["ok"] and not check["follows"] and check["next"]:
                table.add_row("", "", "", escape(f"next: {check['next']}"))
        cluster.print_table(table)
    if report["cause"] and all(check["ok"] or check["cause"] != report["cause"] for check in report["checks"]):
        console.print(f"{report['cause']}\nnext: {report['next']}", markup=False)
    if report["cordoned"]:
        console.print(f"cordoned by somebody else: kubectl uncordon {report['node']}", markup=False)
    for taint in report["foreign_taints"]:
        if taint["key"] != "node.kubernetes.io/unschedulable":
            value = f"={taint['value']}" if taint.get("value") else ""
            console.print(f"tainted by somebody else: {taint['key']}{value}:{taint.get('effect')}", markup=False)


def _cell(value: Any) -> str:
    return "-" if value is None else str(value)


# All nodes


def _all(api: Api) -> Json:
    nodes, _ = api.list(NODES, labels=GPU_EXPECTED_LABEL)
    return summary(nodes, cluster.brakes(api))


def summary(nodes: list[Json], trips: list[Json]) -> Json:
    """All gates as one document: how many are open, and each closed one with its cause. Pure.

    Args:
        nodes: Nodes with GPUs.
        trips: brakes that are on.
    """
    rows = []
    for node in nodes:
        record, taints = Record.of(node), sorted(own_taints(node))
        labels = node["metadata"].get("labels") or {}
        cause, step = _cause(record, taints, "", node["metadata"]["name"], labels.get(POOL_LABEL, "POOL"))
        rows.append(
            {
                "node": node["metadata"]["name"], "pool": labels.get(POOL_LABEL, ""),
                "gate": "closed" if taints else "open", "ok": not taints and not cause, "since": record.since,
                "check": record.verdict.first.check if record.verdict.first else "", "cause": cause, "next": step,
                "held": bool(record.held),
            }
        )  # fmt: skip
    rows.sort(key=lambda row: row["node"])
    return {
        "ok": all(row["ok"] for row in rows),
        "nodes_total": len(rows),
        "open": sum(row["gate"] == "open" for row in rows),
        "closed": sum(row["gate"] == "closed" for row in rows),
        "held_open": sum(row["held"] for row in rows),
        "by_check": dict(Counter(row["check"] for row in rows if row["check"]).most_common()),
        "brake": trips,
        "nodes": rows,
    }


def _show_all(report: Json, *, every: bool) -> None:
    shown = report["nodes"] if every else [row for row in report["nodes"] if not row["ok"]]
    if shown:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for title in ("node", "pool", "gate", "since", "cause"):
            table.add_column(title)
        for row in shown:
            gate = "held open" if row["held"] else row["gate"]
            table.add_row(row["node"], row["pool"], gate, row["since"], escape(row["cause"]))
        cluster.print_table(table)
    held = f", {report['held_open']} of them held open by the brake" if report["held_open"] else ""
    kinds = "; ".join(f"{check} {count}" for check, count in report["by_check"].items())
    console.print(
        f"{report['open']} of {report['nodes_total']} gates are open{held}" + (f"; failing: {kinds}" if kinds else ""),
        markup=False,
    )
    for trip in report["brake"]:
        console.print(f"{trip['scope']}, since {trip['since']}: {trip['says']}", markup=False)
    if report["closed"]:
        console.print("each check of a node: myriad gate NODE", markup=False)


# The brake


def _release(api: Api, pool: str, *, json_: bool) -> None:
    name = f"{brake.NAME_PREFIX}{pool}"
    if api.find(CONFIG_MAPS, name, namespace=brake.NAMESPACE) is None:
        maps, _ = api.list(CONFIG_MAPS, namespace=brake.NAMESPACE, labels=brake.BRAKE_LABEL)
        pools = [m["metadata"]["labels"][brake.BRAKE_LABEL] for m in maps]
        raise InputError(
            f'the brake of pool "{pool}" never closed or held a node{did_you_mean(pool, pools) if pools else ""}'
        )
    before = brake.Brake(api).release(pool)
    if json_:
        emit_json({"pool": pool, "released": sorted(before.trips), "closed_before": sorted(before.claims)})
        return
    was = f"it held {', '.join(sorted(before.trips))}" if before.trips else "it held nothing"
    console.print(
        f"brake of pool {pool} let go ({was}); nodes whose faults are still there close within the caps, reports from "
        "before are not replayed",
        markup=False,
    )
