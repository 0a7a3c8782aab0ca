"""When a fault's target is well again, and when a lab is at rest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from soak_looks import T0, look, node

from myriad.lab.soak.plan import Fault
from myriad.lab.soak.recovery import Course, follow, ills, is_healed
from myriad.lab.soak.seen import Look

GPUS = {"gpu1": 8, "gpu2": 8, "gpu3": 8}


def course(kind: str = "network", *, on: str = "gpu1", peer: str = "gpu2") -> Course:
    return Course(Fault(1, kind, 20, 30, on, peer), injected=T0 - 30.0, undone=float(T0), boot="b.1")


def test_a_lab_at_rest_has_no_ills() -> None:
    assert ills(look(1, nodes=[node(name) for name in (*GPUS, "cp1")]), GPUS) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"nodes": [node("gpu1"), node("gpu2")]}, "gpu3: it is not in the cluster"),
        ({"nodes": [node("gpu1", is_ready=False), node("gpu2"), node("gpu3")]}, "gpu1: its kubelet is not ready"),
        ({"nodes": [node("gpu1", is_open=False), node("gpu2"), node("gpu3")]}, "gpu1: its gate is closed"),
        ({"nodes": [node("gpu1", gpus=7), node("gpu2"), node("gpu3")]}, "gpu1: 7 of 8 GPUs"),
        ({"nodes": [node("gpu1", is_cordoned=True), node("gpu2"), node("gpu3")]}, "gpu1: it is cordoned"),
        ({"nodes": [node(n) for n in GPUS] + [node("cp1", is_ready=False)]}, "cp1: its kubelet is not ready"),
        ({"leader": ""}, "nobody leads the extension"),
        ({"renewed": T0 - 20.0}, "nobody leads the extension"),
        ({"is_extension_ready": False}, "a replica of the extension is not ready"),
        ({"unsteered": ("vision-h100",)}, "unsteered: vision-h100"),
        ({"has_registry": False}, "the registry does not answer"),
    ],
)
def test_each_ill_is_named(changed: dict[str, Any], said: str) -> None:
    assert ills(look(1, **changed), GPUS) == [said]


def test_nothing_has_healed_before_it_was_taken_back() -> None:
    assert not is_healed(Course(Fault(1, "disk", 20, 30, "gpu1")), look(1), GPUS)
    assert not is_healed(course(), look(-1), GPUS) and is_healed(course(), look(1), GPUS)


def test_both_ends_of_a_cut_have_to_be_well() -> None:
    sick: Look = look(1, nodes=[node("gpu1"), node("gpu2", is_ready=False), node("gpu3")])
    assert not is_healed(course(), sick, GPUS)
    assert is_healed(course(peer="cp1"), sick, GPUS)


def test_a_node_that_was_started_is_well_when_its_gate_has_judged_that_start() -> None:
    assert not is_healed(course("node", peer=""), look(1), GPUS), "what the cluster believed before"
    judged = look(60, nodes=[node("gpu1", boot="b.2"), node("gpu2"), node("gpu3")])
    assert is_healed(course("node", peer=""), judged, GPUS)
    closed = look(60, nodes=[node("gpu1", boot="b.2", is_open=False), node("gpu2"), node("gpu3")])
    assert not is_healed(course("node", peer=""), closed, GPUS)


def test_the_leader_is_well_when_somebody_renewed_since_and_the_others_when_they_answer() -> None:
    killed = Course(Fault(1, "leader", 20, 0, ""), injected=float(T0), undone=float(T0))
    assert not is_healed(killed, look(5, renewed=T0 - 1.0), GPUS)
    assert is_healed(killed, look(5, renewed=T0 + 4.0), GPUS)
    assert not is_healed(course("registry", on="cp1"), look(5, has_registry=False), GPUS)
    assert is_healed(course("registry", on="cp1"), look(5), GPUS)
    assert is_healed(course("api", on="cp1"), look(5), GPUS)


def test_what_falls_ill_again_has_not_recovered() -> None:
    one = course()
    follow(one, look(2), GPUS)
    assert one.recovered == T0 + 2 and not one.is_settled
    follow(one, look(8, nodes=[node("gpu1", is_ready=False), node("gpu2"), node("gpu3")]), GPUS)
    assert one.recovered is None
    for s in range(40, 62, 2):
        follow(one, look(s), GPUS)
    assert one.is_settled and one.recovery_s == 40
    follow(one, look(90, nodes=[]), GPUS)
    assert one.recovery_s == 40, "that is another fault's"
