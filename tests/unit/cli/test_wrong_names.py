"""Verbs that meet a kubeconfig or a name that is none: a sentence, and nothing starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from myriad.cli._playbook import check_limit
from myriad.errors import InputError
from myriad.kube.client import ClusterUnreachableError, connect

EXAMPLE = Path(__file__).resolve().parents[3] / "inventories" / "example"


def kubeconfig(folder: Path, *, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None) -> Path:
    path = folder / "config"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1"} | (cluster or {})}],
                "users": [{"name": "a", "user": user or {"token": "x"}}],
                "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
                "current-context": "a",
            }
        )
    )
    return path


@pytest.mark.parametrize(
    ("cluster", "user"),
    [
        ({}, {"client-certificate-data": "!!", "client-key-data": "@@"}),
        ({}, {"client-certificate-data": "eA==", "client-key-data": "eA=="}),
        ({"certificate-authority-data": "eA=="}, {}),
        ({"certificate-authority": "/nonexistent"}, {}),
        ({"insecure-skip-tls-verify": True}, {"client-certificate-data": "eA==", "client-key-data": "eA=="}),
    ],
)
def test_certificates_that_are_none_are_told(tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any]) -> None:
    path = kubeconfig(tmp_path, cluster=cluster, user=user)
    with pytest.raises(ClusterUnreachableError, match="cannot be used") as caught:
        connect(path, in_cluster=False)
    assert str(path) in str(caught.value)


def test_a_kubeconfig_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ClusterUnreachableError, match="there is no such kubeconfig"):
        connect(tmp_path / "gone", in_cluster=False)


@pytest.mark.parametrize("limit", ["gpu0001", "pool_h100,gpu0002", "all", "gpu*", "gpu00[01:03]", "all:!gpu0001", "@x"])
def test_limits_that_name_what_there_is_pass(limit: str) -> None:
    check_limit(EXAMPLE, limit)


@pytest.mark.parametrize("limit", ["gpx0001", "gpu0001,pool_h10", "gpu0001:nobody"])
def test_a_limit_that_names_nobody_is_refused(limit: str) -> None:
    with pytest.raises(InputError, match="neither a host nor a group of the inventory; ") as caught:
        check_limit(EXAMPLE, limit)
    assert caught.value.exit_code == 1
