"""Filters of the site's registry: access file, pull secrets, addresses, certificates that stand on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
name: registry
short_description: Addresses, users and trust of the site's registries
description:
  - C(registry_access) is the file by which the registry's front knows users and what each may read and write.
  - C(registry_pull_objects) are the Secrets with which pods of a team pull its images.
  - C(registry_urls) are the addresses of the site's registries.
  - C(controller_text) is the text of a file on the controller; empty where there is none yet.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError
from myriad.errors import MyriadError
from myriad.registry_site import users


def registry_access(names: Iterable[str], folder: str) -> str:
    """The access file for these users, with hashes of the passwords that the secrets folder holds."""
    try:
        return users.access({name: users.password(Path(folder).expanduser(), name, make=False) for name in names})
    except MyriadError as error:
        raise AnsibleFilterError(str(error)) from error


def registry_pull_objects(teams: Mapping[str, Any], registry: str, folder: str) -> list[dict[str, Any]]:
    """Secrets and ServiceAccounts of the teams' namespaces; of teams that have a password."""
    try:
        passwords = {team: users.password(Path(folder).expanduser(), team, make=False) for team in teams}
        return users.pull_objects(registry, {team: item["namespaces"] for team, item in teams.items()}, passwords)
    except MyriadError as error:
        raise AnsibleFilterError(str(error)) from error


def registry_urls(hosts: Iterable[str], hostvars: Mapping[str, Any], tls: bool, port: int = 5000) -> list[str]:
    """Addresses of the registries on these hosts, in their order."""
    found = []
    for host in hosts:
        variables = hostvars[host] if host in hostvars else {}  # noqa: SIM401 (ansible's hostvars answer `get` with what is undefined)
        address = str(variables.get("ansible_host") or host)
        shown = f"[{address}]" if ":" in address else address
        found.append(f"{'https' if tls else 'http'}://{shown}:{port}")
    return found


def controller_text(path: str) -> str:
    """The text of a file on the controller; empty where there is none."""
    file = Path(path).expanduser()
    try:
        return file.read_text(encoding="utf-8") if path and file.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise AnsibleFilterError(f"{path} cannot be read: {error}") from error


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        return {
            "controller_text": controller_text,
            "registry_access": registry_access,
            "registry_pull_objects": registry_pull_objects,
            "registry_urls": registry_urls,
        }
