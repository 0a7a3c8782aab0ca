"""What every task needs is imported once, before ansible forks a process for each task and host.

ansible-core loads filters and lookups inside those processes, so without this each of them imports the same modules
again: half of the controller's time in a site run.
"""

from __future__ import annotations

import importlib
from contextlib import suppress

from ansible.plugins.loader import filter_loader, lookup_loader

# kubernetes.config is what every task that talks to the cluster reads its kubeconfig with: most of a second each.
MODULES = ("myriad.inventory", "myriad.fleet", "myriad.stack.bundle", "myriad.kube.apply", "kubernetes.config")
FILTERS = ("fleet_from_inventory", "artifact_items", "taints", "pod_cidr", "node_labels")


def preload() -> None:
    """Import what the roles' templates and tasks use. What is missing is reported by the task that needs it."""
    for name in MODULES:
        with suppress(ImportError):
            importlib.import_module(name)
    for name in FILTERS:
        filter_loader.get(f"myriad.gpu.{name}")
    lookup_loader.get("myriad.gpu.bundle")
