"""What the tests of the gate share: a healthy eight-GPU node, and an API server with the rules that the gate leans on.

The portrait is composed, not recorded: the versions are those of the lab's doubles, the shape is fleet.portrait's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from myriad.agent.gate import Check, Kubelet
from myriad.agent.probe import ProbeResult
from myriad.fleet.portrait import (
    FABRIC_MANAGER,
    GPUS,
    KERNEL_LOG,
    MODULE,
    NEIGHBOURS,
    PCI,
    Bus,
    Driver,
    Ecc,
    Expected,
    Fabric,
    Gpu,
    Observation,
    PciDevice,
    Portrait,
    RowRemap,
)
from myriad.kube.client import ApiError
from myriad.kube.kinds import Resource

Json = dict[str, Any]

NODE = "gpu3"
MODEL = "H100-SXM5-80GB"
VERSION = "580.126.20"
RESOURCE = "nvidia.com/gpu"
GATE = {"key": "myriad.dev/gpu-not-ready", "effect": "NoSchedule"}
UNHEALTHY = {"key": "myriad.dev/gpu-unhealthy", "effect": "NoSchedule", "value": "agent"}

EXPECTED = Expected(gpus=8, model=MODEL, resource=RESOURCE, location=("hall1", "b1", "r2"))
KUBELET = Kubelet({RESOURCE: 8}, {RESOURCE: 8})
PROBED = ProbeResult(8, 8, cuda="")


def gpu(index: int, **more: Any) -> Gpu:
    """One healthy H100 of an HGX board."""
    healthy: Json = {
        "uuid": f"GPU-{index}", "vendor": "nvidia", "model": MODEL, "product": "NVIDIA H100 80GB HBM3",
        "driver": VERSION, "ecc": Ecc(enabled=True, uncorrected=0, volatile_uncorrected=0),
        "row_remap": RowRemap(pending=False, failure=False), "xids": (),
    }  # fmt: skip
    return Gpu(index=index, **{**healthy, **more})


def portrait(
    *, gpus: Sequence[Gpu] | None = None, pci: int = 8, switches: int = 4, faults: Json | None = None, **more: Any
) -> Portrait:
    """A healthy node, with what is given instead."""
    keys = (PCI, GPUS, MODULE, FABRIC_MANAGER, KERNEL_LOG, NEIGHBOURS)
    observations = {k: Observation(source=k, at="2026-11-29T21:00:00Z", fault=(faults or {}).get(k, "")) for k in keys}
    body: Json = {
        "boot_id": "boot-1",
        "pci": Bus(
            gpus=tuple(PciDevice(address=f"0000:{n:02x}:00.0", vendor="10de", device="2330") for n in range(pci)),
            switches=tuple(PciDevice(address=f"0000:8{n}:00.0", vendor="10de", device="22a3") for n in range(switches)),
        ),
        "gpus": tuple(gpu(n) for n in range(8)) if gpus is None else tuple(gpus),
        "drivers": (Driver(vendor="nvidia", loaded=VERSION, userspace=VERSION, fabric_manager=VERSION),),
        "fabric": Fabric(state="completed", status="success"),
        **more,
    }
    return Portrait(node=NODE, observations=observations, **body)


def with_driver(**versions: str | None) -> tuple[Driver, ...]:
    """The driver's parts with other versions."""
    parts: Json = {"loaded": VERSION, "userspace": VERSION, "fabric_manager": VERSION, **versions}
    return (Driver(vendor="nvidia", **parts),)


def good(check: str, value: int | str, found: int | str | None = None) -> Check:
    """A check that agrees."""
    return Check(check, value, value if found is None else found, True)


VERSIONS_SHOWN = f"module {VERSION}, library {VERSION}, fabric manager {VERSION}"
HEALTHY = (
    good("pci", 8),
    good("module", "loaded", VERSION),
    good("versions", VERSION, VERSIONS_SHOWN),
    good("answers", "yes"),
    good("driver", 8),
    good("model", MODEL),
    good("lost", 0),
    good("ecc", 0),
    good("row-remap", 0),
    good("xid", 0),
    good("fabric", "completed"),
    good("capacity", 8),
    good("allocatable", 8),
    good("devices", 8),
)


def node(**more: Any) -> Json:
    """The Node as the kubelet registers it, with its GPUs."""
    amounts = more.pop("amounts", "8")
    metadata: Json = {
        "name": NODE, "uid": "u1", "resourceVersion": "1", "annotations": more.pop("annotations", {}),
        "labels": {"myriad.dev/pool": "h100"},
    }  # fmt: skip
    return {
        "metadata": metadata,
        "spec": {"taints": more.pop("taints", [dict(GATE)]), **more},
        "status": {"capacity": {RESOURCE: amounts}, "allocatable": {RESOURCE: amounts}},
    }


class Clock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self.s = 0.0

    def now(self) -> datetime:
        return datetime(2026, 11, 29, 21, 0, tzinfo=UTC) + timedelta(seconds=self.s)

    def monotonic(self) -> float:
        return self.s


class FakeApi:
    """Objects by kind and name, with resourceVersions: a stale write is refused as the API server refuses it."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Json] = {}
        self.calls: list[tuple[str, str, str]] = []
        self.events: list[Json] = []
        self.after_read: Callable[[str, str], None] | None = None
        self.broken: ApiError | None = None
        self._version = 100

    def put(self, resource: Resource, body: Json) -> Json:
        self._version += 1
        body = copy.deepcopy(body)
        body["metadata"]["resourceVersion"] = str(self._version)
        self.objects[resource.plural, body["metadata"]["name"]] = body
        return copy.deepcopy(body)

    def _call(self, verb: str, resource: Resource, name: str) -> None:
        self.calls.append((verb, resource.plural, name))
        if self.broken is not None:
            raise self.broken

    def find(self, resource: Resource, name: str, *, namespace: str | None = None) -> Json | None:
        self._call("get", resource, name)
        found = copy.deepcopy(self.objects.get((resource.plural, name)))
        if self.after_read is not None:
            self.after_read(resource.plural, name)
        return found

    def list(self, resource: Resource, **selectors: Any) -> tuple[list[Json], str]:
        self._call("list", resource, str(selectors.get("fields") or selectors.get("labels") or ""))
        return [copy.deepcopy(o) for (plural, _), o in sorted(self.objects.items()) if plural == resource.plural], ""

    def create(self, resource: Resource, body: Json, *, namespace: str | None = None) -> Json:
        name = body["metadata"]["name"]
        self._call("create", resource, name)
        if (resource.plural, name) in self.objects:
            raise ApiError(409, "AlreadyExists", name, where="test")
        return self.put(resource, body)

    def replace(self, resource: Resource, name: str, body: Json, *, namespace: str | None = None) -> Json:
        self._call("replace", resource, name)
        current = self.objects.get((resource.plural, name))
        if current is None or current["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", name, where="test")
        return self.put(resource, body)

    def delete(self, resource: Resource, name: str, *, namespace: str | None = None) -> None:
        self._call("delete", resource, name)
        self.objects.pop((resource.plural, name), None)

    def patch(self, resource: Resource, name: str, body: Any, **more: Any) -> Json:
        self._call("patch", resource, name)
        if (resource.plural, name) not in self.objects:
            raise ApiError(404, "NotFound", name, where="test")
        current = copy.deepcopy(self.objects[resource.plural, name])
        assert more["kind"] == "json"
        for op in body:
            *path, last = [part.replace("~1", "/").replace("~0", "~") for part in op["path"].split("/")[1:]]
            place = current
            for part in path:
                place = place[part]
            if op["op"] == "test":
                if place[last] != op["value"]:
                    raise ApiError(422, "Invalid", "the test failed", where="test")
            else:
                place[last] = copy.deepcopy(op["value"])
        return self.put(resource, current)

    def create_event(self, about: Json, **more: Any) -> None:
        self.events.append({"about": about["metadata"]["name"], **more})
