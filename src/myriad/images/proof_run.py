"""The part of a proof that runs the image: without network, and without a GPU unless the machine has one.

The image's own Python is asked what is loaded once torch is imported: a version in a folder's name proves nothing of
what the loader took. Where a container engine answers, it runs the image; else the kernel's own namespaces do
(`proof_sandbox`). Where neither can be had, that is said and the static checks stand alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from myriad.errors import InputError
from myriad.images.compat_facts import cubin_intervals, inside, ptx_interval
from myriad.images.definition import Smoke
from myriad.images.proof_cuda import found_versions, matches, sm
from myriad.images.proof_sandbox import Done, Sandbox, sandbox_for
from myriad.images.proof_types import Finding, Outcome, Subject, counted

GPU_CHOICES = ("auto", "no", "yes")
_TIMEOUT_S = 300
_LIBRARY = re.compile(
    r".*/(lib(?:cudart|cublas|cublasLt|cudnn\w*|nccl|cufft|curand|cusolver|cusparse\w*|nvrtc|nvJitLink|nvshmem_host|"
    r"torch\w*|c10\w*))(?:-[0-9a-f]{8})?\.so[\d.]*"
)

Json = dict[str, Any]


def gpus_here(dev: Path = Path("/dev")) -> bool:
    """Whether this machine has a GPU of NVIDIA with its driver loaded."""
    return any(re.fullmatch(r"nvidia\d+", one.name) for one in dev.glob("nvidia*"))


def run_image(
    subject: Subject,
    *,
    smoke: Sequence[Smoke] = (),
    gpu: str = "auto",
    choose: Callable[[Subject, bool], Sandbox] = sandbox_for,
    dev: Path = Path("/dev"),
) -> list[Outcome]:
    """Run the image and judge what it says.

    Args:
        subject: from `proof.look`.
        smoke: commands of image.yml that must succeed.
        gpu: `auto` computes on GPUs where the machine has some, `yes` insists, `no` never does.
        choose: picks what runs it.
        dev: the machine's device files.

    Raises:
        InputError: `gpu` is `yes` and there is none.
    """
    with_gpu = gpu == "yes" or (gpu == "auto" and subject.has_cuda and gpus_here(dev))
    if gpu == "yes" and not gpus_here(dev):
        raise InputError("--gpu yes, and this machine has no GPU of NVIDIA (/dev/nvidia0)", hint="run it on a GPU node")
    with choose(subject, with_gpu) as sandbox:
        if sandbox.refused:
            return [Outcome("run", "", skipped=sandbox.refused)]
        return [*_ask(subject, sandbox, with_gpu), *(_smoke(one, sandbox) for one in smoke)]


def interpreter(subject: Subject) -> str:
    """The image's Python by its PATH; empty without one."""
    folders = [*subject.image.env.get("PATH", "").split(":"), "/usr/local/bin", "/usr/bin"]
    for folder in folders:
        file = subject.tree.real(f"{folder}/python3".strip("/")) if folder else None
        if file is not None and file.mode & 0o111:
            return f"{folder.rstrip('/')}/python3"
    return ""


def _ask(subject: Subject, sandbox: Sandbox, with_gpu: bool) -> Iterator[Outcome]:
    python = interpreter(subject)
    if not python:
        yield Outcome("run", "", skipped="the image has no Python to be asked")
        return
    settings: Json = {"torch": bool(subject.packages.named("torch"))}
    if with_gpu and sandbox.gpus:
        settings["gpu"] = "nccl"
    source = resources.files("myriad.images").joinpath("data/proof_probe.py").read_text(encoding="utf-8")
    done = sandbox.run([python, "-c", source, json.dumps(settings)], timeout_s=_TIMEOUT_S)
    answer = read_answer(done)
    if answer is None:
        said = " ".join((done.stderr or done.stdout).split())[-400:] or "nothing"
        what = f"the image's Python ended with {done.rc} and said: {said}"
        hint = "start it by hand: a library is missing, or the processor is another"
        yield Outcome("run", "", (Finding("run", python, what, hint),))
        return
    yield loaded(subject, answer, sandbox.name)
    yield loaded_once(answer)
    if settings["torch"]:
        yield loaded_code(subject, answer)
    if with_gpu and not sandbox.gpus:
        yield Outcome(
            "gpu", "", skipped=f"{sandbox.name} gives no GPU to the image; an engine with NVIDIA's toolkit does"
        )
    elif "gpu" in settings:
        yield computed(answer.get("gpu") or {})
    elif subject.has_cuda:
        yield Outcome("gpu", "", skipped="no GPU was used; a product and an all-reduce are run where there is one")


def read_answer(done: Done) -> Json | None:
    """What the probe printed; None where it did not get that far."""
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("myriad-proof:"):
            try:
                answer: Json = json.loads(line.removeprefix("myriad-proof:"))
            except ValueError:
                return None
            return answer
    return None


def loaded(subject: Subject, answer: Json, by: str) -> Outcome:
    """The versions that are loaded are the pinned ones, and those that the packages claim."""
    torch = answer.get("torch") or {}
    if "error" in torch:
        what = f"torch is installed and cannot be imported: {torch['error']}"
        hint = "a library that it needs is missing or of another version"
        return Outcome("loaded", "", (Finding("loaded", "import torch", what, hint),))
    seen = {"python": str(answer.get("python", "")), "cuda": str(answer.get("runtime", ""))}
    if torch:
        seen |= {
            "torch": str(torch["version"]),
            "cudnn": _cudnn(int(torch.get("cudnn") or 0)),
            "nccl": ".".join(map(str, torch.get("nccl") or [])),
        }
    findings = []
    pins = subject.declared.pins if subject.declared is not None else {}
    for name, version in seen.items():
        if not version:
            continue
        claimed = [(pins[name], f"image.yml pins {pins[name]}")] if name in pins else []
        claimed += [(told, f"{who} is {told}") for told, who in found_versions(subject, name)]
        wrong = [words for told, words in claimed if not _agree(told, version)]
        if wrong:
            findings.append(
                Finding(
                    "loaded",
                    name,
                    f"{name} {version} is loaded, {wrong[0]}",
                    "another copy is found first: look at one-copy",
                )
            )
    shown = ", ".join(f"{name} {version}" for name, version in seen.items() if version)
    return Outcome("loaded", f"{shown} (by {by}, without network)", tuple(findings))


def _cudnn(number: int) -> str:
    """92000 is 9.20.0, 8902 was 8.9.2."""
    if not number:
        return ""
    if number >= 90000:
        return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"
    return f"{number // 1000}.{number % 1000 // 100}.{number % 100}"


def _agree(told: str, version: str) -> bool:
    """As far as both are told: cuDNN reports 9.20.0 of 9.20.0.48, CUDA's runtime 13.0 of 13.0.96."""
    one, other = (re.split(r"[+-]", text, maxsplit=1)[0] for text in (told, version))
    return matches(one, other) or matches(other, one)


def loaded_once(answer: Json) -> Outcome:
    """Of each library one file is in the process."""
    files: dict[str, list[str]] = {}
    for path in answer.get("libraries") or ():
        match = _LIBRARY.fullmatch(path)
        if match:
            files.setdefault(match[1], []).append(path)
    findings = tuple(
        Finding(
            "loaded-once",
            paths[0],
            f"{stem} is loaded {len(paths)} times: {' and '.join(paths)}",
            "keep one; look at one-copy",
        )
        for stem, paths in sorted(files.items())
        if len(paths) > 1
    )
    return Outcome("loaded-once", counted(len(files), "library", "libraries") + " of CUDA and torch loaded", findings)


def loaded_code(subject: Subject, answer: Json) -> Outcome:
    """torch itself says for which GPUs it was compiled."""
    flags = str((answer.get("torch") or {}).get("arch_flags") or "")
    code = [sm_to_capability(one) for one in flags.split()]
    compiled = tuple(one for one in code if one)
    wanted = subject.declared.archs if subject.declared is not None else ()
    if not compiled:
        finding = Finding(
            "loaded-archs", "torch", "torch has no code for any GPU (a build for CPUs)", "take a wheel with CUDA"
        )
        return Outcome(
            "loaded-archs", "no code for GPUs", (finding,) if wanted else (), "" if wanted else "no GPUs to cover"
        )
    ptx = ptx_interval(list(compiled))
    spans = cubin_intervals(tuple(one for one in compiled if not one.endswith("+PTX")))
    missing = [arch for arch in wanted if not inside(arch.removesuffix("+PTX"), (*spans, ptx) if ptx else spans)]
    shown = ", ".join(map(sm, compiled))
    findings: tuple[Finding, ...] = ()
    if missing:
        findings = (
            Finding(
                "loaded-archs",
                "torch",
                f"torch has no code for {', '.join(map(sm, missing))}; it has {shown}",
                "take a build for these GPUs, or take them out of gpu.archs",
            ),
        )
    return Outcome("loaded-archs", shown, findings)


def sm_to_capability(flag: str) -> str:
    """`sm_90` as `9.0`, `compute_120` as `12.0+PTX`; empty for anything else."""
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)[af]?", flag)
    return f"{match[2]}.{match[3]}{'+PTX' if match[1] == 'compute' else ''}" if match else ""


def computed(answer: Json) -> Outcome:
    """Products and sums on the GPUs of this machine are right."""
    if "error" in answer:
        return Outcome(
            "gpu", "", (Finding("gpu", "torch.cuda", str(answer["error"]), "`gpu-check` in the image explains it"),)
        )
    findings = [
        Finding(
            "gpu",
            f"GPU {one['gpu']}",
            f"a product in {one['dtype']} on GPU {one['gpu']} has {one['wrong']:,} wrong elements",
            "the card or its memory is faulty, or a library is of another version",
        )
        for one in answer.get("products") or ()
        if one["wrong"]
    ]
    count = int(answer.get("count") or 0)
    wanted = str(float(count * (count + 1) // 2))
    for rank, said in enumerate(answer.get("all_reduce") or ()):
        if said != wanted:
            findings.append(
                Finding(
                    "gpu",
                    f"rank {rank}",
                    f"the all-reduce over {counted(count, 'GPU')} gave {said}, not {wanted}",
                    "NCCL_DEBUG=INFO tells more",
                )
            )
    names = ", ".join(sorted(set(answer.get("names") or ())))
    return Outcome(
        "gpu", f"{count} x {names}: products and all-reduce are right" if not findings else "", tuple(findings)
    )


def _smoke(smoke: Smoke, sandbox: Sandbox) -> Outcome:
    shown = " ".join(smoke.run)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    done = sandbox.run(list(smoke.run), timeout_s=smoke.timeout_s)
    said = " ".join((done.stderr or done.stdout).split())[-300:] or "nothing"
    if done.timed_out:
        what = f"{shown} did not end within {smoke.timeout_s} s"
    elif done.rc != 0:
        what = f"{shown} ended with {done.rc} and said: {said}"
    elif smoke.expect and not re.search(smoke.expect, done.stdout + done.stderr):
        what = f"{shown} did not say {smoke.expect!r} but: {said}"
    else:
        return Outcome("smoke", shown)
    return Outcome("smoke", "", (Finding("smoke", "smoke", what, "run it in the image by hand"),))
