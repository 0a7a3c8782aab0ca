"""The device plugin double: real protocol, real kubelet socket, devices from the node's JSON file."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from myriad.lab.double.document import PATH, faulty, has_fault
from myriad.lab.double.protocol import HEALTHY, PACKAGE, UNHEALTHY, VERSION, decoder, encode, message

log = logging.getLogger("gpu-double")


@dataclass(frozen=True)
class Options:
    """Settings of the double.

    Attributes:
        document: the node's JSON file.
        directory: the kubelet's device plugin folder.
        resource: name of the extended resource.
        interval_s: how often the file and the kubelet's socket are looked at.
    """

    document: Path = Path(PATH)
    directory: Path = Path("/var/lib/kubelet/device-plugins")
    resource: str = "nvidia.com/gpu"
    interval_s: float = 1.0

    @classmethod
    def from_environment(cls, environ: dict[str, str]) -> Options:
        """MYRIAD_LAB_GPU_JSON, MYRIAD_LAB_PLUGIN_DIR, MYRIAD_LAB_RESOURCE, MYRIAD_LAB_INTERVAL_S."""
        return cls(
            document=Path(environ.get("MYRIAD_LAB_GPU_JSON", PATH)),
            directory=Path(environ.get("MYRIAD_LAB_PLUGIN_DIR", str(cls.directory))),
            resource=environ.get("MYRIAD_LAB_RESOURCE", cls.resource),
            interval_s=float(environ.get("MYRIAD_LAB_INTERVAL_S", cls.interval_s)),
        )


@dataclass(frozen=True)
class GpuDevice:
    """One device as the kubelet sees it."""

    uuid: str
    healthy: bool
    numa_node: int


def devices_of(document: dict[str, Any]) -> tuple[GpuDevice, ...]:
    """The devices that a document stands for: missing ones are not listed, faulty ones are unhealthy. Pure."""
    gone, sick = faulty(document, "missing"), faulty(document, "xid", "ecc")
    dead = has_fault(document, "no_driver") or has_fault(document, "nvml_mismatch")
    return tuple(
        GpuDevice(gpu["uuid"], not dead and gpu["index"] not in sick, int(gpu["numa_node"]))
        for gpu in document["gpus"]
        if gpu["index"] not in gone
    )


def prefer(available: list[str], required: list[str], size: int, numa: dict[str, int]) -> list[str]:
    """Choose `size` devices with as few NUMA nodes as possible: first beside the required ones, then the fullest node.

    Args:
        available: device ids that may be chosen.
        required: ids that must be among them.
        size: how many are wanted.
        numa: NUMA node of each id.
    """
    chosen = list(required)
    rest = [device for device in available if device not in chosen]
    while len(chosen) < size and rest:
        near = {numa.get(device, 0) for device in chosen}
        counts: dict[int, int] = {}
        for device in rest:
            counts[numa.get(device, 0)] = counts.get(numa.get(device, 0), 0) + 1
        missing = size - len(chosen)

        def rank(
            device: str, near: set[int] = near, counts: dict[int, int] = counts, missing: int = missing
        ) -> tuple[bool, bool, int, str]:
            node = numa.get(device, 0)
            # The tightest node that holds all that is missing leaves the larger one whole.
            fits = counts[node] >= missing
            return (node not in near, not fits, counts[node] if fits else -counts[node], device)

        best = min(rest, key=rank)
        chosen.append(best)
        rest.remove(best)
    return chosen[:size]


class DevicePlugin:
    """Serves one resource on a socket of its own and registers it with the kubelet, again after each kubelet start."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.endpoint = "myriad-lab-gpu.sock"
        self.kubelet = options.directory / "kubelet.sock"
        self._changed = threading.Condition()
        self._devices: tuple[GpuDevice, ...] = ()
        self._generation = 0
        self._server: grpc.Server | None = None
        self._stop = threading.Event()

    # What the kubelet calls.

    def _options(self, request: Any, context: Any) -> Any:
        return message("DevicePluginOptions", get_preferred_allocation_available=True)

    def _list_and_watch(self, request: Any, context: Any) -> Iterator[Any]:
        seen: tuple[GpuDevice, ...] | None = None
        generation = self._generation
        while context.is_active() and not self._stop.is_set() and generation == self._generation:
            with self._changed:
                if seen == self._devices:
                    self._changed.wait(timeout=1.0)
                devices = self._devices
            if devices != seen:
                seen = devices
                yield self._response(devices)

    @staticmethod
    def _response(devices: tuple[GpuDevice, ...]) -> Any:
        return message(
            "ListAndWatchResponse",
            devices=[
                message(
                    "Device",
                    ID=device.uuid,
                    health=HEALTHY if device.healthy else UNHEALTHY,
                    topology=message("TopologyInfo", nodes=[message("NUMANode", ID=device.numa_node)]),
                )
                for device in devices
            ],
        )

    def _prefer(self, request: Any, context: Any) -> Any:
        numa = {device.uuid: device.numa_node for device in self._devices}
        answers = []
        for part in request.container_requests:
            picked = prefer(
                list(part.available_deviceIDs), list(part.must_include_deviceIDs), part.allocation_size, numa
            )
            answers.append(message("ContainerPreferredAllocationResponse", deviceIDs=picked))
        return message("PreferredAllocationResponse", container_responses=answers)

    def _allocate(self, request: Any, context: Any) -> Any:
        known = {device.uuid for device in self._devices}
        answers = []
        for part in request.container_requests:
            ids = list(part.devices_ids)
            unknown = [device for device in ids if device not in known]
            if unknown:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no such GPU on this node: {', '.join(unknown)}")
            answers.append(message("ContainerAllocateResponse", envs={"NVIDIA_VISIBLE_DEVICES": ",".join(ids)}))
        return message("AllocateResponse", container_responses=answers)

    def _pre_start(self, request: Any, context: Any) -> Any:
        return message("PreStartContainerResponse")

    # What the double does by itself.

    def refresh(self) -> bool:
        """Read the JSON file. Returns whether the devices changed; a half-written file is read at the next look."""
        try:
            document = json.loads(self.options.document.read_text())
        except FileNotFoundError:
            document = {"gpus": [], "faults": []}
        except ValueError:
            return False
        devices = devices_of(document)
        with self._changed:
            if devices == self._devices:
                return False
            self._devices = devices
            self._changed.notify_all()
        healthy = sum(device.healthy for device in devices)
        log.info("%d devices, %d healthy", len(devices), healthy)
        return True

    def serve(self) -> None:
        """Start the gRPC server on the plugin's socket, after an earlier one."""
        self.close()
        socket = self.options.directory / self.endpoint
        socket.unlink(missing_ok=True)
        calls = {
            "GetDevicePluginOptions": (grpc.unary_unary_rpc_method_handler, self._options, "Empty"),
            "ListAndWatch": (grpc.unary_stream_rpc_method_handler, self._list_and_watch, "Empty"),
            "GetPreferredAllocation": (
                grpc.unary_unary_rpc_method_handler,
                self._prefer,
                "PreferredAllocationRequest",
            ),
            "Allocate": (grpc.unary_unary_rpc_method_handler, self._allocate, "AllocateRequest"),
            "PreStartContainer": (grpc.unary_unary_rpc_method_handler, self._pre_start, "PreStartContainerRequest"),
        }
        handlers = {
            name: make(call, request_deserializer=decoder(request), response_serializer=encode)
            for name, (make, call, request) in calls.items()
        }
        self._server = grpc.server(ThreadPoolExecutor(max_workers=8))
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(f"{PACKAGE}.DevicePlugin", handlers),)
        )
        self._server.add_insecure_port(f"unix://{socket}")
        self._server.start()

    def register(self, timeout_s: float = 5.0) -> None:
        """Tell the kubelet about the resource.

        Raises:
            grpc.RpcError: when the kubelet does not answer.
        """
        with grpc.insecure_channel(f"unix://{self.kubelet}") as channel:
            call = channel.unary_unary(
                f"/{PACKAGE}.Registration/Register", request_serializer=encode, response_deserializer=decoder("Empty")
            )
            request = message(
                "RegisterRequest",
                version=VERSION,
                endpoint=self.endpoint,
                resource_name=self.options.resource,
                options=message("DevicePluginOptions", get_preferred_allocation_available=True),
            )
            call(request, timeout=timeout_s)
        log.info("registered %s with the kubelet", self.options.resource)

    def _identity(self) -> tuple[int, int] | None:
        """Which kubelet start this is: its socket's inode and birth. None while there is no kubelet."""
        try:
            status = self.kubelet.stat()
        except OSError:
            return None
        return status.st_ino, status.st_ctime_ns

    def run(self) -> None:
        """Serve and register until stopped; a restarted kubelet (it removes every socket) is registered with again."""
        registered: tuple[int, int] | None = None
        while not self._stop.is_set():
            self.refresh()
            identity = self._identity()
            own = (self.options.directory / self.endpoint).exists()
            if identity is not None and self._devices and (identity != registered or not own):
                try:
                    self.serve()
                    self.register()
                    registered = identity
                except (grpc.RpcError, OSError, RuntimeError) as error:
                    registered = None
                    log.warning("the kubelet does not take the registration yet: %s", _text(error))
            self._stop.wait(self.options.interval_s)
        self.close()

    def close(self) -> None:
        """Stop serving."""
        self._generation += 1
        with self._changed:
            self._changed.notify_all()
        if self._server is not None:
            self._server.stop(grace=0.2).wait()
            self._server = None

    def stop(self) -> None:
        """End `run`."""
        self._stop.set()


def _text(error: Exception) -> str:
    details = getattr(error, "details", None)
    return str(details()) if callable(details) else str(error)


def main() -> int:
    """Entry point of the double's pod. It takes no argument: its settings are in the environment."""
    if sys.argv[1:]:
        print(__doc__, Options.from_environment.__doc__, sep="\n\n")
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    plugin = DevicePlugin(Options.from_environment(dict(os.environ)))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: plugin.stop())
    started = time.monotonic()
    plugin.run()
    log.info("stopped after %.0f s", time.monotonic() - started)
    return 0
