"""`myriad render`: the Kubernetes objects of a description as YAML files, without a cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from myriad.cli.output import console, emit_json, err_console
from myriad.cli.validate import InventoryOption, JsonOption, as_document, print_problems, verdict
from myriad.errors import InputError
from myriad.fleet import check, objects_for_cluster_policy
from myriad.fleet.access import access_objects
from myriad.inventory import read_inventory

FILES: Mapping[str, str] = {
    "Namespace": "namespaces.yml",
    "PriorityClass": "priority-classes.yml",
    "WorkloadPriorityClass": "workload-priority-classes.yml",
    "Topology": "topology.yml",
    "ResourceFlavor": "resource-flavors.yml",
    "Cohort": "cohorts.yml",
    "ClusterQueue": "cluster-queues.yml",
    "LocalQueue": "local-queues.yml",
    "ConfigMap": "site-policy.yml",
    "ValidatingAdmissionPolicy": "admission-policies.yml",
    "ValidatingAdmissionPolicyBinding": "admission-bindings.yml",
    "ClusterRole": "access-roles.yml",
    "ClusterRoleBinding": "access-readers.yml",
    "Role": "access-page.yml",
    "RoleBinding": "access-members.yml",
    "NetworkPolicy": "access-networks.yml",
    "LimitRange": "access-defaults.yml",
    "Queue": "volcano-queues.yml",
    "HyperNode": "volcano-hypernodes.yml",
}
"""File of each kind. The order is the order to apply them in."""

_HEADER = "# Rendered by `myriad render` from the inventory. Change the description, not this file.\n"


def register(app: typer.Typer) -> None:
    """Add the verb."""

    @app.command()
    def render(
        inventory: InventoryOption,
        out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write to; made where it is missing.")],
        as_json: JsonOption = False,
    ) -> None:
        """Write every Kubernetes object of the description as YAML. Refuses (exit 1) while it has errors."""
        started = time.monotonic()
        checked = check(read_inventory(*inventory))
        if checked.errors:
            if as_json:
                emit_json(as_document(inventory, checked, time.monotonic() - started))
            else:
                print_problems(checked.problems)
                err_console.print(verdict(checked, time.monotonic() - started), markup=False)
            raise typer.Exit(1)
        written = write_objects([*objects_for_cluster_policy(checked.fleet), *access_objects(checked.fleet)], out)
        elapsed_s = time.monotonic() - started
        if as_json:
            emit_json(
                {
                    "out": str(out),
                    "files": [{"path": str(path), "objects": count} for path, count in written.items()],
                    "warnings": [problem.as_dict() for problem in checked.warnings],
                    "elapsed_s": round(elapsed_s, 3),
                }
            )
            return
        print_problems(checked.warnings)
        for path, count in written.items():
            console.print(f"{path}  {count} object{'' if count == 1 else 's'}", markup=False)
        console.print(f"{sum(written.values())} objects in {len(written)} files ({elapsed_s:.1f} s)", markup=False)


def write_objects(objects: Sequence[dict[str, Any]], out: Path) -> dict[Path, int]:
    """Write one file for each kind, and remove files of an earlier run whose kind has no objects any more.

    Returns:
        Each written file with its number of objects, in apply order.

    Raises:
        InputError: `out` is a file or cannot be written.
    """
    by_kind: dict[str, list[dict[str, Any]]] = {kind: [] for kind in FILES}
    for item in objects:
        by_kind[item["kind"]].append(item)
    written: dict[Path, int] = {}
    try:
        out.mkdir(parents=True, exist_ok=True)
        for kind, members in by_kind.items():
            path = out / FILES[kind]
            if not members:
                if path.exists() and path.read_text(encoding="utf-8").startswith(_HEADER):
                    path.unlink()
                continue
            text = yaml.dump_all(
                members, Dumper=yaml.CSafeDumper, sort_keys=False, explicit_start=True, allow_unicode=True
            )
            path.write_text(_HEADER + text, encoding="utf-8")
            written[path] = len(members)
    except OSError as error:
        raise InputError(
            f"cannot write the objects: {error.strerror}",
            where=str(error.filename or out),
            hint="give --out another folder",
        ) from error
    return written
