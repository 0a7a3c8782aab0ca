"""What somebody changed on a node beside the records, on a root of files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.myriad.gpu.plugins.module_utils import by_hand

Json = dict[str, Any]


class Root:
    """Files of a node below a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, text: str) -> Path:
        file = self.path / name.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def sums(self, *names: str) -> None:
        lines = [f"{hashlib.sha256((self.path / n.lstrip('/')).read_bytes()).hexdigest()}  {n}" for n in names]
        self.write(by_hand.MADE, "\n".join(lines) + "\n")

    def look(self, records: Json | None = None, drift: list[Json] | None = None) -> list[Json]:
        return by_hand.look(records or {}, drift if drift is not None else [], str(self.path))


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


API = "/etc/kubernetes/manifests/kube-apiserver.yaml"
CONFIG = "/var/lib/kubelet/config.yaml"


def test_files_of_kubeadm_that_changed_or_went(root: Root) -> None:
    root.write(API, "image: a\n")
    root.write(CONFIG, "a: 1\n")
    root.sums(API, CONFIG)
    assert root.look() == []
    root.write(API, "image: b\n")
    (root.path / CONFIG.lstrip("/")).unlink()
    found = root.look()
    assert [(item["kind"], item["item"], item["found"]) for item in found] == [
        ("made", API, "changed since"),
        ("made", CONFIG, "absent"),
    ]
    assert found[0]["by"].startswith("written 20")


def test_one_more_file_where_a_program_reads_all(root: Root) -> None:
    root.write(API, "a")
    root.sums(API)
    root.write("/etc/cni/net.d/10-myriad.conflist", "{}")
    records = {"pod_network": {"files": [{"path": "/etc/cni/net.d/10-myriad.conflist"}]}}
    assert root.look(records) == []
    root.write("/etc/kubernetes/manifests/mine.yaml", "a")
    root.write("/etc/cni/net.d/00-mine.conflist", "{}")
    root.write("/etc/cni/net.d/.hidden", "")
    assert [(item["kind"], item["item"]) for item in root.look(records)] == [
        ("file", "/etc/cni/net.d/00-mine.conflist"),
        ("static_pod", "/etc/kubernetes/manifests/mine.yaml"),
    ]


def test_a_setting_that_another_file_changes_at_the_next_boot(root: Root) -> None:
    records = {"node_base": {"settings": [{"name": "vm.max_map_count", "value": "262144"}]}}
    root.write("/etc/sysctl.d/90-myriad.conf", "vm.max_map_count = 262144\n")
    root.write("/usr/lib/sysctl.d/10-distribution.conf", "vm.max_map_count=65530\n")
    assert root.look(records) == []
    root.write("/etc/sysctl.d/99-mine.conf", "# mine\n-vm/max_map_count = 1\nkernel.other=3\n")
    assert [(item["role"], item["item"], item["found"]) for item in root.look(records)] == [
        ("node_base", "vm.max_map_count", "1 at the next boot, by /etc/sysctl.d/99-mine.conf")
    ]
    # A file of the same name in /etc takes the distribution's place.
    root.write("/etc/sysctl.d/99-mine.conf", "")
    root.write("/usr/lib/sysctl.d/99-mine.conf", "vm.max_map_count=1\n")
    assert root.look(records) == []


def test_who_changed_a_package(root: Root) -> None:
    root.write(
        "/var/log/apt/history.log",
        "\nStart-Date: 2026-11-29  06:12:01\nCommandline: /usr/bin/unattended-upgrade\n"
        "Upgrade: libnvidia-ml1:amd64 (580.126.20-1, 580.142.09-1), curl:amd64 (7, 8)\n"
        "End-Date: 2026-11-29  06:12:09\n\n"
        "Start-Date: 2026-11-30  09:00:00\nCommandline: apt install curl=7\nRequested-By: alice (1000)\n"
        "Downgrade: curl:amd64 (8, 7)\nEnd-Date: 2026-11-30  09:00:02\n",
    )
    root.write("/var/log/dpkg.log", "2026-11-30 08:12:01 install jq:amd64 <none> 1.6\n")
    drift: list[Json] = [{"kind": "package", "item": name} for name in ("libnvidia-ml1", "curl", "jq", "never")]
    root.look({}, drift)
    assert [entry.get("by") for entry in drift] == [
        "unattended-upgrade, 2026-11-29 06:12:01",
        "apt install curl=7 by alice, 2026-11-30 09:00:00",
        "dpkg, 2026-11-30 08:12:01",
        None,
    ]
