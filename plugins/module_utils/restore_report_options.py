"""The options of restore_report, for its action plugin and its documentation."""

from __future__ import annotations

ARGUMENTS = {
    "kubeconfig": {"type": "path"},
    "running": {"type": "dict", "required": True},
    "meta": {"type": "dict", "required": True},
    "revisions": {"type": "list", "elements": "int", "default": []},
    "stopped_at": {"type": "float", "required": True},
}
