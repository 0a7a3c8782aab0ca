"""A kubeconfig with a context for each control plane is used through one that answers."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from myriad.kube.client import ClusterUnreachableError, connect
from myriad.kube.contexts import answering, connects, servers


def document(**servers_: str) -> dict[str, Any]:
    """As `control-plane kubeconfig` writes it."""
    return {
        "current-context": next(iter(servers_)),
        "clusters": [
            {"name": name, "cluster": {"server": url, "certificate-authority-data": "Q0E="}}
            for name, url in servers_.items()
        ],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "admin"}} for name in servers_],
        "users": [{"name": "admin", "user": {"token": "t"}}],
    }


def written(tmp_path: Path, content: Any) -> str:
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(content))
    return str(path)


def test_the_current_one_first_then_the_others_in_their_order() -> None:
    found = document(cp1="https://a", cp2="https://b", cp3="https://c")
    found["current-context"] = "cp2"
    assert list(servers(found)) == ["cp2", "cp1", "cp3"]


def test_the_first_that_answers_is_used(tmp_path: Path) -> None:
    path = written(tmp_path, document(cp1="https://a", cp2="https://b"))
    assert answering(path, lambda server: server == "https://b") == "cp2"
    assert answering(path, lambda server: True) == "cp1"


def test_where_nobody_answers_the_current_one_is_left_to_say_so(tmp_path: Path) -> None:
    assert answering(written(tmp_path, document(cp1="https://a", cp2="https://b")), lambda server: False) is None


def test_another_cluster_in_the_same_file_is_never_used_instead(tmp_path: Path) -> None:
    found = document(mine="https://a", other="https://b")
    found["clusters"][1]["cluster"]["certificate-authority-data"] = "T1RIRVI="
    assert answering(written(tmp_path, found), lambda server: server == "https://b") is None


def test_another_person_in_the_same_file_is_never_used_instead(tmp_path: Path) -> None:
    found = document(mine="https://a", other="https://b")
    found["contexts"][1]["context"]["user"] = "somebody"
    assert answering(written(tmp_path, found), lambda server: True) is None


@pytest.mark.parametrize("content", [[], "text", {"clusters": 3}, {"contexts": [{"name": "x", "context": 1}]}, {}])
def test_a_file_of_another_shape_is_the_loaders_to_refuse(tmp_path: Path, content: Any) -> None:
    path = written(tmp_path, content)
    assert answering(path, lambda server: True) is None
    with pytest.raises(ClusterUnreachableError, match="cannot be used"):
        connect(path)


def test_a_connection_is_what_counts(tmp_path: Path) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        assert connects(f"https://127.0.0.1:{port}")
        found = document(cp1="https://127.0.0.1:9", cp2=f"https://127.0.0.1:{port}")
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "10", "-subj", "/CN=x",
             "-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "ca")],
            check=True, capture_output=True,
        )  # fmt: skip
        for entry in found["clusters"]:
            entry["cluster"]["certificate-authority-data"] = base64.b64encode((tmp_path / "ca").read_bytes()).decode()
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(found))
        assert answering(str(path)) == "cp2"
        assert connect(path).base_url == f"https://127.0.0.1:{port}"
    assert not connects(f"https://127.0.0.1:{port}")
