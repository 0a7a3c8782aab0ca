"""The options of kube_objects, for the module's documentation and the action plugin alike."""

from __future__ import annotations

CONDITION = {
    "api_version": {"type": "str", "required": True},
    "kind": {"type": "str", "required": True},
    "name": {"type": "str", "required": True},
    "namespace": {"type": "str", "default": ""},
    "condition": {"type": "str"},
}
ARGUMENTS = {
    "set": {"type": "str", "required": True},
    "objects": {"type": "list", "elements": "dict", "default": []},
    "text": {"type": "str", "default": ""},
    "manifests": {"type": "list", "elements": "path", "default": []},
    "kubeconfig": {"type": "path"},
    "field_manager": {"type": "str"},
    "prune": {"type": "bool", "default": False},
    "prune_kinds": {"type": "list", "elements": "str", "default": []},
    "protect": {
        "type": "list",
        "elements": "str",
        "default": ["Namespace", "CustomResourceDefinition", "PersistentVolume", "PersistentVolumeClaim"],
    },
    "existing_only": {"type": "bool", "default": False},
    "force_conflicts": {"type": "bool"},
    "wait": {
        "type": "dict",
        "default": {},
        "options": {
            "workloads": {"type": "bool", "default": False},
            "conditions": {"type": "list", "elements": "dict", "default": [], "options": CONDITION},
            "dry_run": {"type": "list", "elements": "dict", "default": []},
        },
    },
    "timeout_s": {"type": "int", "default": 180},
}
