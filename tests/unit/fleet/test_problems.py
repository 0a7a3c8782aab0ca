"""Problems: folded over hosts, ordered by place, shown as ranges."""

from __future__ import annotations

from myriad.fleet import Origin, Problem
from myriad.fleet.problems import fold, host_ranges


def test_hosts_are_shown_as_runs() -> None:
    assert host_ranges(["gpu2"]) == "gpu2"
    assert host_ranges(["gpu2", "gpu1"]) == "gpu1, gpu2"
    assert host_ranges([f"gpu{number:04d}" for number in range(1, 9)]) == "gpu0001..gpu0008 (8 hosts)"
    assert host_ranges(["gpu9", "gpu10", "gpu11", "cp1"]) == "cp1, gpu9..gpu11 (4 hosts)"
    assert host_ranges([f"n{number}" for number in range(0, 20, 2)]) == "n0, n2, n4, n6, ... (10 hosts)"
    assert host_ranges(["a", "b"]) == "a, b"
    assert host_ranges(["r1-n1.site", "r1-n2.site", "r1-n3.site"]) == "r1-n1.site..r1-n3.site (3 hosts)"


def test_equal_problems_of_many_hosts_become_one() -> None:
    place = Origin("hosts.yml", 7)
    problems = [Problem("rule", "is wrong", hosts=(f"gpu{number}",), origin=place) for number in range(3)]
    (folded,) = fold(problems)
    assert folded.hosts == ("gpu0", "gpu1", "gpu2")
    assert folded.subject == "gpu0..gpu2 (3 hosts)"


def test_problems_that_differ_stay_apart_and_repeats_do_not() -> None:
    here, there = Origin("a.yml", 1), Origin("b.yml", 1)
    problems = [
        Problem("rule", "is wrong", hosts=("gpu1",), origin=here),
        Problem("rule", "is wrong", hosts=("gpu2",), origin=there),
        Problem("rule", "is odd", hosts=("gpu1",), origin=here),
        Problem("rule", "is wrong", key="k", origin=here),
        Problem("rule", "is wrong", key="k", origin=here),
        Problem("rule", "is wrong", "warning", key="k", origin=here),
    ]
    assert len(fold(problems)) == 5


def test_the_order_is_that_of_the_files_and_lines() -> None:
    problems = [
        Problem("rule", "m", key="late", origin=Origin("site/group_vars/all/teams.yml", 9)),
        Problem("rule", "m", key="early", origin=Origin("site/group_vars/all/teams.yml", 2)),
        Problem("rule", "m", hosts=("gpu10",), origin=Origin("site/hosts.yml", 3)),
        Problem("rule", "n", hosts=("gpu9",), origin=Origin("site/hosts.yml", 3)),
        Problem("rule", "m", key="nowhere"),
    ]
    assert [problem.subject for problem in fold(problems)] == ["nowhere", "gpu9", "gpu10", "early", "late"]


def test_json_has_plain_types_only() -> None:
    problem = Problem("quota", "is -8", key="k", hosts=("a",), origin=Origin("f.yml", 3))
    assert problem.as_dict() == {
        "severity": "error",
        "rule": "quota",
        "file": "f.yml",
        "line": 3,
        "key": "k",
        "hosts": ["a"],
        "message": "is -8",
    }
    assert Problem("quota", "is -8").as_dict()["file"] is None
