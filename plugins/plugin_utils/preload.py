"""What every task needs is loaded once, before ansible forks a process for each task and host.

ansible-core finds and imports plugins inside those processes, so without this each of them does it again: half of the
controller's time in a site run.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import suppress

from ansible.errors import AnsibleError
from ansible.module_utils.common.json import Direction, get_module_decoder, get_module_encoder
from ansible.plugins.loader import (
    action_loader,
    connection_loader,
    filter_loader,
    get_shell_plugin,
    lookup_loader,
    module_loader,
)

# kubernetes.config is what every task that talks to the cluster reads its kubeconfig with: most of a second each.
MODULES = ("myriad.inventory", "myriad.fleet", "myriad.stack.bundle", "myriad.kube.record", "kubernetes.config")
# One of each file: loading it imports what all of the file need.
FILTERS = (
    "artifact_items",
    "brake_sizes",
    "device_plugin_environment",
    "fabric_plan",
    "fleet_from_inventory",
    "locked_driver_set",
    "mig_layouts",
    "node_portraits",
    "prewarm_images",
    "registry_access",
    "unknown_role_variables",
)
ACTIONS = (
    "ansible.builtin.assert",
    "ansible.builtin.command",
    "ansible.builtin.group_by",
    "ansible.builtin.validate_argument_spec",
    "myriad.gpu.artifacts",
    "myriad.gpu.cluster_state",
    "myriad.gpu.files",
    "myriad.gpu.image_prewarm",
    "myriad.gpu.kube_objects",
    "myriad.gpu.node_state",
    "myriad.gpu.packages",
    "myriad.gpu.runtime_facts",
)
CONNECTIONS = ("ssh", "local")
# How modules take their arguments and give their results: the profile of all that do not ask for another one.
PROFILE = "legacy"


def preload_description(sources: Sequence[str]) -> None:
    """Read the description, for plays whose variables follow from it."""
    try:
        from ansible_collections.myriad.gpu.plugins.plugin_utils import described
    except ImportError:
        return
    described.keep(sources)


def preload() -> None:
    """Load what the roles' templates and tasks use. What is missing is reported by the task that needs it."""
    for name in MODULES:
        with suppress(ImportError):
            importlib.import_module(name)
    for name in FILTERS:
        with suppress(AnsibleError, ImportError):
            filter_loader.get(f"myriad.gpu.{name}")
    lookup_loader.get("myriad.gpu.bundle")
    for name in ACTIONS:
        with suppress(AnsibleError, ImportError):
            action_loader.get(name, class_only=True)
            module_loader.find_plugin_with_context(name, ".py")
    for name in CONNECTIONS:
        with suppress(AnsibleError):
            connection_loader.get(name, class_only=True)
    with suppress(AnsibleError):
        get_shell_plugin(shell_type="sh")
    get_module_encoder(PROFILE, Direction.CONTROLLER_TO_MODULE)
    get_module_decoder(PROFILE, Direction.MODULE_TO_CONTROLLER)
