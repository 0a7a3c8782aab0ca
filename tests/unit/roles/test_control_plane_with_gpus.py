"""A control plane that is a GPU node too: what kubeadm and what admits jobs are told, as ansible renders it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from .rendering import rendered

CONTROL_PLANE = {"effect": "NoSchedule", "key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}
GATE = {"effect": "NoSchedule", "key": "myriad.dev/gpu-not-ready", "operator": "Exists"}


def told(tmp_path: Path, inventory: str) -> dict[str, Any]:
    """The first control plane's kubeadm configurations, and the tolerations of what admits jobs."""
    said = rendered(
        tmp_path,
        role="kubernetes_control_plane",
        inventory=inventory,
        templates={"init": "configure/etc/kubernetes/myriad-init.yaml.j2", "join": "kubeadm-join.yaml.j2"},
        expressions={"tolerations": "site_system_tolerations"},
        given={
            "kubernetes_control_plane_version": "1.35.4",
            "kubernetes_control_plane_etcd_tag": "3.6.6-0",
            "kubernetes_control_plane_coredns_tag": "v1.13.1",
            "__kubernetes_control_plane_invitation": {"answer": {"token": "t", "hash": "h", "key": "k"}},
        },
    )
    return said | {name: next(yaml.safe_load_all(said[name])) for name in ("init", "join")}


def test_it_registers_as_a_gpu_node_does(tmp_path: Path) -> None:
    said = told(tmp_path, "small")
    for name in ("init", "join"):
        registration = said[name]["nodeRegistration"]
        # Without kubeadm's own taint, which would keep jobs off it; with that of the gate, which the agent takes away.
        assert registration["taints"] == [{"key": "myriad.dev/gpu-not-ready", "effect": "NoSchedule"}]
        (labels,) = [a["value"] for a in registration["kubeletExtraArgs"] if a["name"] == "node-labels"]
        assert dict(pair.split("=") for pair in labels.split(",")) == {
            "myriad.dev/gpu-expected": "8",
            "myriad.dev/gpu-model": "H100-SXM5-80GB",
            "myriad.dev/pool": "h100",
            "myriad.dev/rack": "unknown",
        }
    # Nothing else is there to carry it: what admits jobs starts while every gate is closed.
    assert said["tolerations"] == [CONTROL_PLANE, GATE]


@pytest.mark.parametrize("inventory", ["example", "lab-ha"])
def test_one_without_gpus_is_left_to_kubeadm(tmp_path: Path, inventory: str) -> None:
    said = told(tmp_path, inventory)
    for name in ("init", "join"):
        assert set(said[name]["nodeRegistration"]) == {"criSocket", "imagePullSerial"}
    assert said["tolerations"] == [CONTROL_PLANE]
