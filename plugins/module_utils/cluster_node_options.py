"""The options of cluster_node, for the module's documentation and the action plugin alike."""

from __future__ import annotations

ARGUMENTS = {
    "state": {"type": "str", "choices": ["known", "absent", "replaced"], "default": "known"},
    "nodes": {"type": "list", "elements": "str", "default": []},
    "machines": {"type": "dict", "default": {}},
    "kubeconfig": {"type": "path"},
}
