"""What live objects of the API say that no description asked for: fields set by hand, objects made by hand, versions.

Every function takes objects as the API gives them and gives differences as dictionaries of role, kind, item, expected,
found and by. Pure: reading is the caller's.

A field has an owner (server-side apply), so who set it and when is known:
https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from myriad.stack.compat import compare, parse_version

Json = Mapping[str, Any]

OWN_PREFIX = "myriad.dev/"
SET_LABEL = "myriad.dev/set"
_CORDON = "myriad.dev/cordon-owner"
# Managers that are programs of the cluster itself; whoever else owns a field set it by hand or by another tool.
_PROGRAMS = (
    "myriad", "kube-", "kubelet", "kubeadm", "kueue", "coredns", "etcd", "apiserver", "vc-", "volcano",
    "clusterrole-aggregation-controller",
)  # fmt: skip
# Written by `kubectl rollout restart`, which asks for nothing else.
_RESTARTED = "kubectl.kubernetes.io/restartedAt"


def _is_program(manager: str) -> bool:
    return not manager or manager.startswith(_PROGRAMS)


def _leaves(fields: Json, path: str = "") -> Iterator[str]:
    """Paths of a fieldsV1 set: `spec.template.spec.containers[name=manager].env[name=FOO]`."""
    children = [(key, value) for key, value in fields.items() if key != "."]
    if not children and path:
        yield path
    for key, value in children:
        kind, _, name = key.partition(":")
        here = f"{path}.{name}" if kind == "f" and path else name if kind == "f" else f"{path}[{_key(name)}]"
        yield from _leaves(value or {}, here)


def _key(text: str) -> str:
    """`{"name":"FOO"}` as `name=FOO`, anything else as it is."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return ",".join(f"{name}={one}" for name, one in value.items()) if isinstance(value, dict) else str(value)


def by_hand(kind: str, obj: Json, *, own_prefix_only: bool = False) -> list[dict[str, str]]:
    """Fields of an object that neither Myriad nor a program of the cluster set.

    Args:
        kind: of the object.
        obj: with its metadata (managedFields); the rest is not read.
        own_prefix_only: count labels, annotations and taints of Myriad's own prefix alone (Nodes, which others label).
    """
    metadata = obj.get("metadata") or {}
    place = "/".join(filter(None, (metadata.get("namespace"), metadata.get("name"))))
    found = []
    for entry in metadata.get("managedFields") or []:
        manager = str(entry.get("manager") or "")
        if _is_program(manager) or entry.get("subresource") == "status":
            continue
        for path in _leaves(entry.get("fieldsV1") or {}):
            if path.startswith("status") or _RESTARTED in path or path.endswith("last-applied-configuration"):
                continue
            if own_prefix_only and OWN_PREFIX not in path:
                continue
            by = f"{manager}, {entry.get('time') or 'no time given'}"
            found.append(
                {"role": "", "kind": "field", "item": f"{kind} {place} {path}", "expected": "not set by hand",
                 "found": "set by hand", "by": by}
            )  # fmt: skip
    return found


def strays(kind: str, items: Iterable[Json], *, ignored_prefixes: tuple[str, ...] = ()) -> list[dict[str, str]]:
    """Objects of a kind that only the description makes, and that it did not make."""
    found = []
    for item in items:
        metadata = item.get("metadata") or {}
        name = str(metadata.get("name") or "")
        if (metadata.get("labels") or {}).get(SET_LABEL) or name.startswith(ignored_prefixes or ("\0",)):
            continue
        if metadata.get("ownerReferences"):
            continue
        managers = [entry for entry in metadata.get("managedFields") or [] if not entry.get("subresource")]
        if managers and all(_is_program(str(entry.get("manager") or "")) for entry in managers):
            continue
        place = "/".join(filter(None, (metadata.get("namespace"), name)))
        by = ", ".join(filter(None, (str(managers[0].get("manager")) if managers else "",
                                     str(metadata.get("creationTimestamp") or ""))))  # fmt: skip
        entry = {"role": "", "kind": "stray", "item": f"{kind} {place}", "expected": "absent", "found": "made by hand"}
        found.append({**entry, "by": by})
    return found


def nodes_against(described: Iterable[str], nodes: Iterable[Json]) -> tuple[list[dict[str, str]], list[str]]:
    """Nodes that the description lacks, hosts that the cluster lacks; and notes about closed ones."""
    wanted, live = set(described), {str(node["metadata"]["name"]): node for node in nodes}
    found = [
        {"role": "", "kind": "node", "item": name, "expected": "a Node of the cluster", "found": "absent"}
        for name in sorted(wanted - live.keys())
    ]
    found += [
        {"role": "", "kind": "node", "item": name, "expected": "no host of the description", "found": "a Node"}
        for name in sorted(live.keys() - wanted)
    ]
    notes = []
    for name, node in sorted(live.items()):
        metadata = node.get("metadata") or {}
        found += by_hand("Node", node, own_prefix_only=True)
        if (node.get("spec") or {}).get("unschedulable") and _CORDON not in (metadata.get("annotations") or {}):
            notes.append(f"{name} was cordoned by hand{_who(metadata, 'f:unschedulable')}")
    return found, notes


def _who(metadata: Json, field: str) -> str:
    for entry in metadata.get("managedFields") or []:
        if field in ((entry.get("fieldsV1") or {}).get("f:spec") or {}):
            return f" ({entry.get('manager')}, {entry.get('time')})"
    return ""


def versions(locked: Mapping[str, str], nodes: Iterable[Json], control_plane: Iterable[Json]) -> list[dict[str, str]]:
    """Versions that run against the lock: kubelet and runtime of every Node, programs of the control plane.

    Args:
        locked: component to version (`kubernetes`, `containerd`, `etcd`).
        nodes: Nodes.
        control_plane: static pods of the control plane.
    """
    found = []

    def differs(item: str, name: str, running: str) -> None:
        expected = locked.get(name, "")
        if expected and running and not _same(expected, running):
            found.append({"role": "", "kind": "version", "item": item, "expected": expected, "found": running})

    for node in nodes:
        name, info = node["metadata"]["name"], (node.get("status") or {}).get("nodeInfo") or {}
        differs(f"kubelet of {name}", "kubernetes", str(info.get("kubeletVersion") or ""))
        runtime, _, version = str(info.get("containerRuntimeVersion") or "").partition("://")
        if runtime == "containerd":
            differs(f"containerd of {name}", "containerd", version)
    for pod in control_plane:
        labels = (pod.get("metadata") or {}).get("labels") or {}
        component = str(labels.get("component") or "")
        for container in (pod.get("spec") or {}).get("containers") or []:
            # The port of a registry is no tag.
            name = str(container.get("image") or "").partition("@")[0].rpartition("/")[2]
            tag = name.partition(":")[2]
            where = (pod.get("spec") or {}).get("nodeName") or "?"
            differs(f"{component} of {where}", "etcd" if component == "etcd" else "kubernetes", tag)
    return found


def _same(expected: str, running: str) -> bool:
    try:
        return compare(parse_version(expected), parse_version(running)) == 0
    except ValueError:
        return False
