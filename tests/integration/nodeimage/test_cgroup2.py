"""A cluster on cgroup v2: two machines from the golden image, kubeadm init and one join by the site's roles.

Containers of a lab see the cgroup version of the machine below; a machine of its own sees its own. Both machines hang
on one wire (QEMU's multicast), with addresses from their seeds, and reach the bundle at QEMU's address of the host.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from myriad.nodeimage import seed
from myriad.nodeimage.guest import Guest, accelerator
from myriad.nodeimage.proof import OUTSIDE, inventory
from myriad.nodeimage.provision import HOST, play
from myriad.stack.serve import BundleServer

from .conftest import Golden

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(7200)]

HERE = Path(__file__).parent
ADDRESSES = {"cp1": "10.88.0.11", "gpu1": "10.88.0.12"}
READY_S = 900


@pytest.fixture(scope="module")
def machines(golden: Golden, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Guest]]:
    folder = tmp_path_factory.mktemp("cgroup2")
    key = seed.make_key(folder / "key")
    wire = f"230.0.0.1:{random.randint(20000, 40000)}"  # noqa: S311 (a port)
    with ExitStack() as stack:
        found = {}
        for number, (name, address) in enumerate(ADDRESSES.items(), start=1):
            guest = Guest(
                golden.disk,
                folder / name,
                key.private,
                seed=folder / f"{name}.img",
                memory_mb=3072 if name == "cp1" else 1536,
                cpus=2,
                accelerator=accelerator(),
                wire=wire,
                number=number,
            )
            interfaces = {guest.mac(0): "dhcp", guest.mac(1): f"{address}/24"}
            seed.write_seed(folder / f"{name}.img", name=name, public=key.public, addresses=interfaces)
            found[name] = stack.enter_context(guest)
        for guest in found.values():
            guest.wait(golden.image.deadlines_s.ssh * 2)
        yield found


def description(machines: dict[str, Guest]) -> dict[str, Any]:
    def host(name: str) -> dict[str, Any]:
        variables: dict[str, Any] = inventory(machines[name])["all"]["hosts"][HOST]
        address = ADDRESSES[name]
        return {
            name: {
                **variables,
                "pod_network_address": address,
                "kubernetes_control_plane_advertise_address": address,
                "myriad_location": "hall1/b1/r1",
            }
        }

    children = {
        "control_plane": {"hosts": host("cp1")},
        "gpu_nodes": {"children": {"pool_l40s": {"hosts": host("gpu1")}}},
    }
    return {"all": {"children": children}}


def variables(golden: Golden, registry: str, folder: Path) -> dict[str, Any]:
    return {
        "myriad_cluster": {"name": "cgroup2", "topology_levels": ["room", "block", "rack"]},
        "myriad_pools": {"l40s": {"model": "L40S", "gpus_per_node": 8, "use": "training", "engine": "kueue"}},
        "site_bundle": str(golden.bundle.directory),
        "site_registry_endpoints": [registry],
        "site_node_registries": [registry],
        "site_api_endpoint": f"{ADDRESSES['cp1']}:6443",
        "site_node_network": "10.88.0.0/24",
        "site_node_addresses": list(ADDRESSES.values()),
        "site_kubeconfig": str(folder / "kubeconfig"),
        # The machines of this test have little memory, and emulation is slow.
        "kubernetes_control_plane_ignore_preflight_errors": ["Mem", "NumCPU"],
        "kubernetes_control_plane_kubelet_timeout": "15m0s",
        "kubernetes_node_kubelet_timeout": "15m0s",
    }


def test_kubeadm_init_and_a_join_until_both_kubelets_are_ready(
    golden: Golden, machines: dict[str, Guest], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for guest in machines.values():
        assert guest.run("stat -f -c %T /sys/fs/cgroup").strip() == "cgroup2fs"
    started = time.monotonic()
    with BundleServer(golden.bundle) as server:
        result = play(
            HERE / "cgroup2.yml",
            description(machines),
            variables(golden, f"http://{OUTSIDE}:{server.port}", tmp_path),
            log=tmp_path / "site.log",
            on_line=lambda line: None,
            timeout_s=5400,
        )
        nodes = ready(machines["cp1"])
    with capsys.disabled():
        print(f"\ncgroup v2: {sum(result.task_counts().values())} tasks, {time.monotonic() - started:.0f} s")
        for name, (status, version) in nodes.items():
            print(f"  {name}: kubelet {version} Ready={status}")
    assert {name: status for name, (status, _) in nodes.items()} == dict.fromkeys(ADDRESSES, "True")
    for guest in machines.values():
        said = guest.run("grep -h -i cgroupDriver /var/lib/kubelet/config.yaml /etc/kubernetes/kubelet.conf.d/*")
        assert "systemd" in said
        assert "cgroupfs" not in said
        assert "kubepods.slice" in guest.run("ls /sys/fs/cgroup")


def ready(control_plane: Guest) -> dict[str, tuple[str, str]]:
    """Ready and the kubelet's version by node, waited for until all are."""
    deadline = time.monotonic() + READY_S
    while True:
        text = control_plane.run("kubectl --kubeconfig /etc/kubernetes/admin.conf get nodes -o json", timeout_s=120)
        found = {}
        for node in json.loads(text)["items"]:
            status = next((one["status"] for one in node["status"]["conditions"] if one["type"] == "Ready"), "none")
            found[node["metadata"]["name"]] = (status, node["status"]["nodeInfo"]["kubeletVersion"])
        if all(status == "True" for status, _ in found.values()) or time.monotonic() > deadline:
            return found
        time.sleep(5)
