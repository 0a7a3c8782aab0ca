"""The options of node_upgrade, for its documentation and the action plugin alike."""

from __future__ import annotations

ARGUMENTS = {
    "state": {"type": "str", "choices": ["planned", "prepared", "finished", "held"], "required": True},
    "kubeconfig": {"type": "path"},
    "looks": {"type": "dict", "default": {}},
    "versions": {"type": "dict", "default": {}},
    "artifacts": {"type": "dict", "default": {}},
    "images": {"type": "dict", "default": {}},
    "control_plane": {"type": "list", "elements": "str", "default": []},
    "batch": {"type": "int", "default": 10},
    "per_rack": {"type": "int", "default": 1},
    "jobs": {"type": "str", "choices": ["wait", "checkpoint", "leave"], "default": "wait"},
    "unmanaged": {"type": "bool", "default": False},
    "keep": {"type": "path"},
    "plan": {"type": "dict", "default": {}},
    "hold": {"type": "bool", "default": False},
    "version": {"type": "str", "default": ""},
    "ready_timeout_s": {"type": "int", "default": 300},
    "gate_timeout_s": {"type": "int", "default": 600},
}
