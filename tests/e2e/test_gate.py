"""The gate on the running lab: faults of the doubles, a container that opens every GPU, a node that comes back.

The faults of a node are shown one after another without waiting for the node to heal in between; the story is told once
and each test looks at its part of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import CLONE, LAB, Lab

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.timeout(600)]

Json = dict[str, Any]

MYRIAD = str(Path(sys.executable).with_name("myriad"))
SICK, OTHER = "gpu3", "gpu2"
GATE, UNHEALTHY = "myriad.dev/gpu-not-ready", "myriad.dev/gpu-unhealthy"


def myriad(*arguments: str, timeout: int = 240) -> subprocess.CompletedProcess[str]:
    """A verb against the lab's cluster."""
    return subprocess.run(
        [MYRIAD, *arguments], cwd=CLONE, env={**os.environ, "KUBECONFIG": str(LAB / "kubeconfig")},
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


def gate(node: str, *arguments: str) -> Json:
    """`myriad gate NODE --json`."""
    done = myriad("gate", node, "--json", *arguments)
    assert done.returncode in (0, 4), done.stdout + done.stderr
    report: Json = json.loads(done.stdout)
    assert done.returncode == (0 if report["ok"] else 4)
    return report


def wait(node: str, true: Callable[[Json], bool], timeout_s: float = 90) -> Json:
    """The gate's report as soon as it is so."""
    end = time.monotonic() + timeout_s
    while True:
        report = gate(node)
        if true(report):
            return report
        assert time.monotonic() < end, json.dumps(report, indent=1)
        time.sleep(1.0)


def failing(check: str) -> Callable[[Json], bool]:
    """Whether this check is the first that fails."""
    return lambda report: next((c["check"] for c in report["checks"] if not c["ok"]), "") == check


def is_open(report: Json) -> bool:
    """Whether the gate is open and nothing fails."""
    return bool(report["ok"])


def fault(node: str, kind: str, *arguments: str) -> None:
    """Switch a fault of a node's doubles."""
    done = myriad("lab", "fault", node, kind, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr


def node_of(lab: Lab, name: str) -> Json:
    """The Node."""
    body: Json = json.loads(lab.kubectl("get", "node", name, "-o", "json"))
    return body


def taints(lab: Lab, name: str) -> set[str]:
    """Keys of the Node's taints."""
    return {taint["key"] for taint in node_of(lab, name)["spec"].get("taints") or []}


def check_of(report: Json, name: str) -> Json:
    """One check of a report."""
    return next(c for c in report["checks"] if c["check"] == name)


FAULTS: dict[str, tuple[tuple[str, ...], str]] = {
    "fabric": (("fabric",), "fabric"),
    "ecc": (("ecc", "--gpu", "5"), "ecc"),
    "count": (("missing", "--gpu", "2"), "pci"),
    "nvml_mismatch": (("nvml_mismatch",), "versions"),
    "hang": (("hang",), "answers"),
    "xid": (("xid", "--gpu", "4", "--value", "119"), "xid"),
}
"""Name to the fault as it is switched, and the check that has to tell it."""


@pytest.fixture(scope="module")
def story(lab: Lab) -> Iterator[dict[str, Json]]:
    """One node through all faults: reports and taints by name; open again at the end."""
    told: dict[str, Json] = {"before": wait(SICK, is_open)}
    last: str | None = None
    try:
        for name, (arguments, check) in FAULTS.items():
            fault(SICK, *arguments)
            if last is not None:
                fault(SICK, FAULTS[last][0][0], "--clear")
            last = name
            told[name] = wait(SICK, lambda report, check=check: failing(check)(report) and report["taints"] != [])
            told[name]["text"] = myriad("gate", SICK).stdout
            if name == "fabric":
                told[name]["smi"] = {"text": lab.ssh(SICK, "nvidia-smi -L")}
    finally:
        if last is not None:
            fault(SICK, FAULTS[last][0][0], "--clear")
    told["cleared"] = wait(SICK, failing("xid"))
    told["run"] = gate(SICK, "--run")
    told["after"] = wait(SICK, is_open)
    yield told


def test_t11_a_fabric_in_progress_closes_the_gate_while_nvidia_smi_is_fine(story: dict[str, Json]) -> None:
    report = story["fabric"]
    assert report["gate"] == "closed" and report["taints"] == [UNHEALTHY]
    assert report["cause"].startswith("the NVLink fabric is in-progress, although nvidia-smi answers")
    assert "nvidia-fabricmanager" in report["next"]
    assert report["smi"]["text"].count("NVIDIA H100") == 8
    assert {check_of(report, name)["ok"] for name in ("pci", "versions", "answers", "driver")} == {True}


@pytest.mark.parametrize(
    ("name", "taint", "cause", "step"),
    [
        ("ecc", UNHEALTHY, "GPU 5: 2 uncorrected memory errors since the driver was loaded", "--gpu-reset -i 5"),
        ("count", GATE, "7 of 8 GPUs are on the PCI bus", "lspci"),
        ("nvml_mismatch", GATE, "the running module is 580.126.20, the library is 580.142", "reboot"),
        ("hang", UNHEALTHY, "does not answer within", "reboot"),
        (
            "xid",
            UNHEALTHY,
            "GPU 4: Xid 119: the GPU's system processor (GSP) does not answer",
            "myriad gate gpu3 --run",
        ),
    ],
)
def test_t05_b1_d8_each_fault_is_told_with_its_cause_and_the_next_command(
    story: dict[str, Json], name: str, taint: str, cause: str, step: str
) -> None:
    report = story[name]
    assert report["gate"] == "closed" and taint in report["taints"]
    assert cause in report["cause"] and step in report["next"]
    assert cause in " ".join(report["text"].split()) and "next: " in report["text"]


def test_the_gate_opens_when_the_faults_are_gone_and_a_container_has_opened_every_gpu(
    lab: Lab, story: dict[str, Json]
) -> None:
    assert story["before"]["ok"] and check_of(story["before"], "devices")["ok"]
    assert story["cleared"]["cause"].startswith("GPU 4: Xid 119"), "an error report stays until somebody dealt with it"
    assert check_of(story["after"], "devices")["found"] == 8
    assert check_of(story["after"], "xid")["ok"]
    assert not taints(lab, SICK) & {GATE, UNHEALTHY}
    pods = lab.kubectl(
        "get", "pods", "-n", "myriad-system", "-l", "app.kubernetes.io/name=myriad-gate-probe", "-o", "name"
    )
    assert pods.strip() == "", "the probe leaves no pod behind"


DOUBLE = "/usr/local/lib/myriad-lab"
DEAD_MAJOR = f"PYTHONPATH={DOUBLE}/double python3 -c 'from myriad.lab.double import node; print(node.dead_major())'"
# containerd keeps the device numbers of a CDI specification until the file is written anew, as a driver's reload does.
READ_AGAIN = "cp /etc/cdi/nvidia.yaml /etc/cdi/.new && mv /etc/cdi/.new /etc/cdi/nvidia.yaml && sleep 1"
DEAD_NODE = f"rm /dev/nvidia3 && mknod -m 666 /dev/nvidia3 c $({DEAD_MAJOR}) 3 && {READ_AGAIN}"
"""A device file that nobody serves, made behind the back of driver and device plugin: only a container notices."""


def test_a_device_file_that_does_not_open_in_a_container_closes_the_gate(lab: Lab, story: dict[str, Json]) -> None:
    assert story["after"]["ok"]
    lab.ssh(SICK, DEAD_NODE)
    try:
        report = gate(SICK, "--run")
        assert report["gate"] == "closed" and report["taints"] == [GATE]
        assert check_of(report, "devices")["found"] == 7
        assert "nvidia3: ENXIO: No such device or address" in report["cause"]
    finally:
        lab.ssh(SICK, f"rm -f /dev/nvidia3; {DOUBLE}/gpu-double apply && {READ_AGAIN}")
    assert gate(SICK, "--run")["ok"]


def test_d1_a_foreign_taint_and_a_cordon_are_left_alone(lab: Lab) -> None:
    lab.kubectl("taint", "node", OTHER, "example.com/burn-in=alice:NoSchedule")
    lab.kubectl("cordon", OTHER)
    try:
        report = gate(OTHER, "--run")
        assert report["ok"] and report["cordoned"]
        assert "example.com/burn-in" in {taint["key"] for taint in report["foreign_taints"]}
        assert "example.com/burn-in" in taints(lab, OTHER)
        assert node_of(lab, OTHER)["spec"]["unschedulable"] is True
    finally:
        lab.kubectl("uncordon", OTHER)
        lab.kubectl("taint", "node", OTHER, "example.com/burn-in-")


def test_l2_a_second_node_at_once_is_held_by_the_brake_until_it_is_let_go(lab: Lab, story: dict[str, Json]) -> None:
    assert story["after"]["ok"]
    fault(SICK, "ecc", "--gpu", "1")
    try:
        wait(SICK, lambda report: report["gate"] == "closed")
        fault(OTHER, "ecc", "--gpu", "1")
        held = wait(OTHER, lambda report: bool(report["held"]))
        assert held["gate"] == "open" and held["taints"] == []
        assert held["cause"].startswith("the brake is on: 1 of 3 nodes of pool h100 closed within 10 minutes")
        assert held["next"] == "myriad gate --release h100"
        status = myriad("status")
        assert status.returncode == 4 and "the brake is on: 1 of 3 nodes of pool h100" in " ".join(
            status.stdout.split()
        )
        events = json.loads(lab.kubectl("get", "events", "-A", "--field-selector", "reason=GateBrake", "-o", "json"))
        assert [event["involvedObject"]["name"] for event in events["items"]][-1:] == [OTHER]
        released = myriad("gate", "--release", "h100")
        assert released.returncode == 0 and "let go" in released.stdout
        assert wait(OTHER, lambda report: report["gate"] == "closed")["taints"] == [UNHEALTHY]
    finally:
        for node in (SICK, OTHER):
            fault(node, "ecc", "--clear")
    wait(SICK, is_open)
    wait(OTHER, is_open)


def test_a_node_that_was_deleted_and_joins_again_gets_labels_taint_and_gate_without_a_site_run(lab: Lab) -> None:
    before = node_of(lab, OTHER)
    wanted = {k: v for k, v in before["metadata"]["labels"].items() if k.startswith("myriad.dev/")}
    assert wanted["myriad.dev/rack"] == "hall1.b1.r1" and "myriad.dev/gpu-count" in wanted
    lab.kubectl("delete", "node", OTHER)
    lab.ssh(OTHER, "systemctl restart kubelet")
    seen: list[set[str]] = []
    end = time.monotonic() + 60
    while not seen and time.monotonic() < end:
        if lab.kubectl("get", "node", OTHER, "--ignore-not-found", "-o", "name").strip():
            seen.append(taints(lab, OTHER))
    assert GATE in seen[0], "it comes back with the taint, not without"
    report = wait(OTHER, is_open, 120)
    after = node_of(lab, OTHER)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert {k: v for k, v in after["metadata"]["labels"].items() if k.startswith("myriad.dev/")} == wanted
    assert GATE not in taints(lab, OTHER)
    assert check_of(report, "devices")["ok"]


def test_t13_d7_a_restarted_node_is_proven_anew_unattended(lab: Lab) -> None:
    record = json.loads(node_of(lab, OTHER)["metadata"]["annotations"]["myriad.dev/gate"])
    subprocess.run(["docker", "restart", "-t", "5", lab.container(OTHER)], check=True, capture_output=True, timeout=60)

    def proven(report: Json) -> bool:
        now = json.loads(node_of(lab, OTHER)["metadata"]["annotations"]["myriad.dev/gate"])
        return bool(report["ok"]) and now["boot"] != record["boot"]

    report = wait(OTHER, proven, 150)
    assert check_of(report, "devices")["ok"] and check_of(report, "allocatable")["found"] == 8
