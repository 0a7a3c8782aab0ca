"""The device plugin double: real protocol, real kubelet socket, devices from the node's JSON file."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc

from myriad.lab.double import mig
from myriad.lab.double.document import PATH, driver_gpus, has_fault, module_loaded, sick_gpus, versions
from myriad.lab.double.protocol import HEALTHY, PACKAGE, UNHEALTHY, VERSION, decoder, encode, message
from myriad.lab.double.trees import capabilities

log = logging.getLogger("gpu-double")

STRATEGIES = ("none", "single", "mixed")
#: Device nodes that every container with a GPU gets, besides those of its GPUs.
CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_CDI_NAME = re.compile(
    r"""^\s*-?\s*["']?name["']?\s*:\s*["']?([A-Za-z0-9][A-Za-z0-9_.:-]*)["']?\s*,?\s*$""", re.MULTILINE
)


@dataclass(frozen=True)
class Options:
    """Settings of the double.

    Attributes:
        document: the node's JSON file.
        directory: the kubelet's device plugin folder.
        resource: name of the extended resource of whole GPUs; MIG devices get `mig-PROFILE` in the same domain.
        interval_s: how often the file and the kubelet's socket are looked at.
        mig_strategy: none (whole GPUs whatever their mode), single (MIG devices of one kind under the name of GPUs) or
            mixed (each profile a resource of its own), as the vendor's plugin knows them.
        replicas: how many pods share one device (time slicing); 1 shares nothing.
        cdi: the CDI specification of this node's GPUs. Where it exists its names are handed out, else device nodes.
    """

    document: Path = Path(PATH)
    directory: Path = Path("/var/lib/kubelet/device-plugins")
    resource: str = "nvidia.com/gpu"
    interval_s: float = 1.0
    mig_strategy: str = "none"
    replicas: int = 1
    cdi: Path = Path("/etc/cdi/nvidia.yaml")

    @classmethod
    def from_environment(cls, environ: dict[str, str]) -> Options:
        """MYRIAD_LAB_GPU_JSON, MYRIAD_LAB_PLUGIN_DIR, MYRIAD_LAB_RESOURCE, MYRIAD_LAB_INTERVAL_S, MYRIAD_LAB_CDI,
        MIG_STRATEGY (none, single or mixed), CONFIG_FILE (as the vendor's plugin reads it, in JSON: sharing only).

        Raises:
            ValueError: MIG_STRATEGY is none of the three.
        """
        strategy = environ.get("MIG_STRATEGY") or cls.mig_strategy
        if strategy not in STRATEGIES:
            raise ValueError(f'MIG_STRATEGY is "{strategy}"; allowed: none, single or mixed')
        return cls(
            document=Path(environ.get("MYRIAD_LAB_GPU_JSON", PATH)),
            directory=Path(environ.get("MYRIAD_LAB_PLUGIN_DIR", str(cls.directory))),
            resource=environ.get("MYRIAD_LAB_RESOURCE", cls.resource),
            interval_s=float(environ.get("MYRIAD_LAB_INTERVAL_S", cls.interval_s)),
            mig_strategy=strategy,
            replicas=_replicas(environ.get("CONFIG_FILE", "")),
            cdi=Path(environ.get("MYRIAD_LAB_CDI", str(cls.cdi))),
        )


def _replicas(path: str) -> int:
    """Replicas of the first resource that a configuration shares; 1 without a configuration."""
    if not path:
        return 1
    sharing = json.loads(Path(path).read_text()).get("sharing", {})
    shared = sharing.get("timeSlicing", {}).get("resources", [])
    return int(shared[0]["replicas"]) if shared else 1


@dataclass(frozen=True)
class GpuDevice:
    """One device as the kubelet sees it.

    Attributes:
        uuid: of the GPU or of the MIG device.
        healthy: whether it may be given out.
        numa_node: where it is plugged in.
        names: how CDI specifications call it, the preferred name first.
        nodes: its device nodes.
    """

    uuid: str
    healthy: bool
    numa_node: int
    names: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


def devices_of(document: dict[str, Any]) -> tuple[GpuDevice, ...]:
    """The whole GPUs that a document stands for: missing ones are not listed, faulty ones are unhealthy. Pure."""
    sick, dead = sick_gpus(document), _is_dead(document)
    # Without a driver the plugin still knows the GPUs that it has told the kubelet about before.
    gpus = driver_gpus(document) if module_loaded(document) else document["gpus"]
    return tuple(
        GpuDevice(
            gpu["uuid"],
            not dead and gpu["index"] not in sick,
            int(gpu["numa_node"]),
            (gpu["uuid"], str(gpu["index"])),
            (f"/dev/nvidia{gpu['index']}",),
        )
        for gpu in gpus
    )


def _is_dead(document: dict[str, Any]) -> bool:
    parts = versions(document)
    return not module_loaded(document) or parts["module"] != parts["library"]


def resources_of(document: dict[str, Any], options: Options) -> dict[str, tuple[GpuDevice, ...]]:
    """Resource name to its devices, as the vendor's plugin sorts them by MIG strategy. Pure.

    With `single` a node whose GPUs are not all cut the same way has no device at all, as with the vendor's plugin.
    """
    whole = devices_of(document)
    if options.mig_strategy == "none" or not has_mig(document):
        return {options.resource: whole}
    sick, dead = sick_gpus(document), _is_dead(document)
    domain = options.resource.rsplit("/", 1)[0]
    by_profile: dict[str, list[GpuDevice]] = {}
    left: list[GpuDevice] = []
    for gpu, device in zip(driver_gpus(document), whole, strict=False):
        if not mig.is_enabled(document, gpu["index"]):
            left.append(device)
            continue
        for part in mig.devices(document, gpu):
            name = part["profile"]["name"]
            by_profile.setdefault(name, []).append(
                GpuDevice(
                    part["uuid"],
                    not dead and gpu["index"] not in sick,
                    int(gpu["numa_node"]),
                    (part["uuid"], f"{gpu['index']}:{part['index']}"),
                    (f"/dev/nvidia{gpu['index']}", *capabilities(document, gpu, part)),
                )
            )
    if options.mig_strategy == "single":
        alike = len(by_profile) == 1 and not left
        return {options.resource: tuple(next(iter(by_profile.values()))) if alike else ()}
    named = {f"{domain}/mig-{name.replace('+', '.')}": tuple(devices) for name, devices in by_profile.items()}
    return {options.resource: tuple(left), **named}


def has_mig(document: dict[str, Any]) -> bool:
    """Whether any GPU is in MIG mode."""
    return any(mig.is_enabled(document, gpu["index"]) for gpu in document["gpus"])


def shared(devices: tuple[GpuDevice, ...], replicas: int) -> tuple[GpuDevice, ...]:
    """Each device as often as it may be shared; the copies are named `UUID::N`, as the vendor's plugin names them."""
    if replicas == 1:
        return devices
    return tuple(replace(device, uuid=f"{device.uuid}::{n}") for device in devices for n in range(replicas))


def cdi_names(specification: str) -> set[str]:
    """Device names of a CDI specification in YAML or JSON, without a parser: they stand in entries called name."""
    return set(_CDI_NAME.findall(specification))


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


class Resource:
    """Serves one resource on a socket of its own and registers it with the kubelet, again after each kubelet start."""

    def __init__(self, options: Options, name: str, endpoint: str) -> None:
        self.options = options
        self.name = name
        self.endpoint = endpoint
        self._changed = threading.Condition()
        self._devices: tuple[GpuDevice, ...] = ()
        self._generation = 0
        self._server: grpc.Server | None = None
        self._closed = threading.Event()
        self._registered: tuple[int, int] | None = None

    # What the kubelet calls.

    def _options(self, request: Any, context: Any) -> Any:
        return message("DevicePluginOptions", get_preferred_allocation_available=True)

    def _list_and_watch(self, request: Any, context: Any) -> Iterator[Any]:
        seen: tuple[GpuDevice, ...] | None = None
        generation = self._generation
        while context.is_active() and not self._closed.is_set() and generation == self._generation:
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
        known = {device.uuid: device for device in self._devices}
        answers = []
        for part in request.container_requests:
            ids = list(part.devices_ids)
            unknown = [device for device in ids if device not in known]
            if unknown:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no such GPU on this node: {', '.join(unknown)}")
            answers.append(self._container([known[device] for device in ids]))
        return message("AllocateResponse", container_responses=answers)

    def _container(self, devices: list[GpuDevice]) -> Any:
        """What one container gets: the devices by their CDI names where this node has a specification that knows them
        all, else as device nodes."""
        visible = ",".join(dict.fromkeys(device.uuid.split("::")[0] for device in devices))
        envs = {"NVIDIA_VISIBLE_DEVICES": visible}
        try:
            known = cdi_names(self.options.cdi.read_text())
        except OSError:
            known = set()
        names = [next((name for name in device.names if name in known), None) for device in devices]
        if names and None not in names:
            kind = f"{self.options.resource.split('/')[0]}/gpu"
            chosen = dict.fromkeys(f"{kind}={name}" for name in names)
            return message(
                "ContainerAllocateResponse", envs=envs, cdi_devices=[message("CDIDevice", name=name) for name in chosen]
            )
        nodes = dict.fromkeys(node for device in devices for node in (*device.nodes, *CONTROL_NODES))
        specs = [message("DeviceSpec", container_path=node, host_path=node, permissions="rw") for node in nodes]
        return message("ContainerAllocateResponse", envs=envs, devices=specs)

    def _pre_start(self, request: Any, context: Any) -> Any:
        return message("PreStartContainerResponse")

    # What the double does by itself.

    def set(self, devices: tuple[GpuDevice, ...]) -> None:
        """Have these devices from now on; who watches is told."""
        with self._changed:
            if devices == self._devices:
                return
            self._devices = devices
            self._changed.notify_all()
        log.info("%s: %d devices, %d healthy", self.name, len(devices), sum(device.healthy for device in devices))

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
        with grpc.insecure_channel(f"unix://{self.options.directory}/kubelet.sock") as channel:
            call = channel.unary_unary(
                f"/{PACKAGE}.Registration/Register", request_serializer=encode, response_deserializer=decoder("Empty")
            )
            request = message(
                "RegisterRequest",
                version=VERSION,
                endpoint=self.endpoint,
                resource_name=self.name,
                options=message("DevicePluginOptions", get_preferred_allocation_available=True),
            )
            call(request, timeout=timeout_s)
        log.info("registered %s with the kubelet", self.name)

    def follow(self, identity: tuple[int, int] | None) -> None:
        """Serve and register where that is due: a new kubelet, or one that removed the socket.

        Args:
            identity: which kubelet start this is; None while there is none.
        """
        own = (self.options.directory / self.endpoint).exists()
        # A resource that never had a device is not made known.
        is_due = self._devices or self._registered is not None
        if identity is None or not is_due or (identity == self._registered and own):
            return
        try:
            self.serve()
            self.register()
            self._registered = identity
        except (grpc.RpcError, OSError, RuntimeError) as error:
            self._registered = (0, 0) if self._registered else None
            log.warning("the kubelet does not take the registration yet: %s", _text(error))

    def close(self) -> None:
        """Stop serving."""
        self._generation += 1
        with self._changed:
            self._changed.notify_all()
        if self._server is not None:
            self._server.stop(grace=0.2).wait()
            self._server = None

    def end(self) -> None:
        """Stop serving for good."""
        self._closed.set()
        self.close()


class DevicePlugin:
    """The plugin: reads the JSON file and keeps one `Resource` for each resource that follows from it."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.kubelet = options.directory / "kubelet.sock"
        self.resources: dict[str, Resource] = {}
        self._stop = threading.Event()

    def refresh(self) -> None:
        """Read the JSON file; a half-written file is read at the next look. A resource that is gone keeps no device."""
        try:
            document = json.loads(self.options.document.read_text())
        except FileNotFoundError:
            document = {"gpus": [], "faults": []}
        except ValueError:
            return
        if has_fault(document, "hang"):
            return  # the vendor's plugin waits for the driver as well, and says what it said last
        wanted = resources_of(document, self.options)
        for name in {**wanted, **self.resources}:
            if name not in self.resources:
                suffix = name.rsplit("/", 1)[1] if name != self.options.resource else "gpu"
                self.resources[name] = Resource(self.options, name, f"myriad-lab-{suffix}.sock")
            self.resources[name].set(shared(wanted.get(name, ()), self.options.replicas))

    def _identity(self) -> tuple[int, int] | None:
        """Which kubelet start this is: its socket's inode and birth. None while there is no kubelet."""
        try:
            status = self.kubelet.stat()
        except OSError:
            return None
        return status.st_ino, status.st_ctime_ns

    def run(self) -> None:
        """Serve and register until stopped; a restarted kubelet (it removes every socket) is registered with again."""
        while not self._stop.is_set():
            self.refresh()
            identity = self._identity()
            for resource in self.resources.values():
                resource.follow(identity)
            self._stop.wait(self.options.interval_s)
        for resource in self.resources.values():
            resource.end()

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
    try:
        plugin = DevicePlugin(Options.from_environment(dict(os.environ)))
    except ValueError as error:
        log.error("%s", error)
        return 2
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: plugin.stop())
    started = time.monotonic()
    plugin.run()
    log.info("stopped after %.0f s", time.monotonic() - started)
    return 0
