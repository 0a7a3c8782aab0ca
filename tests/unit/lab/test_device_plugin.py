"""The device plugin double, against a kubelet's registration socket that the test serves itself."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from myriad.lab.double import nvidia_smi
from myriad.lab.double.document import set_fault
from myriad.lab.double.plugin import DevicePlugin, Options, devices_of, prefer, resources_of
from myriad.lab.double.protocol import decoder, encode, message
from myriad.lab.gpus import gpu_document


class Kubelet:
    """The kubelet's half of the protocol: takes registrations and watches the devices."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.requests: list[Any] = []
        self.server: grpc.Server | None = None

    def start(self) -> None:
        handler = grpc.unary_unary_rpc_method_handler(
            self._register, request_deserializer=decoder("RegisterRequest"), response_serializer=encode
        )
        self.server = grpc.server(ThreadPoolExecutor(max_workers=2))
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": handler}),)
        )
        self.server.add_insecure_port(f"unix://{self.directory}/kubelet.sock")
        self.server.start()

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop(grace=0).wait()

    def restart(self) -> None:
        """As a real kubelet does: every socket in the folder goes, its own is made anew."""
        self.stop()
        for socket in self.directory.glob("*.sock"):
            socket.unlink(missing_ok=True)
        self.start()

    def _register(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        return message("Empty")


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short path: a Unix socket's name has 107 bytes at most."""
    return tmp_path_factory.mktemp("dp")


@pytest.fixture
def kubelet(directory: Path) -> Iterator[Kubelet]:
    kubelet = Kubelet(directory)
    kubelet.start()
    yield kubelet
    kubelet.stop()


@pytest.fixture
def plugin(directory: Path) -> Iterator[DevicePlugin]:
    (directory / "gpu.json").write_text(json.dumps(gpu_document("gpu1", "H100-SXM5-80GB", 8)))
    plugin = DevicePlugin(Options(document=directory / "gpu.json", directory=directory, interval_s=0.05))
    thread = threading.Thread(target=plugin.run)
    thread.start()
    yield plugin
    plugin.stop()
    thread.join(timeout=10)
    assert not thread.is_alive()


def _until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "the condition did not come true"
        time.sleep(0.02)


def _call(directory: Path, method: str, request: Any, answer: str) -> Any:
    with grpc.insecure_channel(f"unix://{directory}/myriad-lab-gpu.sock") as channel:
        call = channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}", request_serializer=encode, response_deserializer=decoder(answer)
        )
        return call(request, timeout=5)


def test_registers_and_lists_eight_devices_on_two_numa_nodes(
    kubelet: Kubelet, plugin: DevicePlugin, directory: Path
) -> None:
    _until(lambda: len(kubelet.requests) == 1)
    request = kubelet.requests[0]
    assert (request.version, request.resource_name, request.endpoint) == (
        "v1beta1",
        "nvidia.com/gpu",
        "myriad-lab-gpu.sock",
    )
    with grpc.insecure_channel(f"unix://{directory}/myriad-lab-gpu.sock") as channel:
        watch = channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=encode,
            response_deserializer=decoder("ListAndWatchResponse"),
        )(message("Empty"), timeout=10)
        first = next(watch)
        assert [device.health for device in first.devices] == ["Healthy"] * 8
        assert [device.topology.nodes[0].ID for device in first.devices] == [0] * 4 + [1] * 4

        sick = set_fault(gpu_document("gpu1", "H100-SXM5-80GB", 8), "ecc", gpu=3)
        (directory / "gpu.json").write_text(json.dumps(sick))
        second = next(watch)
        assert [device.health for device in second.devices].index("Unhealthy") == 3
        watch.cancel()


def test_registers_again_when_the_kubelet_restarts(kubelet: Kubelet, plugin: DevicePlugin, directory: Path) -> None:
    _until(lambda: len(kubelet.requests) == 1)
    kubelet.restart()
    _until(lambda: len(kubelet.requests) >= 2)
    _until((directory / "myriad-lab-gpu.sock").exists)
    options = _call(directory, "GetDevicePluginOptions", message("Empty"), "DevicePluginOptions")
    assert options.get_preferred_allocation_available


def test_allocate_names_the_devices_in_the_environment(kubelet: Kubelet, plugin: DevicePlugin, directory: Path) -> None:
    _until(lambda: len(kubelet.requests) == 1)
    ids = [gpu["uuid"] for gpu in gpu_document("gpu1", "H100-SXM5-80GB", 8)["gpus"]][:2]
    request = message("AllocateRequest", container_requests=[message("ContainerAllocateRequest", devices_ids=ids)])
    answer = _call(directory, "Allocate", request, "AllocateResponse")
    assert dict(answer.container_responses[0].envs) == {"NVIDIA_VISIBLE_DEVICES": ",".join(ids)}
    wrong = message("AllocateRequest", container_requests=[message("ContainerAllocateRequest", devices_ids=["GPU-x"])])
    with pytest.raises(grpc.RpcError, match="no such GPU on this node: GPU-x"):
        _call(directory, "Allocate", wrong, "AllocateResponse")


def test_a_node_without_the_file_registers_nothing(kubelet: Kubelet, directory: Path) -> None:
    plugin = DevicePlugin(Options(document=directory / "none.json", directory=directory, interval_s=0.02))
    thread = threading.Thread(target=plugin.run)
    thread.start()
    time.sleep(0.3)
    plugin.stop()
    thread.join(timeout=5)
    assert kubelet.requests == []


@pytest.mark.parametrize(
    ("kind", "gpu", "count", "healthy"),
    [("missing", 2, 7, 7), ("xid", 2, 8, 7), ("ecc", 0, 8, 7), ("no_driver", None, 8, 0), ("hang", None, 8, 8)],
)
def test_faults_become_devices(kind: str, gpu: int | None, count: int, healthy: int) -> None:
    devices = devices_of(set_fault(gpu_document("n", "H100-SXM5-80GB", 8), kind, gpu=gpu))
    assert (len(devices), sum(device.healthy for device in devices)) == (count, healthy)


@pytest.mark.parametrize(
    ("free", "required", "size", "expected"),
    [
        (["a0", "b0", "b1"], [], 2, {"b0", "b1"}),  # one NUMA node instead of two
        (["a0", "a1", "b0", "b1", "b2"], [], 2, {"a0", "a1"}),  # the tightest node that holds it
        (["a0", "a1", "b0", "b1"], ["b0"], 2, {"b0", "b1"}),  # beside what is required
        (["a0", "b0", "b1"], [], 3, {"a0", "b0", "b1"}),
    ],
)
def test_preferred_allocation_keeps_to_one_numa_node(
    free: list[str], required: list[str], size: int, expected: set[str]
) -> None:
    numa = {device: 0 if device.startswith("a") else 1 for device in free}
    assert set(prefer(free, required, size, numa)) == expected


# Device nodes, CDI, MIG, sharing


def _started(directory: Path, document: dict[str, Any], **options: Any) -> tuple[DevicePlugin, threading.Thread]:
    (directory / "gpu.json").write_text(json.dumps(document))
    settings = {
        "document": directory / "gpu.json",
        "directory": directory,
        "interval_s": 0.05,
        "cdi": directory / "nvidia.yaml",
    }
    plugin = DevicePlugin(Options(**{**settings, **options}))
    thread = threading.Thread(target=plugin.run)
    thread.start()
    return plugin, thread


def _allocate(directory: Path, *ids: str) -> Any:
    request = message(
        "AllocateRequest", container_requests=[message("ContainerAllocateRequest", devices_ids=list(ids))]
    )
    return _call(directory, "Allocate", request, "AllocateResponse").container_responses[0]


def test_a_container_gets_device_nodes_or_by_cdi_their_names(kubelet: Kubelet, directory: Path) -> None:
    document = gpu_document("gpu1", "H100-SXM5-80GB", 8)
    ids = [gpu["uuid"] for gpu in document["gpus"]][:2]
    plugin, thread = _started(directory, document)
    try:
        _until(lambda: len(kubelet.requests) == 1)
        answer = _allocate(directory, *ids)
        assert [spec.host_path for spec in answer.devices] == [
            "/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia1",
        ]  # fmt: skip
        assert list(answer.cdi_devices) == []
        (directory / "nvidia.yaml").write_text(
            'kind: nvidia.com/gpu\ndevices:\n- name: "0"\n  containerEdits: {}\n- name: "1"\n'
        )
        answer = _allocate(directory, *ids)
        assert [device.name for device in answer.cdi_devices] == ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]
        assert list(answer.devices) == []
        # A specification from before a GPU came knows it not: the nodes are right, the names would stop the pod.
        (directory / "nvidia.yaml").write_text('devices:\n- name: "0"\n')
        assert not _allocate(directory, *ids).cdi_devices
    finally:
        plugin.stop()
        thread.join(timeout=10)


def _cut(model: str, layouts: dict[int, str]) -> dict[str, Any]:
    document = gpu_document("gpu1", model, 2)
    for index, profiles in layouts.items():
        _, document = nvidia_smi.run(["-i", str(index), "-mig", "1"], document)
        _, document = nvidia_smi.run(["mig", "-i", str(index), "-cgi", profiles, "-C"], document)
    return document


@pytest.mark.parametrize(
    ("strategy", "layouts", "resources"),
    [
        ("none", {0: "9,9"}, {"nvidia.com/gpu": 2}),
        ("mixed", {}, {"nvidia.com/gpu": 2}),
        ("mixed", {0: "9,14,19"}, {"nvidia.com/gpu": 1, "nvidia.com/mig-3g.40gb": 1, "nvidia.com/mig-2g.20gb": 1,
                                   "nvidia.com/mig-1g.10gb": 1}),
        ("single", {0: "9,9", 1: "9,9"}, {"nvidia.com/gpu": 4}),
        ("single", {0: "9,9"}, {"nvidia.com/gpu": 0}),
        ("single", {0: "9,19", 1: "9,19"}, {"nvidia.com/gpu": 0}),
    ],
)  # fmt: skip
def test_resources_follow_layout_and_strategy(
    tmp_path: Path, strategy: str, layouts: dict[int, str], resources: dict[str, int]
) -> None:
    found = resources_of(_cut("A100-SXM4-80GB", layouts), Options(mig_strategy=strategy))
    assert {name: len(devices) for name, devices in found.items()} == resources


def test_slices_are_resources_of_their_own_and_go_when_the_layout_goes(kubelet: Kubelet, directory: Path) -> None:
    document = _cut("A100-SXM4-80GB", {0: "9,9"})
    plugin, thread = _started(directory, document, mig_strategy="mixed")
    try:
        _until(lambda: len(kubelet.requests) == 2)
        assert {request.resource_name for request in kubelet.requests} == {"nvidia.com/gpu", "nvidia.com/mig-3g.40gb"}
        endpoint = next(r.endpoint for r in kubelet.requests if r.resource_name.endswith("3g.40gb"))
        resource = plugin.resources["nvidia.com/mig-3g.40gb"]
        uuids = [device.uuid for device in resource._devices]
        request = message(
            "AllocateRequest", container_requests=[message("ContainerAllocateRequest", devices_ids=uuids[:1])]
        )
        with grpc.insecure_channel(f"unix://{directory}/{endpoint}") as channel:
            call = channel.unary_unary(
                "/v1beta1.DevicePlugin/Allocate",
                request_serializer=encode,
                response_deserializer=decoder("AllocateResponse"),
            )
            answer = call(request, timeout=5).container_responses[0]
        assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": uuids[0]}
        assert uuids[0].startswith("MIG-")
        nodes = [spec.host_path for spec in answer.devices]
        assert nodes[0] == "/dev/nvidia0" and any(path.startswith("/dev/nvidia-caps/") for path in nodes)
        (directory / "gpu.json").write_text(json.dumps(gpu_document("gpu1", "A100-SXM4-80GB", 2)))
        _until(lambda: len(resource._devices) == 0)
        assert len(plugin.resources["nvidia.com/gpu"]._devices) == 2
    finally:
        plugin.stop()
        thread.join(timeout=10)


def test_a_shared_gpu_is_several_devices_and_one_for_the_container(kubelet: Kubelet, directory: Path) -> None:
    document = gpu_document("gpu1", "L40S", 2)
    plugin, thread = _started(directory, document, replicas=3)
    try:
        _until(lambda: len(kubelet.requests) == 1)
        devices = plugin.resources["nvidia.com/gpu"]._devices
        assert len(devices) == 6
        answer = _allocate(directory, devices[0].uuid, devices[1].uuid)
        assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": document["gpus"][0]["uuid"]}
    finally:
        plugin.stop()
        thread.join(timeout=10)


def test_an_unknown_strategy_is_a_sentence() -> None:
    with pytest.raises(ValueError, match="allowed: none, single or mixed"):
        Options.from_environment({"MIG_STRATEGY": "both"})
