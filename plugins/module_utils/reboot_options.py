"""The options of node_reboot, for the module, its documentation and the action plugin alike."""

from __future__ import annotations

LOOK = {
    "kernel": {"type": "str", "default": ""},
    "sysfs": {"type": "path", "default": "/sys"},
    "procfs": {"type": "path", "default": "/proc"},
    "run": {"type": "path", "default": "/run"},
    "boot": {"type": "path", "default": "/boot"},
    "libraries": {"type": "list", "elements": "str", "default": ["/usr/lib/*-linux-gnu", "/usr/lib64"]},
}
ARGUMENTS = {
    **LOOK,
    "state": {"type": "str", "choices": ["looked", "planned", "rebooted"], "required": True},
    "kubeconfig": {"type": "path"},
    "looks": {"type": "dict", "default": {}},
    "force": {"type": "bool", "default": False},
    "batch": {"type": "int", "default": 10},
    "per_rack": {"type": "int", "default": 1},
    "gangs": {"type": "str", "choices": ["together", "wait", "apart"], "default": "together"},
    "reasons": {"type": "list", "elements": "str", "default": []},
    "command": {"type": "list", "elements": "str", "default": ["systemctl", "reboot"]},
    "controller_command": {"type": "list", "elements": "str", "default": []},
    "reboot_timeout_s": {"type": "int", "default": 1200},
    "ready_timeout_s": {"type": "int", "default": 300},
    "gate_timeout_s": {"type": "int", "default": 600},
}
