"""Layouts on a node: the module's logic against the double of nvidia-smi, which does what the driver does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from myriad.lab.double import mig as double
from myriad.lab.double import nvidia_smi
from myriad.lab.double.document import set_fault
from myriad.lab.gpus import gpu_document

SEVEN = ["1g.10gb"] * 7
HALVES = ["3g.40gb", "3g.40gb"]


class Node:
    """A node of two GPUs: its document, its nvidia-smi (answered in this process), somebody who may hold the GPUs."""

    def __init__(self, mig: ModuleType, model: str) -> None:
        self.mig, self.busy = mig, False
        self.document = gpu_document("n1", model, 2)
        self.calls: list[str] = []
        self.driver = mig.Driver()
        self.driver.smi = self.smi

    def smi(self, *arguments: str) -> tuple[int, str]:
        self.calls.append(" ".join(arguments))
        try:
            text, self.document = nvidia_smi.run(list(arguments), self.document, busy=self.busy)
        except nvidia_smi.Failure as failure:
            self.document = failure.document or self.document
            return failure.code, failure.text.strip()
        return 0, text.strip()

    def write(self, document: dict[str, Any]) -> None:
        self.document = document

    def fault(self, kind: str, **options: Any) -> None:
        self.write(set_fault(self.document, kind, **options))

    def apply(self, wanted: dict[int, list[str]], guard: Callable[[], None] | None = None) -> list[int]:
        clients = self.mig.Clients([], [], [], 5)
        changed: list[int] = self.mig.apply(self.driver, wanted, clients, guard=guard)
        return changed

    def found(self) -> dict[int, str]:
        return {index: gpu.text for index, gpu in self.driver.read().items()}


@pytest.fixture
def mig(plugin: Callable[[str], ModuleType]) -> ModuleType:
    return plugin("module_utils.mig")


@pytest.fixture
def a100(mig: ModuleType) -> Node:
    return Node(mig, "A100-SXM4-80GB")


@pytest.fixture
def h100(mig: ModuleType) -> Node:
    return Node(mig, "H100-SXM5-80GB")


def test_a_layout_is_made_once_and_read_back(a100: Node) -> None:
    wanted = {0: SEVEN, 1: HALVES}
    assert a100.apply(wanted) == [0, 1]
    assert a100.found() == {0: "7 x 1g.10gb", 1: "2 x 3g.40gb"}
    assert a100.mig.check(a100.driver, wanted) == []
    before = a100.document
    assert a100.apply(wanted) == [] and a100.document == before, "the second time nothing happens"


def test_slices_become_a_whole_card_again(a100: Node) -> None:
    a100.apply({0: SEVEN, 1: HALVES})
    assert a100.apply({0: [], 1: ["7g.80gb"]}) == [0, 1]
    assert a100.found() == {0: "whole", 1: "1 x 7g.80gb"}


def test_i4_a_layout_that_somebody_changed_is_found_and_made_right(a100: Node) -> None:
    a100.apply({0: SEVEN, 1: []})
    document, _ = double.destroy(a100.document, a100.document["gpus"][0], busy=False, compute_only=True, only={7})
    a100.write(double.destroy(document, document["gpus"][0], busy=False, compute_only=False, only={7})[0])
    assert a100.mig.check(a100.driver, {0: SEVEN, 1: []}) == ["GPU 0: 6 x 1g.10gb; the layout is 7 x 1g.10gb"]
    assert a100.apply({0: SEVEN, 1: []}) == [0]
    assert a100.found()[0] == "7 x 1g.10gb"


def test_i5_the_plan_names_what_is_reset_what_is_not_and_whose_pods_end(a100: Node) -> None:
    plan = a100.mig.plan({0: SEVEN, 1: []}, a100.driver.read(), ["web/chat (1 nvidia.com/gpu)"])
    assert (plan["change"], plan["reset"], plan["untouched"]) == ([0], [0], [1])
    assert plan["lines"] == [
        "GPU 0: whole -> 7 x 1g.10gb; it is reset, and everything on it ends",
        "GPU 1: not touched, not reset",
        "the whole node: kubelet and GPU clients stop for the change; pods that hold GPUs: web/chat (1 nvidia.com/gpu)",
    ]
    a100.apply({0: SEVEN})
    again = a100.mig.plan({0: HALVES}, a100.driver.read())
    assert (again["reset"], again["recut"]) == ([], [0]), "new slices in the same mode reset nothing"
    assert "its slices are made anew" in again["lines"][0]


def test_i5_from_hopper_on_a_mode_resets_nothing(h100: Node) -> None:
    plan = h100.mig.plan({0: SEVEN}, h100.driver.read())
    assert plan["reset"] == [] and "no reset is needed from Hopper on" in plan["lines"][0]


def test_i2_t26_a_pending_mode_is_never_success(a100: Node) -> None:
    a100.fault("mig_pending")
    with pytest.raises(a100.mig.MigFault, match="reboot required: the MIG mode of GPU 0-1 is pending") as caught:
        a100.apply({0: SEVEN, 1: SEVEN})
    assert caught.value.reboot == [0, 1]
    assert a100.found() == dict.fromkeys((0, 1), "MIG disabled, enabled after a reset")
    a100.write(double.reboot(a100.document))
    assert a100.apply({0: SEVEN, 1: SEVEN}) == [0, 1]
    assert a100.found() == {0: "7 x 1g.10gb", 1: "7 x 1g.10gb"}


def test_i2_a_mode_that_a_reset_brings_is_brought_by_a_reset(a100: Node) -> None:
    a100.fault("mig_pending", value="reset")
    assert a100.apply({0: SEVEN}) == [0]
    assert a100.found() == {0: "7 x 1g.10gb", 1: "whole"}
    assert "--gpu-reset -i 0" in a100.calls and "--gpu-reset -i 1" not in a100.calls


def test_a_layout_that_fails_half_way_is_put_back(a100: Node) -> None:
    a100.apply({0: HALVES, 1: []})
    a100.fault("mig_refused", gpu=1)
    with pytest.raises(a100.mig.MigFault) as caught:
        a100.apply({0: SEVEN, 1: SEVEN})
    assert "GPU 1: 7 x 1g.10gb could not be made: Unable to create a GPU instance" in caught.value.text
    assert caught.value.text.endswith("GPU 0-1 is as it was before")
    assert a100.found() == {0: "2 x 3g.40gb", 1: "whole"}


def test_what_cannot_be_put_back_is_said(a100: Node) -> None:
    a100.apply({0: HALVES})
    a100.fault("mig_refused", gpu=0)
    with pytest.raises(
        a100.mig.MigFault, match=r"Not everything could be put back: GPU 0: 2 x 3g.40gb could not be made"
    ):
        a100.apply({0: SEVEN})


def test_somebody_who_holds_the_gpus_is_named_as_the_cause(a100: Node) -> None:
    a100.busy = True
    with pytest.raises(
        a100.mig.MigFault, match="cannot change while somebody uses it; name the unit or pod that holds"
    ):
        a100.apply({0: SEVEN})
    assert a100.found()[0] == "whole", "the mode that was pending is taken back"


def test_a_pod_that_starts_in_between_stops_the_change(a100: Node) -> None:
    def guard() -> None:
        raise a100.mig.MigFault("GPU pods run on this node: web/chat")

    with pytest.raises(a100.mig.MigFault, match=r"web/chat\. Nothing was changed on the GPUs"):
        a100.apply({0: SEVEN}, guard)
    assert a100.found()[0] == "whole"


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({5: SEVEN}, "GPU 5 has a layout and nvidia-smi does not list it"),
        ({0: ["9g.10gb"]}, "GPU 0: 1 x 9g.10gb could not be made: Invalid GPU instance profile 9g.10gb"),
    ],
)
def test_a_layout_for_another_machine_is_refused(a100: Node, wanted: dict[int, list[str]], words: str) -> None:
    with pytest.raises(a100.mig.MigFault, match=words):
        a100.apply(wanted)
    assert set(a100.found().values()) == {"whole"}


def test_a_card_without_mig_is_left_alone_and_cannot_be_cut(mig: ModuleType) -> None:
    node = Node(mig, "L40S")
    assert node.apply({0: [], 1: []}) == []
    with pytest.raises(mig.MigFault, match=r"GPU 0 \(NVIDIA L40S\) has no MIG, and the description cuts it"):
        node.apply({0: SEVEN})


def test_a_driver_that_does_not_answer_is_a_sentence(a100: Node) -> None:
    a100.fault("no_driver")
    with pytest.raises(a100.mig.MigFault, match="ended with 9: NVIDIA-SMI has failed because it couldn't communicate"):
        a100.apply({0: SEVEN})


class Systemctl:
    """systemctl of a node: units that run, one that does not stop."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = folder / "systemctl.log"
        program = folder / "bin" / "systemctl"
        program.parent.mkdir()
        program.write_text(
            f'#!/bin/sh\necho "$*" >> {self.log}\n'
            "case \"$*\" in 'is-active --quiet absent.service') exit 3;; 'stop slow.service') exec sleep 30;; esac\n"
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")

    @property
    def said(self) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if not line.startswith("is-active")]


def test_clients_stop_before_and_start_after_in_turn(
    a100: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemctl = Systemctl(tmp_path, monkeypatch)
    clients = a100.mig.Clients(["kubelet.service", "absent.service", "dcgm.service"], [], ["cdi.service"], 5)
    assert a100.mig.apply(a100.driver, {0: SEVEN}, clients) == [0]
    assert systemctl.said == [
        "stop kubelet.service", "stop dcgm.service",
        "restart cdi.service", "start dcgm.service", "start kubelet.service",
    ]  # fmt: skip


def test_a_client_that_does_not_stop_in_time_ends_it_before_a_gpu_is_touched(
    a100: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemctl = Systemctl(tmp_path, monkeypatch)
    clients = a100.mig.Clients(["kubelet.service", "slow.service"], [], [], 1)
    with pytest.raises(a100.mig.MigFault, match=r"slow.service did not stop within 1 s .*nothing was changed"):
        a100.mig.apply(a100.driver, {0: SEVEN}, clients)
    assert systemctl.said[-2:] == ["start slow.service", "start kubelet.service"]
    assert a100.found()[0] == "whole"
