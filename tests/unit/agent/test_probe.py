"""The probe: what it opens in a container, what it says of CUDA, and what its pod's end means."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import pytest

from myriad.agent import probe
from myriad.agent.probe import ProbeResult, blocked, look, open_device, pod, read, try_cuda

Json = dict[str, Any]
RESOURCE = "nvidia.com/gpu"


def devices(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).write_text("")
    return folder


def no_cuda() -> str | None:
    return None


def refuse(*refused: str) -> Any:
    def open_file(path: Path) -> None:
        if path.name in refused:
            raise OSError(6, "x")

    return open_file


EIGHT = [f"nvidia{n}" for n in range(8)]


def test_every_device_that_the_container_was_given_is_opened(tmp_path: Path) -> None:
    dev = devices(tmp_path, *EIGHT, "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "null", "nvidia-caps")
    opened: list[str] = []
    answer = look(dev, "nvidia.com", 8, lambda: "", lambda path: opened.append(path.name))
    assert opened == [*EIGHT, "nvidiactl", "nvidia-uvm"]
    assert answer == {"wanted": 8, "opened": 8, "cuda": "", "done": True}
    assert ProbeResult.from_json(answer).ok


def test_each_gpu_that_does_not_open_is_named_with_its_reason(tmp_path: Path) -> None:
    dev = devices(tmp_path, *EIGHT, "nvidiactl")
    result = ProbeResult.from_json(look(dev, "nvidia.com", 8, no_cuda, refuse("nvidia3", "nvidia5")))
    assert result == ProbeResult(
        8, 6, {"nvidia3": "ENXIO: No such device or address", "nvidia5": "ENXIO: No such device or address"}
    )
    assert result.fault == (
        "a container opened 6 of 8 GPUs; nvidia3: ENXIO: No such device or address; nvidia5: ENXIO: No such device or "
        "address"
    )


def test_a_control_device_that_does_not_open_is_a_fault_though_all_gpus_do(tmp_path: Path) -> None:
    result = ProbeResult.from_json(
        look(devices(tmp_path, *EIGHT, "nvidiactl"), "nvidia.com", 8, no_cuda, refuse("nvidiactl"))
    )
    assert result.opened == 8 and not result.ok
    assert result.fault == "nvidiactl: ENXIO: No such device or address"


def test_a_container_without_any_device_says_so_and_leaves_cuda_alone(tmp_path: Path) -> None:
    def never() -> str:
        raise AssertionError

    result = ProbeResult.from_json(look(tmp_path, "nvidia.com", 8, never, refuse()))
    assert result.fault == "a container opened 0 of 8 GPUs; device files: none of the 8 GPUs is in the container"


def test_ascend_devices_have_their_own_names(tmp_path: Path) -> None:
    dev = devices(tmp_path, *[f"davinci{n}" for n in range(8)], "davinci_manager", "nvidia0")
    assert ProbeResult.from_json(look(dev, "huawei.com", 8, no_cuda, refuse("nvidia0"))).ok


def test_a_device_file_is_opened_for_reading_and_writing(tmp_path: Path) -> None:
    open_device(devices(tmp_path, "nvidia0") / "nvidia0")
    with pytest.raises(FileNotFoundError):
        open_device(tmp_path / "nvidia1")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        open_device(tmp_path / "folder")


class Cuda:
    """The driver's library as it is called: codes by function."""

    def __init__(self, count: int = 8, **codes: int) -> None:
        self.count, self.codes, self.calls = count, codes, []  # type: ignore[var-annotated]

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == "cuDeviceGetCount":
                arguments[0]._obj.value = self.count
            return self.codes.get(name, 0)

        return call


@pytest.mark.parametrize(
    ("cuda", "count", "said"),
    [
        (Cuda(), 8, ""),
        (Cuda(cuInit=802), 8, "cuInit gives CUDA error 802 (system not ready)"),
        (Cuda(cuInit=12345), 8, "cuInit gives CUDA error 12345 (see CUresult)"),
        (Cuda(cuDeviceGetCount=3), 8, "cuDeviceGetCount gives CUDA error 3 (not initialized)"),
        (Cuda(count=7), 8, "CUDA sees 7 of 8 GPUs"),
        (Cuda(count=1), None, ""),
        (Cuda(cuDevicePrimaryCtxRetain=999), 8, "GPU 0: cuDevicePrimaryCtxRetain gives CUDA error 999 (unknown)"),
    ],
)
def test_c1_cuda_has_to_start_and_make_a_context_on_each_gpu(
    monkeypatch: pytest.MonkeyPatch, cuda: Cuda, count: int | None, said: str
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: cuda)
    assert try_cuda(count) == said
    if not said:
        assert cuda.calls.count("cuDevicePrimaryCtxRetain") == cuda.calls.count("cuDevicePrimaryCtxRelease_v2")
        assert cuda.calls.count("cuDevicePrimaryCtxRetain") == cuda.count


def test_an_image_without_the_drivers_library_says_nothing_of_cuda() -> None:
    assert try_cuda(8, "libcuda-that-nobody-has.so.1") is None


def test_the_pods_program_answers_in_its_termination_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dev").mkdir()
    devices(tmp_path / "dev", "nvidia0")
    monkeypatch.setattr(probe, "try_cuda", lambda count: {1: "", None: "sliced"}[count])
    env = {"PROBE_DEV": str(tmp_path / "dev"), "PROBE_GPUS": "1", "PROBE_ANSWER": str(tmp_path / "answer")}
    assert probe.main(env) == 0
    assert json.loads((tmp_path / "answer").read_text()) == json.loads(capsys.readouterr().out)
    assert ProbeResult.from_json(json.loads((tmp_path / "answer").read_text())).ok
    probe.main({**env, "PROBE_MIG": "1"})
    assert "sliced" in (tmp_path / "answer").read_text()


def test_an_answer_fits_into_a_termination_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dev").mkdir()
    names = [f"nvidia{n}" for n in range(200)]
    devices(tmp_path / "dev", *names)
    monkeypatch.setattr(probe, "open_device", refuse(*names))
    probe.main({"PROBE_DEV": str(tmp_path / "dev"), "PROBE_GPUS": "200", "PROBE_ANSWER": str(tmp_path / "answer")})
    assert len((tmp_path / "answer").read_text()) < 4096


# The agent's side


def test_a_pod_asks_for_all_that_the_kubelet_counts() -> None:
    node = {"metadata": {"name": "gpu3", "uid": "u1"}}
    body = pod(node, "image@sha256:x", {"nvidia.com/mig-3g.40gb": 16}, gpus=8, mig=True)
    container = body["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/mig-3g.40gb": "16"}
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    assert (env["PROBE_GPUS"], env["PROBE_DOMAIN"], env["PROBE_MIG"]) == ("8", "nvidia.com", "1")
    assert body["metadata"]["ownerReferences"][0] == {"apiVersion": "v1", "kind": "Node", "name": "gpu3", "uid": "u1"}
    assert body["spec"]["securityContext"]["runAsNonRoot"] is True
    assert body["spec"]["automountServiceAccountToken"] is False
    assert "ownerReferences" not in pod({"metadata": {"name": "n"}}, "i", {RESOURCE: 1}, gpus=1, mig=False)["metadata"]


def ended(message: str | None, **status: Any) -> Json:
    state = {"terminated": {"message": message} if message else {"reason": "Error"}}
    return {"status": {"phase": "Succeeded", "containerStatuses": [{"state": state}], **status}}


@pytest.mark.parametrize(
    ("body", "age_s", "result"),
    [
        ({}, 1, ProbeResult(8, done=False)),
        ({"status": {"phase": "Running"}}, 1, ProbeResult(8, done=False)),
        (ended('{"wanted":8,"opened":8,"done":true,"cuda":""}'), 1, ProbeResult(8, 8, cuda="")),
        (ended("Traceback: x"), 1, ProbeResult(8, failures={"probe": "Traceback: x"})),
        (ended("[1]"), 1, ProbeResult(8, failures={"probe": "[1]"})),
        (
            {"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed"}}, 1,
            ProbeResult(8, failures={"probe pod": "UnexpectedAdmissionError: Allocate failed"}),
        ),
        (ended(None, phase="Failed"), 1, ProbeResult(8, failures={"probe pod": "ended: Error"})),
        (
            {"status": {"phase": "Pending", "containerStatuses": [
                {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}]}}, 91,
            ProbeResult(8, failures={"probe pod": "it did not end within 90 s: ImagePullBackOff not found"}),
        ),
        ({"status": {"phase": "Pending"}}, 91,
         ProbeResult(8, failures={"probe pod": "it did not end within 90 s: Pending"})),
    ],
)  # fmt: skip
def test_what_the_pods_end_means(body: Json, age_s: float, result: ProbeResult) -> None:
    assert read(body, 8, age_s=age_s) == result
    assert read(body, 8, age_s=age_s).ok == (result.opened == 8)


def user(name: str, phase: str = "Running", *, resource: str = RESOURCE, init: bool = False) -> Json:
    container = {"resources": {"limits": {resource: "1"}}}
    spec = {"initContainers": [container], "containers": [{}]} if init else {"containers": [container]}
    return {"metadata": {"name": name, "namespace": "vision"}, "spec": spec, "status": {"phase": phase}}


def test_gpus_are_in_use_as_long_as_a_pod_that_holds_some_has_not_ended() -> None:
    idle = [
        user("done", "Succeeded"),
        user("failed", "Failed"),
        user("cpu", resource="cpu"),
        user("myriad-gate-probe-x"),
    ]
    assert blocked(idle, {RESOURCE: 8}) == ""
    assert blocked([*idle, user("a"), user("b", "Pending", init=True)], {RESOURCE: 8}) == "GPUs in use by 2 pods"
    assert blocked([user("a")], {RESOURCE: 8}) == "GPUs in use by 1 pod"


@pytest.mark.parametrize("body", [{"opened": "many"}, {"opened": None}, {"failures": []}])
def test_what_is_no_result_is_refused(body: Json) -> None:
    with pytest.raises((TypeError, ValueError)):
        ProbeResult.from_json(body)


def test_a_result_reads_back_as_it_was_written() -> None:
    for result in (
        ProbeResult(8, 8),
        ProbeResult(8, 7, {"a": "b"}),
        ProbeResult(8, skipped="x"),
        ProbeResult(done=False),
    ):
        assert ProbeResult.from_json(result.as_json()) == result
