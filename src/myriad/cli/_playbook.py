"""Running a playbook of Myriad as a verb: the command is printed, its events become an exit code."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from myriad.cli.output import err_console
from myriad.errors import InputError, MyriadError
from myriad.fleet import RawInventory, check
from myriad.fleet.check import ROLE_GROUPS
from myriad.fleet.names import did_you_mean
from myriad.inventory import read_inventory
from myriad.roles import roles_folder, with_role_settings
from myriad.runs import parse

_SHOWN = 10
"""Errors of a description that are repeated here."""
_ALWAYS = frozenset({"all", "ungrouped", "localhost", "127.0.0.1"})


def playbook_path(name: str, start: Path | None = None) -> str:
    """What to hand to ansible-playbook for `name`: the clone's playbook, or the installed collection's.

    Args:
        name: `site`, `reset`, ...
        start: where to look for a clone, the working directory by default.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        candidate = folder / "playbooks" / f"{name}.yml"
        if candidate.is_file() and (folder / "galaxy.yml").is_file():
            return os.path.relpath(candidate, here)
    return f"myriad.gpu.{name}"


def ansible_playbook_program() -> str:
    """The ansible-playbook of this Python environment; another one would not know the collection."""
    own = Path(sys.executable).with_name("ansible-playbook")
    if not own.exists():
        raise MyriadError(
            "ansible-playbook is not in this Python environment",
            where=str(own.parent),
            hint="Run `make env` in a clone, or install the wheel again.",
        )
    return str(own)


def check_limit(inventory: Path, limit: str) -> None:
    """Refuse a --limit that names what the inventory does not have, before anything starts.

    Ansible itself warns, leaves the name out and goes on with the others. Patterns (`gpu*`, `!gpu1`, `@file`) are its
    own business.

    Raises:
        InputError: a name is neither a host nor a group.
    """
    if not inventory.exists():
        return
    read = read_inventory(inventory)
    known = read.hosts.keys() | read.groups.keys() | _ALWAYS
    if not read.complete or not read.hosts:
        return
    for name in (part.strip() for part in limit.replace(":", ",").split(",")):
        if re.fullmatch(r"[A-Za-z0-9_.-]+", name) and name not in known:
            raise InputError(
                f'"{name}" is neither a host nor a group of the inventory{did_you_mean(name, known - _ALWAYS)}',
                where=str(inventory),
            )
    _refuse_idle(read, limit, inventory)


def _refuse_idle(read: RawInventory, limit: str, inventory: Path) -> None:
    """Refuse a limit to machines that no play takes: the run would end well and have done nothing."""
    names = [part.strip() for part in limit.replace(":", ",").split(",") if part.strip()]
    if not names or not all(name in read.hosts or name in read.groups for name in names):
        return
    hosts = [host for host in read.hosts.values() if any(name == host.name or name in host.groups for name in names)]
    if not any(group in ROLE_GROUPS or group.startswith("pool_") for host in hosts for group in host.groups):
        raise InputError(
            f"{', '.join(names)}: in none of the groups {', '.join(ROLE_GROUPS)}, so nothing would be done",
            where=str(inventory),
            hint="put the machine into its group, or name others after --limit",
        )


def run_playbook(
    name: str,
    *,
    inventory: Path,
    arguments: Iterable[str] = (),
    extra: dict[str, str] | None = None,
    quiet: bool = False,
) -> tuple[int, Path]:
    """Run a playbook to its end.

    Args:
        name: `site`, `reset`, ...
        inventory: folder or file of the description.
        arguments: further arguments of ansible-playbook, as they are typed.
        extra: extra variables.
        quiet: send its output to standard error, so that standard output can carry JSON.

    Returns:
        ansible-playbook's own exit code, and the file with the run's events.

    Raises:
        InputError: the inventory does not exist, or the description is wrong and no host was looked at.
    """
    if not inventory.exists():
        raise InputError(
            "there is no such inventory", where=str(inventory), hint="`ls inventories` lists what this project holds."
        )
    command = [ansible_playbook_program(), playbook_path(name), "-i", str(inventory), *arguments]
    for key, value in (extra or {}).items():
        command += ["-e", f"{key}={value}"]
    handle, events = tempfile.mkstemp(prefix="myriad-events-", suffix=".jsonl")
    os.close(handle)
    environment = {**os.environ, "MYRIAD_EVENTS": events}
    environment.setdefault("ANSIBLE_STDOUT_CALLBACK", "myriad.gpu.progress")
    err_console.print(shlex.join(["ansible-playbook", *command[1:]]), style="dim", markup=False)
    done = subprocess.run(command, env=environment, stdout=sys.stderr if quiet else None, check=False)
    if done.returncode:
        _refuse_wrong_description(inventory, Path(events))
    return done.returncode, Path(events)


def _refuse_wrong_description(inventory: Path, events: Path) -> None:
    """Say that the description is wrong where a run ended by that, before any host did something.

    Looked at after a failure only: reading a large inventory once more costs a run that goes well nothing.
    """
    rows = parse(events.read_text().splitlines())
    if any(row.get("status") in ("ok", "changed") and row.get("host") != "localhost" for row in rows):
        return
    raw = read_inventory(inventory)
    errors = with_role_settings(check(raw), raw, roles_folder()).errors
    if not errors:
        return
    events.unlink()
    lines = [
        f"  {f'{problem.origin.file}: ' if problem.origin else ''}{problem.subject} {problem.message}"
        for problem in errors[:_SHOWN]
    ]
    lines += [f"  and {len(errors) - _SHOWN} more"] if len(errors) > _SHOWN else []
    raise InputError(
        "the description is wrong; nothing was touched\n" + "\n".join(lines),
        where=str(inventory),
        hint=f"`myriad validate -i {inventory}` shows every error with its line",
    )


def data_file(name: str) -> Path:
    """A data file of the package, from the clone or the installed wheel."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / name).is_file() and (folder / "galaxy.yml").is_file():
            return folder / name
    return Path(str(resources.files("myriad") / "data" / name))
