"""`myriad access grant`: a kubeconfig for a person of a team, which ends by itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from myriad.cli import _cluster as cluster
from myriad.cli.output import console, emit_json
from myriad.cli.validate import InventoryOption, JsonOption
from myriad.errors import InputError
from myriad.fleet import Fleet, check, names
from myriad.fleet.access import team_group
from myriad.fleet.model_policy import subject_fault
from myriad.inventory import read_inventory
from myriad.kube import person as people

_MOST_HOURS = 8760


def register(app: typer.Typer) -> None:
    """Add the verb."""
    group = typer.Typer(no_args_is_help=True, help="Access of people to the namespaces of their team.")
    app.add_typer(group, name="access")
    group.callback()(lambda: None)

    @group.command()
    def grant(
        name: Annotated[str, typer.Argument(help="The person's name, as it shall stand in audit logs.")],
        inventory: InventoryOption,
        team: Annotated[str, typer.Option(help="The person's team.")],
        hours: Annotated[int, typer.Option(help="How long it holds; it cannot be taken back before.")] = 168,
        out: Annotated[
            Path | None, typer.Option("--out", "-o", help="File to write; NAME.kubeconfig without it.")
        ] = None,
        as_json: JsonOption = False,
        kubeconfig: Annotated[str | None, typer.Option(help="An admin's kubeconfig; $KUBECONFIG without it.")] = None,
    ) -> None:
        """Write a kubeconfig with a client certificate of this person in the team's group."""
        checked = check(read_inventory(*inventory))
        if checked.errors:
            raise InputError("the description has errors", hint="`myriad validate` shows them")
        person = _person(checked.fleet, team, name, hours)
        path = out or Path(f"{name.replace('/', '_').replace(':', '_')}.kubeconfig")
        if path.exists():
            raise InputError("exists already", where=str(path), hint="give --out another name, or remove it")
        admin = Path(kubeconfig or os.environ.get("KUBECONFIG", ""))
        api = cluster.reach(kubeconfig)
        key, certificate, ends = people.issue(api, person)
        namespace = sorted(checked.fleet.teams[team].namespaces)[0]
        people.write(path, people.kubeconfig(admin, person, key, certificate, namespace=namespace))
        document = {
            "file": str(path),
            "user": name,
            "groups": list(person.groups),
            "ends": f"{ends:%Y-%m-%dT%H:%M:%SZ}",
        }
        if as_json:
            emit_json(document)
            return
        console.print(
            f"{path}: {name} in {', '.join(person.groups) or 'no group'}, namespace {namespace}, until "
            f"{ends:%Y-%m-%d %H:%M} UTC. Hand it over by a way that only {name} reads.",
            markup=False,
        )


def _person(fleet: Fleet, team: str, name: str, hours: int) -> people.Person:
    """The person, checked against the description."""
    if team not in fleet.teams:
        raise InputError(f'"{team}" is not a team{names.did_you_mean(team, fleet.teams)}', where="--team")
    fault = subject_fault(name)
    if fault is not None:
        raise InputError(f"the name {fault}", where="NAME")
    if not 1 <= hours <= _MOST_HOURS:
        raise InputError(f"is {hours}; 1 to {_MOST_HOURS} hours (a year)", where="--hours")
    described = fleet.teams[team]
    groups = tuple(described.groups[:1]) if described.groups or described.users else (team_group(team),)
    if not groups and name not in described.users:
        raise InputError(
            f"team {team} has users and no group, and {name} is none of them",
            where=f"myriad_teams.{team}.users",
            hint=f"add {name} there, or give the team a group",
        )
    return people.Person(name=name, groups=groups, valid_s=hours * 3600)
