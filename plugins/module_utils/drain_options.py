"""The options of node_drain, for the module's documentation and the action plugin alike."""

from __future__ import annotations

ARGUMENTS = {
    "nodes": {"type": "list", "elements": "str", "required": True},
    "state": {"type": "str", "choices": ["drained", "cordoned", "undrained", "asked"], "default": "drained"},
    "by": {"type": "str", "required": True},
    "reason": {"type": "str", "default": ""},
    "kubeconfig": {"type": "path"},
    "deadline_s": {"type": "int", "default": 900},
    "notice_s": {"type": "int", "default": 0},
    "unmanaged": {"type": "bool", "default": False},
}
