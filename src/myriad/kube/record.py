"""What a complete run applied to a cluster, recorded in it, and a cheap look whether it still stands.

An object counts as it was while it carries the digests of what was applied and the fields that its sets own are the
ones that they owned: whoever changes or removes such a field by another way becomes its owner (server-side apply), and
one that is removed and made again has no owner of ours. So metadata alone tells, one list for each kind, whatever the
objects' size. What others add to an object does not count, as it does not count when a set is applied.

https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from myriad.errors import MyriadError
from myriad.kube.apply import Discovery
from myriad.kube.client import Api
from myriad.kube.kinds import CONFIG_MAPS, Resource
from myriad.kube.objects import APPLIED_ANNOTATION, SET_LABEL, Identity, Json, not_ready

NAMESPACE = "myriad-system"
NAME = "myriad-site"
MANAGER = "myriad-site"
#: The shape of the record; another one counts as none.
VERSION = "1"
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_PAGE = "500"
_WORKERS = 8


@dataclass(frozen=True, slots=True, order=True)
class Applied:
    """Objects of one kind that one set applied.

    Args:
        api_version, kind: the kind.
        manager: the field manager of the set.
        existing_only: the objects are not the set's own (labels of Nodes), so one that comes or goes is a difference.
    """

    api_version: str
    kind: str
    manager: str
    existing_only: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """What was found.

    Attributes:
        converged: nothing differs.
        drift: what differs, one sentence each.
    """

    drift: list[str] = field(default_factory=list)

    @property
    def converged(self) -> bool:
        """Whether nothing differs."""
        return not self.drift


def save(api: Api, inputs: str, applied: Iterable[Applied]) -> None:
    """Record what stands now as what a complete run converged to."""
    wanted = sorted(set(applied))
    digests = _digests(api, wanted)
    content = {
        "version": VERSION,
        "inputs": inputs,
        "time": str(int(time.time())),
        "applied": json.dumps([[one.api_version, one.kind, one.manager, one.existing_only] for one in wanted]),
        "digests": json.dumps(digests, sort_keys=True),
    }
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "data": content,
    }
    api.patch(CONFIG_MAPS, NAME, body, kind="apply", namespace=NAMESPACE, field_manager=MANAGER, force=True)


def look(api: Api, inputs: str, ready: Sequence[Identity] = ()) -> Look:
    """Compare the cluster with its record.

    Args:
        api: the cluster.
        inputs: digest of everything that the objects follow from.
        ready: objects that have to be ready as well.
    """
    found = (api.find(CONFIG_MAPS, NAME, namespace=NAMESPACE) or {}).get("data") or {}
    if not found:
        return Look(["the cluster has no record of a complete run"])
    if found.get("version") != VERSION:
        return Look(["the record of the last complete run is of another version of Myriad"])
    if found.get("inputs") != inputs:
        return Look(["the description, the collection or the bundle is another one than in the last complete run"])
    try:
        applied = [Applied(*entry) for entry in json.loads(found["applied"])]
        before: dict[str, str] = json.loads(found["digests"])
    except (KeyError, TypeError, ValueError):
        return Look([f"the record of the last complete run (ConfigMap {NAMESPACE}/{NAME}) cannot be read"])
    now = _digests(api, applied)
    drift = [f"{kind}: not as applied" for kind in sorted(set(before) | set(now)) if before.get(kind) != now.get(kind)]
    return Look(drift + _unready(api, ready))


def _unready(api: Api, ready: Sequence[Identity]) -> list[str]:
    discovery = Discovery(api)
    sentences = []
    for key in ready:
        resource = discovery.find(key.api_version, key.kind)
        live = None if resource is None else api.find(resource, key.name, namespace=key.namespace or None)
        reason = not_ready(live)
        if reason is not None:
            sentences.append(f"{key}: {reason}")
    return sentences


def _digests(api: Api, applied: Iterable[Applied]) -> dict[str, str]:
    """One digest for each kind, over what its sets own."""
    kinds: dict[tuple[str, str], list[Applied]] = {}
    for one in applied:
        kinds.setdefault((one.api_version, one.kind), []).append(one)
    discovery = Discovery(api)

    def digest(pair: tuple[tuple[str, str], list[Applied]]) -> tuple[str, str]:
        (api_version, kind), sets = pair
        resource = discovery.find(api_version, kind)
        items = [] if resource is None else _metadata(api, resource, own=not any(one.existing_only for one in sets))
        managers = {one.manager for one in sets}
        lines = sorted(_line(item.get("metadata") or {}, managers) for item in items)
        return f"{kind} ({api_version})", hashlib.sha256("\n".join(lines).encode()).hexdigest()

    with ThreadPoolExecutor(max_workers=_WORKERS) as pool:
        return dict(pool.map(digest, sorted(kinds.items())))


def _metadata(api: Api, resource: Resource, *, own: bool) -> list[Json]:
    """Metadata of the objects of a kind: those of a set, or all."""
    params = {"limit": _PAGE, **({"labelSelector": SET_LABEL} if own else {})}
    items: list[Json] = []
    while True:
        try:
            page = api.get_raw(resource.path(), params=params, accept=_METADATA)
        except MyriadError as error:
            # A kind that went away between two calls has no objects.
            if getattr(error, "is_not_found", False):
                return items
            raise
        items.extend(page.get("items") or [])
        token = (page.get("metadata") or {}).get("continue")
        if not token:
            return items
        params["continue"] = token


def _line(metadata: Mapping[str, Any], managers: set[str]) -> str:
    """One object: its name, the digests of what was applied, its set, and the fields that the sets own."""
    annotations = metadata.get("annotations") or {}
    owned = [
        [entry.get("manager"), entry.get("fieldsV1")]
        for entry in metadata.get("managedFields") or []
        if entry.get("manager") in managers and entry.get("operation") == "Apply" and not entry.get("subresource")
    ]
    content = {
        "name": metadata.get("name"),
        "namespace": metadata.get("namespace"),
        "set": (metadata.get("labels") or {}).get(SET_LABEL),
        "applied": {key: value for key, value in annotations.items() if key.startswith(APPLIED_ANNOTATION)},
        "owned": sorted(owned, key=json.dumps),
    }
    return json.dumps(content, sort_keys=True)
