"""A control plane that is a GPU node too: what kubeadm and what admits jobs are told, as ansible renders it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
ROLE = ROOT / "roles/kubernetes_control_plane"
CONTROL_PLANE = {"effect": "NoSchedule", "key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}
GATE = {"effect": "NoSchedule", "key": "myriad.dev/gpu-not-ready", "operator": "Exists"}
#: What comes from a bundle, which a description has not.
GIVEN = {
    "kubernetes_control_plane_version": "1.35.4",
    "kubernetes_control_plane_etcd_tag": "3.6.6-0",
    "kubernetes_control_plane_coredns_tag": "v1.13.1",
}


def rendered(tmp_path: Path, inventory: str) -> dict[str, Any]:
    """The first control plane's kubeadm configurations, and the tolerations of what admits jobs."""
    files = {
        "init": "configure/etc/kubernetes/myriad-init.yaml.j2",
        "join": "kubeadm-join.yaml.j2",
    }
    wanted = {
        name: f"{{{{ lookup('ansible.builtin.template', '{ROLE}/templates/{path}') }}}}" for name, path in files.items()
    }
    play = {
        "name": "what is rendered",
        "hosts": "control_plane[0]",
        "connection": "local",
        "gather_facts": False,
        "vars_files": [str(ROOT / "playbooks/vars/stack.yml"), str(ROLE / "defaults/main.yml")],
        "vars": {"__kubernetes_control_plane_invitation": {"answer": {"token": "t", "hash": "h", "key": "k"}}},
        "tasks": [
            {
                "name": "write it",
                "ansible.builtin.copy": {
                    "content": "{{ said | to_json }}",
                    "dest": str(tmp_path / "said.json"),
                    "mode": "0600",
                },
                "vars": {"said": {**wanted, "tolerations": "{{ site_system_tolerations }}"}},
            }
        ],
    }
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("ansible-playbook")), str(tmp_path / "play.yml"),
            "-i", str(ROOT / "inventories" / inventory), "-e", json.dumps(GIVEN),
            "-e", f"ansible_python_interpreter={sys.executable}",
        ],
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}, cwd=ROOT,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads((tmp_path / "said.json").read_text())
    return {
        "init": next(yaml.safe_load_all(said["init"])),
        "join": next(yaml.safe_load_all(said["join"])),
        "tolerations": said["tolerations"],
    }


def test_it_registers_as_a_gpu_node_does(tmp_path: Path) -> None:
    said = rendered(tmp_path, "small")
    for name in ("init", "join"):
        registration = said[name]["nodeRegistration"]
        # Without kubeadm's own taint, which would keep jobs off it; with that of the gate, which the agent takes away.
        assert registration["taints"] == [{"key": "myriad.dev/gpu-not-ready", "effect": "NoSchedule"}]
        (labels,) = [a["value"] for a in registration["kubeletExtraArgs"] if a["name"] == "node-labels"]
        assert dict(pair.split("=") for pair in labels.split(",")) == {
            "myriad.dev/gpu-expected": "8", "myriad.dev/gpu-model": "H100-SXM5-80GB", "myriad.dev/pool": "h100",
            "myriad.dev/rack": "unknown",
        }  # fmt: skip
    # Nothing else is there to carry it: what admits jobs starts while every gate is closed.
    assert said["tolerations"] == [CONTROL_PLANE, GATE]


@pytest.mark.parametrize("inventory", ["example", "lab-ha"])
def test_one_without_gpus_is_left_to_kubeadm(tmp_path: Path, inventory: str) -> None:
    said = rendered(tmp_path, inventory)
    for name in ("init", "join"):
        assert set(said[name]["nodeRegistration"]) == {"criSocket", "imagePullSerial"}
    assert said["tolerations"] == [CONTROL_PLANE]
