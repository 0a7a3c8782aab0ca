"""Nodes: the engine's flags by value, the files of a fresh node, the record and the inventory that follow."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from myriad.errors import InputError, MyriadError
from myriad.lab import nodes, state
from myriad.lab.nodes import archive, container_options, lab_files, pod_resolv_conf, spec_hash
from myriad.lab.state import Detected, HostRecord, LabPaths, LabState, load_state, require_state, save_state
from myriad.lab.topology import LabNode, read_nodes

CLONE = Path(__file__).resolve().parents[3]
NODE = LabNode(name="gpu1", address="10.77.0.11", gpus=8, model="H100-SXM5-80GB", location="hall1/b1/r1")


def options(**detected: object) -> dict[str, object]:
    return container_options(
        NODE, Detected.model_validate(detected), lab="myriad-abc", image="image:1", network="myriad-abc"
    )


def test_a_node_has_the_flags_of_a_machine() -> None:
    made = options()
    assert made["cap_add"] == ["ALL"]
    assert made["cap_drop"] == []
    assert made["security_opt"] == ["seccomp=unconfined", "apparmor=unconfined"]
    assert made["device_cgroup_rules"] == ["a *:* rwm"]
    assert made["devices"] == ["/dev/kmsg:/dev/kmsg:rwm"]
    assert made["tmpfs"] == {"/run": "", "/run/lock": "", "/tmp": "exec"}
    assert made["cgroupns"] == "private"
    assert made["volumes"] == ["/var/lib/containerd", "/var/lib/kubelet", "/var/lib/etcd"]
    assert "binds" not in made, "nothing of the host is bound in, least of all its cgroups"
    assert made["networking_config"]["myriad-abc"]["IPAMConfig"] == {"IPv4Address": "10.77.0.11"}  # type: ignore[index]


def test_nodes_of_a_lab_share_one_folder_in_a_volume_of_the_labs_own() -> None:
    made = container_options(NODE, Detected(), lab="myriad-abc", image="i", network="n", is_sharing=True)
    assert made["volumes"][-1] == "myriad-abc-shared:/srv/shared"


def test_what_the_engine_lacks_is_left_out() -> None:
    made = options(cap_sys_resource=False, dev_kmsg=False)
    assert made["cap_drop"] == ["SYS_RESOURCE"]
    assert made["devices"] == []


def test_other_settings_have_another_hash() -> None:
    base = spec_hash(NODE, Detected(), "net")
    assert base == spec_hash(NODE, Detected(engine_version="26"), "net")
    for node, detected in (
        (LabNode("gpu1", "10.78.0.11", 8, NODE.model), Detected()),
        (LabNode("gpu1", "10.77.0.11", 4, NODE.model), Detected()),
        (NODE, Detected(cap_sys_resource=False)),
    ):
        assert spec_hash(node, detected, "net") != base


def test_a_fresh_node_gets_its_files_with_folders_and_modes() -> None:
    files = lab_files(NODE, "ssh-ed25519 AAAA myriad-lab\n")
    with tarfile.open(fileobj=io.BytesIO(archive(files))) as tar:
        members = {member.name: member for member in tar.getmembers()}
    assert members["root/.ssh"].mode == 0o700
    assert members["root/.ssh/authorized_keys"].mode == 0o600
    assert members["usr/bin/nvidia-smi"].mode == 0o755
    assert members["var/lib/myriad-lab/sys/bus/pci/devices/0000:1b:00.0/vendor"].size == len("0x10de\n")
    assert len({name for name in members if name.endswith("/class")}) == 8 + 4, "eight GPUs and their NVSwitches"
    assert "usr/bin/nvidia-smi" not in {path.strip("/") for path in lab_files(LabNode("cp1", "10.77.0.10"), "k")}


def test_apt_on_a_node_goes_through_this_machines_proxy() -> None:
    path = "/etc/apt/apt.conf.d/90-myriad-lab-proxy"
    assert path not in lab_files(NODE, "k")
    content, _ = lab_files(NODE, "k", {"http_proxy": "http://proxy.example:3128", "no_proxy": "x"})[path]
    assert content == b'Acquire::http::Proxy "http://proxy.example:3128";\n'


@pytest.mark.parametrize(
    ("host", "pods"),
    [
        ("nameserver 127.0.0.53\noptions edns0\n", "nameserver 192.0.2.53\n"),
        ("nameserver 10.0.0.2\nnameserver 127.0.0.1\nsearch example.org\n", "nameserver 10.0.0.2\n"),
        ("", "nameserver 192.0.2.53\n"),
        ("nameserver ::1\nnameserver fd00::53\n", "nameserver fd00::53\n"),
    ],
)
def test_pods_never_get_a_loopback_nameserver(host: str, pods: str) -> None:
    assert pod_resolv_conf(host) == pods


def test_the_labs_inventory_has_a_control_plane_and_three_gpu_nodes() -> None:
    found = read_nodes(CLONE / "inventories" / "lab", "10.80.0.0/24")
    assert [(node.name, node.address, node.gpus) for node in found] == [
        ("cp1", "10.80.0.10", 0),
        ("gpu1", "10.80.0.11", 8),
        ("gpu2", "10.80.0.12", 8),
        ("gpu3", "10.80.0.13", 8),
    ]
    assert found[3].location == "hall1/b1/r2"


def _inventory(folder: Path, hosts: object) -> Path:
    (folder / "group_vars" / "all").mkdir(parents=True)
    (folder / "hosts.yml").write_text(yaml.safe_dump(hosts))
    pools = {"small": {"model": "L40S-PCIE-48GB", "gpus_per_node": 4}}
    (folder / "group_vars" / "all" / "cluster.yml").write_text(yaml.safe_dump({"myriad_pools": pools}))
    return folder


def test_pools_give_models_and_counts(tmp_path: Path) -> None:
    tree = {"all": {"children": {"gpu_nodes": {"children": {"pool_small": {"hosts": {"g1": None, "g2": {}}}}}}}}
    found = read_nodes(_inventory(tmp_path, tree), "10.77.0.0/24")
    assert [(node.name, node.model, node.gpus) for node in found] == [
        ("g1", "L40S-PCIE-48GB", 4),
        ("g2", "L40S-PCIE-48GB", 4),
    ]


@pytest.mark.parametrize(("count", "words"), [(0, "no host is listed"), (300, "300 hosts do not fit")])
def test_no_host_or_too_many(tmp_path: Path, count: int, words: str) -> None:
    tree = {"all": {"hosts": {f"n{i}": {} for i in range(count)}}}
    with pytest.raises(InputError, match=words):
        read_nodes(_inventory(tmp_path, tree), "10.77.0.0/24")


def test_the_record_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = LabPaths(tmp_path)
    assert load_state(paths) is None
    with pytest.raises(MyriadError, match="there is no lab yet"):
        require_state(paths)
    record = LabState(name="myriad-abc", subnet="10.77.0.0/24", hosts={"cp1": HostRecord(address="10.77.0.10")})
    save_state(paths, record)
    assert load_state(paths) == record

    def cut_short(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(state.os, "replace", cut_short)
    with pytest.raises(KeyboardInterrupt):
        save_state(paths, record.model_copy(update={"subnet": "10.99.0.0/24"}))
    assert load_state(paths) == record
    assert [path.name for path in paths.dir.iterdir()] == ["state.json"]


def test_a_record_of_another_version_names_the_file_and_the_way_out(tmp_path: Path) -> None:
    paths = LabPaths(tmp_path)
    paths.dir.mkdir()
    paths.state.write_text('{"name": "x", "invented": 1}')
    with pytest.raises(MyriadError, match="not a lab record") as caught:
        load_state(paths)
    assert "make lab-down" in str(caught.value)


def test_the_inventory_script_reads_the_record(tmp_path: Path) -> None:
    script = CLONE / "inventories" / "lab" / "lab_nodes.py"
    assert os.access(script, os.X_OK)

    def inventory(state_file: Path) -> dict[str, object]:
        environment = {**os.environ, "MYRIAD_LAB_STATE": str(state_file)}
        done = subprocess.run([script, "--list"], capture_output=True, text=True, env=environment, check=True)
        return dict(json.loads(done.stdout))

    assert inventory(tmp_path / "none.json") == {"_meta": {"hostvars": {}}}
    paths = LabPaths(tmp_path)
    detected = Detected(cgroup_version=1, cap_sys_resource=False)
    hosts = {"cp1": HostRecord(address="10.77.0.10"), "gpu1": HostRecord(address="10.77.0.11", gpus=8)}
    save_state(paths, LabState(name="l", subnet="10.77.0.0/24", hosts=hosts, detected=detected, bundle="/cache/b"))
    variables = inventory(paths.state)["_meta"]["hostvars"]["gpu1"]  # type: ignore[index]
    assert variables["ansible_host"] == "10.77.0.11"
    assert variables["lab_cgroup_version"] == 1
    assert variables["lab_cap_sys_resource"] is False
    assert variables["lab_runc_wrapper"] == "/usr/local/lib/myriad-lab/runc-lab"
    assert variables["lab_registry_address"] == "10.77.0.10:5000"
    assert variables["lab_bundle_dir"] == "/cache/b"
    assert f"UserKnownHostsFile={paths.known_hosts}" in variables["ansible_ssh_common_args"]
    assert "StrictHostKeyChecking=yes" in variables["ansible_ssh_common_args"]


def test_the_runc_wrapper_takes_the_capability_out_and_calls_runc(tmp_path: Path) -> None:
    fake = tmp_path / "runc"
    fake.write_text('#!/bin/sh\necho "$@"\n')
    fake.chmod(0o755)
    text = (Path(nodes.__file__).parent / "files" / "runc-lab").read_text()
    wrapper = tmp_path / "runc-lab"
    wrapper.write_text(text.replace("/usr/local/sbin/runc", str(fake)))
    wrapper.chmod(0o755)
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    config = bundle / "config.json"
    sets = {
        "bounding": ["CAP_CHOWN", "CAP_SYS_RESOURCE"],
        "effective": ["CAP_SYS_RESOURCE", "CAP_KILL"],
        "permitted": ["CAP_SYS_RESOURCE"],
    }
    for separators in ((",", ":"), (", ", ": ")):
        config.write_text(json.dumps({"process": {"capabilities": sets}}, separators=separators))
        done = subprocess.run(
            [wrapper, "--root", "/r", "create", "--bundle", bundle, "id"], capture_output=True, text=True, check=True
        )
        assert done.stdout == f"--root /r create --bundle {bundle} id\n"
        assert json.loads(config.read_text())["process"]["capabilities"] == {
            "bounding": ["CAP_CHOWN"],
            "effective": ["CAP_KILL"],
            "permitted": [],
        }
    config.write_text('["CAP_SYS_RESOURCE"]')
    subprocess.run([wrapper, "state", "id"], cwd=bundle, check=True, capture_output=True)
    assert config.read_text() == '["CAP_SYS_RESOURCE"]', "only a new container's configuration is changed"


def test_ssh_uses_the_labs_key_and_known_hosts_alone(tmp_path: Path) -> None:
    command = nodes.ssh_command(LabPaths(tmp_path), "10.77.0.10", "true")
    assert command[-2:] == ["root@10.77.0.10", "true"]
    assert f"UserKnownHostsFile={tmp_path}/.lab/known_hosts" in command
    assert "StrictHostKeyChecking=yes" in command
