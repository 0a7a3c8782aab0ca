"""`myriad lab status`: the lab's record, its containers and what the cluster says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from docker.errors import NotFound

from myriad.cli.output import console
from myriad.errors import MyriadError
from myriad.kube.client import connect
from myriad.kube.kinds import NODES
from myriad.lab import engine
from myriad.lab.display import row
from myriad.lab.state import LabState, clone_root, lab_paths, require_state
from myriad.lab.topology import read_nodes
from myriad.lab.verdict import node_verdicts, table, warm_images


def lab_status(clone: Path | None) -> dict[str, Any]:
    """Everything as one document.

    Raises:
        MyriadError: when there is no lab, or no engine answers.
    """
    root = clone_root(clone)
    paths = lab_paths(root)
    state = require_state(paths)
    inventory = paths.inventory
    cluster = yaml.safe_load((inventory / "group_vars" / "all" / "cluster.yml").read_text())
    report: dict[str, Any] = {
        "lab": state.name,
        "subnet": state.subnet,
        "bundle": state.bundle,
        "detected": state.detected.model_dump(),
        "phases": {name: record.model_dump() for name, record in state.phases.items()},
        "nodes": _containers(state),
        "verdict": [],
        "cluster": "",
        "takes_work": False,
    }
    if not paths.kubeconfig.exists():
        report["cluster"] = "not made yet: `make lab` goes on"
        return report
    try:
        objects = connect(paths.kubeconfig).list(NODES)[0]
    except MyriadError as error:
        report["cluster"] = error.message
        return report
    rows = node_verdicts(read_nodes(inventory, state.subnet), objects, warm_images(cluster))
    report["verdict"] = [item.as_json() for item in rows]
    report["takes_work"] = bool(rows) and all(item.takes_work for item in rows)
    report["table"] = table(rows)
    return report


def _containers(state: LabState) -> dict[str, dict[str, str]]:
    client = engine.connect()
    found = {}
    for name, host in state.hosts.items():
        try:
            status = str(client.containers.get(host.container).status) if host.container else "not made"
        except NotFound:
            status = "gone"
        found[name] = {"address": host.address, "container": status}
    return found


def print_status(report: dict[str, Any]) -> None:
    """The document as text."""
    console.print(row("lab", f"{report['lab']}, {report['subnet']}"), markup=False)
    nodes = "  ".join(f"{name} {entry['address']} {entry['container']}" for name, entry in report["nodes"].items())
    console.print(row("nodes", nodes), markup=False)
    if report["cluster"]:
        console.print(row("cluster", report["cluster"]), markup=False)
    for line in report.get("table", []):
        console.print(line, markup=False)
