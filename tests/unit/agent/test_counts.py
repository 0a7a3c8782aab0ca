"""The gate: what opens it, what closes it, and that nothing of anybody else's is touched."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from myriad.agent.counts import GATE_TAINT, Gpu, Measurement, changes, judge, report

RESOURCE = "nvidia.com/gpu"
DRIVER = "580.126.20"


def gpus(n: int, driver: str = DRIVER) -> tuple[Gpu, ...]:
    return tuple(Gpu(str(i), f"GPU-{i}", "NVIDIA H100 80GB HBM3", driver) for i in range(n))


GOOD = Measurement(gpus=gpus(8), pci=8)


def node(*, expected: str | None = "8", capacity: str = "8", allocatable: str = "8", **more: Any) -> Any:
    labels = {} if expected is None else {"myriad.dev/gpu-expected": expected}
    taints = more.pop("taints", [{"key": GATE_TAINT, "effect": "NoSchedule"}])
    return {
        "metadata": {"name": "n0", "resourceVersion": "7", "labels": labels, **more},
        "spec": {"taints": taints} if taints else {},
        "status": {"capacity": {RESOURCE: capacity}, "allocatable": {RESOURCE: allocatable}},
    }


def apply(body: Any, operations: list[Any]) -> Any:
    """What the API server would make of the operations."""
    body = json.loads(json.dumps(body))
    for op in operations:
        *path, last = [p.replace("~1", "/").replace("~0", "~") for p in op["path"].split("/")[1:]]
        place = body
        for part in path:
            place = place[part]
        if op["op"] == "test":
            assert place[last] == op["value"]
        else:
            place[last] = op["value"]
    return body


def test_it_opens_where_all_agree() -> None:
    verdict = judge(node(), GOOD, resource=RESOURCE)
    assert verdict.open and verdict.cause == ""
    after = apply(node(), changes(node(), verdict, GOOD))
    assert after["spec"]["taints"] == []
    assert after["metadata"]["labels"]["myriad.dev/gpu-count"] == "8"
    assert after["metadata"]["labels"]["myriad.dev/gpu-driver"] == DRIVER
    assert json.loads(after["metadata"]["annotations"]["myriad.dev/gate"])["open"] is True


@pytest.mark.parametrize(
    ("body", "measured", "cause"),
    [
        (node(), replace(GOOD, pci=7), "7 of 8 GPUs are on the PCI bus"),
        (node(), replace(GOOD, gpus=gpus(7)), "7 of 8 GPUs are seen by the driver"),
        (node(), replace(GOOD, gpus=None, gpus_fault="nvidia-smi ended with 9: x"), "nvidia-smi ended with 9: x"),
        (node(), replace(GOOD, pci=None, pci_fault="the PCI bus cannot be read"), "the PCI bus cannot be read"),
        (node(capacity="0"), GOOD, "0 of 8 GPUs are known to the kubelet"),
        (node(allocatable="6"), GOOD, "6 of 8 GPUs are allocatable"),
        (node(), replace(GOOD, gpus=gpus(9), pci=9), "9 of 8 GPUs are on the PCI bus"),
        (node(expected=None), GOOD, "the label myriad.dev/gpu-expected is missing"),
        (node(expected="many"), GOOD, 'the label myriad.dev/gpu-expected is "many", which is no number'),
        (
            node(),
            replace(GOOD, gpus=(*gpus(7), *gpus(1, "580.142.09"))),
            "GPUs report different driver versions: 580.126.20, 580.142.09",
        ),
    ],
)
def test_it_closes_with_the_first_cause(body: Any, measured: Measurement, cause: str) -> None:
    verdict = judge(body, measured, resource=RESOURCE)
    assert not verdict.open and verdict.cause == cause
    open_body = {**body, "spec": {}}
    after = apply(open_body, changes(open_body, verdict, measured))
    assert after["spec"]["taints"] == [{"key": GATE_TAINT, "effect": "NoSchedule"}]
    failed = [c for c in json.loads(after["metadata"]["annotations"]["myriad.dev/gate"])["checks"] if not c["ok"]]
    assert failed[0]["cause"] == cause


@pytest.mark.parametrize("measured", [GOOD, replace(GOOD, pci=7)])
def test_the_second_look_writes_nothing(measured: Measurement) -> None:
    verdict = judge(node(), measured, resource=RESOURCE)
    after = apply(node(), changes(node(), verdict, measured))
    assert changes(after, judge(after, measured, resource=RESOURCE), measured) == []


def test_other_taints_labels_and_annotations_stay() -> None:
    foreign = [
        {"key": "x", "effect": "NoExecute", "timeAdded": "t"},
        {"key": "myriad.dev/reserved", "effect": "NoSchedule"},
    ]
    body = node(taints=[foreign[0], {"key": GATE_TAINT, "effect": "NoSchedule"}, foreign[1]], annotations={"a": "b"})
    after = apply(body, changes(body, judge(body, GOOD, resource=RESOURCE), GOOD))
    assert after["spec"]["taints"] == foreign and after["metadata"]["annotations"]["a"] == "b"
    bad = replace(GOOD, pci=0)
    closed = apply(after, changes(after, judge(after, bad, resource=RESOURCE), bad))
    assert closed["spec"]["taints"] == [*foreign, {"key": GATE_TAINT, "effect": "NoSchedule"}]


def test_a_gate_that_is_closed_stays_as_it_was_set() -> None:
    """Set with a value or another effect, by the role or by hand: closed is closed."""
    taints = [{"key": GATE_TAINT, "value": "maintenance", "effect": "NoExecute"}]
    bad = replace(GOOD, pci=0)
    operations = changes(node(taints=taints), judge(node(taints=taints), bad, resource=RESOURCE), bad)
    assert not [op for op in operations if op["path"] == "/spec/taints"]


def test_every_change_is_made_on_what_was_read() -> None:
    operations = changes(node(), judge(node(), GOOD, resource=RESOURCE), GOOD)
    assert operations[0] == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}


def test_what_could_not_be_measured_leaves_the_labels() -> None:
    body = node()
    body["metadata"]["labels"]["myriad.dev/gpu-count"] = "8"
    hung = replace(GOOD, gpus=None, gpus_fault="the driver hangs")
    after = apply(body, changes(body, judge(body, hung, resource=RESOURCE), hung))
    assert after["metadata"]["labels"]["myriad.dev/gpu-count"] == "8"


def test_the_report_is_short_and_stable() -> None:
    verdict = judge(node(), GOOD, resource=RESOURCE)
    assert report(verdict) == report(judge(node(), GOOD, resource=RESOURCE)) and len(report(verdict)) < 500
