"""The device plugin's objects: one DaemonSet, and one more for each pool whose GPUs are shared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from myriad.lab.double.plugin import Options

ROOT = Path(__file__).parents[3]


def objects(ansible: Callable[..., Any], tmp_path: Path, shared: dict[str, int]) -> list[dict[str, Any]]:
    defaults = yaml.safe_load((ROOT / "roles/device_plugin/defaults/main.yml").read_text())
    given = {
        **{name: value for name, value in defaults.items() if "{{" not in str(value)},
        "device_plugin_image": "plugin@sha256:" + "0" * 64,
        "device_plugin_mig_strategy": "none",
        "device_plugin_shared": shared,
    }
    template = ROOT / "roles/device_plugin/templates/objects.yaml.j2"
    play = {
        "hosts": "localhost", "connection": "local", "gather_facts": False, "vars": given,
        "tasks": [{"ansible.builtin.template": {"src": str(template), "dest": str(tmp_path / "out.yml")}}],
    }  # fmt: skip
    done = ansible(yaml.safe_dump([play]))
    assert done.returncode == 0, done.stdout + done.stderr
    return [item for item in yaml.safe_load_all((tmp_path / "out.yml").read_text()) if item]


def where(daemon: dict[str, Any]) -> list[dict[str, Any]]:
    affinity = daemon["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms: list[dict[str, Any]] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    found: list[dict[str, Any]] = terms[0]["matchExpressions"]
    return found


def test_without_sharing_there_is_one(ansible: Callable[..., Any], tmp_path: Path) -> None:
    found = objects(ansible, tmp_path, {})
    assert [item["metadata"]["name"] for item in found] == ["myriad-device-plugin"]
    assert where(found[0]) == [{"key": "myriad.dev/gpu-expected", "operator": "Exists"}]


def test_a_shared_pool_has_its_own_and_no_node_has_two(ansible: Callable[..., Any], tmp_path: Path) -> None:
    found = objects(ansible, tmp_path, {"chat": 4})
    assert [item["kind"] for item in found] == ["DaemonSet", "ConfigMap", "DaemonSet"]
    base, config, own = found
    assert where(base)[1] == {"key": "myriad.dev/pool", "operator": "NotIn", "values": ["chat"]}
    assert where(own)[1] == {"key": "myriad.dev/pool", "operator": "In", "values": ["chat"]}
    assert json.loads(config["data"]["config.yaml"])["sharing"]["timeSlicing"]["resources"] == [
        {"name": "nvidia.com/gpu", "replicas": 4}
    ]
    container = own["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "CONFIG_FILE", "value": "/config/config.yaml"} in container["env"]
    assert own["spec"]["selector"] != base["spec"]["selector"], "each owns its own pods"


def test_the_double_reads_the_same_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    resources = [{"name": "nvidia.com/gpu", "replicas": 3}]
    path.write_text(json.dumps({"version": "v1", "sharing": {"timeSlicing": {"resources": resources}}}))
    assert Options.from_environment({"CONFIG_FILE": str(path)}).replicas == 3
    assert Options.from_environment({}).replicas == 1
