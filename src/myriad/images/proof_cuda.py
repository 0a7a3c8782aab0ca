"""Checks of what an image has of CUDA: pins, one generation, one copy of each library, code for the GPUs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from myriad.images.compat_facts import cubin_intervals, inside, minor, ptx_interval
from myriad.images.compat_require import VARIABLE, require_cuda
from myriad.images.proof_loader import Copy, library_version
from myriad.images.proof_types import Finding, Outcome, Subject, counted, megabytes

_TORCH_OWN = ("libtorch", "libtorch_cpu", "libtorch_cuda", "libtorch_python", "libc10", "libc10_cuda")
_NAMED: dict[str, tuple[tuple[re.Pattern[str], str], ...]] = {
    "pypi": (
        # cu130, and what projects make of it: cu12torch2.8cxx11abiTRUE, pt28cu128.
        (re.compile(r".*\+[a-z0-9.]*?cu(1\d)(\d{1,2})?(?!\d).*"), "version"),
        (re.compile(r"nvidia-.*-cu(1\d)(\d)?"), "name"),
        (re.compile(r".*-cuda(1\d)(\d)?x?"), "name"),
    ),
    "deb": ((re.compile(r"(?:cuda-cudart|libcublas|cuda-nvrtc|cuda-libraries)-(\d+)-(\d+)"), "name"),),
}
"""Names and versions of packages that tell their CUDA, as major and perhaps minor."""
_OTHER_BUILD = re.compile(r".*\+(?P<what>cpu|xpu|rocm[\d.]*)(?![a-z\d]).*")
_SOURCES = {
    "cuda": (r"nvidia-cuda-runtime(-cu\d+)?", r"cuda-cudart-\d+-\d+"),
    "cudnn": (r"nvidia-cudnn(-cu\d+)?", r"libcudnn\d+(-cuda-\d+)?"),
    "nccl": (r"nvidia-nccl(-cu\d+)?", r"libnccl2"),
}
# Libraries whose own major is CUDA's; cuSPARSE, cuFFT and cuSOLVER of CUDA 13 are called 12.
_GENERATION_LIBRARIES = ("libcudart", "libcublas", "libcublasLt", "libnvrtc", "libnvJitLink")
_ENV_VERSIONS = {
    "CUDA_VERSION": "cuda",
    "CUDNN_VERSION": "cudnn",
    "NV_CUDNN_VERSION": "cudnn",
    "NCCL_VERSION": "nccl",
    "PYTORCH_VERSION": "torch",
    "TORCH_VERSION": "torch",
    "PYTHON_VERSION": "python",
}


def matches(pin: str, found: str) -> bool:
    """Does a version fit a pin? `13.0` fits 13.0.96, `2.12.1` fits 2.12.1+cu130, `2.29.7` does not fit 2.29.70."""
    local = found if "+" in pin else re.split(r"[+~-]", found.partition(":")[2] or found, maxsplit=1)[0]
    return local == pin or local.startswith(f"{pin}.")


def found_versions(subject: Subject, name: str) -> list[tuple[str, str]]:
    """(version, who says so) of something that a pin can name."""
    packages = subject.packages
    if name == "python":
        return _python(subject)
    if name in _SOURCES:
        python, debian = (re.compile(one) for one in _SOURCES[name])
        told = [
            (one.version, one.name)
            for one in packages.found
            if (python if one.kind == "pypi" else debian).fullmatch(one.name)
        ]
        if name == "nccl" and not told:
            told = [
                (copy.file.nccl.partition("+")[0], copy.path) for copy in _copies(subject, "libnccl") if copy.file.nccl
            ]
        if name == "cuda" and not told and (built := _built_with(subject)):
            told = [(built[1], f"/{built[0]}")]
        return told
    wanted = re.sub(r"[-_.]+", "-", name).lower()
    return [(one.version, one.name) for one in packages.found if one.name in (wanted, name)]


def _python(subject: Subject) -> list[tuple[str, str]]:
    found = {
        one.version: one.name for one in subject.packages.debian if re.fullmatch(r"python3\.\d+(-minimal)?", one.name)
    }
    if found:
        return [(re.split(r"[-+~]", version, maxsplit=1)[0], name) for version, name in sorted(found.items())]
    folders = sorted(
        {match[1] for path in subject.tree.files if (match := re.fullmatch(r".*lib/python(3\.\d+)/os\.py", path))}
    )
    return [(version, f"lib/python{version}") for version in folders]


def _copies(subject: Subject, stem: str) -> list[Copy]:
    return subject.loading.copies.get(stem, [])


def _built_with(subject: Subject) -> tuple[str, str] | None:
    """The file in which torch says for which CUDA it was built, and that; an empty version is a build for CPUs."""
    for file in subject.tree.matching("*/torch/version.py"):
        match = re.search(
            r"^cuda(?:\s*:[^=]+)?\s*=\s*(?:['\"]([\d.]+)['\"]|None)", subject.tree.text(file.path), re.MULTILINE
        )
        if match:
            return file.path, match[1] or ""
    return None


def pins(subject: Subject) -> Outcome:
    """Each declared pin was found, in that version and no other."""
    declared = subject.declared
    if declared is None or not declared.pins:
        return Outcome(
            "pins", "", skipped="image.yml declares no pins" if declared else "no image.yml to hold it against"
        )
    findings, seen = [], []
    for name, pin in sorted(declared.pins.items()):
        told = found_versions(subject, name)
        if not told:
            findings.append(
                Finding(
                    "pins",
                    f"{declared.where}: pins.{name}",
                    f"{name} is pinned to {pin}, but nothing in the image installs it",
                    "remove the pin, or add what installs it to the requirements",
                )
            )
        for version, who in told:
            if matches(pin, version):
                continue
            findings.append(
                Finding(
                    "pins",
                    f"{declared.where}: pins.{name}",
                    f"{name} is pinned to {pin}, the image has {version} ({who})",
                    f"`myriad image lock` after the requirement is changed, or pin {name} to what is locked",
                )
            )
        if told and all(matches(pin, version) for version, _who in told):
            seen.append(f"{name} {told[0][0]}")
    findings += _nccl_text(subject)
    return Outcome("pins", ", ".join(seen), tuple(findings))


def _nccl_text(subject: Subject) -> Iterator[Finding]:
    """NCCL's library says another version than the package that claims it."""
    told = {version for version, _who in found_versions(subject, "nccl")}
    for copy in _copies(subject, "libnccl"):
        own = copy.file.nccl.partition("+")[0]
        if own and told and not any(matches(own, version) for version in told):
            yield Finding(
                "pins",
                copy.path,
                f"the library is NCCL {own}, the package says {', '.join(sorted(told))}",
                "the file was replaced after the package was installed; take it from the package alone",
            )


def generation(subject: Subject) -> Outcome:
    """Everything of CUDA in the image is for one CUDA, and for the one that image.yml names."""
    evidence = list(_evidence(subject))
    if not evidence:
        return Outcome("cuda", "no CUDA in the image")
    findings = []
    majors: dict[int, list[str]] = {}
    for major, _minor, who in evidence:
        majors.setdefault(major, []).append(who)
    if len(majors) > 1:
        sides = [f"CUDA {major} ({_few(whos)})" for major, whos in sorted(majors.items())]
        findings.append(
            Finding(
                "cuda",
                "packages",
                f"{' and '.join(sides)} are both in the image; torch loads whichever is found first",
                "take all wheels for one CUDA; `uv pip tree --invert` names the requirement that pulls in the other",
            )
        )
    pin = subject.declared.pins.get("cuda") if subject.declared is not None else None
    if pin is None and subject.declared is not None and subject.declared.facts is not None:
        pin = subject.declared.facts.cuda
    if pin:
        where = subject.declared.where if subject.declared else "image.yml"
        findings += [
            Finding(
                "cuda",
                who,
                f"{who} is for CUDA {major}{f'.{second}' if second else ''}, {where} says CUDA {pin}",
                "install the wheel of that CUDA (its index ends in "
                f"cu{minor(pin).replace('.', '')}), or change the pin; `myriad image lock` then",
            )
            for major, second, who in evidence
            if str(major) != pin.partition(".")[0] or (second and not matches(minor(pin), f"{major}.{second}"))
        ]
    findings += _cpu_build(subject)
    findings += _other_builds(subject)
    shown = ", ".join(sorted({f"{major}.{second}" if second else str(major) for major, second, _who in evidence}))
    return Outcome("cuda", f"CUDA {shown} ({counted(len(evidence), 'witness', 'witnesses')})", tuple(findings))


def _evidence(subject: Subject) -> Iterator[tuple[int, str, str]]:
    """(major, minor or empty, who says so) of each thing that is for a CUDA."""
    for one in subject.packages.found:
        for pattern, text in _NAMED[one.kind]:
            match = pattern.fullmatch(one.version if text == "version" else one.name)
            if match:
                yield int(match[1]), match[2] or "", one.label
                break
        else:
            if one.kind == "pypi" and re.fullmatch(r"nvidia-cuda-(runtime|nvrtc|cupti)", one.name):
                major, _, rest = one.version.partition(".")
                yield int(major), rest.partition(".")[0], one.label
    built = _built_with(subject)
    if built is not None and built[1]:
        yield int(built[1].partition(".")[0]), built[1].split(".")[1], f"/{built[0]}"
    for stem in _GENERATION_LIBRARIES:
        for copy in _copies(subject, stem):
            if match := re.fullmatch(r".*\.so\.(\d+)", copy.soname):
                yield int(match[1]), "", copy.path
    for copy in _copies(subject, "libnccl"):
        if match := re.fullmatch(r".*\+cuda(\d+)\.(\d+)", copy.file.nccl):
            # NCCL is built with any release of its major, so only that counts.
            yield int(match[1]), "", copy.path


def _cpu_build(subject: Subject) -> Iterator[Finding]:
    built = _built_with(subject)
    wants = subject.declared is not None and bool(subject.declared.facts and subject.declared.facts.torch)
    if built is not None and not built[1] and (wants or subject.packages.named("nvidia-cuda-runtime")):
        yield Finding(
            "cuda",
            f"/{built[0]}",
            "torch is a build for CPUs: torch.cuda.is_available() is False on every node",
            "take the wheel of torch with CUDA; a constraint or index of the building machine chose this one",
        )


def _other_builds(subject: Subject) -> Iterator[Finding]:
    """Wheels whose version says that they are a build without CUDA, beside a torch with it."""
    facts = subject.declared.facts if subject.declared is not None else None
    built = _built_with(subject)
    if not (facts is not None and facts.cuda) and not (built is not None and built[1]):
        return
    for one in subject.packages.python:
        match = _OTHER_BUILD.fullmatch(one.version)
        if match and one.name != "torch":
            what = "CPUs" if match["what"] == "cpu" else match["what"]
            yield Finding(
                "cuda",
                one.label,
                f"{one.label} is a build for {what}: its operations on CUDA are missing, or it does not load at all",
                "take its wheel for this CUDA from the index that torch comes from; `myriad image lock` then",
            )


def _few(names: list[str]) -> str:
    names = list(dict.fromkeys(names))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def one_copy(subject: Subject) -> Outcome:
    """Of each library of CUDA exactly one copy can be loaded."""
    findings, single = [], 0
    for stem, copies in sorted(subject.loading.copies.items()):
        reached = [copy for copy in copies if copy.reached]
        single += len(reached) == 1
        if len(reached) > 1:
            same = len({copy.file.sha256 for copy in reached}) == 1
            places = " and ".join(_place(copy) for copy in reached)
            what = f"{stem} can be loaded from {len(reached)} places: {places}"
            what += "; they are the same bytes, loaded twice" if same else "; which one a job gets depends on the order"
            hint = "torch is installed twice; keep one" if stem in _TORCH_OWN else _which_to_drop(subject, reached)
            findings.append(Finding("one-copy", reached[-1].path, what, hint))
        findings += [
            Finding(
                "one-copy",
                copy.path,
                f"nothing loads this copy of {stem} ({megabytes(copy.file.size)}), a program can by its path",
                "leave it out by wheels.exclude if nothing does",
                "note",
            )
            for copy in copies
            if not copy.reached and len(copies) > 1
        ]
    return Outcome(
        "one-copy",
        f"{counted(single, 'library', 'libraries')} of CUDA, one copy each" if single else "no CUDA in the image",
        tuple(findings),
    )


def _place(copy: Copy) -> str:
    version = library_version(copy)
    facts = ", ".join(filter(None, (version, megabytes(copy.file.size), f"by {copy.reached[0]}")))
    return f"{copy.path} ({facts})"


def _which_to_drop(subject: Subject, reached: list[Copy]) -> str:
    for copy in reversed(reached):
        owner = next((one for one in subject.packages.found if copy.file.path in one.files), None)
        if owner is not None and owner.kind == "deb":
            return f"leave the Debian package {owner.name} out: the wheel brings its own"
        by = copy.reached[0]
        if owner is None and by == "LD_LIBRARY_PATH":
            return f"remove the file, or take its folder out of LD_LIBRARY_PATH ({subject.image.env.get(by, '')})"
        if owner is None:
            return f"remove {copy.path}, which belongs to no package and is found by {by}"
    return "keep the wheel that torch requires, and leave the other out of the requirements or by wheels.exclude"


def resolvable(subject: Subject) -> Outcome:
    """Every library of CUDA that something asks for is there."""
    by_name: dict[str, list[str]] = {}
    for asker, name in subject.loading.missing:
        by_name.setdefault(name, []).append(asker)
    findings = [
        Finding(
            "libraries",
            askers[0],
            f"{_few(askers)} needs {name}, and nothing in the image answers for it",
            "add the wheel that has it; a library of another major version is another library to the loader",
        )
        for name, askers in sorted(by_name.items())
    ]
    return Outcome(
        "libraries", "each library of CUDA that is asked for is there" if not findings else "", tuple(findings)
    )


def driver_libraries(subject: Subject) -> Outcome:
    """The driver's own libraries come from the node. A copy in the image hides them: error 803, or 804."""
    findings = []
    allowed = subject.declared is not None and subject.declared.cuda_compat
    searched = dict(subject.loading.search)
    for file in subject.loading.driver:
        folder = file.path.rpartition("/")[0]
        compat = "/compat" in f"/{folder}"
        if compat and allowed:
            continue
        if compat:
            what = (
                "NVIDIA's cuda-compat is in the image, and image.yml does not say so: consumer cards end with error 804"
            )
            hint = (
                "leave the package out, or set gpu.cuda_compat: true, so that verdict and NVIDIA_REQUIRE_CUDA know it"
            )
        else:
            who = f", found by {searched[folder]}" if folder in searched else ""
            what = f"a driver's library is in the image{who}: it hides the node's own (error 803)"
            hint = "remove it; the container runtime mounts the node's libraries"
        findings.append(Finding("driver-libraries", f"/{file.path}", what, hint))
    for folder, who in subject.loading.search:
        if folder.endswith("/stubs") and any(path.startswith(f"{folder}/libcuda.so") for path in subject.tree.files):
            findings.append(
                Finding(
                    "driver-libraries",
                    f"/{folder}",
                    f"{who} leads to stubs for linking: libcuda there has no functions",
                    "take the folder off the loader's path",
                )
            )
    return Outcome("driver-libraries", "none in the image" if not findings else "", tuple(findings))


def architectures(subject: Subject) -> Outcome:
    """The compiled GPU code covers the wanted GPUs; each library is asked, not the version's reputation."""
    wanted = subject.declared.archs if subject.declared is not None else ()
    with_code = {
        file.path: file.elf.gpu_code for file in subject.tree.regular() if file.elf is not None and file.elf.gpu_code
    }
    if not wanted:
        return Outcome("archs", _torch_code(with_code), skipped="" if with_code else "no GPUs to cover are declared")
    if not with_code:
        finding = Finding(
            "archs",
            "libraries",
            f"GPUs of {', '.join(wanted)} are to be covered, and no library has code for any GPU",
            "the wheels are builds for CPUs, or compile at start only; take builds with CUDA",
        )
        return Outcome("archs", "", (finding,))
    findings = []
    # NVIDIA's own libraries leave GPUs out that a function is not for; torch then takes another way.
    vendors = {
        copy.file.path for stem, found in subject.loading.copies.items() if stem not in _TORCH_OWN for copy in found
    }
    for path, code in sorted(with_code.items()):
        missing = [arch for arch in wanted if not _covers(code, arch)]
        if not missing:
            continue
        vendor = path in vendors
        findings.append(
            Finding(
                "archs",
                f"/{path}",
                f"{path.rpartition('/')[2]} has no code for {_names(missing)}; it has {_names(code)}",
                "take a build for these GPUs, or take them out of gpu.archs; a job there ends with "
                '"no kernel image is available"',
                "note" if vendor else "error",
            )
        )
    return Outcome("archs", f"{_names(wanted)} covered by {_torch_code(with_code)}", tuple(findings))


def sm(arch: str) -> str:
    """`9.0` as `sm_90`."""
    return f"sm_{arch.removesuffix('+PTX').replace('.', '')}{'+PTX' if arch.endswith('+PTX') else ''}"


def _names(archs: Iterable[str]) -> str:
    return ", ".join(map(sm, archs))


def _covers(code: tuple[str, ...], arch: str) -> bool:
    ptx = ptx_interval(list(code))
    spans = cubin_intervals(tuple(one for one in code if not one.endswith("+PTX")))
    return inside(arch.removesuffix("+PTX"), (*spans, ptx) if ptx is not None else spans)


def _torch_code(with_code: dict[str, tuple[str, ...]]) -> str:
    for path, code in sorted(with_code.items()):
        if path.endswith("/libtorch_cuda.so"):
            return f"torch ({_names(code)})"
    return counted(len(with_code), "library", "libraries") + " with GPU code" if with_code else ""


def environment_versions(subject: Subject) -> Outcome:
    """Variables that name a version say the one that is there: people read them first."""
    findings, right = [], []
    for name, what in _ENV_VERSIONS.items():
        value = subject.image.env.get(name, "")
        told = found_versions(subject, what)
        if not value or not told:
            continue
        plain = re.split(r"[-+]", value, maxsplit=1)[0]
        if any(
            matches(plain, version) or matches(re.split(r"[-+]", version, maxsplit=1)[0], plain)
            for version, _who in told
        ):
            right.append(name)
            continue
        findings.append(
            Finding(
                "env-versions",
                f"Env {name}",
                f"{name} says {value}, the image has {told[0][0]} ({told[0][1]})",
                "remove the variable: it came from the base or from another version",
            )
        )
    return Outcome("env-versions", ", ".join(right) or "no variable names a version", tuple(findings))


def requirement(subject: Subject) -> Outcome:
    """NVIDIA_REQUIRE_CUDA is what the image needs, no more and no less."""
    declared, own = subject.declared, subject.image.env.get(VARIABLE, "")
    if declared is None or declared.facts is None:
        if not own:
            return Outcome("require-cuda", "nothing is required of the driver")
        return Outcome("require-cuda", own, skipped="no image.yml with gpu to hold it against")
    try:
        need = require_cuda(declared.facts)
    except ValueError as error:
        return Outcome("require-cuda", own, skipped=str(error))
    if own == need or (not need and not own):
        return Outcome("require-cuda", own)
    said = f"is {own!r}" if own else "is not set"
    finding = Finding(
        "require-cuda",
        f"Env {VARIABLE}",
        f"{VARIABLE} {said}, the image needs {need!r}: nodes that could run it are refused, or others are not",
        f"build the image again; it is computed from {declared.where}",
    )
    return Outcome("require-cuda", "", (finding,))
