"""An API server in memory that holds what one agent touches, and counts what it is asked."""

from __future__ import annotations

import copy
from typing import Any

from myriad.kube.client import ApiError
from myriad.kube.kinds import EVENTS, Resource

Json = dict[str, Any]


class FakeCluster:
    """Objects by kind and name. Only the calls that the agent makes."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Json] = {}
        self.requests: list[tuple[str, str, str]] = []
        self._version = 0
        self.error: ApiError | None = None

    def put(self, resource: Resource, obj: Json) -> Json:
        """Create or replace, as somebody else would."""
        self._version += 1
        obj = copy.deepcopy(obj)
        obj["metadata"]["resourceVersion"] = str(self._version)
        obj["metadata"].setdefault("uid", f"uid-{self._version}")
        self.objects[(resource.plural, obj["metadata"]["name"])] = obj
        return copy.deepcopy(obj)

    def remove(self, resource: Resource, name: str) -> None:
        """Delete, as somebody else would."""
        self.objects.pop((resource.plural, name), None)

    def read(self, resource: Resource, name: str) -> Json | None:
        """As it stands, without being counted."""
        return copy.deepcopy(self.objects.get((resource.plural, name)))

    # What the agent calls

    def find(self, resource: Resource, name: str, *, namespace: str | None = None) -> Json | None:
        self._count("get", resource, name)
        return self.read(resource, name)

    def list(self, resource: Resource, **more: Any) -> tuple[list[Json], str]:
        self._count("list", resource, "")
        return [o for (kind, _), o in self.objects.items() if kind == resource.plural], str(self._version)

    def create(self, resource: Resource, body: Json, *, namespace: str | None = None) -> Json:
        self._count("create", resource, body["metadata"]["name"])
        return self.put(resource, body)

    def delete(self, resource: Resource, name: str, *, namespace: str | None = None) -> None:
        self._count("delete", resource, name)
        self.remove(resource, name)

    def patch(
        self, resource: Resource, name: str, body: Any, *, kind: str = "merge", subresource: str | None = None, **_: Any
    ) -> Json:
        self._count("patch", resource, name + (f"/{subresource}" if subresource else ""))
        if self.error is not None:
            raise self.error
        obj = self.read(resource, name)
        if obj is None:
            raise ApiError(404, "NotFound", "not found", where=name)
        if kind == "merge":
            obj = _merged(obj, body)
        else:
            for operation in body:
                _apply(obj, operation)
        return self.put(resource, obj)

    def create_event(self, about: Json, **more: Any) -> None:
        self._count("create", EVENTS, about["metadata"]["name"])

    def _count(self, verb: str, resource: Resource, name: str) -> None:
        self.requests.append((verb, resource.plural, name))


def _merged(obj: Any, patch: Any) -> Any:
    if not isinstance(patch, dict) or not isinstance(obj, dict):
        return copy.deepcopy(patch)
    merged = dict(obj)
    for key, value in patch.items():
        merged[key] = _merged(merged.get(key), value)
    return merged


def _apply(obj: Json, operation: Json) -> None:
    *path, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    place = obj
    for part in path:
        place = place[part]
    if operation["op"] == "test":
        if place.get(last) != operation["value"]:
            raise ApiError(422, "Invalid", "the test operation failed", where=operation["path"])
    elif operation["op"] == "remove":
        del place[last]
    else:
        place[last] = copy.deepcopy(operation["value"])
