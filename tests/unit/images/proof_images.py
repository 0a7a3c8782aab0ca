"""Small real images for proofs: layouts on disk, wheels with dist-info and RECORD, shared libraries with GPU code."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from myriad.images.layer import Entry, file_from_bytes
from myriad.images.oci import BlobStore, ImageConfig, export_layout, write_image, write_layer
from myriad.images.proof_layout import LayoutImage, open_image

SITE = "opt/myriad/site"
ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


def library(
    soname: str = "",
    *,
    needed: Sequence[str] = (),
    runpath: str = "",
    rpath: str = "",
    code: Sequence[str] = (),
    extra: bytes = b"",
) -> bytes:
    """A shared library of 64-bit ELF: dynamic section, string table, and a section `.nv_fatbin` for GPU code.

    Args:
        code: `sm_90` or `compute_120` (PTX), one entry each.
        extra: bytes at the end, such as a version text.
    """
    strings = b"\0"
    offsets: dict[str, int] = {}
    for text in (soname, runpath, rpath, *needed):
        if text and text not in offsets:
            offsets[text] = len(strings)
            strings += text.encode() + b"\0"
    fatbin = fat_binary(code) if code else b""
    header, program = 64, 56
    strings_at = header + 2 * program
    dynamic_at = strings_at + len(strings) + (-len(strings) % 8)
    tags = [(1, offsets[name]) for name in needed]
    tags += [(14, offsets[soname])] if soname else []
    tags += [(29, offsets[runpath])] if runpath else []
    tags += [(15, offsets[rpath])] if rpath else []
    tags += [(5, strings_at), (10, len(strings)), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", tag, value) for tag, value in tags)
    fatbin_at = dynamic_at + len(dynamic)
    names = b"\0.nv_fatbin\0.shstrtab\0"
    names_at = fatbin_at + len(fatbin)
    sections_at = names_at + len(names) + (-(names_at + len(names)) % 8)
    body = strings + b"\0" * (dynamic_at - strings_at - len(strings)) + dynamic + fatbin + names
    body += b"\0" * (sections_at - names_at - len(names))
    rows = [(0, 0, 0), (1, fatbin_at, len(fatbin)), (12, names_at, len(names))]
    table = b"".join(struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, at, size, 0, 0, 1, 0) for name, at, size in rows)
    ident = b"\x7fELF" + bytes([2, 1, 1, 0]) + b"\0" * 8
    head = ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, header, sections_at, 0, header, program, 2, 64, 3, 2)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, sections_at, sections_at, 4096)
    dyn = struct.pack("<IIQQQQQQ", 2, 6, dynamic_at, dynamic_at, dynamic_at, len(dynamic), len(dynamic), 8)
    return head + load + dyn + body + table + extra


def fat_binary(code: Sequence[str]) -> bytes:
    """A region of GPU code with an entry for each of `sm_NN` (compiled) and `compute_NN` (PTX)."""
    entries = b""
    for one in code:
        kind = 1 if one.startswith("compute_") else 2
        entries += struct.pack(
            "<HHIQIIHHIIIQQQ", kind, 257, 64, 32, 0, 0, 0, 0, int(one.rpartition("_")[2]), 0, 0, 0, 0, 0
        )
        entries += b"\xaa" * 32
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


def wheel(
    name: str,
    version: str,
    files: Mapping[str, bytes] | None = None,
    *,
    site: str = SITE,
    requires: Sequence[str] = (),
    licence: str = "Apache-2.0",
    record: bool = True,
) -> dict[str, bytes]:
    """Files of an installed wheel below `site`, with METADATA and RECORD."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nLicense-Expression: {licence}\n"
    metadata += "".join(f"Requires-Dist: {one}\n" for one in requires)
    origin = {"archive_info": {"hashes": {"sha256": file_hash(name)}}, "url": f"{name}-{version}-py3-none-any.whl"}
    held = {
        **(files or {}),
        f"{info}/METADATA": f"{metadata}\n{name} is a package.\n".encode(),
        f"{info}/provenance_url.json": json.dumps(origin).encode(),
    }
    if record:
        rows = [f"{path},sha256={record_hash(data)},{len(data)}" for path, data in sorted(held.items())]
        held[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]).encode() + b"\n"
    return {f"{site}/{path}": data for path, data in held.items()}


def file_hash(name: str) -> str:
    """The sha256 of the file that a wheel of these tests was installed from."""
    return hashlib.sha256(name.encode()).hexdigest()


def record_hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


STATUS = """\
Package: python3.11-minimal
Status: install ok installed
Architecture: amd64
Source: python3.11
Version: 3.11.2-6+deb12u6
Depends: libc6 (>= 2.14), zlib1g

Package: libc6
Status: install ok installed
Architecture: amd64
Source: glibc
Version: 2.36-9+deb12u13

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1.0
"""


def system() -> dict[str, bytes]:
    """The lowest layer: what every proof finds of Debian."""
    return {
        "usr/bin/python3": b"#!python",
        "etc/os-release": b'ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian 12"\n',
        "etc/ld.so.conf": b"include /etc/ld.so.conf.d/*.conf\n",
        "etc/ld.so.conf.d/x86_64-linux-gnu.conf": b"# multiarch\n/usr/local/lib\n/lib/x86_64-linux-gnu\n",
        "var/lib/dpkg/status": STATUS.encode(),
        "var/lib/dpkg/info/libc6:amd64.list": b"/.\n/usr/lib/x86_64-linux-gnu/libc.so.6\n",
        "usr/lib/x86_64-linux-gnu/libc.so.6": library("libc.so.6"),
    }


TORCH_VERSION = "__version__ = '2.12.1+cu130'\ndebug = False\ncuda: Optional[str] = '13.0'\n"
TORCH_CODE = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")
NEEDS = ("libcudart.so.13", "libcublas.so.13", "libcudnn.so.9", "libnccl.so.2")
RUNPATH = "$ORIGIN:$ORIGIN/../../nvidia/cu13/lib:$ORIGIN/../../nvidia/cudnn/lib:$ORIGIN/../../nvidia/nccl/lib"


def nccl(version: str = "2.29.7", cuda: str = "13.0") -> bytes:
    return library("libnccl.so.2", code=("sm_90",), extra=f"NCCL version {version}+cuda{cuda}\0".encode())


def pytorch() -> dict[str, bytes]:
    """The wheels of a small pytorch image, laid out as the real ones are."""
    return {
        **wheel(
            "torch",
            "2.12.1+cu130",
            {
                "torch/__init__.py": b"",
                "torch/version.py": TORCH_VERSION.encode(),
                "torch/lib/libtorch_cuda.so": library(
                    "libtorch_cuda.so",
                    needed=(*NEEDS, "libc10_cuda.so", "libcuda.so.1"),
                    runpath=RUNPATH,
                    code=TORCH_CODE,
                ),
                "torch/lib/libc10_cuda.so": library("libc10_cuda.so", needed=("libcudart.so.13",), runpath=RUNPATH),
            },
            requires=("nvidia-nccl-cu13==2.29.7; platform_system == 'Linux'", "numpy", "pandas; extra == 'all'"),
            licence="BSD-3-Clause",
        ),
        **wheel("nvidia-cuda-runtime", "13.0.96", {"nvidia/cu13/lib/libcudart.so.13": library("libcudart.so.13")}),
        **wheel(
            "nvidia-cublas",
            "13.0.2.14",
            {"nvidia/cu13/lib/libcublas.so.13": library("libcublas.so.13", code=("sm_90",))},
        ),
        **wheel("nvidia-cudnn-cu13", "9.20.0.48", {"nvidia/cudnn/lib/libcudnn.so.9": library("libcudnn.so.9")}),
        **wheel("nvidia-nccl-cu13", "2.29.7", {"nvidia/nccl/lib/libnccl.so.2": nccl()}),
        **wheel("numpy", "2.2.1", {"numpy/__init__.py": b"__version__ = '2.2.1'\n"}, licence="BSD-3-Clause"),
    }


def layout(
    root: Path,
    *layers: Mapping[str, bytes] | Sequence[Entry],
    env: Mapping[str, str] | None = None,
    ref: str = "pytorch:2.12.1",
    labels: Mapping[str, str] | None = None,
    user: str = "65532:65532",
    entrypoint: Sequence[str] = ("python3",),
) -> LayoutImage:
    """An image of these layers, written by the project's own builder, on disk."""
    store = BlobStore(root / "store")
    written = [write_layer(store, entries_of(one), comment=f"layer {number}") for number, one in enumerate(layers)]
    config = ImageConfig(entrypoint=entrypoint, env={**ENV, **(env or {})}, user=user, labels=labels or {})
    export_layout([write_image(store, ref=ref, layers=written, config=config)], root / "layout")
    return open_image(root / "layout")


def entries_of(layer: Mapping[str, bytes] | Sequence[Entry]) -> list[Entry]:
    if not isinstance(layer, Mapping):
        return list(layer)
    return [
        file_from_bytes(path, data, mode=0o755 if path.startswith("usr/bin/") else 0o644)
        for path, data in layer.items()
    ]


IMAGE_YML = """\
repo: pytorch
title: PyTorch
entrypoint: [python3]
wheels: {requirements: requirements.in, lock: requirements.lock}
gpu: {archs: [sm_80, sm_90, sm_120]}
pins: {python: "3.11", torch: "2.12.1", cuda: "13.0", cudnn: "9.20.0.48", nccl: "2.29.7"}
budget_mb: 1
"""
HASHES = {
    name: file_hash(name)
    for name in ("torch", "nvidia-cuda-runtime", "nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-nccl-cu13", "numpy")
}
VERSIONS = {
    "torch": "2.12.1+cu130",
    "nvidia-cuda-runtime": "13.0.96",
    "nvidia-cublas": "13.0.2.14",
    "nvidia-cudnn-cu13": "9.20.0.48",
    "nvidia-nccl-cu13": "2.29.7",
    "numpy": "2.2.1",
}


def lock(hashes: Mapping[str, str] = HASHES, versions: Mapping[str, str] = VERSIONS) -> str:
    return "".join(
        f"{name}=={version} \\\n    --hash=sha256:{hashes[name]}\n" for name, version in sorted(versions.items())
    )


def definition(root: Path, text: str = IMAGE_YML, locked: str | None = None) -> Path:
    """The folder of the small pytorch image's definition."""
    folder = root / "images" / "pytorch"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "image.yml").write_text(text)
    (folder / "requirements.in").write_text("torch\nnumpy\n")
    (folder / "requirements.lock").write_text(lock() if locked is None else locked)
    return folder


#: What the runtime is told; `myriad image verdict` computes the same.
REQUIRE = "cuda>=13.0,driver>=580.65.6,arch>=7.5,arch<11 cuda>=13.0,driver>=580.65.6,arch>=12.0,arch<13"
