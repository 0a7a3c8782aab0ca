#!/usr/bin/env python3
"""gpu-check: why torch.cuda.is_available() is False in this container, and what to do next.

Looks from the bottom up, as CUDA does: which GPUs the container was given, the node's kernel module, the driver's
library, CUDA's own start, what torch was built for. The first thing that is wrong is the cause; what follows from it is
not told. The standard library alone: it runs in every image that has a Python.

Exit code 0: CUDA works here; 1: the cause was found; 2: CUDA does not work and nothing below it is wrong.
"""

import argparse
import ctypes
import json
import os
import re
import sys
from pathlib import Path

#: First driver of each CUDA family, from which all of it runs (NVIDIA, "CUDA Minor Version Compatibility").
FAMILY_FLOOR = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}

#: What CUDA's error numbers mean: the id and cause of the symptom in Myriad's catalogue, and the next step here.
ERRORS = {
    35: (
        "cuda-35-insufficient-driver",
        "the image's CUDA runtime is newer than the node's driver (error 35)",
        "use an image of an older CUDA: `myriad image verdict IMAGE -i INVENTORY` names the nearest one that runs",
    ),
    802: (
        "cuda-802-fabric",
        "CUDA cannot start because the NVSwitch fabric is not set up (error 802), whatever nvidia-smi shows; "
        "the fabric manager is missing, failed or of another version",
        "tell the operators: systemctl status nvidia-fabricmanager on the node; `myriad gate NODE` closes it meanwhile",
    ),
    803: (
        "cuda-803-library",
        "the container loads a libcuda that does not belong to the kernel module of the host (error 803); "
        "a copy in the image or a compat folder on the loader path hides the host's",
        "take the folder out of LD_LIBRARY_PATH or the copy out of the image: `myriad image verify` names it",
    ),
    804: (
        "cuda-804-forward-compatibility",
        "the image brings a newer libcuda (forward compatibility) and this GPU or driver branch does not allow that "
        "(error 804); only data-centre GPUs do, on the branches in the compatibility table",
        "use an image without cuda-compat, or whose CUDA is not newer than the driver",
    ),
    999: (
        "cuda-999-unknown",
        "CUDA gives no reason (error 999); most often /dev/nvidia-uvm is missing in the container, or the driver was "
        "changed under a running process",
        "ls -l /dev/nvidia-uvm here; on the node nvidia-modprobe -u -c=0 makes it; then start the pod again",
    ),
}

_ATTRIBUTE_MAJOR, _ATTRIBUTE_MINOR = 75, 76
_RESOURCE = "resources: {limits: {nvidia.com/gpu: 1}} in the pod"


class Found(Exception):
    """The cause."""

    def __init__(self, cause, next_step, rule):
        super().__init__(cause)
        self.cause, self.next_step, self.rule = cause, next_step, rule


class Container:
    """What is asked; tests give another one.

    Args:
        root: where /dev, /proc and the image's files are.
        env: the environment.
        load: opens a shared library by its name.
        modules: imports a module by its name.
    """

    def __init__(self, root="/", env=None, load=ctypes.CDLL, modules=__import__):
        self.root = Path(root)
        self.env = os.environ if env is None else env
        self.load = load
        self.modules = modules
        self.seen = {}

    def names(self, folder, pattern):
        """Names in a folder that match, sorted."""
        try:
            found = [one.name for one in (self.root / folder).iterdir() if re.fullmatch(pattern, one.name)]
        except OSError:
            return []
        return sorted(found, key=lambda name: (len(name), name))

    def text(self, path):
        """A file's text, empty where it cannot be read."""
        try:
            return (self.root / path).read_text(errors="replace")
        except OSError:
            return ""

    def opens(self, path):
        """None where a device can be opened, else the reason."""
        try:
            os.close(os.open(self.root / path, os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:
            return error.strerror
        return None


def check(container):
    """Everything in order. Raises Found at the first thing that is wrong."""
    devices = given(container)
    module = kernel_module(container)
    cuda, path = library(container, module)
    count = start(container, cuda, path, module)
    visible(container, cuda, count, devices)
    torch_build(container, cuda, count, module)


def given(container):
    """The GPUs that the container was given, as device files."""
    env = container.env
    asked = env.get("NVIDIA_VISIBLE_DEVICES")
    if asked in ("void", "none", ""):
        raise Found(
            f"the container was started without GPUs: NVIDIA_VISIBLE_DEVICES is {asked!r}",
            f"ask for GPUs: {_RESOURCE}; the device plugin then sets the variable",
            "no-gpu-asked",
        )
    devices = container.names("dev", r"nvidia\d+")
    container.seen["devices"] = devices
    if not devices:
        others = container.names("dev", r"nvidia.*|davinci\d+|kfd")
        if any(one.startswith("davinci") for one in others) or "kfd" in others:
            raise Found(
                f"the node's accelerators are not NVIDIA's (/dev/{others[0]}); torch.cuda is for those",
                "use an image for these accelerators",
                "other-vendor",
            )
        what = "no GPU is in the container: there is no /dev/nvidia0"
        if asked:
            what += f", although NVIDIA_VISIBLE_DEVICES is {asked}"
            step = (
                "the runtime did not act on it: the pod needs runtimeClassName: nvidia, or CDI enabled in containerd; "
                "`myriad gate NODE` says what the node has"
            )
        else:
            step = f"ask for GPUs: {_RESOURCE}"
        raise Found(what, step, "no-devices")
    for name in [*devices, "nvidiactl", "nvidia-uvm"]:
        if not (container.root / "dev" / name).exists():
            if name == "nvidia-uvm":
                raise Found(
                    "/dev/nvidia-uvm is missing in the container, without which CUDA gives error 999",
                    ERRORS[999][2],
                    "cuda-999-unknown",
                )
            raise Found(
                f"/dev/{name} is missing in the container",
                "start the pod again; the device plugin gives it",
                "no-devices",
            )
        reason = container.opens(f"dev/{name}")
        if reason:
            raise Found(
                f"/dev/{name} is there and cannot be opened ({reason}): the container lost its GPUs, most often after "
                "systemctl daemon-reload on the node",
                "delete the pod, so that it is started again; the operators prevent it with CDI or /dev/char links",
                "devices-closed",
            )
    return devices


def kernel_module(container):
    """The version of the node's kernel module."""
    text = container.text("proc/driver/nvidia/version")
    match = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", text)
    if match is None:
        raise Found(
            "the NVIDIA kernel module is not loaded on the node (/proc/driver/nvidia/version)",
            "tell the operators: modprobe nvidia; dmesg | tail says why it is refused",
            "driver-not-reachable",
        )
    container.seen["module"] = match[1]
    return match[1]


def library(container, module):
    """The driver's library and where it was loaded from."""
    stubs = [one for one in container.env.get("LD_LIBRARY_PATH", "").split(":") if one.rstrip("/").endswith("/stubs")]
    if stubs:
        raise Found(
            f"LD_LIBRARY_PATH leads to stubs for linking ({stubs[0]}): libcuda there has no functions",
            f"take {stubs[0]} out of LD_LIBRARY_PATH",
            "stubs",
        )
    try:
        cuda = container.load("libcuda.so.1")
    except OSError as error:
        capabilities = container.env.get("NVIDIA_DRIVER_CAPABILITIES", "")
        if capabilities and not {"compute", "all"} & set(capabilities.split(",")):
            raise Found(
                f"the driver's library is not mounted: NVIDIA_DRIVER_CAPABILITIES is {capabilities}, without compute",
                "set NVIDIA_DRIVER_CAPABILITIES=compute,utility",
                "capabilities",
            ) from None
        raise Found(
            f"the devices are here and the driver's library is not: libcuda.so.1 cannot be loaded ({error})",
            "the container was started without NVIDIA's runtime: runtimeClassName: nvidia, or CDI in containerd",
            "no-library",
        ) from None
    path = loaded_from(container)
    container.seen["library"] = path
    version = re.search(r"libcuda\.so\.(\d+\.\d+(?:\.\d+)*)$", path)
    if version is not None and version[1] != module and "/compat" not in path:
        raise Found(
            f"{ERRORS[803][1]}: {path} is {version[1]}, the module {module}", ERRORS[803][2], "cuda-803-library"
        )
    return cuda, path


def loaded_from(container):
    """The file of libcuda in this process, links followed; empty where the kernel does not tell."""
    for line in container.text("proc/self/maps").splitlines():
        parts = line.split(None, 5)
        if len(parts) == 6 and "/libcuda.so" in parts[5]:
            path = parts[5].strip()
            real = container.root / path.lstrip("/")
            try:
                return f"/{real.resolve().relative_to(container.root.resolve())}"
            except (OSError, ValueError):
                return path
    return ""


def start(container, cuda, path, module):
    """CUDA's own start; how many GPUs it sees."""
    code = int(cuda.cuInit(0))
    level = ctypes.c_int(0)
    if hasattr(cuda, "cuDriverGetVersion") and int(cuda.cuDriverGetVersion(ctypes.byref(level))) == 0:
        container.seen["cuda_level"] = f"{level.value // 1000}.{level.value % 1000 // 10}"
    if code in ERRORS:
        rule, cause, step = ERRORS[code]
        where = f"; it was loaded from {path}" if path and code in (803, 804) else ""
        raise Found(f"{cause}{where}; the node's module is {module}", step, rule)
    if code not in (0, 100):
        raise Found(
            f"cuInit gives error {code}; the node's module is {module}",
            "tell the operators; `myriad gate NODE` opens a context on every GPU of the node",
            "cuda-error",
        )
    count = ctypes.c_int(0)
    if code == 0:
        cuda.cuDeviceGetCount(ctypes.byref(count))
    container.seen["count"] = count.value
    return count.value


def visible(container, cuda, count, devices):
    """CUDA_VISIBLE_DEVICES, and MIG."""
    value = container.env.get("CUDA_VISIBLE_DEVICES")
    if count:
        return
    if value is not None and value.strip() in ("", "-1", "NoDevFiles"):
        raise Found(
            f"CUDA_VISIBLE_DEVICES is {value!r}, which hides every GPU",
            "unset it; in a pod the device plugin decides which GPUs there are",
            "hidden",
        )
    if value:
        first = value.split(",")[0].strip()
        if first.startswith("MIG-"):
            raise Found(
                f"CUDA_VISIBLE_DEVICES names the MIG slice {first}, and the container was not given it",
                "unset it: a pod sees its own slice as device 0; nvidia-smi -L lists the ids that are here",
                "mig-id",
            )
        if first.isdigit() and int(first) >= len(devices):
            raise Found(
                f"CUDA_VISIBLE_DEVICES is {value}, and the container has {len(devices)} "
                f"GPU{'' if len(devices) == 1 else 's'}, numbered from 0",
                "unset it; numbers are the container's own, not the node's",
                "hidden",
            )
        raise Found(
            f"CUDA_VISIBLE_DEVICES is {value}, which names no GPU of this container",
            "unset it; nvidia-smi -L lists the ids that are here",
            "hidden",
        )
    if container.names("dev/nvidia-caps", r"nvidia-cap\d+") or mig_enabled(container):
        raise Found(
            "the GPU is in MIG mode, and no slice of it was given to the container",
            "ask for a slice (resources: {limits: {nvidia.com/mig-1g.10gb: 1}}), or for a GPU without MIG; "
            "`myriad portrait NODE` lists the slices",
            "mig-no-slice",
        )
    raise Found(
        f"CUDA starts and sees none of the {len(devices)} GPUs in /dev",
        "tell the operators: the GPU may have fallen off the bus; dmesg on the node shows Xid 79",
        "no-device",
    )


def mig_enabled(container):
    """Whether a GPU of the node says that it is cut, by the capabilities that the kernel shows."""
    return bool(container.names("proc/driver/nvidia/capabilities", r"gpu\d+")) and any(
        container.names(f"proc/driver/nvidia/capabilities/{gpu}/mig", r"gi\d+")
        for gpu in container.names("proc/driver/nvidia/capabilities", r"gpu\d+")
    )


def torch_build(container, cuda, count, module):
    """What torch was built for."""
    try:
        torch = container.modules("torch")
    except ImportError as error:
        if getattr(error, "name", "") == "torch":
            container.seen["torch"] = "not installed"
            return
        raise Found(
            f"torch cannot be imported: {error}", "`myriad image verify` names the library", "torch-import"
        ) from None
    container.seen["torch"] = str(torch.__version__)
    built = torch.version.cuda
    container.seen["torch_cuda"] = built or ""
    if getattr(torch.version, "hip", None):
        raise Found(f"torch {torch.__version__} is a build for AMD's ROCm", "take the wheel with CUDA", "torch-build")
    if not built:
        raise Found(
            f"torch {torch.__version__} is a build for CPUs",
            "take the wheel of torch with CUDA: an index or a constraint of the image's build chose this one",
            "torch-build",
        )
    too_old(container, built, module)
    capability = lowest_capability(cuda, count)
    codes = list(torch.cuda.get_arch_list()) if hasattr(torch.cuda, "get_arch_list") else []
    if not codes and hasattr(torch, "_C") and hasattr(torch._C, "_cuda_getArchFlags"):
        codes = (torch._C._cuda_getArchFlags() or "").split()
    container.seen["capability"], container.seen["codes"] = capability, codes
    if capability and codes and not covered(capability, codes):
        name = f"sm_{capability.replace('.', '')}"
        raise Found(
            f"this GPU is {name}, and torch {torch.__version__} has code for {', '.join(codes)} only: the first kernel "
            'ends with "no kernel image is available"',
            "use an image that covers it: `myriad image verdict IMAGE -i INVENTORY` names the nearest one",
            "cuda-no-kernel-image",
        )
    if not torch.cuda.is_available():
        raise Unexplained


class Unexplained(Exception):
    """CUDA works below torch, and torch says that it does not."""


def too_old(container, built, module):
    """The driver against the CUDA that torch was built with."""
    family = int(built.split(".")[0])
    floor = FAMILY_FLOOR.get(family)
    level = container.seen.get("cuda_level", "")
    compat = "/compat" in container.seen.get("library", "")
    older = floor is not None and numbers(module) < numbers(floor)
    behind = floor is None and level and int(level.split(".")[0]) < family
    if (older or behind) and not compat:
        needs = f"CUDA {family}.x needs driver {floor} or newer" if floor else f"this driver has CUDA {level}"
        raise Found(
            f"the node's driver is too old: it is {module}{f' (CUDA {level})' if level else ''}, torch was built with "
            f"CUDA {built}, and {needs}",
            ERRORS[35][2],
            "cuda-35-insufficient-driver",
        )


def numbers(version):
    """`535.309.01` as (535, 309, 1)."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def lowest_capability(cuda, count):
    """The lowest compute capability of the GPUs, as `9.0`; empty where it cannot be asked."""
    found = []
    for index in range(count):
        device, first, second = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_int(0)
        if int(cuda.cuDeviceGet(ctypes.byref(device), index)):
            continue
        if int(cuda.cuDeviceGetAttribute(ctypes.byref(first), _ATTRIBUTE_MAJOR, device)):
            continue
        if int(cuda.cuDeviceGetAttribute(ctypes.byref(second), _ATTRIBUTE_MINOR, device)):
            continue
        found.append((first.value, second.value))
    return "{}.{}".format(*min(found)) if found else ""


def covered(capability, codes):
    """Compiled code runs on newer cards of its major, PTX on all newer ones."""
    card = numbers(capability)
    for code in codes:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)[af]?", code)
        if match:
            has = (int(match[2]), int(match[3]))
            if card >= has and (match[1] == "compute" or card[0] == has[0]):
                return True
    return False


def told(seen):
    """What was seen, in a line."""
    parts = []
    if seen.get("devices"):
        parts.append(" ".join(f"/dev/{name}" for name in seen["devices"]))
    if seen.get("module"):
        parts.append(f"driver {seen['module']}")
    if seen.get("cuda_level"):
        parts.append(f"CUDA {seen['cuda_level']}")
    if seen.get("library"):
        parts.append(seen["library"])
    if seen.get("torch"):
        built = f" with CUDA {seen['torch_cuda']}" if seen.get("torch_cuda") else ""
        parts.append(f"torch {seen['torch']}{built}")
    return ", ".join(parts) or "nothing"


def main(arguments=None, container=None, out=sys.stdout):
    """Print the answer and return the exit code."""
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given_arguments = parser.parse_args(arguments)
    container = container or Container()
    answer = {"ok": True, "rule": "", "cause": "", "next": ""}
    code = 0
    try:
        check(container)
    except Found as found:
        answer.update(ok=False, rule=found.rule, cause=found.cause, next=found.next_step)
        code = 1
    except Unexplained:
        code = 2
        answer.update(
            ok=False,
            rule="unexplained",
            cause="CUDA works below torch, and torch.cuda.is_available() is False all the same",
            next="python3 -c 'import torch; torch.zeros(1, device=\"cuda\")' says why; a process may have forked",
        )
    answer["seen"] = container.seen
    if given_arguments.json:
        print(json.dumps(answer), file=out)
    elif code == 0:
        print(f"CUDA works here: {container.seen.get('count', 0)} GPUs; {told(container.seen)}", file=out)
    else:
        print(f"cause   {answer['cause']}\nnext    {answer['next']}\nseen    {told(container.seen)}", file=out)
    return code


if __name__ == "__main__":
    sys.exit(main())
