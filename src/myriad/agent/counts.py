"""The GPU gate: a node takes work while expected = PCI bus = driver = kubelet capacity = allocatable. Pure.

`judge` compares, `changes` says what has to be written to the Node for the verdict to stand there: own labels, one
annotation and one taint, and nothing of anybody else's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

EXPECTED_LABEL = "myriad.dev/gpu-expected"
COUNT_LABEL = "myriad.dev/gpu-count"
DRIVER_LABEL = "myriad.dev/gpu-driver"
GATE_ANNOTATION = "myriad.dev/gate"
GATE_TAINT = "myriad.dev/gpu-not-ready"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as the driver reports it."""

    index: str
    uuid: str
    name: str
    driver: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was found on the node itself.

    Attributes:
        gpus: the driver's list; None where it could not be asked.
        gpus_fault: why not, as a sentence.
        pci: GPUs on the PCI bus; None where the bus could not be read.
        pci_fault: why not.
    """

    gpus: tuple[Gpu, ...] | None
    pci: int | None
    gpus_fault: str = ""
    pci_fault: str = ""

    @property
    def driver(self) -> str:
        """The driver's version; empty where unknown."""
        return self.gpus[0].driver if self.gpus else ""


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison. `cause` says what is wrong and is empty when it is not."""

    check: str
    expected: int | None
    found: int | None
    ok: bool
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the gate is open, and why."""

    checks: tuple[Check, ...]

    @property
    def open(self) -> bool:
        """All agree."""
        return all(check.ok for check in self.checks)

    @property
    def cause(self) -> str:
        """The first thing that is wrong."""
        return next((check.cause for check in self.checks if not check.ok), "")


def judge(node: Json, measured: Measurement, *, resource: str) -> Verdict:
    """Compare what the description expects with the bus, the driver and the kubelet, in this order: the first that
    differs is the cause of those after it."""
    labels = node["metadata"].get("labels") or {}
    status = node.get("status") or {}
    text = labels.get(EXPECTED_LABEL)
    if text is None or not text.isdigit():
        cause = f"the label {EXPECTED_LABEL} is " + ("missing" if text is None else f'"{text}", which is no number')
        return Verdict((Check("expected", None, None, False, cause),))
    expected = int(text)
    return Verdict(
        (
            _compare("pci", expected, measured.pci, measured.pci_fault, "on the PCI bus"),
            _compare(
                "driver",
                expected,
                None if measured.gpus is None else len(measured.gpus),
                measured.gpus_fault,
                "seen by the driver",
            ),
            _one_driver(measured),
            _compare("capacity", expected, _amount(status.get("capacity"), resource), "", "known to the kubelet"),
            _compare("allocatable", expected, _amount(status.get("allocatable"), resource), "", "allocatable"),
        )
    )


def _compare(check: str, expected: int, found: int | None, fault: str, where: str) -> Check:
    if found is None:
        return Check(check, expected, None, False, fault or f"nothing is known of GPUs {where}")
    if found != expected:
        return Check(check, expected, found, False, f"{found} of {expected} GPUs are {where}")
    return Check(check, expected, found, True)


def _one_driver(measured: Measurement) -> Check:
    versions = sorted({gpu.driver for gpu in measured.gpus or ()})
    cause = "" if len(versions) < 2 else f"GPUs report different driver versions: {', '.join(versions)}"
    return Check("driver-version", None, None, not cause, cause)


def _amount(amounts: Mapping[str, str] | None, resource: str) -> int:
    text = str((amounts or {}).get(resource, "0"))
    return int(text) if text.isdigit() else 0


def report(verdict: Verdict) -> str:
    """The annotation's value: the same verdict always reads the same, so it is written on change only."""
    checks = []
    for check in verdict.checks:
        entry: Json = {"check": check.check, "ok": check.ok}
        if check.expected is not None:
            entry["expected"] = check.expected
            entry["found"] = check.found
        if check.cause:
            entry["cause"] = check.cause
        checks.append(entry)
    return json.dumps({"open": verdict.open, "checks": checks}, separators=(",", ":"))


def changes(node: Json, verdict: Verdict, measured: Measurement) -> list[Json]:
    """JSON patch operations that make the Node say what is true; empty where it does.

    The first operation tests the resourceVersion: taints are a list without names, and replacing it must not undo
    somebody else's change.
    """
    metadata = node["metadata"]
    operations: list[Json] = []
    labels: dict[str, str] = {}
    if measured.gpus is not None:
        labels[COUNT_LABEL] = str(len(measured.gpus))
        if measured.driver:
            labels[DRIVER_LABEL] = measured.driver
    operations += _map_changes("labels", metadata.get("labels"), labels)
    operations += _map_changes("annotations", metadata.get("annotations"), {GATE_ANNOTATION: report(verdict)})
    taints = (node.get("spec") or {}).get("taints")
    wanted = [t for t in taints or [] if t["key"] != GATE_TAINT]
    if not verdict.open:
        mine = next((t for t in taints or [] if t["key"] == GATE_TAINT), None)
        wanted = list(taints or []) if mine else [*wanted, {"key": GATE_TAINT, "effect": "NoSchedule"}]
    if wanted != (taints or []):
        operations.append({"op": "add", "path": "/spec/taints", "value": wanted})
    if not operations:
        return []
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}, *operations]


def _map_changes(field: str, current: Mapping[str, str] | None, wanted: Mapping[str, str]) -> list[Json]:
    if current is None:
        return [{"op": "add", "path": f"/metadata/{field}", "value": dict(wanted)}] if wanted else []
    return [
        {"op": "add", "path": f"/metadata/{field}/{key.replace('~', '~0').replace('/', '~1')}", "value": value}
        for key, value in wanted.items()
        if current.get(key) != value
    ]
