"""How a verb ends that cannot begin: a sentence, the documented exit code, and with --json one document."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def myriad(*arguments: str, kubeconfig: str = "") -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as a shell starts it."""
    return subprocess.run(
        [sys.executable, "-c", "from myriad.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"KUBECONFIG": kubeconfig, "PATH": "/usr/bin:/bin"},
    )


@pytest.mark.parametrize(
    "arguments", [["status", "--nothing"], ["upgrade", "plan", "--batch", "0"], ["statsu"], ["init"]]
)
def test_a_wrong_flag_is_wrong_input(arguments: list[str]) -> None:
    done = myriad(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Error" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("text", [None, "", "hello", "[1, 2]", "a: [1", "clusters: {a: b}\ncontexts: 3\n"])
def test_a_kubeconfig_that_is_none_is_wrong_input(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "config"
    path.mkdir() if text is None else path.write_text(text)
    done = myriad("status", "--kubeconfig", str(path), "--json")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert (document["exit_code"], document["where"]) == (1, str(path))
    assert document["error"].startswith("the kubeconfig cannot be used: ")
    assert "get nodes" in document["next"]
    assert done.stderr.startswith(f"{path}: the kubeconfig cannot be used: ")


def test_a_cluster_that_does_not_answer_has_failed(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n"
        "clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: a, user: {token: x}}]\n"
    )
    done = myriad("status", "--json", kubeconfig=str(path))
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"].startswith("no answer from http://127.0.0.1:1")


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = myriad("render", "-i", "inventories/small", "--out", str(tmp_path / "file" / "below"))
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr and str(tmp_path / "file") in done.stderr


@pytest.mark.parametrize(
    "verb", [["policy", "diff"], ["policy", "preview"], ["topology", "--ibnetdiscover", "/dev/null"]]
)
def test_a_wrong_description_leaves_one_document_on_standard_output(tmp_path: Path, verb: list[str]) -> None:
    (tmp_path / "hosts.yml").write_text("control_plane: {hosts: {cp1: {}}}\n")
    done = myriad(*verb, "-i", str(tmp_path), "--json", kubeconfig="/nonexistent")
    assert done.returncode == 1
    assert json.loads(done.stdout)["exit_code"] == 1
    assert "group gpu_nodes" in done.stderr, "each error, for people"
