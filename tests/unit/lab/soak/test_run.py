"""A whole soak in a second, with hands that keep what they were asked: everything is taken back, whatever happens."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from soak_looks import node, pod, workload

from myriad.errors import MyriadError, NotReadyError
from myriad.lab.soak import recovery, run
from myriad.lab.soak.invariants import Planted
from myriad.lab.soak.plan import Fault, Gang, Plan, read_plan
from myriad.lab.soak.report import Result, result_lines
from myriad.lab.soak.run import Parts, Soak
from myriad.lab.soak.seen import Charge, Look, PodSeen

Json = dict[str, Any]

GANG = Gang("soak-1-0", "vision", 0.0, 2, 4, 1)
FAULTS = (
    Fault(1, "disk", 0.1, 0.3, "gpu1", is_cordoned=True),
    Fault(2, "registry", 0.1, 0.2, "cp1"),
    Fault(3, "network", 0.2, 0.2, "gpu2", "cp1"),
)
PLAN = Plan(7, 0, "gpu3", {"clock": "no clock"}, FAULTS, (GANG,))


class Hands:
    """Injector, gangs and somebody else in one; keeps what was asked, in order."""

    def __init__(self, planted: list[Planted]) -> None:
        self.asked: list[str] = []
        self.planted = planted
        self.cordoned: set[str] = set()
        self.on_inject: Callable[[Fault], None] = lambda fault: None
        self.undo_fails = 0
        self.left: list[str] = []

    def inject(self, fault: Fault) -> None:
        self.asked.append(f"inject {fault.title}")
        self.on_inject(fault)

    def undo(self, fault: Fault) -> None:
        self.asked.append(f"undo {fault.title}")
        if self.undo_fails:
            self.undo_fails -= 1
            raise MyriadError("not yet")

    def sweep(self) -> list[str]:
        self.asked.append("sweep")
        return list(self.left)

    def mark(self, name: str) -> None:
        self.asked.append(f"mark {name}")
        self.planted.append(Planted(name, "label", "example.com/soak=keep", time.time()))

    def cordon(self, name: str) -> None:
        self.asked.append(f"cordon {name}")
        self.cordoned.add(name)

    def uncordon(self, name: str) -> None:
        self.asked.append(f"uncordon {name}")
        self.cordoned.discard(name)

    def submit(self, gang: Gang, *, is_over: Callable[[], bool]) -> None:
        self.asked.append(f"submit {gang.name}")

    def ends(self) -> dict[str, str]:
        return {GANG.job: "Complete"}

    def remove(self) -> None:
        self.asked.append("remove")


class Eyes:
    """Sees a lab at rest; `change` makes it another."""

    def __init__(self, hands: Hands) -> None:
        self.hands = hands
        self.change: Callable[[Look], Look] = lambda look: look
        self.began = int(time.time()) - 30
        self.rows = [Charge(f"w-{GANG.job}", self.began, self.began + 20, 8.0)]
        self.errors: list[Exception] = []

    def look(self, *, with_devices: bool) -> Look:
        if self.errors:
            raise self.errors.pop(0)
        now = time.time()
        nodes = {
            name: node(name, labels={"example.com/soak": "keep"}, is_cordoned=name in self.hands.cordoned)
            for name in ("gpu1", "gpu2", "gpu3")
        }
        done = workload(GANG.job, admitted=self.began, ended=self.began + 20, is_finished=True)
        return self.change(
            Look(
                at=now, nodes_read=now, ended=now, nodes=nodes, workloads=(done,), leader="ext-1", renewed=now,
                devices={"gpu1": {}} if with_devices else {},
            )
        )  # fmt: skip

    def charges(self) -> list[Charge]:
        return self.rows

    def assigned(self, job: str, *, since: str) -> set[str]:
        return {"gpu1"}


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (run, "LOOK_EVERY_S", 0.03), (run, "TICK_S", 0.02), (run, "GUARD_S", 5.0), (run, "READY_S", 0.2),
        (run, "LEDGER_LATE_S", 0.1), (run, "INJECT_S", 0.3), (run, "BOUND_S", 2.0),
        (run, "WORK_BOUND_S", 2.5), (recovery, "SETTLED_S", 0.1),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


class Stage:
    """A soak with its hands and eyes."""

    def __init__(self, tmp_path: Path, plan: Plan = PLAN) -> None:
        planted: list[Planted] = []
        self.hands = Hands(planted)
        self.eyes = Eyes(self.hands)
        self.said: list[str] = []
        self.out = tmp_path / "soak.jsonl"
        parts = Parts(
            gpus={"gpu1": 8, "gpu2": 8, "gpu3": 8}, injector=self.hands, observer=self.eyes, gangs=self.hands,
            foreign=self.hands, planted=planted,
        )  # type: ignore[arg-type] # fmt: skip
        self.soak = Soak(plan, parts, out=self.out, say=self.said.append)

    def rows(self) -> list[Json]:
        return [json.loads(line) for line in self.out.read_text().splitlines()]

    def all_back(self) -> None:
        """Every fault was taken back, and at the end all that any soak could have left."""
        asked = self.hands.asked
        for fault in FAULTS:
            if f"inject {fault.title}" in asked:
                assert asked.index(f"inject {fault.title}") < asked.index(f"undo {fault.title}")
        assert asked.count("cordon gpu1") == asked.count("uncordon gpu1")
        # Of the nodes, of somebody else, of the gangs.
        assert asked[-3:] == ["sweep", "sweep", "remove"]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_a_soak_in_which_all_holds(stage: Stage) -> None:
    result = stage.soak.run()
    assert result.ok, "\n".join(result_lines(result))
    stage.all_back()
    assert result.happened() == {
        "node": 0,
        "containerd": 0,
        "network": 1,
        "disk": 1,
        "api": 0,
        "leader": 0,
        "registry": 1,
        "postgresql": 0,
    }
    asked = stage.hands.asked
    assert (
        asked.index("undo disk gpu1 (cordoned)") < asked.index("uncordon gpu1") < asked.index("inject network gpu2-cp1")
    )
    assert result.gangs == {"submitted": 1, "complete": 1, "failed": 0} and result.charges == {
        "rows": 1,
        "estimated": 0,
    }
    assert all(result.checks[name] > 0 for name in ("gang", "gpu", "gate", "foreign", "ledger", "record", "recovery"))
    assert result.looks > 5


def test_what_it_wrote_is_its_plan_and_its_story(stage: Stage) -> None:
    result = stage.soak.run()
    assert read_plan(stage.out.read_text().splitlines()) == PLAN
    rows = stage.rows()
    for kind in ("injected", "undone", "recovered"):
        assert sorted(row[kind] for row in rows if kind in row) == [1, 2, 3]
    assert rows[-1]["result"] == json.loads(json.dumps(result.as_json())) and rows[-1]["result"]["ok"]


def test_a_planted_bug_is_told_with_the_look_that_shows_it(stage: Stage) -> None:
    def twice(look: Look) -> Look:
        pods: tuple[PodSeen, ...] = (pod(0, gpus=8), pod(0, job="speech/other", gpus=8))
        return replace(look, pods=pods)

    stage.eyes.change = twice
    result = stage.soak.run()
    assert not result.ok and [one.rule for one in result.violations] == ["gpu"], "told once, however often it is seen"
    (row,) = [row for row in stage.rows() if "violation" in row]
    assert row["violation"]["text"] == "16 GPUs of gpu1, which has 8, are held by pods"
    assert row["violation"]["shown"] == {"pods": {"vision/soak-1-0-0": 8, "speech/other-0": 8}}
    text = "\n".join(result_lines(result))
    assert "VIOLATED gpu: 16 GPUs of gpu1" in text and "did not hold" in text
    stage.all_back()


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (lambda rows: [], "was admitted, and is not charged"),
        (lambda rows: rows * 2, "stands twice"),
        (lambda rows: [replace(rows[0], ended=rows[0].ended + 5)], "is charged until"),
    ],
)
def test_a_ledger_that_is_wrong_at_rest_is_told(
    stage: Stage, rows: Callable[[list[Charge]], list[Charge]], said: str
) -> None:
    stage.eyes.rows = rows(stage.eyes.rows)
    result = stage.soak.run()
    assert [one.rule for one in result.violations] == ["ledger"] and said in result.violations[0].text


def test_a_lab_that_does_not_recover_is_told(stage: Stage) -> None:
    """From the last fault on a gate stays closed."""

    def sick(look: Look) -> Look:
        if "undo network gpu2-cp1" not in stage.hands.asked:
            return look
        return replace(look, nodes={**look.nodes, "gpu2": node("gpu2", is_open=False, labels={})})

    stage.eyes.change = sick
    result = stage.soak.run()
    assert {one.rule for one in result.violations} == {"recovery"}
    texts = [one.text for one in result.violations]
    assert any("gpu2: its gate is closed" in text for text in texts)
    assert any("fault 3 (network gpu2-cp1): its target has not been well since" in text for text in texts)


def test_a_gang_that_fails_or_never_ends_is_told(stage: Stage) -> None:
    stage.hands.ends = lambda: {GANG.job: "Failed"}  # type: ignore[method-assign]
    assert [one.text for one in stage.soak.run().violations] == [f"{GANG.job} has failed"]


def test_a_gang_that_never_ends_is_told(stage: Stage) -> None:
    stage.hands.ends = dict  # type: ignore[method-assign,assignment]
    assert "have not ended: vision/soak-1-0" in stage.soak.run().violations[0].text


def test_a_fault_that_cannot_be_made_is_taken_back_and_counts_as_too_few(stage: Stage) -> None:
    def fails(fault: Fault) -> None:
        if fault.kind == "disk":
            raise MyriadError("it did not fill up", where="gpu1")

    stage.hands.on_inject = fails
    result = stage.soak.run()
    stage.all_back()
    assert result.too_few() == {"disk": "0 of 1"} and not result.ok and not result.violations
    assert "disk gpu1 (cordoned) did not happen: it did not fill up" in "\n".join(result_lines(result))


def test_a_fault_whose_target_is_away_for_a_moment_is_made_when_it_is_back(stage: Stage) -> None:
    away = ["gpu1: the node does not run a command"] * 2

    def fails(fault: Fault) -> None:
        if fault.kind == "registry" and away:
            raise MyriadError(away.pop())

    stage.hands.on_inject = fails
    result = stage.soak.run()
    assert result.ok and result.happened()["registry"] == 1
    assert stage.hands.asked.count("inject registry cp1") == stage.hands.asked.count("undo registry cp1") == 3


def test_a_node_fault_waits_until_the_others_are_well_and_then_does_not_happen(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "GUARD_S", 0.3)

    def sick(look: Look) -> Look:
        return (
            look
            if "mark gpu3" not in stage.hands.asked
            else replace(look, nodes={**look.nodes, "gpu3": node("gpu3", gpus=0, labels={"example.com/soak": "keep"})})
        )

    stage.eyes.change = sick
    result = stage.soak.run()
    assert not [asked for asked in stage.hands.asked if asked.startswith(("inject disk", "inject network", "cordon"))]
    assert "inject registry cp1" in stage.hands.asked
    assert "gpu3: 0 of 8 GPUs" in result.courses[0].skipped


def test_a_way_back_that_fails_is_gone_again(stage: Stage) -> None:
    stage.hands.undo_fails = 3
    assert stage.soak.run().ok
    assert sum(asked.startswith("undo") for asked in stage.hands.asked) == 6


def test_no_api_server_for_a_while_is_no_violation(stage: Stage) -> None:
    stage.eyes.errors = []

    def away(fault: Fault) -> None:
        if fault.kind == "registry":
            stage.eyes.errors = [MyriadError("no answer") for _ in range(5)]

    stage.hands.on_inject = away
    result = stage.soak.run()
    assert result.ok and result.unanswered == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_takes_everything_back(stage: Stage, number: signal.Signals) -> None:
    long = replace(FAULTS[0], hold_s=600.0)
    stage.soak = Soak(replace(PLAN, faults=(long,)), Parts(
        gpus={"gpu1": 8, "gpu2": 8, "gpu3": 8}, injector=stage.hands, observer=stage.eyes, gangs=stage.hands,
        foreign=stage.hands, planted=stage.hands.planted,
    ), out=stage.out, say=stage.said.append)  # type: ignore[arg-type] # fmt: skip
    before = signal.getsignal(number)
    stage.hands.on_inject = lambda fault: threading.Timer(0.2, signal.raise_signal, (number,)).start()
    result = stage.soak.run()
    stage.all_back()
    assert "undo disk gpu1 (cordoned)" in stage.hands.asked
    assert result.is_cut_short and not result.ok and "STOPPED" in "\n".join(result_lines(result))
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("where", ["look", "submit", "inject"])
def test_a_harness_that_breaks_takes_everything_back_and_says_why(stage: Stage, where: str) -> None:
    def breaks(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError(where)

    if where == "inject":
        stage.hands.on_inject = breaks
    elif where == "submit":
        stage.hands.submit = breaks  # type: ignore[method-assign]
    else:
        stage.hands.on_inject = lambda fault: stage.eyes.errors.append(ZeroDivisionError(where))
    with pytest.raises(ZeroDivisionError, match=where):
        stage.soak.run()
    stage.all_back()


def test_a_lab_that_is_not_in_order_is_left_as_it_is(stage: Stage) -> None:
    stage.eyes.change = lambda look: replace(look, has_registry=False)
    with pytest.raises(NotReadyError, match="the registry does not answer"):
        stage.soak.run()
    assert not [asked for asked in stage.hands.asked if asked.startswith(("inject", "mark", "submit"))]


def test_what_stays_is_said(stage: Stage) -> None:
    original = stage.hands.sweep

    def sweep() -> list[str]:
        original()
        return ["gpu1: the node does not run a command"] if "mark gpu3" in stage.hands.asked else []

    stage.hands.sweep = sweep  # type: ignore[method-assign]
    stage.soak.run()
    assert [text for text in stage.said if text.startswith("NOT TAKEN BACK: gpu1")]


def test_too_few_is_too_few_from_thirty_minutes_on() -> None:
    plan = Plan(7, 30, "gpu3", {}, tuple(replace(FAULTS[1], number=n) for n in (1, 2, 3)), ())
    courses = [recovery.Course(fault, injected=1.0, undone=2.0, recovered=3.0) for fault in plan.faults]
    result = Result(plan, courses, {}, looks=1)
    assert result.ok and result.too_few() == {}
    courses[0].injected = None
    assert not result.ok and result.too_few() == {"registry": "2 of 3"}
