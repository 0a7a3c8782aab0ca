"""site.yml on the running lab: a second run, predictions, drift of every kind, a lost worker, killed controllers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from .conftest import CLONE, Lab, PlaybookRun, environment

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1500)]

FULL = ("-e", "site_full=true")
#: Kinds of items that node_state records.
KINDS = ("files", "artifacts", "packages", "units", "settings", "images")
#: Prints what each role recorded on a node, one JSON document a line.
RECORDS = "for file in /var/lib/myriad/state/[a-z]*.json; do tr -d '\\n' < $file; echo; done"


def drift(host: str) -> list[dict[str, Any]]:
    """What differs on a node from what the roles recorded, item by item.

    The inputs of the run differ for a module that is called by hand, outside the playbook, and are left out.
    """
    program = str(Path(sys.executable).with_name("ansible"))
    done = subprocess.run(
        [program, host, "-i", "inventories/lab", "-m", "myriad.gpu.node_state", "-a", "state=check full=true"],
        cwd=CLONE, env=environment(ANSIBLE_STDOUT_CALLBACK="ansible.builtin.minimal"),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert " => {" in done.stdout, done.stdout + done.stderr
    found = json.loads(done.stdout[done.stdout.index("=> {") + 3 :])["drift"]
    return [entry for entry in found if entry["kind"] != "inputs"]


def service_starts(lab: Lab) -> dict[str, str]:
    """When each of Myriad's services was started, on every node."""
    units = "containerd kubelet myriad-registry myriad-routes"
    return {
        host: lab.ssh(host, f"systemctl show -p Id,ActiveEnterTimestampMonotonic,MainPID {units}") for host in lab.hosts
    }


def test_t16_a_second_full_run_changes_nothing_and_restarts_nothing(lab: Lab, playbook: PlaybookRun) -> None:
    before = service_starts(lab)
    run = playbook("site", *FULL)
    assert run.code == 0, run.output[-3000:]
    assert run.changed_tasks() == set()
    assert {row["host"] for row in run.results()} >= set(lab.hosts)
    assert service_starts(lab) == before


def test_a_converged_host_costs_one_look(lab: Lab, playbook: PlaybookRun) -> None:
    run = playbook("site")
    assert run.code == 0, run.output[-3000:]
    assert run.changed_tasks() == set()
    plays = {row["play"] for row in run.results() if row["host"].startswith("gpu")}
    assert plays == {"look"}, "a worker without drift is looked at and left alone"
    first = {row["play"] for row in run.results() if row["host"] == "cp1"}
    assert first == {"look", "look at the cluster"}, "and so is a cluster that nobody changed"


def test_t17_check_on_the_converged_site_predicts_nothing(playbook: PlaybookRun) -> None:
    run = playbook("site", "--check", "--diff", *FULL)
    assert run.code == 0, run.output[-3000:]
    assert run.changed_tasks() == set()


def test_every_kind_of_item_that_is_recorded_is_found_when_changed_by_hand(lab: Lab, playbook: PlaybookRun) -> None:
    """One change by hand of each kind on one node: found, named, and put right by the next run."""
    host = "gpu3"
    assert drift(host) == []
    recorded = [json.loads(text) for text in lab.ssh(host, RECORDS).splitlines()]
    kinds = {kind for record in recorded for kind in KINDS if record.get(kind)}
    assert kinds == set(KINDS)
    settings = {item["name"]: item["value"] for record in recorded for item in record.get("settings", ())}
    setting = "net.ipv4.ip_forward"
    assert setting in settings
    lab.ssh(host, "echo '# by hand' >> /etc/crictl.yaml")
    lab.ssh(host, "chmod 0600 /etc/security/limits.d/90-myriad.conf")
    lab.ssh(host, "cp /usr/local/bin/crictl /tmp/c && echo x >> /tmp/c && mv /tmp/c /usr/local/bin/crictl")
    lab.ssh(host, "DEBIAN_FRONTEND=noninteractive dpkg --force-depends --remove ethtool")
    lab.ssh(host, "systemctl stop myriad-routes && systemctl disable -q myriad-routes")
    lab.ssh(host, f"sysctl -w {setting}=0")
    image = next(
        tag for tag in lab.ssh(host, "crictl images | awk '{print $1 \":\" $2}'").split() if "gang-check" in tag
    )
    lab.ssh(host, f"crictl rmi {image}")
    by_kind = {(entry["kind"], entry["item"]) for entry in drift(host)}
    for kind, item in (
        ("file", "/etc/crictl.yaml"), ("file", "/etc/security/limits.d/90-myriad.conf"),
        ("artifact", "/usr/local/bin/crictl"), ("package", "ethtool"), ("unit", "myriad-routes.service"),
        ("setting", setting), ("image", image),
    ):  # fmt: skip
        assert any(k == kind and item in i for k, i in by_kind), f"{kind} {item} was missed: {sorted(by_kind)}"
    run = playbook("site")
    assert run.code == 0, run.output[-3000:]
    assert {row["host"] for row in run.results(changed=True)} == {host}
    assert drift(host) == []


def test_an_object_that_was_changed_by_hand_is_put_right(lab: Lab, playbook: PlaybookRun) -> None:
    quota = '[{"op":"replace","path":"/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota","value":"1"}]'
    lab.kubectl("patch", "clusterqueue", "vision-h100", "--type=json", "-p", quota)
    lab.kubectl("delete", "workloadpriorityclass", "scavenge")
    lab.kubectl("label", "node", "gpu2", "myriad.dev/rack=elsewhere", "--overwrite")
    # Labels of a node are the agent's to hold: they come back without a run.
    deadline = time.monotonic() + 60
    while _rack(lab, "gpu2") != "hall1.b1.r1":
        assert time.monotonic() < deadline, "the agent did not put the label right"
        time.sleep(0.5)
    check = playbook("site", "--check", "--diff")
    changed = {(role, task) for _host, role, task in check.changed_tasks()}
    assert {role.rpartition(".")[2] for role, _task in changed} == {"cluster_policy"}
    run = playbook("site")
    assert run.code == 0, run.output[-3000:]
    assert {(role, task) for _host, role, task in run.changed_tasks()} == changed
    lab.kubectl("get", "workloadpriorityclass", "scavenge")


def _rack(lab: Lab, host: str) -> str:
    return lab.kubectl("get", "node", host, "-o", "jsonpath={.metadata.labels.myriad\\.dev/rack}")


def _remake(lab: Lab, host: str) -> None:
    """The node as a bare machine again: its container is removed and made anew, its Node object deleted."""
    lab.kubectl("delete", "node", host, "--ignore-not-found", "--wait=false", check=False)
    subprocess.run(["docker", "rm", "-fv", lab.container(host)], check=True, capture_output=True)
    program = str(Path(sys.executable).with_name("myriad"))
    done = subprocess.run(
        [program, "lab", "up", "--nodes-only"], cwd=CLONE, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_t19_a_new_node_joins_alone_from_an_empty_cache_as_check_foretold(lab: Lab, playbook: PlaybookRun) -> None:
    """--limit gpu3 on a bare gpu3: predicted, joined, and no other host is touched."""
    _remake(lab, "gpu3")
    check = playbook("site", "--check", "--diff", "--limit", "gpu3")
    assert check.code == 0, check.output[-3000:]
    others = {host: lab.ssh(host, "cat /var/lib/myriad/state/_site.json") for host in ("cp1", "gpu1", "gpu2")}
    run = playbook("site", "--limit", "gpu3")
    assert run.code == 0, run.output[-3000:]
    predicted, real = check.changed_tasks(), run.changed_tasks()
    assert predicted - real == set(), "predicted, and then nothing changed"
    assert len(predicted & real) >= 0.9 * len(real), f"not foretold: {sorted(real - predicted)}"
    assert {host: lab.ssh(host, "cat /var/lib/myriad/state/_site.json") for host in others} == others
    _wait_for_gate(lab, "gpu3")


def _wait_for_gate(lab: Lab, host: str, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        node = json.loads(lab.kubectl("get", "node", host, "-o", "json", check=False) or "{}")
        taints = {taint["key"] for taint in node.get("spec", {}).get("taints") or []}
        if node and node["status"].get("allocatable", {}).get("nvidia.com/gpu") == "8" and not taints:
            return
        time.sleep(2)
    raise AssertionError(f"{host} does not take work after {timeout_s:.0f} s: {lab.kubectl('describe', 'node', host)}")


def test_a_worker_that_dies_during_the_run_is_named_and_does_not_hold_up_the_others(
    lab: Lab, playbook: PlaybookRun, tmp_path: Path
) -> None:
    _remake(lab, "gpu3")
    program = str(Path(sys.executable).with_name("myriad"))
    events = tmp_path / "events.jsonl"
    run = subprocess.Popen(
        [program, "site", "-i", "inventories/lab", "--full", "--json"], cwd=CLONE,
        env=environment(MYRIAD_EVENTS=str(events), KUBECONFIG=str(CLONE / ".lab" / "kubeconfig")),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    time.sleep(12)
    subprocess.run(["docker", "kill", lab.container("gpu3")], check=True, capture_output=True)
    output, errors = run.communicate(timeout=600)
    document = json.loads(output)
    assert run.returncode == 3, errors[-3000:]
    assert document["hosts"]["gpu3"]["unreachable"]
    assert all(not document["hosts"][host]["failures"] for host in ("cp1", "gpu1", "gpu2"))
    subprocess.run(["docker", "start", lab.container("gpu3")], check=True, capture_output=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and "yes" not in lab.ssh("gpu3", "echo yes", check=False):
        time.sleep(1)
    again = playbook("site")
    assert again.code == 0, again.output[-3000:]
    _wait_for_gate(lab, "gpu3")
