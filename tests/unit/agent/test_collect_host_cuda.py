"""CUDA on the host itself: found by its usual places, listed by the portrait, and closing the gate where it harms."""

from __future__ import annotations

from pathlib import Path

import pytest

from myriad.agent.collect.assemble import collectors, portrait_of
from myriad.agent.collect.host_cuda import HostCudaTrees
from myriad.agent.collect.source import Host
from myriad.agent.gate import judge
from myriad.agent.verdict import Check, Kubelet
from myriad.cli.portrait import headline
from myriad.fleet.portrait import HOST_CUDA, Expected, HostCuda, Portrait, facts

AT = "2026-11-30T01:00:00Z"


def host(root: Path, files: dict[str, str], links: dict[str, str] | None = None) -> Host:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for path, target in (links or {}).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(target)
    return Host(root=root)


def found(source: Host) -> list[tuple[str, str, str]]:
    return [(one.kind, one.path, one.version) for one in HostCudaTrees().collect(source, AT).host_cuda]


def test_a_clean_host_has_none_and_no_observation(tmp_path: Path) -> None:
    source = host(
        tmp_path, {"usr/local/bin/tool": "", "opt/cudatext/x": "", "etc/ld.so.conf.d/libc.conf": "/usr/local/lib\n"}
    )
    look = HostCudaTrees().collect(source, AT)
    assert look.host_cuda == [] and look.observations == {}


def test_toolkits_by_their_own_word_or_their_name_and_a_link_is_not_counted_again(tmp_path: Path) -> None:
    files = {
        "usr/local/cuda-12.4/version.json": '{"cuda": {"name": "CUDA SDK", "version": "12.4.1"}}',
        "usr/local/cuda-11.8/bin/nvcc": "",
        "usr/local/cuda-10.2/version.txt": "CUDA Version 10.2.89",
        "usr/local/cuda-13.0/doc/x": "",
        "opt/nvidia/hpc_sdk/Linux_x86_64/x": "",
    }
    links = {"etc/alternatives/cuda": "/usr/local/cuda-12.4", "usr/local/cuda": "/etc/alternatives/cuda"}
    assert found(host(tmp_path, files, links)) == [
        ("toolkit", "/usr/local/cuda-10.2", "10.2.89"),
        ("toolkit", "/usr/local/cuda-11.8", "11.8"),
        ("toolkit", "/usr/local/cuda-12.4", "12.4.1"),
        ("toolkit", "/opt/nvidia/hpc_sdk", ""),
    ]


def test_a_damaged_version_file_leaves_the_name(tmp_path: Path) -> None:
    assert found(host(tmp_path, {"usr/local/cuda-12.4/version.json": "{"})) == [
        ("toolkit", "/usr/local/cuda-12.4", "12.4")
    ]


def test_compat_libraries_packages_and_the_loaders_folders(tmp_path: Path) -> None:
    files = {
        "usr/local/cuda-12.8/compat/libcuda.so.570.26": "",
        "usr/local/cuda-12.8/compat/libcuda.so.1": "",
        "var/lib/dpkg/info/cuda-compat-12-8.list": "",
        "var/lib/dpkg/info/cuda-compat-12-8.md5sums": "",
        "etc/ld.so.conf.d/000_cuda.conf": "# NVIDIA\n/usr/local/cuda/compat/\n/usr/local/cuda/lib64\n",
        "etc/ld.so.conf.d/000_cuda.conf.bak": "/usr/local/cuda/compat\n",
    }
    assert found(host(tmp_path, files)) == [
        ("compat", "/usr/local/cuda-12.8/compat", "570.26"),
        ("compat", "package cuda-compat-12-8", "12.8"),
        ("loader", "/etc/ld.so.conf.d/000_cuda.conf: /usr/local/cuda/compat", ""),
    ]


def test_the_portrait_has_them_with_their_source(tmp_path: Path) -> None:
    source = host(tmp_path, {"usr/local/cuda-12.4/bin/nvcc": ""})
    portrait, _ = portrait_of("n1", source, AT, [HostCudaTrees()])
    assert portrait.host_cuda[0].path == "/usr/local/cuda-12.4"
    assert [one.path for one in facts(portrait)] == ["hostCuda[0].kind", "hostCuda[0].path", "hostCuda[0].version"]
    assert "/usr/local" in portrait.observations[HOST_CUDA].source
    assert ("host CUDA", "/usr/local/cuda-12.4 12.4 (images bring their own)") in headline(portrait)
    assert Portrait.model_validate({"node": "n1", **portrait.document()}).host_cuda == portrait.host_cuda
    assert any(isinstance(one, HostCudaTrees) for one in collectors())


def check(*held: HostCuda, accepted: tuple[str, ...] = ()) -> list[Check]:
    portrait = Portrait(node="n1", host_cuda=held)
    verdict = judge(Expected(gpus=0, accepted=accepted), portrait, Kubelet(), None)
    return [one for one in verdict.checks if one.check == "host-cuda"]


TREE = HostCuda(kind="toolkit", path="/usr/local/cuda-12.4", version="12.4.1")
LOADER = HostCuda(kind="loader", path="/etc/ld.so.conf.d/000_cuda.conf: /usr/local/cuda/compat")


def test_a_toolkit_is_told_and_keeps_nothing_closed() -> None:
    assert check() == []
    (one,) = check(TREE)
    assert one.ok and one.found == "/usr/local/cuda-12.4 12.4.1"


def test_compat_on_the_hosts_loader_path_closes_the_gate() -> None:
    (one,) = check(TREE, LOADER)
    assert not one.ok
    assert "containers get that libcuda and end with error 803 or 804" in one.cause
    assert "rm /etc/ld.so.conf.d/000_cuda.conf" in one.next
    (one,) = check(LOADER, accepted=("host-cuda: until the image is rebuilt",))
    assert one.ok


@pytest.mark.parametrize("path", ["usr/local/cuda-12.4", "opt/cuda"])
def test_an_empty_tree_is_none(tmp_path: Path, path: str) -> None:
    (tmp_path / path).mkdir(parents=True)
    assert found(Host(root=tmp_path)) == []
