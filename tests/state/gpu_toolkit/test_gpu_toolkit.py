"""Containers get their GPUs by CDI, described anew at every boot before the kubelet starts."""

import json
import re

from testinfra.host import Host

testinfra_hosts = ["ansible://gpu_nodes"]

UNIT = "myriad-gpu-cdi.service"


def test_the_description_is_there_and_names_every_gpu(host: Host) -> None:
    spec = host.file("/etc/cdi/nvidia.yaml")
    assert spec.exists
    assert re.search(r'^kind: "?nvidia\.com/gpu"?$', spec.content_string, re.MULTILINE)
    names = re.findall(r'^\s*-? ?name: "?([^"\n]+)"?$', spec.content_string, re.MULTILINE)
    listed = host.check_output("nvidia-smi --query-gpu=uuid --format=csv,noheader").split()
    assert listed
    assert set(listed) <= set(names)
    assert "all" in names


def test_it_is_written_at_boot_before_the_kubelet(host: Host) -> None:
    assert host.service(UNIT).is_enabled
    before = host.check_output(f"systemctl show -p Before --value {UNIT}").split()
    assert "kubelet.service" in before


def test_the_runtime_reads_descriptions_and_its_network_folders_are_the_owners(host: Host) -> None:
    dump = host.check_output("/usr/local/bin/containerd config dump")
    assert "enable_cdi = true" in dump
    assert "'/etc/cdi'" in dump
    assert "bin_dirs = ['/opt/cni/bin']" in dump


def test_the_runtime_takes_the_drop_ins_without_migrating_them(host: Host) -> None:
    said = host.run("/usr/local/bin/containerd config dump")
    assert said.rc == 0
    assert "migrated" not in said.stderr


def test_no_second_refresher_writes_another_description(host: Host) -> None:
    for unit in ("nvidia-cdi-refresh.path", "nvidia-cdi-refresh.service"):
        assert host.run("systemctl is-active %s", unit).rc != 0
        assert host.run("systemctl is-enabled %s", unit).stdout.strip() != "enabled"


def test_both_roles_know_with_what_the_runtime_was_started(host: Host) -> None:
    """So that neither restarts it for what the other changed."""
    for role in ("container_runtime", "gpu_toolkit"):
        record = json.loads(host.file(f"/var/lib/myriad/state/{role}.json").content_string)
        assert "containerd.service" in record["started"]
