"""`myriad gate`: the table of checks, all gates at once, a run on demand, and the brake let go."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from myriad.agent.brake import BRAKE_LABEL, CONFIG_MAPS, NAMESPACE
from myriad.agent.gate import Check
from myriad.agent.probe import ProbeResult
from myriad.agent.report import GATE_ANNOTATION, RUN_ANNOTATION, Record
from myriad.cli import build_app
from myriad.cli import gate as verb
from myriad.errors import InputError, MyriadError
from myriad.kube.client import ApiError
from myriad.kube.kinds import LEASES, NODES, Resource

Json = dict[str, Any]

GATE = {"key": "myriad.dev/gpu-not-ready", "effect": "NoSchedule"}
PCI_GOOD = Check("pci", 8, 8, True)
ECC = Check("ecc", 0, 1, False, "GPU 5: 2 uncorrected memory errors", "drain gpu3 and reset the GPU")
FOLLOWS = Check("allocatable", 8, 7, False, "7 of 8 GPUs are allocatable", "kubectl get pods", "ecc")
SICK = (PCI_GOOD, ECC, FOLLOWS)
HELD = (
    "the brake is on: 1 of 3 nodes of pool h100 closed within 10 minutes, and gpu2 would be one more (x); let go with: "
    "myriad gate --release h100"
)


def node(name: str, record: Record | None = None, *, taints: list[Json] | None = None, **spec: Any) -> Json:
    labels = {
        "myriad.dev/pool": "h100", "myriad.dev/gpu-expected": "8", "myriad.dev/room": "hall1",
        "myriad.dev/block": "hall1.b1", "myriad.dev/rack": "hall1.b1.r2", "myriad.dev/gpu-driver": "580.126.20",
    }  # fmt: skip
    annotations = {GATE_ANNOTATION: record.text()} if record else {}
    return {
        "metadata": {"name": name, "labels": labels, "annotations": annotations, "resourceVersion": "1"},
        "spec": {"taints": taints or [], **spec},
    }


def lease(name: str, age_s: float = 3) -> Json:
    at = datetime.fromtimestamp(datetime.now(UTC).timestamp() - age_s, UTC)
    return {
        "metadata": {"name": f"myriad-agent-{name}"},
        "spec": {"renewTime": at.isoformat(), "leaseDurationSeconds": 40},
    }


class Cluster:
    """Objects by kind and name."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Json] = {}
        self.calls: list[tuple[str, str]] = []
        self.agent: Callable[[Json], None] = lambda body: None
        self.forbidden: set[str] = set()

    def put(self, resource: Resource, body: Json) -> None:
        self.objects[resource.plural, body["metadata"]["name"]] = body

    def find(self, resource: Resource, name: str, *, namespace: str | None = None) -> Json | None:
        self.calls.append(("get", resource.plural))
        return self.objects.get((resource.plural, name))

    def get(self, resource: Resource, name: str) -> Json:
        found = self.objects[resource.plural, name]
        self.agent(found)
        return found

    def list(self, resource: Resource, **_: Any) -> tuple[list[Json], str]:
        self.calls.append(("list", resource.plural))
        if resource.plural in self.forbidden:
            raise ApiError(403, "Forbidden", "x", where="test")
        return [body for (plural, _name), body in self.objects.items() if plural == resource.plural], ""

    def patch(self, resource: Resource, name: str, body: Json, **_: Any) -> Json:
        found = self.objects[resource.plural, name]
        found["metadata"]["annotations"].update(body["metadata"]["annotations"])
        return found

    def replace(self, resource: Resource, name: str, body: Json, **_: Any) -> Json:
        self.put(resource, body)
        return body


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = Cluster()
    monkeypatch.setattr(verb.cluster, "reach", lambda kubeconfig: found)
    monkeypatch.setattr(verb.time, "sleep", lambda s: None)
    return found


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build_app("gate"), ["gate", *arguments])


def test_a_closed_gate_shows_each_check_with_cause_and_next_command(cluster: Cluster) -> None:
    record = Record(checks=SICK, since="2026-11-29T21:14:00Z", boot="b")
    others = [{"key": "example.com/burn-in", "value": "alice", "effect": "NoExecute"}]
    cluster.put(NODES, node("gpu3", record, taints=[GATE, *others], unschedulable=True))
    cluster.put(LEASES, lease("gpu3"))
    done = run("gpu3")
    assert done.exit_code == 4
    lines = [" ".join(line.split()) for line in done.output.splitlines()]
    assert lines == [
        "gpu3 hall1/b1/r2 pool h100 gate closed since 2026-11-29T21:14:00Z",
        "check expected found",
        "pci 8 8 ok",
        "ecc 0 1 GPU 5: 2 uncorrected memory errors",
        "next: drain gpu3 and reset the GPU",
        "allocatable 8 7 follows from ecc",
        "cordoned by somebody else: kubectl uncordon gpu3",
        "tainted by somebody else: example.com/burn-in=alice:NoExecute",
    ]


def test_the_document_of_a_node(cluster: Cluster) -> None:
    cluster.put(NODES, node("gpu3", Record(checks=SICK, boot="b"), taints=[GATE]))
    cluster.put(LEASES, lease("gpu3"))
    document = json.loads(run("gpu3", "--json").output)
    assert {key: document[key] for key in ("gate", "ok", "cause", "next", "taints", "agent")} == {
        "gate": "closed", "ok": False, "cause": ECC.cause, "next": ECC.next, "taints": ["myriad.dev/gpu-not-ready"],
        "agent": "heard of",
    }  # fmt: skip
    assert document["checks"][1] == {
        "check": "ecc", "expected": 0, "found": 1, "ok": False, "cause": ECC.cause, "next": ECC.next, "follows": None
    }  # fmt: skip
    assert document["checks"][2]["follows"] == "ecc"


def test_an_open_gate_ends_with_0(cluster: Cluster) -> None:
    cluster.put(NODES, node("gpu3", Record(open=True, checks=(PCI_GOOD,), boot="b")))
    cluster.put(LEASES, lease("gpu3"))
    done = run("gpu3")
    assert done.exit_code == 0 and "gate open" in done.output


@pytest.mark.parametrize(
    ("body", "age_s", "cause", "step"),
    [
        (node("gpu3", taints=[GATE]), 0, "the node agent has not judged it yet", "kubectl logs"),
        (node("gpu3", Record(open=True, checks=(PCI_GOOD,)), taints=[GATE]), 0, "about to take", "kubectl"),
        (
            node("gpu3", Record(checks=SICK), taints=[GATE]), 300,
            "s (stale after 120 s): nobody can open the gate",
            "kubectl get pods -n myriad-system -o wide | grep gpu3",
        ),
        (
            node("gpu3", Record(open=True, checks=SICK, held=HELD)), 0, "the brake is on: 1 of 3",
            "myriad gate --release h100",
        ),
        (
            node("gpu3", Record(open=True, checks=SICK, held="the brake cannot be asked: x")), 0,
            "the brake cannot be asked: x", "kubectl logs",
        ),
    ],
)  # fmt: skip
def test_what_stands_between_the_checks_and_the_taint_is_said(
    cluster: Cluster, body: Json, age_s: float, cause: str, step: str
) -> None:
    cluster.put(NODES, body)
    # Made here: a Lease that was made when tests were collected may be stale by now.
    cluster.put(LEASES, lease("gpu3", age_s))
    done = run("gpu3", "--json")
    document = json.loads(done.output)
    assert done.exit_code == 4
    assert cause in document["cause"] and document["next"].startswith(step)
    assert cause in " ".join(run("gpu3").output.split())


def test_an_unknown_node_is_wrong_input(cluster: Cluster) -> None:
    cluster.put(NODES, node("gpu3"))
    failed = run("gpu33")
    assert isinstance(failed.exception, InputError)
    assert str(failed.exception) == 'there is no node "gpu33"; did you mean "gpu3"?'
    assert isinstance(run("--run").exception, InputError)


# All nodes


def test_all_gates_in_one_call_with_the_closed_ones_and_the_brake(cluster: Cluster) -> None:
    cluster.put(NODES, node("gpu1", Record(open=True, checks=(PCI_GOOD,))))
    cluster.put(NODES, node("gpu2", Record(open=True, checks=SICK, held=HELD, since="2026-11-29T21:15:00Z")))
    cluster.put(NODES, node("gpu3", Record(checks=SICK, since="2026-11-29T21:14:00Z"), taints=[GATE]))
    at = datetime.now(UTC).isoformat()
    trip = {"at": at, "seen": at, "closed": 1, "cap": 1, "nodes": 3, "node": "gpu2", "cause": "x"}
    state = json.dumps({"trips": {"pool h100": trip}})
    labels = {BRAKE_LABEL: "h100"}
    cluster.put(CONFIG_MAPS, {"metadata": {"name": "myriad-brake-h100", "labels": labels}, "data": {"state": state}})
    done = run()
    assert done.exit_code == 4
    assert cluster.calls == [("list", "nodes"), ("list", "configmaps")]
    text = " ".join(done.output.split())
    assert "gpu1" not in text
    assert "gpu3 h100 closed 2026-11-29T21:14:00Z GPU 5: 2 uncorrected memory errors" in text
    assert "gpu2 h100 held open" in text
    assert "2 of 3 gates are open, 1 of them held open by the brake; failing: ecc 2" in text
    assert "pool h100, since" in text and "suspect what they share" in text
    document = json.loads(run("--json").output)
    assert (document["open"], document["closed"], document["held_open"]) == (2, 1, 1)
    assert document["brake"][0]["scope"] == "pool h100"
    assert "gpu1" in run("--all").output


def test_all_open_ends_with_0_also_where_the_brake_may_not_be_seen(cluster: Cluster) -> None:
    cluster.put(NODES, node("gpu1", Record(open=True, checks=(PCI_GOOD,))))
    cluster.forbidden = {"configmaps"}
    done = run()
    assert (done.exit_code, done.output) == (0, "1 of 1 gates are open\n")
    cluster.forbidden = {"nodes"}
    assert isinstance(run().exception, ApiError)


def test_5000_nodes_are_one_list() -> None:
    sick = Record(checks=SICK, since="2026-11-29T21:14:00Z")
    nodes = [node(f"g{n:04}", sick if n % 50 == 0 else Record(open=True, checks=(PCI_GOOD,) * 14),
                  taints=[GATE] if n % 50 == 0 else []) for n in range(5000)]  # fmt: skip
    report = verb.summary(nodes, [])
    assert (report["nodes_total"], report["open"], report["closed"]) == (5000, 4900, 100)
    assert report["by_check"] == {"ecc": 100}


# On demand, and the brake


def test_on_demand_it_waits_until_the_agent_has_judged_and_a_container_has_looked(cluster: Cluster) -> None:
    cluster.put(NODES, node("gpu3", Record(open=True, checks=(PCI_GOOD,), boot="b")))
    cluster.put(LEASES, lease("gpu3"))
    steps = iter([ProbeResult(8, done=False), ProbeResult(8, done=False), ProbeResult(8, 8)])

    def agent(body: Json) -> None:
        wanted = body["metadata"]["annotations"][RUN_ANNOTATION]
        probe = next(steps)
        check = Check("devices", 8, 8 if probe.done else "probing", probe.done, "" if probe.done else "x")
        record = Record(open=probe.done, checks=(PCI_GOOD, check), boot="b", run=wanted, probe=probe)
        body["metadata"]["annotations"][GATE_ANNOTATION] = record.text()

    cluster.agent = agent
    done = run("gpu3", "--run", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["checks"][1]["found"] == 8
    assert next(steps, None) is None


def test_an_agent_that_does_not_answer_is_an_error_with_the_next_step(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.put(NODES, node("gpu3", Record(open=True, checks=(PCI_GOOD,), boot="b")))
    monkeypatch.setattr(verb, "_RUN_TIMEOUT_S", -1.0)
    failed = run("gpu3", "--run").exception
    assert isinstance(failed, MyriadError)
    assert "its agent did not judge it within" in failed.message
    assert "spec.nodeName=gpu3" in (failed.hint or "")


def test_the_brake_is_let_go_and_what_it_held_is_said(cluster: Cluster) -> None:
    at = datetime.now(UTC).isoformat()
    trip = {"at": at, "seen": at, "closed": 1, "cap": 1, "nodes": 3, "node": "gpu2", "cause": "x"}
    state = json.dumps({"claims": {"gpu1": [at, "b", "r"]}, "trips": {"pool h100": trip}})
    metadata = {"name": "myriad-brake-h100", "namespace": NAMESPACE, "labels": {BRAKE_LABEL: "h100"}}
    cluster.put(CONFIG_MAPS, {"metadata": {**metadata, "resourceVersion": "1"}, "data": {"state": state}})
    done = run("--release", "h100")
    assert done.exit_code == 0
    assert done.output.startswith("brake of pool h100 let go (it held pool h100); nodes whose faults are still there")
    after = json.loads(cluster.objects["configmaps", "myriad-brake-h100"]["data"]["state"])
    assert (after["claims"], after["trips"]) == ({}, {}) and after["released"]
    cluster.objects["configmaps", "myriad-brake-h100"]["metadata"]["resourceVersion"] = "2"
    assert json.loads(run("--release", "h100", "--json").output) == {
        "pool": "h100",
        "released": [],
        "closed_before": [],
    }
    failed = run("--release", "h10").exception
    assert isinstance(failed, InputError) and str(failed).startswith('the brake of pool "h10" never closed')


def test_a_line_of_status_names_the_cause_and_the_verb_that_shows_the_rest() -> None:
    from myriad.cli.status import trouble

    line: Json = {
        "node": "gpu3", "takes_work": False, "ready": True, "cordoned": False, "gate": "closed",
        "gate_reason": ECC.cause, "allocatable_gpus": 0,
    }  # fmt: skip
    assert trouble(line) == "GPU 5: 2 uncorrected memory errors (myriad gate gpu3), no GPU allocatable"
    assert trouble({**line, "takes_work": True}) == ""
