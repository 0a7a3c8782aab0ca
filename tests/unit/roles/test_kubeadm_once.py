"""kubeadm-once as a program: an upgrade happens once for each version; what kubeadm wrote is noted with its sums."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

TEMPLATE = (
    Path(__file__).parents[3]
    / "roles/kubernetes_node/templates/install/usr/local/lib/myriad/kubeadm-once.j2"
)  # fmt: skip


class Node:
    """The program with all its paths below a folder, and a kubeadm that notes how it was called."""

    def __init__(self, root: Path) -> None:
        self.root = root
        text = TEMPLATE.read_text(encoding="utf-8").replace("{{ ansible_managed | comment }}", "#")
        assert "{{" not in text
        for path in ("/var/lib/myriad", "/var/lib/kubelet", "/etc/kubernetes", "/run/myriad", "/usr/local/lib/myriad"):
            text = text.replace(path, f"{root}{path}")
        text = text.replace("/usr/local/sbin:/usr/local/bin:", f"{root}/bin:")
        for folder in ("bin", "run", "etc/kubernetes/manifests", "var/lib/kubelet"):
            (root / folder).mkdir(parents=True)
        self.program = self._script("kubeadm-once", text)
        self.says(0)
        self.write("etc/kubernetes/manifests/etcd.yaml", "etcd\n")
        self.write("var/lib/kubelet/config.yaml", "a: 1\n")

    def _script(self, name: str, text: str) -> Path:
        path = self.root / "bin" / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
        return path

    def says(self, code: int) -> None:
        """Let kubeadm end with a code."""
        self._script("kubeadm", f'#!/bin/sh\necho "$@" >> {self.root}/calls\nexit {code}\n')

    def write(self, name: str, text: str) -> None:
        (self.root / name).write_text(text, encoding="utf-8")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(self.program), *arguments], capture_output=True, text=True, check=False)

    @property
    def calls(self) -> list[str]:
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_an_upgrade_happens_once_for_each_version(node: Node) -> None:
    first = node.run("upgrade", "apply", "1.35.4", "Swap")
    assert first.returncode == 0, first.stderr
    assert node.calls == ["upgrade apply v1.35.4 --yes --ignore-preflight-errors CreateJob,Swap"]
    again = node.run("upgrade", "apply", "1.35.4", "Swap")
    assert (again.returncode, again.stdout) == (0, "is at 1.35.4 already\n")
    assert node.run("upgrade", "node", "1.35.5").returncode == 0
    assert node.calls[1:] == ["upgrade node --ignore-preflight-errors CreateJob"]


def test_one_that_failed_is_tried_again(node: Node) -> None:
    node.says(1)
    assert node.run("upgrade", "node", "1.35.4").returncode == 1
    assert not (node.root / "var/lib/myriad/kubeadm.sums").exists()
    node.says(0)
    assert node.run("upgrade", "node", "1.35.4").returncode == 0
    assert len(node.calls) == 2


def test_what_kubeadm_wrote_is_noted_with_its_sums(node: Node) -> None:
    node.write("etc/kubernetes/manifests/.etcd.yaml.swp", "an editor's\n")
    assert node.run("made").returncode == 0
    lines = (node.root / "var/lib/myriad/kubeadm.sums").read_text().splitlines()
    assert {line.split(None, 1)[1]: line.split()[0] for line in lines} == {
        f"{node.root}/{name}": hashlib.sha256(text.encode()).hexdigest()
        for name, text in (("etc/kubernetes/manifests/etcd.yaml", "etcd\n"), ("var/lib/kubelet/config.yaml", "a: 1\n"))
    }


def with_keys(node: Node, code: int = 0) -> None:
    """Let the program of the keys note how it was called, among kubeadm's calls."""
    folder = node.root / "usr/local/lib/myriad"
    folder.mkdir(parents=True)
    program = folder / "encryption-keys"
    program.write_text(f'#!/bin/sh\necho "keys $@" >> {node.root}/calls\nexit {code}\n', encoding="utf-8")
    program.chmod(0o755)


INIT = "- name: encryption-provider-config\n  value: {root}/etc/kubernetes/pki/encryption.json\n"
JOIN = "# sealed-key: AAA=\n# sealed-key: BBB=\nkind: JoinConfiguration\ncontrolPlane:\n  x: y\n"


def test_the_key_is_there_before_the_first_api_server_starts(node: Node) -> None:
    with_keys(node)
    node.write("init.yaml", INIT.format(root=node.root))
    assert node.run("init", str(node.root / "init.yaml")).returncode == 0
    assert [call.split()[:2] for call in node.calls] == [["keys", "make"], ["init", "--config"]]


def test_a_cluster_without_encryption_gets_no_key(node: Node) -> None:
    with_keys(node)
    node.write("init.yaml", "apiServer: {}\n")
    assert node.run("init", str(node.root / "init.yaml")).returncode == 0
    assert [call.split()[0] for call in node.calls] == ["init"]


def test_a_further_control_plane_takes_the_keys_that_it_was_lent(node: Node) -> None:
    with_keys(node)
    node.write("join.yaml", JOIN)
    assert node.run("join", str(node.root / "join.yaml")).returncode == 0
    assert node.calls[0] == "keys take AAA= BBB=" and node.calls[1].startswith("join --config")


def test_one_that_cannot_open_them_does_not_join(node: Node) -> None:
    """It would start an API server that reads no Secret."""
    with_keys(node, code=2)
    node.write("join.yaml", JOIN)
    assert node.run("join", str(node.root / "join.yaml")).returncode == 2
    assert node.calls == ["keys take AAA= BBB="]


def test_a_worker_asks_for_no_keys(node: Node) -> None:
    with_keys(node)
    node.write("join.yaml", "kind: JoinConfiguration\n")
    assert node.run("join", str(node.root / "join.yaml")).returncode == 0
    assert [call.split()[0] for call in node.calls] == ["join"]
