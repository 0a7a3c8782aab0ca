"""MIG on a node with systemd: cut by the role, refused under pods, lost at a reboot and back before the kubelet starts.

The driver is the lab's double of four A100. Their slices do not outlive a start of the node, as on a machine. The unit
`kubelet.service` of this node only notes which devices it finds when it starts; `nvidia-dcgm.service` holds the GPUs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
import yaml

from myriad.lab import engine, fault, nodes
from myriad.lab.double.document import PATH, set_fault
from myriad.lab.topology import LabNode

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(300)]

CLONE = Path(__file__).parents[3]
NAME = f"myriad-test-mig-{os.getpid()}"
SEVEN = ["1g.10gb"] * 7
HALVES = ["3g.40gb", "3g.40gb"]
UNITS = {
    "kubelet": "ExecStartPre=/bin/sh -c 'nvidia-smi -L > /var/log/kubelet-found'\nExecStart=/bin/sleep infinity",
    "nvidia-dcgm": "RuntimeDirectory=myriad-lab/gpu-clients\n"
    "ExecStartPre=/bin/touch /run/myriad-lab/gpu-clients/dcgm\nExecStart=/bin/sleep infinity",
}
CRICTL = """#!/bin/sh
case "$*" in *" pods "*) cat /var/lib/pods.json ;; esac
"""


class Node:
    """One node, and plays on it over ssh."""

    def __init__(self, container: Any, folder: Path) -> None:
        self.container, self.folder = container, folder

    def sh(self, script: str, *, check: bool = True) -> str:
        code, text = nodes.exec_text(self.container, script)
        assert code == 0 or not check, f"{script}\n{text}"
        return text

    def wait(self) -> None:
        assert nodes._answers(self.container, timeout_s=60)
        until = time.monotonic() + 30
        while "running" not in self.sh("systemctl is-system-running", check=False):
            assert time.monotonic() < until, self.sh("systemctl list-units --failed", check=False)
            time.sleep(0.2)

    def reboot(self) -> None:
        """A new start of the node: /dev, /run and what the driver keeps in memory are new."""
        self.container.restart(timeout=5)
        self.wait()

    def fault(self, kind: str, **options: Any) -> None:
        document = set_fault(json.loads(self.sh(f"cat {PATH}")), kind, **options)
        fault.put(self.container, document, node="gpu1")

    def play(self, tasks: list[dict[str, Any]] | None = None, **variables: Any) -> tuple[int, str]:
        self.container.reload()
        address = self.container.attrs["NetworkSettings"]["IPAddress"]
        ssh = "-o UserKnownHostsFile=/dev/null -o StrictHostKeyChecking=no -o IdentitiesOnly=yes -o LogLevel=ERROR"
        host = {
            "ansible_host": address, "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.folder / "key"), "ansible_ssh_common_args": ssh,
        }  # fmt: skip
        (self.folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {"gpu1": host}, "vars": variables}}))
        play: dict[str, Any] = {"hosts": "gpu1", "gather_facts": False}
        play.update({"tasks": tasks} if tasks else {"roles": ["myriad.gpu.mig"]})
        (self.folder / "play.yml").write_text(yaml.safe_dump([play]))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MYRIAD_")}
        environment.update(
            ANSIBLE_CONFIG=str(CLONE / "ansible.cfg"),
            ANSIBLE_STDOUT_CALLBACK="ansible.builtin.default",
            ANSIBLE_NOCOLOR="1",
        )
        command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(self.folder / "hosts.yml")]
        done = subprocess.run(
            [*command, str(self.folder / "play.yml")],
            cwd=CLONE, env=environment, capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def apply(self, layouts: dict[str, list[str]], **variables: Any) -> tuple[int, str]:
        return self.play(mig_layouts=layouts, **variables)

    def layout(self, listing: str | None = None) -> dict[int, list[str]]:
        """Slices by GPU, as nvidia-smi -L has them now or had them then."""
        found: dict[int, list[str]] = {}
        for line in (self.sh("nvidia-smi -L") if listing is None else listing).splitlines():
            if gpu := re.match(r"GPU (\d+):", line):
                found[int(gpu.group(1))] = []
            elif part := re.match(r"\s+MIG (\S+)", line):
                found[max(found)].append(part.group(1))
        return found

    def kubelet_found(self) -> dict[int, list[str]]:
        return self.layout(self.sh("cat /var/log/kubelet-found"))

    def is_active(self, unit: str) -> bool:
        return self.sh(f"systemctl is-active {unit}", check=False).strip() == "active"

    def pods(self, *names: str) -> None:
        """Pods of the node that hold one GPU each: the kubelet's checkpoint and the runtime's list."""
        entries = [
            {
                "PodUID": f"uid-{name}",
                "ContainerName": "main",
                "ResourceName": "nvidia.com/gpu",
                "DeviceIDs": {"0": ["GPU-0"]},
            }
            for name in names
        ]
        items = [{"id": name, "metadata": {"name": name, "namespace": "web", "uid": f"uid-{name}"}} for name in names]
        files = {
            "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint": json.dumps(
                {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 0}
            ),
            "/var/lib/pods.json": json.dumps({"items": items}),
        }
        self.container.put_archive("/", nodes.archive({path: (text.encode(), 0o644) for path, text in files.items()}))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    try:
        client = engine.connect()
        image = max(client.images.list(nodes.IMAGE), key=lambda found: found.attrs["Created"]).tags[0]
    except (docker.errors.DockerException, ValueError):
        pytest.skip("the node image is made by `make lab`")
    folder = tmp_path_factory.mktemp("mig")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True)
    own = LabNode(name="gpu1", address="", gpus=4, model="A100-SXM4-80GB")
    options = nodes.container_options(own, engine.detect(client, image), lab=NAME, image=image, network="bridge")
    del options["networking_config"]
    files = nodes.lab_files(own, (folder / "key.pub").read_text())
    for name, text in UNITS.items():
        unit = f"[Unit]\nDescription={name}\n[Service]\n{text}\n[Install]\nWantedBy=multi-user.target\n"
        files[f"/etc/systemd/system/{name}.service"] = (unit.encode(), 0o644)
        files[f"/etc/systemd/system/multi-user.target.d/{name}.conf"] = (
            f"[Unit]\nWants={name}.service\n".encode(),
            0o644,
        )
    files["/usr/local/bin/crictl"] = (CRICTL.encode(), 0o755)
    container = nodes._create(client, options, files)
    try:
        made = Node(container, folder)
        made.wait()
        made.pods()
        yield made
    finally:
        container.remove(force=True, v=True)


def test_whole_cards_are_what_a_node_has_before_and_clients_stop_for_the_change(node: Node) -> None:
    assert node.kubelet_found() == {0: [], 1: [], 2: [], 3: []}
    assert "In use by another client" in node.sh("nvidia-smi -i 3 -mig 1"), "the client must be in the way"
    node.sh("nvidia-smi -i 3 -mig 0")
    code, said = node.apply({"0": SEVEN, "1": HALVES, "2": []})
    assert code == 0, said
    assert node.layout() == {0: SEVEN, 1: HALVES, 2: [], 3: []}
    assert node.is_active("kubelet") and node.is_active("nvidia-dcgm")
    assert node.kubelet_found() == {0: SEVEN, 1: HALVES, 2: [], 3: []}, "the kubelet starts after the change"
    code, said = node.apply({"0": SEVEN, "1": HALVES, "2": []})
    assert code == 0 and "changed=0" in said, said


def test_i3_at_every_boot_the_slices_are_there_before_the_kubelet_looks(node: Node) -> None:
    node.reboot()
    assert "applied to GPU 0-1" in node.sh("journalctl -b -u myriad-mig.service --no-pager")
    assert node.kubelet_found() == {0: SEVEN, 1: HALVES, 2: [], 3: []}
    assert node.sh("/usr/local/lib/myriad/mig check") == ""


def test_i4_drift_from_the_layout_is_found_and_made_right(node: Node) -> None:
    node.sh(
        "systemctl stop nvidia-dcgm; nvidia-smi mig -i 1 -dci; nvidia-smi mig -i 1 -dgi; systemctl start nvidia-dcgm"
    )
    code, said = node.play(
        [
            {"myriad.gpu.node_state": {"state": "check"}, "register": "found"},
            {"ansible.builtin.debug": {"msg": "{{ found.drift | selectattr('kind', 'eq', 'check') }}"}},
        ]
    )
    assert code == 0, said
    assert "GPU 1: MIG enabled, no slice; the layout is 2 x 3g.40gb" in said
    code, said = node.apply({"0": SEVEN, "1": HALVES, "2": []})
    assert code == 0, said
    assert node.layout()[1] == HALVES


def test_i5_the_plan_says_which_gpus_are_reset_and_whose_pods_end(node: Node) -> None:
    node.pods("chat-1")
    task = {
        "myriad.gpu.mig": {"state": "plan", "layouts": {"0": SEVEN, "1": SEVEN, "2": SEVEN, "3": []}},
        "register": "found",
    }
    code, said = node.play([task, {"ansible.builtin.debug": {"msg": "{{ found.plan.lines }}"}}])
    assert code == 0, said
    assert "GPU 1: 2 x 3g.40gb -> 7 x 1g.10gb; it is not reset; its slices are made anew" in said
    assert "GPU 2: whole -> 7 x 1g.10gb; it is reset, and everything on it ends" in said
    assert "GPU 0, 3: not touched, not reset" in said
    assert "pods that hold GPUs: web/chat-1 (1 nvidia.com/gpu)" in said
    code, said = node.apply({"2": SEVEN})
    assert code == 2
    assert (
        "GPU 2 would be cut anew, and GPU pods run on this node: web/chat-1 (1 nvidia.com/gpu). Nothing was changed"
        in said
    )
    code, said = node.apply({"2": SEVEN}, mig_drained=True)
    assert code == 2 and "the node was drained, and GPU pods still run on it: web/chat-1" in said
    assert node.layout()[2] == [] and node.is_active("kubelet")
    node.pods()


def test_a_failure_puts_every_gpu_back_and_starts_the_clients(node: Node) -> None:
    before = node.layout()
    node.fault("mig_refused", gpu=2)
    code, said = node.apply({"0": HALVES, "1": HALVES, "2": SEVEN})
    node.fault("mig_refused", clear=True)
    assert code == 2
    assert "GPU 2: 7 x 1g.10gb could not be made: Unable to create a GPU instance" in said
    assert "GPU 0, 2 is as it was before" in said
    assert node.layout() == before
    assert node.is_active("kubelet") and node.is_active("nvidia-dcgm")
    assert node.sh("/usr/local/lib/myriad/mig check") == "", "what a boot applies is still the layout that works"


def test_a_client_that_does_not_stop_leaves_all_as_it_is(node: Node) -> None:
    unit = "[Service]\\nExecStart=/bin/sleep infinity\\nExecStop=/bin/sleep 20\\n"
    node.sh(f"printf '{unit}' > /run/systemd/system/slow.service; systemctl start slow")
    before = node.layout()
    code, said = node.apply({"2": SEVEN}, mig_client_units=["kubelet.service", "slow.service"], mig_client_deadline_s=2)
    node.sh("systemctl kill -s KILL slow; rm /run/systemd/system/slow.service", check=False)
    assert code == 2 and "slow.service did not stop within 2 s" in said
    assert node.layout() == before and node.is_active("kubelet")


def test_i2_t26_a_mode_that_needs_a_reboot_is_no_success_and_is_there_after_it(node: Node) -> None:
    node.fault("mig_pending")
    code, said = node.apply({"0": SEVEN, "1": HALVES, "2": ["7g.80gb"]}, mig_drained=True)
    assert code == 2, "nvidia-smi reports success; the role must not"
    assert "reboot required: the MIG mode of GPU 2 is pending" in said
    assert node.layout()[2] == []
    assert "Enabled" in node.sh("nvidia-smi -i 2 --query-gpu=mig.mode.pending --format=csv,noheader")
    node.reboot()
    assert node.kubelet_found() == {0: SEVEN, 1: HALVES, 2: ["7g.80gb"], 3: []}
    code, said = node.apply({"0": SEVEN, "1": HALVES, "2": ["7g.80gb"]}, mig_drained=True)
    assert code == 0 and "changed=0" in said, said
