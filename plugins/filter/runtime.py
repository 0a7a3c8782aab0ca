"""Filters about container runtimes over myriad.fleet.runtime_config."""

from __future__ import annotations

DOCUMENTATION = r"""
name: runtime
short_description: What the roles of the container runtime and of the device plugin are made of
description:
  - C(runtime_config_version) is the version of the configuration that a containerd reads without migrating it.
  - C(stopped_units) turns names of units into those of M(myriad.gpu.node_state) that are stopped and disabled.
  - C(locked_version) is the lock's version of a component.
  - C(device_plugin_environment) and C(device_plugin_host_paths) are what a device plugin reads of its strategies,
    and the folders that it needs for them.
"""

from typing import Any

from ansible.errors import AnsibleFilterError
from myriad.fleet.runtime_config import RuntimeConfigError, config_version, plugin_environment, plugin_host_paths
from myriad.stack.lock import load_lock


def runtime_config_version(version: str) -> int:
    """The version of the configuration for a version of containerd."""
    try:
        return config_version(str(version))
    except RuntimeConfigError as error:
        raise AnsibleFilterError(str(error)) from error


def stopped_units(names: list[str]) -> list[dict[str, Any]]:
    """Units for M(myriad.gpu.node_state) that are stopped and disabled."""
    return [{"name": name, "enabled": False, "state": "stopped"} for name in names]


def locked_version(component: str) -> str:
    """Version of a component of the lock."""
    return str(load_lock().component(component).version)


class FilterModule:
    """Filters of the collection."""

    def filters(self) -> dict[str, Any]:
        """Names to functions."""
        return {
            "device_plugin_environment": plugin_environment,
            "device_plugin_host_paths": plugin_host_paths,
            "locked_version": locked_version,
            "runtime_config_version": runtime_config_version,
            "stopped_units": stopped_units,
        }
