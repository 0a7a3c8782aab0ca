"""Selectors that lead to a plan without clashing with anybody's."""

from __future__ import annotations

from typing import Any

import pytest

from myriad.scheduler.model import Candidate, Gang, Plan, PodSet, PodSetPlacement, Toleration
from myriad.scheduler.objects import PodSetUpdate
from myriad.scheduler.rules import same_updates, steered_to, updates_for, with_updates

LEVELS = ("room", "block", "rack")


def plan_for(tier: str, domain: tuple[str, ...], podset: str = "main") -> Plan:
    placement = PodSetPlacement(podset, (("n0", 1),), tier, domain)
    return Plan(tier, domain, (placement,), 0.0, Candidate(tier, domain, 1, 0))


def gang(**podset: Any) -> Gang:
    return Gang("g", "ns", (PodSet("main", 1, {"nvidia.com/gpu": 8}, **podset),), uid="u")


@pytest.mark.parametrize(
    ("tier", "domain", "selector"),
    [
        ("rack", ("h", "b1", "r2"), {"myriad.dev/rack": "h.b1.r2"}),
        ("block", ("h", "b1"), {"myriad.dev/block": "h.b1"}),
        ("room", ("h",), {"myriad.dev/room": "h"}),
        ("node", ("h", "b1", "r2", "n0"), {"myriad.dev/rack": "h.b1.r2"}),
        ("node", ("h", "b1", "n0"), {"myriad.dev/block": "h.b1"}),
        ("node", ("n0",), {}),
        ("cluster", (), {}),
    ],
)
def test_one_label_names_the_domain(tier: str, domain: tuple[str, ...], selector: dict[str, str]) -> None:
    updates = updates_for(gang(), plan_for(tier, domain), LEVELS)
    assert updates == ((PodSetUpdate("main", selector),) if selector else ())


@pytest.mark.parametrize(
    "own", [{"myriad.dev/rack": "h.b1.r2"}, {"myriad.dev/rack": "h.b1.r1"}, {"kubernetes.io/hostname": "n0"}]
)
def test_a_users_own_selector_is_never_met_by_another(own: dict[str, str]) -> None:
    assert updates_for(gang(node_selector=own), plan_for("rack", ("h", "b1", "r2")), LEVELS) == ()


def test_a_users_selector_of_another_label_is_no_hindrance() -> None:
    (update,) = updates_for(gang(node_selector={"disk": "ssd"}), plan_for("rack", ("h", "b1", "r2")), LEVELS)
    assert update.node_selector == {"myriad.dev/rack": "h.b1.r2"}


def test_tolerations_go_along_even_without_a_selector() -> None:
    toleration = Toleration("myriad.dev/reserved", "Equal", "c", "NoSchedule")
    (update,) = updates_for(gang(), plan_for("cluster", ()), LEVELS, tolerations=(toleration,))
    assert update.to_api() == {
        "name": "main",
        "tolerations": [{"operator": "Equal", "key": "myriad.dev/reserved", "value": "c", "effect": "NoSchedule"}],
    }
    assert PodSetUpdate.from_api(update.to_api()) == update


def test_an_exists_toleration_carries_no_value() -> None:
    update = PodSetUpdate("main", {}, (Toleration("k", "Exists"),))
    assert update.to_api()["tolerations"] == [{"operator": "Exists", "key": "k"}]


def test_updates_are_added_to_what_the_planner_sees() -> None:
    toleration = Toleration("k", "Exists")
    update = PodSetUpdate("main", {"myriad.dev/rack": "h.b1.r2"}, (toleration,))
    (podset,) = with_updates(gang(node_selector={"disk": "ssd"}), (update,)).podsets
    assert podset.node_selector == {"disk": "ssd", "myriad.dev/rack": "h.b1.r2"}
    assert podset.tolerations == (toleration,)


def test_order_does_not_make_a_difference_and_content_does() -> None:
    a, b = PodSetUpdate("a", {"x": "1"}), PodSetUpdate("b", {"x": "1"})
    assert same_updates((a, b), (b, a))
    assert not same_updates((a, b), (a, PodSetUpdate("b", {"x": "2"})))


def test_the_domain_reads_with_slashes() -> None:
    assert steered_to((PodSetUpdate("a", {"myriad.dev/rack": "h.b1.r2"}),)) == "h/b1/r2"
    assert steered_to((PodSetUpdate("a"),)) == ""
