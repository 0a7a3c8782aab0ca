"""Kubernetes objects as data: identity, digests, comparison of what is wanted with what is there. No I/O.

A wanted object is a part of the live one: the API server adds defaults, status and bookkeeping. ``is_subset`` says
whether nothing wanted differs; where it cannot tell, the caller asks the server by a dry run.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import yaml

from myriad.errors import InputError
from myriad.quantity import parse

Json = dict[str, Any]

SET_LABEL = "myriad.dev/set"
APPLIED_ANNOTATION = "myriad.dev/applied"
CRD_KIND = "CustomResourceDefinition"
# Bookkeeping of the API server, which is no part of what anybody wants.
_SERVER_METADATA = ("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "selfLink")
# Applied in this order; a kind that is not named comes between the workloads and the webhooks.
_ORDER = {
    CRD_KIND: 0,
    "Namespace": 1,
    "PriorityClass": 2,
    "ServiceAccount": 2,
    "ClusterRole": 2,
    "ClusterRoleBinding": 2,
    "Role": 2,
    "RoleBinding": 2,
    "ConfigMap": 2,
    "Secret": 2,
    "Service": 2,
    "PersistentVolumeClaim": 2,
    "Deployment": 3,
    "DaemonSet": 3,
    "StatefulSet": 3,
    # A webhook that is registered before its server runs refuses the objects above.
    "APIService": 5,
    "ValidatingWebhookConfiguration": 5,
    "MutatingWebhookConfiguration": 5,
}
#: The first number of what needs those before it.
WORKLOADS = 3
_OTHER = 4
# Objects of kinds that a webhook or a CRD of the same call serves come after it.
_CUSTOM = 6


@dataclass(frozen=True, slots=True, order=True)
class Identity:
    """What names one object: API version, kind, namespace (empty for cluster-wide ones) and name."""

    api_version: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        place = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.kind} {place}"


def identity(obj: Mapping[str, Any]) -> Identity:
    """The identity of an object.

    Raises:
        InputError: it lacks what every object needs.
    """
    metadata = obj.get("metadata") or {}
    missing = [key for key in ("apiVersion", "kind") if not obj.get(key)]
    if not metadata.get("name"):
        missing.append("metadata.name")
    if missing:
        raise InputError(
            f"an object lacks {', '.join(missing)}",
            where=f"{obj.get('kind', 'object')} {metadata.get('name', '')}".strip(),
            hint="each object needs apiVersion, kind and metadata.name (generateName cannot be applied)",
        )
    return Identity(
        str(obj["apiVersion"]), str(obj["kind"]), str(metadata.get("namespace") or ""), str(metadata["name"])
    )


def flatten(objects: Iterable[Any]) -> list[Json]:
    """Objects with lists (``kind: List``) taken apart and empty documents left out."""
    flat: list[Json] = []
    for obj in objects:
        if not obj:
            continue
        if not isinstance(obj, Mapping):
            raise InputError(f"an object must be a mapping, this is {type(obj).__name__}: {str(obj)[:80]}")
        if str(obj.get("kind", "")).endswith("List") and isinstance(obj.get("items"), list):
            flat.extend(flatten(obj["items"]))
        else:
            flat.append(dict(obj))
    return flat


def digest(obj: Mapping[str, Any]) -> str:
    """Names the content of a wanted object; written on it, it shows a field that is no longer wanted."""
    return hashlib.sha256(json.dumps(obj, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def stamped(obj: Mapping[str, Any], *, set_name: str | None, annotation: str) -> Json:
    """A copy that carries the label of its set and the digest of its content; status is left out."""
    copied: Json = copy.deepcopy(dict(obj))
    copied.pop("status", None)
    metadata = copied.setdefault("metadata", {})
    for key in _SERVER_METADATA:
        metadata.pop(key, None)
    if set_name:
        metadata["labels"] = {**(metadata.get("labels") or {}), SET_LABEL: set_name}
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != annotation}
    metadata.pop("annotations", None)
    if annotations:
        metadata["annotations"] = annotations
    metadata["annotations"] = {**annotations, annotation: digest(copied)}
    return copied


def cleaned(obj: Mapping[str, Any], *, annotation: str = APPLIED_ANNOTATION) -> Json:
    """An object without the server's bookkeeping, for comparing and showing."""
    copied: Json = {key: value for key, value in obj.items() if key != "status"}
    metadata = {key: value for key, value in (obj.get("metadata") or {}).items() if key not in _SERVER_METADATA}
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != annotation}
    if annotations:
        metadata["annotations"] = annotations
    else:
        metadata.pop("annotations", None)
    copied["metadata"] = metadata
    return copied


def to_yaml(obj: Mapping[str, Any] | None) -> str:
    """An object as text for a diff; the content of a Secret is named by digest, never shown."""
    if obj is None:
        return ""
    shown = dict(obj)
    if shown.get("kind") == "Secret":
        for key in ("data", "stringData"):
            if isinstance(shown.get(key), Mapping):
                shown[key] = {name: f"(secret, {digest({'v': value})})" for name, value in shown[key].items()}
    text: str = yaml.safe_dump(json.loads(json.dumps(shown)), sort_keys=True, default_flow_style=False)
    return text


def quantity(value: Any) -> Decimal | None:
    """The number that a Kubernetes quantity stands for; None when it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return parse(str(value).strip())
    except ValueError:
        return None


def is_subset(wanted: Any, live: Any) -> bool:
    """Whether everything wanted stands in the live value with the same content.

    Quantities are compared as numbers. A list must have the same length and order: where the server merges lists by
    key the answer can be a false no, never a false yes.
    """
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            return not wanted and live is None
        return all(
            (value is None and live.get(key) is None) or is_subset(value, live.get(key))
            for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        if not isinstance(live, list):
            return not wanted and live is None
        return len(wanted) == len(live) and all(is_subset(one, other) for one, other in zip(wanted, live, strict=True))
    if isinstance(wanted, str) and isinstance(live, str) and wanted == live:
        # Strings of a kind of their own too: ansible's carry where they came from.
        return True
    if type(wanted) is type(live) and wanted == live:
        return True
    if isinstance(wanted, bool) or isinstance(live, bool):
        return wanted is live
    first, second = quantity(wanted), quantity(live)
    return first is not None and first == second


def phase(obj: Mapping[str, Any], custom_kinds: Iterable[str]) -> int:
    """When an object is applied relative to the others: CRDs, namespaces, what workloads need, workloads, the rest."""
    kind = str(obj.get("kind"))
    if kind in custom_kinds:
        return _CUSTOM
    return _ORDER.get(kind, _OTHER)


def custom_kinds(objects: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    """Kinds that the CRDs among the objects define: (group, kind) to the CRD's name."""
    found = {}
    for obj in objects:
        if obj.get("kind") == CRD_KIND:
            spec = obj.get("spec") or {}
            found[(str(spec.get("group")), str((spec.get("names") or {}).get("kind")))] = str(obj["metadata"]["name"])
    return found


def condition(obj: Mapping[str, Any], type_: str) -> Json | None:
    """One condition of an object's status."""
    for found in (obj.get("status") or {}).get("conditions") or []:
        if found.get("type") == type_:
            return dict(found)
    return None


def not_ready(obj: Mapping[str, Any] | None, type_: str | None = None) -> str | None:
    """None when an object is what one waits for, else what is missing.

    Args:
        obj: the live object; None when it does not exist.
        type_: the condition to look at; by default what the kind itself means by ready.
    """
    if obj is None:
        return "it does not exist"
    kind = obj.get("kind")
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    metadata = obj.get("metadata") or {}
    if type_ is None and kind in ("Deployment", "DaemonSet", "StatefulSet"):
        if status.get("observedGeneration", 0) < metadata.get("generation", 0):
            return "its controller has not seen the change yet"
        if kind == "DaemonSet":
            wanted = status.get("desiredNumberScheduled", 0)
            updated, ready = status.get("updatedNumberScheduled", 0), status.get("numberAvailable", 0)
        else:
            wanted = spec.get("replicas", 1)
            updated = status.get("updatedReplicas", 0)
            ready = status.get("availableReplicas" if kind == "Deployment" else "readyReplicas", 0)
        if min(updated, ready) < wanted:
            return f"{updated} of {wanted} pods are updated, {ready} are ready"
        return None
    if type_ is None and kind == "Job":
        if condition(obj, "Complete"):
            return None
        failed = condition(obj, "Failed")
        return f"it failed: {failed.get('message', '')}" if failed else "it has not completed"
    type_ = type_ or {CRD_KIND: "Established", "APIService": "Available", "Node": "Ready"}.get(str(kind), "")
    if not type_:
        return None
    found = condition(obj, type_)
    if found is None:
        return f"it has no condition {type_} yet"
    if found.get("status") == "True":
        return None
    return f"{type_} is {found.get('status')}: {found.get('message') or found.get('reason') or 'no reason given'}"
