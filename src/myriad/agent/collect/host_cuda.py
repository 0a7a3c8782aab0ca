"""CUDA that stands on the host itself: toolkits that somebody installed, and compat libraries of another driver.

Images bring their own CUDA. A toolkit on the host is weight that misleads (whose nvcc is that?); NVIDIA's cuda-compat
on the host's loader path is worse: the container toolkit takes libcuda from there and hands it to every container,
which ends in error 803 or 804 (https://github.com/NVIDIA/nvidia-docker/issues/1515).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from myriad.agent.collect.base import Findings
from myriad.agent.collect.source import Source
from myriad.fleet.portrait import HOST_CUDA, HostCuda, Observation

_PARENTS = ("/usr/local", "/opt", "/opt/nvidia")
_TREE = re.compile(r"cuda(-\d+(\.\d+)*)?|hpc_sdk")
_LIBCUDA = re.compile(r"libcuda\.so\.(\d+\.\d+(?:\.\d+)*)")
_CONFIGURED = "/etc/ld.so.conf.d"
_DPKG = "/var/lib/dpkg/info"
_PACKAGE = re.compile(r"(cuda-compat-(\d+)-(\d+))(:\w+)?\.list")


@dataclass(slots=True)
class HostCudaTrees:
    """Looks for them by their usual places; an hour between two looks, as nobody installs CUDA every minute."""

    name: str = "host-cuda"
    every_s: float = 3600.0

    def collect(self, source: Source, at: str) -> Findings:
        """See Collector."""
        found = Findings()
        trees = list(_trees(source))
        found.host_cuda = [*trees, *_packages(source), *_loader(source)]
        looked = f"{', '.join(_PARENTS)}, {_DPKG}, {_CONFIGURED}"
        if found.host_cuda:
            found.observations[HOST_CUDA] = Observation(source=looked, at=at)
        return found


def _trees(source: Source) -> Iterator[HostCuda]:
    for parent in _PARENTS:
        for name in source.names(parent) or []:
            path = f"{parent}/{name}"
            # `cuda` is usually a link to the tree of a version, by way of /etc/alternatives.
            if not _TREE.fullmatch(name) or source.link(path) is not None:
                continue
            inside = source.names(path)
            if inside is None:
                continue
            if {"bin", "lib64", "version.json", "version.txt", "Linux_x86_64"} & set(inside):
                yield HostCuda(observed=HOST_CUDA, kind="toolkit", path=path, version=_version(source, path, name))
            for library in source.names(f"{path}/compat") or []:
                match = _LIBCUDA.fullmatch(library)
                if match:
                    yield HostCuda(observed=HOST_CUDA, kind="compat", path=f"{path}/compat", version=match[1])


def _version(source: Source, path: str, name: str) -> str:
    try:
        said = json.loads(source.read(f"{path}/version.json") or "{}")
        return str(said["cuda"]["version"])
    except (ValueError, KeyError, TypeError):
        text = re.search(r"\d+\.\d+(\.\d+)?", source.read(f"{path}/version.txt") or name)
        return text[0] if text else ""


def _packages(source: Source) -> Iterator[HostCuda]:
    for name in source.names(_DPKG) or []:
        match = _PACKAGE.fullmatch(name)
        if match:
            version = f"{match[2]}.{match[3]}"
            yield HostCuda(observed=HOST_CUDA, kind="compat", path=f"package {match[1]}", version=version)


def _loader(source: Source) -> Iterator[HostCuda]:
    """Folders of compat or stubs that the host's loader searches."""
    for name in source.names(_CONFIGURED) or []:
        if not name.endswith(".conf"):
            continue
        for line in (source.read(f"{_CONFIGURED}/{name}") or "").splitlines():
            folder = line.partition("#")[0].strip().rstrip("/")
            if folder.startswith("/") and folder.endswith(("/compat", "/stubs")):
                yield HostCuda(observed=HOST_CUDA, kind="loader", path=f"{_CONFIGURED}/{name}: {folder}")
