"""Filters over `myriad.fleet.driver` and the lock: what becomes of the GPU driver of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
name: driver
short_description: What becomes of the GPU driver of a host
description:
  - C(driver_plan) decides from the facts of a host (M(myriad.gpu.driver_facts)) what is done to its driver, and says
    everything that stands in the way.
  - C(locked_driver_set) is the lock's set of packages for a channel and a distribution.
  - C(driver_files) are apt's files of the driver's repository, by path.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError
from myriad.fleet.driver import plan
from myriad.fleet.driver_repository import REPOSITORY_FILES, armored, preferences, sources
from myriad.stack.lock import load_lock


def driver_plan(facts: Mapping[str, Any], want: Mapping[str, Any]) -> dict[str, Any]:
    """The plan for one host."""
    return plan(facts, want).to_dict()


def locked_driver_set(channel: str, distribution: str, version: str) -> dict[str, Any]:
    """Versions and packages that the lock has for a channel on a distribution; empty ones where it has none.

    Args:
        channel: distribution or vendor.
        distribution: name as ansible has it (Debian).
        version: version of the distribution (12.11).
    """
    name = str(distribution).lower()
    major = str(version).split(".")[0] if name == "debian" else str(version)
    for found in load_lock().component("nvidia-driver").package_sets:
        if found.channel == channel and found.distribution == f"{name}{major}":
            return {"versions": {"driver": found.driver}, "packages": dict(found.packages)}
    return {"versions": {}, "packages": {}}


def driver_files(
    channel: str,
    mirror: Mapping[str, str],
    distribution: str,
    codename: str,
    keyring: str = "",
    sha256: str = "",
    packages: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Content by path of apt's files for a channel.

    Args:
        channel: distribution or vendor.
        mirror: URLs of the archive (distribution, security) and of the vendor's repository (vendor).
        distribution: name as ansible has it (Debian).
        codename: codename of its release.
        keyring: path on the controller of the vendor's public keys, armored or binary.
        sha256: what that file must hash to.
        packages: the transaction, whose versions are pinned; without it there are no pins.
    """
    try:
        if channel not in ("distribution", "vendor"):
            return {}  # the plan refuses it, with the reason
        files = {REPOSITORY_FILES["sources"]: sources(str(channel), mirror, str(distribution), str(codename))}
        if packages:
            files[REPOSITORY_FILES["preferences"]] = preferences(packages)
        if channel == "vendor":
            path = Path(str(keyring)).expanduser()
            if not keyring or not path.is_file():
                raise ValueError(
                    f"gpu_driver_keyring names no file on the controller ({keyring or 'it is empty'}): give the public "
                    "keys of the vendor's repository and their sha256"
                )
            files[REPOSITORY_FILES["keyring"]] = armored(path.read_bytes(), str(sha256), where=str(keyring))
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error
    return files


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Filters by name."""
        return {
            "driver_plan": driver_plan,
            "locked_driver_set": locked_driver_set,
            "driver_files": driver_files,
        }
