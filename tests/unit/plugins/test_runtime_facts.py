"""Runtimes on a node, as units, sockets, programs and the kubelet show them, and what the roles are given of it."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from jinja2 import Environment

from myriad.fleet import runtime_config

ROOT = Path(__file__).parents[3]
UNIT = "containerd.service"


@pytest.fixture
def runtimes(plugin, node, monkeypatch):
    """The module over fake programs, with no kubelet running."""
    module = plugin("module_utils.runtimes")
    monkeypatch.setattr(module, "kubelet", lambda root="/": {"running": False, "endpoint": "", "source": ""})
    return module


def program(node, text: str) -> str:
    """A containerd that tells its version."""
    path = node.folder / "bin" / "containerd"
    path.write_text(f"#!/bin/sh\necho {text}\n")
    path.chmod(0o755)
    return str(path)


def test_nothing_is_there(runtimes, node, tmp_path):
    found = runtimes.look([UNIT, "crio.service"], ["/nowhere/sock"], state_dir=str(tmp_path))
    assert (found["units"], found["sockets"], found["own"]) == ({}, [], False)


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u1", "1.6.20~ds1"),
        ("containerd containerd.io v2.1.4 75cb2b7193e4e490e9fbdc236c0e811ccaba3376", "2.1.4"),
        ("", ""),
    ],
)
def test_a10_program_and_version_of_a_unit_are_read(runtimes, node, tmp_path, printed, version):
    path = program(node, printed)
    node.unit_file(UNIT, f"[Service]\nExecStartPre=-/sbin/modprobe overlay\nExecStart={path} --log-level warn\n")
    found = runtimes.look([UNIT], [], state_dir=str(tmp_path))
    assert found["units"][UNIT]["program"] == path
    assert found["versions"] == {path: version}


def test_a10_a_masked_unit_has_no_program(runtimes, node, tmp_path):
    node.unit_file(UNIT, "[Service]\nExecStart=/usr/bin/containerd\n")
    node.set_unit(UNIT, masked=True)
    found = runtimes.look([UNIT], [], state_dir=str(tmp_path))
    assert (found["units"][UNIT]["load"], found["units"][UNIT]["program"]) == ("masked", "")


def test_a_unit_that_a_role_wrote_is_its_own(runtimes, node, tmp_path):
    started = program(node, "containerd github.com/containerd/containerd/v2 v2.3.4")
    path = node.unit_file(UNIT, f"[Service]\nExecStart={started}\n")
    record = {"files": [{"path": str(path)}, {"path": "/etc/containerd/config.toml"}]}
    (tmp_path / "container_runtime.json").write_text(json.dumps(record))
    found = runtimes.look([UNIT], [], state_dir=str(tmp_path))
    assert (found["own"], found["config"], found["versions"]) == (True, "", {started: "2.3.4"})


def test_a7_only_a_socket_that_answers_counts(runtimes, node, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a short path: sockets have 107 bytes at most
    with socket.socket(socket.AF_UNIX) as left, socket.socket(socket.AF_UNIX) as served:
        left.bind("left.sock")
        served.bind("served.sock")
        served.listen()
        found = runtimes.look([], ["left.sock", "served.sock", "none.sock"], state_dir=str(tmp_path))
    assert found["sockets"] == ["served.sock"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix:///run/x.sock\n"),
        (
            "/var/lib/kubelet/kubeadm-flags.env",
            'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///run/x.sock"\n',
        ),
        ("/etc/default/kubelet", 'KUBELET_EXTRA_ARGS="--container-runtime-endpoint unix:///run/x.sock --v=2"\n'),
    ],
)
def test_a7_the_files_that_tell_a_kubelet_its_runtime(plugin, path, text):
    import re

    patterns = dict(plugin("module_utils.runtimes").KUBELET_FILES)
    found = re.search(patterns[path], text, re.MULTILINE)
    assert found and found.group(1) == "unix:///run/x.sock"


def test_a7_t03_the_role_stops_with_one_sentence_for_each(ansible, node, tmp_path):
    path = program(node, "containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-6")
    node.unit_file(UNIT, f"[Service]\nExecStart={path}\n")
    node.unit_file("crio.service")
    node.set_unit("crio.service", active="active")
    play = f"""
- hosts: all
  gather_facts: false
  connection: local
  tasks:
    - myriad.gpu.runtime_facts: {{existing: EXISTING, state_dir: {tmp_path}}}
      register: found
    - ansible.builtin.assert:
        that:
          - found.decision.action == 'replace'
          - found.decision.stop == ['crio.service']
          - not found.changed
"""
    done = ansible(play.replace("EXISTING", "adopt"))
    assert done.returncode == 2
    said = " ".join((done.stdout + done.stderr).split())
    assert "containerd 1.7.24~ds1 is already on this node" in said
    assert "CRI-O is on this node" in said and "Nothing was changed." in said
    done = ansible(play.replace("EXISTING", "replace"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_filters(plugin):
    module = plugin("filter.runtime")
    filters = module.FilterModule().filters()
    assert filters["runtime_config_version"]("2.3.4") == 4
    with pytest.raises(AnsibleFilterError, match=r"2\.0 is the oldest"):
        filters["runtime_config_version"]("1.7.24")
    assert filters["stopped_units"](["crio.service"]) == [
        {"name": "crio.service", "enabled": False, "state": "stopped"}
    ]
    assert filters["locked_version"]("nvidia-container-toolkit")[0].isdigit()


# --- the device plugin's object ---------------------------------------------------------------------------------------


@pytest.fixture
def objects(plugin):
    """The role's objects with its defaults and these inputs."""
    names = {**plugin("filter.runtime").FilterModule().filters(), **plugin("filter.stack").FilterModule().filters()}
    environment = Environment(trim_blocks=True, autoescape=False)  # noqa: S701 (YAML, no HTML)
    environment.filters.update({f"myriad.gpu.{name}": function for name, function in names.items()})
    environment.filters.update(
        to_nice_yaml=lambda value: yaml.safe_dump(value, sort_keys=False),
        combine=lambda one, *others: {key: value for part in (one, *others) for key, value in part.items()},
        dict2items=lambda value, key_name="key": [{key_name: key, "value": item} for key, item in value.items()],
    )
    folder = ROOT / "roles" / "device_plugin"
    defaults = yaml.safe_load((folder / "defaults" / "main.yml").read_text())
    template = environment.from_string((folder / "templates" / "objects.yaml.j2").read_text())

    def render(**inputs):
        given = {
            **defaults,
            "device_plugin_mig_strategy": "none",
            "device_plugin_image": "x@sha256:00",
            "device_plugin_shared": {},
        }
        found = list(yaml.safe_load_all(template.render({**given, **inputs})))
        daemon = next(item for item in found if item["kind"] == "DaemonSet")
        pod = daemon["spec"]["template"]["spec"]
        return found, daemon, pod, pod["containers"][0]

    return render


def environment_of(container) -> dict[str, str]:
    return {item["name"]: item.get("value", "") for item in container["env"]}


def test_nvidias_plugin_gets_its_strategies_and_the_folder_for_its_descriptions(objects):
    _found, daemon, pod, container = objects()
    environment = environment_of(container)
    assert (environment["DEVICE_LIST_STRATEGY"], environment["MIG_STRATEGY"]) == ("cdi-cri", "none")
    assert {"name": "var-run-cdi", "hostPath": {"path": "/var/run/cdi"}} in pod["volumes"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert "livenessProbe" not in container and "runtimeClassName" not in pod
    assert daemon["metadata"]["annotations"] == {"myriad.dev/resources": "nvidia.com/gpu"}


def test_mig_needs_one_capability_and_only_then(objects):
    *_rest, container = objects(device_plugin_mig_strategy="mixed")
    assert environment_of(container)["NVIDIA_MIG_MONITOR_DEVICES"] == "all"
    assert container["securityContext"] == {"capabilities": {"add": ["SYS_ADMIN"]}}


def test_another_vendors_plugin_gets_what_the_inputs_say_and_nothing_else(objects):
    _found, daemon, pod, container = objects(
        device_plugin_vendor="other",
        device_plugin_resources=["huawei.com/Ascend910"],
        device_plugin_env={"LOG": "1"},
        device_plugin_host_paths={"/usr/local/Ascend/driver": "ro"},
    )
    assert set(environment_of(container)) == {"LOG", "NODE_NAME"}
    assert {volume["hostPath"]["path"] for volume in pod["volumes"]} == {
        "/var/lib/kubelet/device-plugins",
        "/usr/local/Ascend/driver",
    }
    assert daemon["metadata"]["annotations"] == {"myriad.dev/resources": "huawei.com/Ascend910"}


def test_the_inputs_win_over_what_follows_from_the_vendor(objects):
    *_rest, container = objects(device_plugin_env={"DEVICE_LIST_STRATEGY": "envvar"})
    assert environment_of(container)["DEVICE_LIST_STRATEGY"] == "envvar"


def test_a_runtime_class_and_a_socket_are_used_when_given(objects):
    found, _daemon, pod, container = objects(
        device_plugin_runtime_class="nvidia", device_plugin_socket="nvidia-gpu.sock"
    )
    assert [item["kind"] for item in found] == ["RuntimeClass", "DaemonSet"]
    assert found[0]["handler"] == pod["runtimeClassName"] == "nvidia"
    command = container["livenessProbe"]["exec"]["command"]
    assert command == ["test", "-S", "/var/lib/kubelet/device-plugins/nvidia-gpu.sock"]


def test_strategies_are_those_of_the_role(plugin):
    spec = yaml.safe_load((ROOT / "roles/device_plugin/meta/argument_specs.yml").read_text().replace("!unsafe ", ""))
    options = spec["argument_specs"]["main"]["options"]
    for strategy in options["device_plugin_list_strategy"]["choices"]:
        environment = runtime_config.plugin_environment("nvidia", "none", strategy)
        assert environment["DEVICE_LIST_STRATEGY"] == strategy
        assert bool(runtime_config.plugin_host_paths("nvidia", strategy)) is strategy.startswith("cdi")


def test_a5_every_package_of_the_toolkit_has_the_locked_version(ansible):
    tasks = yaml.safe_load((ROOT / "roles/gpu_toolkit/tasks/install.yml").read_text())
    packages = tasks[0]["myriad.gpu.packages"]["packages"]
    defaults = yaml.safe_load((ROOT / "roles/gpu_toolkit/defaults/main.yml").read_text())
    task = {"ansible.builtin.fail": {"msg": f"{{{{ {packages.strip('{} ')} }}}}"}}
    play = [{"hosts": "all", "gather_facts": False, "connection": "local", "vars": defaults, "tasks": [task]}]
    done = ansible(yaml.safe_dump(play))
    said = done.stdout + done.stderr
    version = yaml.safe_load((ROOT / "stack.lock.yml").read_text())["components"]["nvidia-container-toolkit"]["version"]
    for name in defaults["gpu_toolkit_packages"]:
        assert f"'{name}': '{version}-1'" in said, said
