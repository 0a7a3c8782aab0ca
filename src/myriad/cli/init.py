"""`myriad init`: from machines that answer over ssh to a description that validates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from myriad.cli import _cluster as cluster
from myriad.cli.output import console, emit_json
from myriad.cli.validate import JsonOption
from myriad.errors import InputError, UnreachableError
from myriad.fleet import Checked
from myriad.onboard.describe import (
    BUNDLE,
    Login,
    address_fault,
    check_control_plane,
    check_names,
    control_plane_of,
    describe,
)
from myriad.onboard.facts import HostFacts, clones, faults, inventory_names, notes
from myriad.onboard.ssh import USER, Silent, ask, hosts_of, read_targets
from myriad.onboard.write import refuse_existing, write


@dataclass(frozen=True, slots=True)
class _Result:
    """What was written, and what is said of it: of all (`more`), and of each host as it was asked (`remarks`)."""

    out: Path
    found: Sequence[HostFacts]
    chosen: Sequence[str]
    remarks: dict[str, list[str]]
    more: Sequence[str]
    checked: Checked


def register(app: typer.Typer) -> None:
    """Add the verb."""

    @app.command()
    def init(
        hosts: Annotated[
            str,
            typer.Option(
                help="Names, addresses or ranges (gpu[1:8]) with commas; user@HOST where another user logs in."
            ),
        ],
        out: Annotated[Path, typer.Option("--out", help="Folder to write; it must not exist.")] = Path(
            "inventories/mine"
        ),
        user: Annotated[str, typer.Option(help="Who logs in: root, or somebody who becomes root by sudo.")] = "root",
        key: Annotated[Path | None, typer.Option(help="File of the private key; ssh's own choice without it.")] = None,
        port: Annotated[int, typer.Option(help="Port of sshd.", min=1, max=65535)] = 22,
        ssh_option: Annotated[
            list[str] | None, typer.Option(help="As after `ssh -o`, for ssh and for Ansible (repeat it).")
        ] = None,
        control_plane: Annotated[
            str, typer.Option(help="Hosts of the control plane; the first without GPUs, or the first, without it.")
        ] = "",
        name: Annotated[str, typer.Option(help="The cluster's name; the folder's without it.")] = "",
        team: Annotated[str, typer.Option(help="A team to begin with; it owns every GPU.")] = "research",
        sysfs: Annotated[str, typer.Option(help="Where the hosts' sysfs stands.")] = "/sys",
        as_json: JsonOption = False,
    ) -> None:
        """Ask the hosts what they are, and write the inventory that describes them. Changes nothing on them."""
        refuse_existing(out)
        # Everything that the flags say is judged before a machine is asked.
        called = name or out.absolute().name.lower()
        check_names(called, team)
        if USER.fullmatch(user) is None:
            raise InputError(
                f'"{user}" is no name of an account', where="--user", hint="root, or who becomes root by sudo"
            )
        targets = read_targets(hosts, user)
        wanted = hosts_of(control_plane)
        check_control_plane([target.host for target in targets], wanted)
        login = Login(
            user=user,
            users={target.host: target.user for target in targets},
            port=port,
            key=_key(key),
            options=tuple(ssh_option or ()),
        )
        found, silent = ask(targets, login, sysfs=sysfs)
        _refuse(found, silent, asked=len(targets))
        chosen = control_plane_of(found, wanted)
        made = describe(found, name=called, team=team, login=login, control_plane=chosen)
        checked = write(made, out)
        remarks = {h.asked: notes(h, is_control_plane=h.asked in chosen) for h in found}
        result = _Result(out, found, chosen, remarks, made.notes, checked)
        if as_json:
            emit_json(_document(result))
        else:
            _show(result)


def _key(path: Path | None) -> str:
    if path is None:
        return ""
    if path.suffix == ".pub":
        raise InputError("is the public key", where=f"--key {path}", hint=f"the private one: {path.with_suffix('')}")
    if not path.is_file():
        raise InputError(
            "there is no such key", where=f"--key {path}", hint="the private key, for example ~/.ssh/id_ed25519"
        )
    return str(path.absolute())


def _refuse(found: Sequence[HostFacts], silent: Sequence[Silent], *, asked: int) -> None:
    """Name every host that cannot be described, with what to do; nothing was written yet."""
    wrong = [(one.host, one.why) for one in silent]
    for host in found:
        address = address_fault(host)
        wrong += [(host.asked, why) for why in [*faults(host), *([address] if address else [])]]
    wrong += clones(found)
    if not wrong:
        return
    width = max(len(host) for host, _ in wrong)
    lines = "\n".join(f"  {host:<{width}}  {why}" for host, why in wrong)
    count = len({host for host, _ in wrong})
    kind = UnreachableError if silent else InputError
    raise kind(f"{count} of {asked} host{'' if asked == 1 else 's'} cannot be described; nothing was written\n{lines}")


def _rows(found: Sequence[HostFacts], chosen: Sequence[str]) -> list[dict[str, Any]]:
    called = inventory_names(found)
    return [
        {
            "host": host.asked,
            "name": called[host.asked],
            "os": host.os_name,
            "arch": host.arch,
            "cores": host.cores,
            "memory_mib": host.memory_mib,
            "gpus": len(host.gpus),
            "gpu_model": host.model.name if host.model else None,
            "control_plane": host.asked in chosen,
            "machine_id": host.machine_id,
        }
        for host in found
    ]


def _document(result: _Result) -> dict[str, Any]:
    rows = [row | {"notes": result.remarks[row["host"]]} for row in _rows(result.found, result.chosen)]
    return {
        "out": str(result.out),
        "hosts": rows,
        "notes": list(result.more),
        "warnings": [problem.as_dict() for problem in result.checked.warnings],
        "next": next_commands(result.out),
    }


def _show(result: _Result) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in ("host", "name", "system", "cores", "memory", "GPUs", ""):
        table.add_column(head)
    for row in _rows(result.found, result.chosen):
        gpus = f"{row['gpus']} x {row['gpu_model']}" if row["gpus"] else "none"
        memory = f"{row['memory_mib'] / 1024:,.0f} GiB"
        part = "control plane" if row["control_plane"] else ""
        table.add_row(row["host"], row["name"], row["os"], str(row["cores"]), memory, gpus, part)
    cluster.print_table(table)
    for host, lines in result.remarks.items():
        for line in lines:
            console.print(f"note  {host}  {line}", markup=False)
    for line in [*result.more, *(f"{problem.subject} {problem.message}" for problem in result.checked.warnings)]:
        console.print(f"note  {line}", markup=False)
    fleet = result.checked.fleet
    console.print(
        f"{result.out}: {len(fleet.control_plane)} control plane, {fleet.gpus} GPUs in {len(fleet.capacity)} pool"
        f"{'' if len(fleet.capacity) == 1 else 's'}; valid. Nothing was changed on the hosts.",
        markup=False,
    )
    console.print("next", markup=False)
    for line in next_commands(result.out):
        console.print(f"  {line}", markup=False)


def next_commands(out: Path) -> list[str]:
    """What to do with the folder, in order."""
    return [
        f"edit {out}/hosts.yml: the rack of each machine (myriad_location)",
        f"edit {out}/group_vars/all/site.yml: the device plugin by digest; teams.yml: who owns what",
        f"myriad validate -i {out}",
        f"myriad bundle build --out {BUNDLE}",
        f"myriad site -i {out} --check --diff",
        f"myriad site -i {out}",
    ]
