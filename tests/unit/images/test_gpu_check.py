"""gpu-check: each cause of `torch.cuda.is_available()` being False, from a pod's own point of view."""

from __future__ import annotations

import ctypes
import io
import json
import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from myriad.images.compat import own_facts
from myriad.images.data import gpu_check
from myriad.symptoms import catalogue, diagnose

MODULE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build\nGCC version: 12\n"
ARCHS = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


class Cuda:
    """A driver's library: what cuInit answers, how many GPUs it has, of which capability and CUDA level."""

    def __init__(self, init: int = 0, count: int = 1, capability: tuple[int, int] = (9, 0), level: int = 13000) -> None:
        self.init, self.count, self.capability, self.level = init, count, capability, level

    def cuInit(self, _flags: int) -> int:
        return self.init

    def cuDriverGetVersion(self, out: Any) -> int:
        out._obj.value = self.level
        return 0

    def cuDeviceGetCount(self, out: Any) -> int:
        out._obj.value = self.count
        return 0

    def cuDeviceGet(self, out: Any, index: int) -> int:
        out._obj.value = index
        return 0

    def cuDeviceGetAttribute(self, out: Any, attribute: int, _device: ctypes.c_int) -> int:
        out._obj.value = self.capability[attribute - 75]
        return 0


def torch(cuda: str | None = "13.0", available: bool = True, archs: list[str] | None = None, **more: Any) -> Any:
    found = SimpleNamespace(
        __version__="2.12.1",
        version=SimpleNamespace(cuda=cuda, hip=None, **more),
        cuda=SimpleNamespace(is_available=lambda: available, get_arch_list=lambda: ARCHS if archs is None else archs),
    )
    return lambda name: found


@pytest.fixture
def pod(tmp_path: Path) -> Callable[..., Any]:
    """A container that has all it needs; a test takes something away."""

    def make(
        *,
        env: dict[str, str] | None = None,
        devices: tuple[str, ...] = ("nvidia0", "nvidiactl", "nvidia-uvm"),
        module: str = "580.126.20",
        library: str = "usr/lib/x86_64-linux-gnu/libcuda.so.580.126.20",
        cuda: Cuda | OSError | None = None,
        modules: Callable[[str], Any] | None = None,
    ) -> Any:
        (tmp_path / "dev").mkdir(exist_ok=True)
        for name in devices:
            (tmp_path / "dev" / name).write_bytes(b"")
        if module:
            (tmp_path / "proc/driver/nvidia").mkdir(parents=True, exist_ok=True)
            (tmp_path / "proc/driver/nvidia/version").write_text(MODULE.format(module))
        if library:
            path = tmp_path / library
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
            link = path.with_name("libcuda.so.1")
            link.unlink(missing_ok=True)
            link.symlink_to(path.name)
            (tmp_path / "proc/self").mkdir(parents=True, exist_ok=True)
            row = f"7f00-7f01 r-xp 00000000 08:01 12   /{link.relative_to(tmp_path)}\n"
            (tmp_path / "proc/self/maps").write_text(row)

        def load(name: str) -> Any:
            assert name == "libcuda.so.1"
            if isinstance(cuda, OSError):
                raise cuda
            return cuda or Cuda()

        return gpu_check.Container(tmp_path, env or {}, load, modules or torch())

    return make


def cause(container: Any) -> gpu_check.Found:
    with pytest.raises(gpu_check.Found) as caught:
        gpu_check.check(container)
    assert caught.value.next_step
    found: gpu_check.Found = caught.value
    return found


def test_where_all_is_well(pod: Callable[..., Any]) -> None:
    out = io.StringIO()
    assert gpu_check.main([], pod(), out) == 0
    assert out.getvalue().startswith("CUDA works here: 1 GPUs; /dev/nvidia0, driver 580.126.20, CUDA 13.0, ")


@pytest.mark.parametrize("value", ["void", "none", ""])
def test_a_container_that_asked_for_none(pod: Callable[..., Any], value: str) -> None:
    assert "was started without GPUs" in str(cause(pod(env={"NVIDIA_VISIBLE_DEVICES": value}, devices=())))


def test_no_device_files(pod: Callable[..., Any]) -> None:
    found = cause(pod(devices=()))
    assert str(found) == "no GPU is in the container: there is no /dev/nvidia0"
    assert "nvidia.com/gpu: 1" in found.next_step
    found = cause(pod(devices=(), env={"NVIDIA_VISIBLE_DEVICES": "GPU-1234"}))
    assert "although NVIDIA_VISIBLE_DEVICES is GPU-1234" in str(found) and "runtimeClassName" in found.next_step


def test_another_makers_card(pod: Callable[..., Any]) -> None:
    assert "are not NVIDIA's (/dev/davinci0)" in str(cause(pod(devices=("davinci0", "davinci_manager"))))


def test_a_missing_uvm_and_a_missing_control_device(pod: Callable[..., Any]) -> None:
    assert "/dev/nvidia-uvm is missing" in str(cause(pod(devices=("nvidia0", "nvidiactl"))))


def test_a_missing_control_device(pod: Callable[..., Any]) -> None:
    assert "/dev/nvidiactl is missing" in str(cause(pod(devices=("nvidia0", "nvidia-uvm"))))


def test_devices_that_can_no_longer_be_opened(pod: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    container = pod()
    monkeypatch.setattr(container, "opens", lambda path: "Operation not permitted")
    found = cause(container)
    assert "cannot be opened (Operation not permitted)" in str(found) and "daemon-reload" in str(found)


def test_no_kernel_module(pod: Callable[..., Any]) -> None:
    assert cause(pod(module="")).rule == "driver-not-reachable"


def test_no_driver_library(pod: Callable[..., Any]) -> None:
    missing = OSError("libcuda.so.1: cannot open shared object file: No such file or directory")
    found = cause(pod(cuda=missing))
    assert "the driver's library is not: libcuda.so.1 cannot be loaded" in str(found)
    assert "runtimeClassName" in found.next_step


def test_capabilities_without_compute(pod: Callable[..., Any]) -> None:
    found = cause(pod(cuda=OSError("no"), env={"NVIDIA_DRIVER_CAPABILITIES": "utility,video"}))
    assert "NVIDIA_DRIVER_CAPABILITIES is utility,video, without compute" in str(found)


def test_stubs_on_the_loaders_path(pod: Callable[..., Any]) -> None:
    assert "stubs" in str(cause(pod(env={"LD_LIBRARY_PATH": "/a:/usr/local/cuda/lib64/stubs"})))


def test_a_copy_of_the_library_in_the_image(pod: Callable[..., Any]) -> None:
    found = cause(pod(library="usr/lib/libcuda.so.570.133.20"))
    assert found.rule == "cuda-803-library"
    assert "/usr/lib/libcuda.so.570.133.20 is 570.133.20, the module 580.126.20" in str(found)


@pytest.mark.parametrize("code", [802, 803, 804, 999, 35])
def test_cudas_own_errors_have_the_words_of_the_catalogue(pod: Callable[..., Any], code: int) -> None:
    library = "usr/local/cuda/compat/libcuda.so.590.44.01" if code == 804 else "usr/lib/libcuda.so.580.126.20"
    found = cause(pod(cuda=Cuda(init=code), library=library))
    known = catalogue().symptoms[found.rule]
    assert str(found).startswith(known.cause)
    assert "the node's module is 580.126.20" in str(found)
    if code in (803, 804):
        assert f"it was loaded from /{library}" in str(found)
    told = diagnose(f"CUDA error: {code}" if code not in (35,) else "cudaErrorInsufficientDriver")
    assert told is not None and told.id == found.rule


def test_an_error_without_words(pod: Callable[..., Any]) -> None:
    assert "cuInit gives error 46" in str(cause(pod(cuda=Cuda(init=46))))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", "is '', which hides every GPU"),
        ("-1", "is '-1', which hides every GPU"),
        ("NoDevFiles", "which hides every GPU"),
        ("3", "is 3, and the container has 1 GPU, numbered from 0"),
        ("GPU-abcd", "which names no GPU of this container"),
        ("MIG-1234", "names the MIG slice MIG-1234, and the container was not given it"),
        ("MIG-GPU-1234/1/0", "names the MIG slice"),
    ],
)
def test_cuda_visible_devices(pod: Callable[..., Any], value: str, words: str) -> None:
    assert words in str(cause(pod(cuda=Cuda(init=100, count=0), env={"CUDA_VISIBLE_DEVICES": value})))


def test_cuda_visible_devices_that_works_is_no_cause(pod: Callable[..., Any]) -> None:
    gpu_check.check(pod(env={"CUDA_VISIBLE_DEVICES": "MIG-1234"}))


def test_mig_without_a_slice(pod: Callable[..., Any], tmp_path: Path) -> None:
    container = pod(cuda=Cuda(count=0))
    assert cause(container).rule == "no-device"
    (tmp_path / "proc/driver/nvidia/capabilities/gpu0/mig/gi1").mkdir(parents=True)
    found = cause(pod(cuda=Cuda(count=0)))
    assert str(found) == "the GPU is in MIG mode, and no slice of it was given to the container"


def test_a_driver_that_is_too_old_names_both_versions(pod: Callable[..., Any]) -> None:
    container = pod(module="535.309.01", library="usr/lib/libcuda.so.535.309.01", cuda=Cuda(level=12020))
    assert str(cause(container)) == (
        "the node's driver is too old: it is 535.309.01 (CUDA 12.2), torch was built with CUDA 13.0, and "
        "CUDA 13.x needs driver 580.65.06 or newer"
    )


def test_minor_versions_run(pod: Callable[..., Any]) -> None:
    gpu_check.check(pod(modules=torch("13.2")))
    compat = {"library": "usr/local/cuda/compat/libcuda.so.580.65.06", "module": "535.309.01"}
    gpu_check.check(pod(**compat))


def test_a_cuda_that_is_newer_than_the_table(pod: Callable[..., Any]) -> None:
    assert "and this driver has CUDA 13.0" in str(cause(pod(modules=torch("14.0"))))


def test_builds_for_cpus_and_for_others(pod: Callable[..., Any]) -> None:
    assert str(cause(pod(modules=torch(None)))) == "torch 2.12.1 is a build for CPUs"
    other = torch(None)
    other("torch").version.hip = "6.4"
    assert "is a build for AMD's ROCm" in str(cause(pod(modules=other)))


def test_no_code_for_this_gpu(pod: Callable[..., Any]) -> None:
    found = cause(pod(cuda=Cuda(capability=(7, 0))))
    assert str(found).startswith("this GPU is sm_70, and torch 2.12.1 has code for sm_75, ")
    assert found.rule == "cuda-no-kernel-image"
    gpu_check.check(pod(cuda=Cuda(capability=(8, 9))))
    gpu_check.check(pod(cuda=Cuda(capability=(13, 0))))


def test_torch_that_is_missing_or_broken(pod: Callable[..., Any]) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    gpu_check.check(pod(modules=missing))

    def broken(name: str) -> Any:
        raise ImportError("libcudnn.so.9: cannot open shared object file")

    assert "torch cannot be imported: libcudnn.so.9" in str(cause(pod(modules=broken)))


def test_what_cannot_be_explained_is_said_and_has_its_own_exit_code(pod: Callable[..., Any]) -> None:
    out = io.StringIO()
    assert gpu_check.main(["--json"], pod(modules=torch(available=False)), out) == 2
    answer = json.loads(out.getvalue())
    assert (answer["ok"], answer["rule"]) == (False, "unexplained")


def test_the_causes_come_from_the_bottom_up(pod: Callable[..., Any]) -> None:
    """With several things wrong the lowest is told: the others may follow from it."""
    container = pod(devices=(), module="", cuda=OSError("no"), modules=torch(None))
    assert cause(container).rule == "no-devices"


def test_the_floors_are_those_of_the_facts() -> None:
    assert {row.major: row.driver for row in own_facts().families} == gpu_check.FAMILY_FLOOR


def test_it_is_one_file_for_any_python_and_runs_as_a_program(tmp_path: Path) -> None:
    path = resources.files("myriad.images").joinpath("data/gpu_check.py")
    text = path.read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env python3\n")
    program = tmp_path / "gpu-check"
    program.write_text(text)
    # -I: nothing of this project can be imported.
    done = subprocess.run([sys.executable, "-I", str(program), "--json"], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1, 2) and done.stderr == ""
    assert set(json.loads(done.stdout)) == {"ok", "rule", "cause", "next", "seen"}
