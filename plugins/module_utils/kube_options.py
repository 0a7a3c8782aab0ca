"""The options of kube_objects, for the module's documentation and the action plugin alike."""

from __future__ import annotations

CONDITION = {
    "api_version": {"type": "str", "required": True},
    "kind": {"type": "str", "required": True},
    "name": {"type": "str", "required": True},
    "namespace": {"type": "str", "default": ""},
    "condition": {"type": "str"},
}
CHART = {
    "program": {"type": "path", "required": True},
    "path": {"type": "path", "required": True},
    "name": {"type": "str", "required": True},
    "namespace": {"type": "str", "required": True},
    "values": {"type": "str", "default": ""},
}
KUSTOMIZATION = {
    "program": {"type": "path", "required": True},
    "text": {"type": "str", "required": True},
    "files": {"type": "dict", "required": True},
}
CERTIFICATE = {
    "namespace": {"type": "str", "required": True},
    "name": {"type": "str", "required": True},
    "dns_names": {"type": "list", "elements": "str", "required": True},
    "authority": {"type": "str", "required": True},
}
ARGUMENTS = {
    "set": {"type": "str", "required": True},
    "objects": {"type": "list", "elements": "dict", "default": []},
    "text": {"type": "str", "default": ""},
    "manifests": {"type": "list", "elements": "path", "default": []},
    "chart": {"type": "dict", "options": CHART},
    "kustomization": {"type": "dict", "options": KUSTOMIZATION},
    "certificates": {"type": "list", "elements": "dict", "default": [], "options": CERTIFICATE},
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

CLUSTER_STATE = {
    "state": {"type": "str", "choices": ["check", "converged", "by_hand"], "default": "check"},
    "kubeconfig": {"type": "path"},
    "nodes": {"type": "list", "elements": "str", "default": []},
    "versions": {"type": "dict", "default": {}},
    "ready": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {name: option for name, option in CONDITION.items() if name != "condition"},
    },
    "full": {"type": "bool", "default": False},
    "inputs": {"type": "raw"},
    "ignore_vars": {"type": "list", "elements": "str", "default": ["site_full"]},
    "bundle": {"type": "path"},
}
