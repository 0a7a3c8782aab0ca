"""Runs inside an image, alone or on GPUs, and prints one line of JSON: which versions are loaded, and from where.

`python3 -c <this file> <settings as JSON>`; the standard library and what the image holds. No network is needed.
"""

import ctypes
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

MARK = "myriad-proof:"


def loaded_libraries():
    """Files of shared libraries that are in this process, by the kernel's own word."""
    found = set()
    with Path("/proc/self/maps").open() as maps:
        for line in maps:
            parts = line.split(None, 5)
            if len(parts) == 6 and ".so" in parts[5]:
                found.add(parts[5].strip().replace(" (deleted)", ""))
    return sorted(found)


def runtime_version(paths):
    """CUDA's version by the runtime library itself, 13000 for 13.0."""
    for path in paths:
        if re.search(r"/libcudart[^/]*\.so", path):
            value = ctypes.c_int(0)
            if ctypes.CDLL(path).cudaRuntimeGetVersion(ctypes.byref(value)) == 0:
                return f"{value.value // 1000}.{value.value % 1000 // 10}"
    return ""


def ask_torch():
    """What torch says once it is loaded."""
    import torch

    answer = {"version": torch.__version__, "cuda": torch.version.cuda or "", "file": torch.__file__}
    flags = getattr(torch._C, "_cuda_getArchFlags", None)
    answer["arch_flags"] = (flags() or "") if flags is not None else ""
    answer["cudnn"] = torch.backends.cudnn.version() or 0
    try:
        answer["nccl"] = list(torch.cuda.nccl.version())
    except Exception as error:
        answer["nccl"] = []
        answer["nccl_error"] = str(error)
    answer["product"] = float((torch.eye(8) * 3).matmul(torch.ones(8, 8)).sum())
    return answer


def on_gpus(backend):
    """A product on each GPU against the CPU's, and a sum over all of them."""
    import torch

    if backend == "nccl" and not torch.cuda.is_available():
        return {"error": "torch.cuda.is_available() is False; /usr/local/bin/gpu-check says why"}
    count = torch.cuda.device_count() if backend == "nccl" else 2
    answer = {"count": count, "products": [], "names": []}
    # Whole numbers this small are exact in every format, so the products must be equal and not only near.
    left, right = torch.randint(-3, 4, (512, 512)), torch.randint(-3, 4, (512, 512))
    wanted = left.double().matmul(right.double())
    for index in range(count if backend == "nccl" else 0):
        device = torch.device("cuda", index)
        answer["names"].append(torch.cuda.get_device_name(index))
        for kind in (torch.float32, torch.bfloat16):
            got = left.to(device, kind).matmul(right.to(device, kind)).double().cpu()
            wrong = int((got != wanted.to(kind).double()).sum())
            answer["products"].append({"gpu": index, "dtype": str(kind).replace("torch.", ""), "wrong": wrong})
    answer["all_reduce"] = all_reduce(backend, count)
    return answer


def all_reduce(backend, count):
    """A process for each GPU; they sum their ranks. Returns what each got, or how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"{folder}/meeting"
        source = sys.orig_argv[sys.orig_argv.index("-c") + 1]
        told = []
        # lo alone is up in a container without network.
        environment = {**os.environ, "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
        for rank in range(count):
            settings = json.dumps({"rank": rank, "world": count, "meeting": meeting, "backend": backend})
            told.append(
                subprocess.Popen(
                    [sys.executable, "-c", source, settings],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
            )
        answers = []
        for process in told:
            try:
                out, err = process.communicate(timeout=180)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                err += "\nno answer within 180 s"
            answers.append(out.strip() if process.returncode == 0 else f"error: {err.strip()[-600:]}")
        return answers


def one_rank(settings):
    """A member of the sum."""
    import torch
    import torch.distributed as dist

    rank, world = settings["rank"], settings["world"]
    device = "cpu"
    if settings["backend"] == "nccl":
        torch.cuda.set_device(rank)
        device = f"cuda:{rank}"
    dist.init_process_group(
        settings["backend"], init_method=f"file://{settings['meeting']}", rank=rank, world_size=world
    )
    value = torch.full((1 << 20,), float(rank + 1), device=device)
    dist.all_reduce(value)
    print(float(value[0]) if bool((value == value[0]).all()) else "unequal")
    dist.destroy_process_group()


def main():
    """Print the answer; what cannot be asked is an error in it, never a traceback."""
    settings = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    if "rank" in settings:
        return one_rank(settings)
    answer = {"python": ".".join(map(str, sys.version_info[:3])), "uid": os.getuid()}
    answer["interfaces"] = sorted(name for _index, name in socket.if_nameindex())
    if settings.get("torch"):
        try:
            answer["torch"] = ask_torch()
        except Exception as error:
            answer["torch"] = {"error": f"{type(error).__name__}: {error}"[:1500]}
    if settings.get("gpu"):
        try:
            answer["gpu"] = on_gpus(settings["gpu"])
        except Exception as error:
            answer["gpu"] = {"error": f"{type(error).__name__}: {error}"[:1500]}
    answer["libraries"] = loaded_libraries()
    answer["runtime"] = runtime_version(answer["libraries"])
    print(MARK + json.dumps(answer))
    return None


if __name__ == "__main__":
    main()
