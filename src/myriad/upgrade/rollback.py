"""What was applied to a cluster, kept before an upgrade changes it, and brought back.

An object is kept as its set applied it: of the live one exactly the fields that the set's manager owns, so that
defaults of the API server and what controllers wrote (certificates of webhooks) are nobody's wish afterwards.

https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from myriad.errors import InputError
from myriad.kube.apply import Applier, Discovery, Options, Outcome
from myriad.kube.client import Api, ApiError
from myriad.kube.objects import SET_LABEL, Json

#: Sets of which there is a way back, by the name that a person uses.
SETS = {"kueue": "kueue", "extension": "scheduler-extension", "volcano": "volcano"}
_WORKERS = 8


def owned(obj: Mapping[str, Any], manager: str) -> Json | None:
    """The part of an object that a manager applied, with its identity; None where it applied none."""
    metadata = obj.get("metadata") or {}
    entry = next(
        (
            entry
            for entry in metadata.get("managedFields") or []
            if entry.get("manager") == manager and entry.get("operation") == "Apply" and not entry.get("subresource")
        ),
        None,
    )
    if entry is None:
        return None
    picked = _pick(obj, entry.get("fieldsV1") or {})
    part: Json = picked if isinstance(picked, dict) else {}
    part["apiVersion"], part["kind"] = obj["apiVersion"], obj["kind"]
    identity = {key: metadata[key] for key in ("name", "namespace") if metadata.get(key)}
    part["metadata"] = {**(part.get("metadata") or {}), **identity}
    return part


def _pick(value: Any, fields: Mapping[str, Any]) -> Any:
    """The fields of a value that a fieldsV1 set names; the whole value where the set ends."""
    children = {key: sub for key, sub in fields.items() if key != "."}
    if not children:
        return value
    if isinstance(value, Mapping):
        return {
            key[2:]: _pick(value[key[2:]], sub or {})
            for key, sub in children.items()
            if key.startswith("f:") and key[2:] in value
        }
    if isinstance(value, list):
        kept = []
        for item in value:
            for key, sub in children.items():
                if _is_item(item, key):
                    picked = _pick(item, sub or {})
                    names = json.loads(key[2:]) if key.startswith("k:") else {}
                    kept.append({**names, **picked} if isinstance(picked, dict) else picked)
        return kept
    return value


def _is_item(item: Any, key: str) -> bool:
    if key.startswith("k:") and isinstance(item, Mapping):
        # A default of the server may be part of the key (protocol of a port) and is in the live item then.
        return all(item.get(name) == wanted for name, wanted in json.loads(key[2:]).items())
    return key.startswith("v:") and item == json.loads(key[2:])


def target_of(images: Mapping[str, Mapping[str, Any]]) -> str:
    """What an upgrade goes to, as names of files have it; from the images of its bundle (repository to digest, tag)."""
    digests = {name: str(image.get("digest") or "") for name, image in images.items()}
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()[:12]


def keep(api: Api, set_name: str, folder: Path, target: str) -> Path | None:
    """Write what a set applied into a file of the folder; None where the cluster has no object of it.

    Once for each target: a run that is repeated, after a kill or for nodes that were left, keeps what stood before the
    upgrade and not what stands in its middle or after it.

    Args:
        api: the cluster.
        set_name: a value of SETS.
        folder: where files are kept.
        target: what the upgrade goes to (`target_of`).
    """
    newest = newest_kept(folder, set_name)
    if newest is not None and newest.name.endswith(f".{target}.json"):
        return newest
    objects = applied(api, set_name)
    if not objects:
        return None
    text = json.dumps(objects, sort_keys=True, indent=1) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{set_name}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}.{target}.json"
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.rename(path)
    return path


def newest_kept(folder: Path, set_name: str) -> Path | None:
    """The newest file of a set."""
    found = sorted(folder.glob(f"{set_name}-*T*Z*.json"))
    return found[-1] if found else None


def applied(api: Api, set_name: str) -> list[Json]:
    """The objects of a set as it applied them, in a fixed order."""
    manager = f"myriad-{set_name}"
    discovery = Discovery(api)
    kinds: list[tuple[str, str]] = []
    for group in _group_versions(api):
        path = f"/apis/{group}" if "/" in group else f"/api/{group}"
        for entry in api.get_raw(path).get("resources") or []:
            if "/" not in entry["name"] and {"list", "patch"} <= set(entry.get("verbs") or []):
                kinds.append((group, entry["kind"]))

    def read(pair: tuple[str, str]) -> list[Json]:
        resource = discovery.find(*pair)
        if resource is None:
            return []
        try:
            items = api.list(resource, labels=f"{SET_LABEL}={set_name}")[0]
        except ApiError as error:
            if error.status in (403, 404, 405):
                return []
            raise
        parts = [owned({**item, "apiVersion": pair[0], "kind": pair[1]}, manager) for item in items]
        return [part for part in parts if part is not None]

    with ThreadPoolExecutor(_WORKERS) as pool:
        found = [part for parts in pool.map(read, kinds) for part in parts]
    return sorted(
        found, key=lambda part: (part["kind"], part["metadata"].get("namespace", ""), part["metadata"]["name"])
    )


def _group_versions(api: Api) -> list[str]:
    groups = api.get_raw("/apis").get("groups") or []
    return ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]


def read_kept(path: Path, set_name: str) -> list[Json]:
    """The objects that `keep` wrote of a set.

    What is not among them is removed from the cluster, so a file that is empty, or of another set, would remove it all.

    Raises:
        InputError: the file holds something else.
    """
    hint = f"`ls {path.parent}` shows what was kept; files are named {set_name}-TIME.json"
    try:
        objects = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path), hint=hint) from error
    except ValueError as error:
        raise InputError(f"holds no kept objects: {error}", where=str(path), hint=hint) from error
    if not isinstance(objects, list) or not objects:
        raise InputError("holds no kept objects: they are a list, with one object at least", where=str(path), hint=hint)
    for number, obj in enumerate(objects, 1):
        metadata = obj.get("metadata") if isinstance(obj, dict) else None
        if not isinstance(metadata, dict) or not all((obj.get("apiVersion"), obj.get("kind"), metadata.get("name"))):
            raise InputError(f"entry {number} is no object with apiVersion, kind and name", where=str(path), hint=hint)
        found = (metadata.get("labels") or {}).get(SET_LABEL)
        if found != set_name:
            whose = f"of {found}" if found else "of no set"
            raise InputError(
                f"{obj['kind']} {metadata['name']} is {whose}, not of {set_name}", where=str(path), hint=hint
            )
    return objects


def back(api: Api, set_name: str, path: Path, *, dry_run: bool = False, timeout_s: float = 180.0) -> Outcome:
    """Apply what was kept, and remove what came since.

    Raises:
        InputError: the file holds no objects.
        ApplyError: what could not be applied.
    """
    objects = read_kept(path, set_name)
    options = Options(set_name=set_name, prune=True, force_conflicts=True, dry_run=dry_run, timeout_s=timeout_s)
    return Applier(api, options).apply(objects)
