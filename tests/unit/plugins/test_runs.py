"""myriad.runs: what the events of a run say."""

from __future__ import annotations

import json

import pytest

from myriad.errors import MyriadError
from myriad.runs import compare, parse, result_of


def result(host, task, status="ok", **more):
    return {"event": "result", "host": host, "task": task, "role": "r", "status": status, **more}


def run(*events, stats=None, check=False, finished=True):
    rows = [{"event": "start", "check": check}, *events]
    if finished:
        rows.append({"event": "stats", "hosts": stats or {}})
    return result_of([{"time": 100.0 + number, **row} for number, row in enumerate(rows)])


def test_a_run_without_faults_is_converged():
    found = run(result("a", "t1"), result("a", "t2", "changed", changed=True, changed_items=["/etc/x"]))
    assert found.exit_code == 0
    assert found.changed_count == 1
    assert found.hosts["a"].changed == [("r", "t2")]
    assert found.hosts["a"].changed_items == ["/etc/x"]
    assert found.task_counts() == {"a": 2}


def test_skipped_tasks_are_not_what_a_host_saw():
    found = run(result("a", "t1"), result("a", "t2", "skipped"))
    assert found.task_counts() == {"a": 1}
    assert found.hosts["a"].skipped == 1


def test_unreachable_hosts_with_the_rest_converged_is_three():
    found = run(
        result("a", "t1"),
        result("b", "t1", "unreachable", message="no route to host"),
        stats={"a": {}, "b": {"unreachable": 1}},
    )
    assert found.exit_code == 3
    assert found.unreachable_hosts == ["b"]
    assert found.hosts["b"].unreachable == "no route to host"


def test_a_failure_beside_an_unreachable_host_is_two():
    found = run(
        result("a", "t1", "failed", message="broken"),
        result("b", "t1", "unreachable", message="gone"),
        stats={"a": {"failures": 1}, "b": {"unreachable": 1}},
    )
    assert found.exit_code == 2
    assert found.failed_hosts == ["a"]
    assert found.hosts["a"].failures == [("r", "t1", "broken")]


def test_ignored_and_rescued_failures_are_none():
    found = run(
        result("a", "t1", "failed", message="x", ignored=True),
        result("a", "t2", "failed", message="y"),
        stats={"a": {"failures": 0, "rescued": 1}},
    )
    assert found.exit_code == 0
    assert found.hosts["a"].is_converged


def test_a_run_that_was_broken_off_has_failed():
    assert run(result("a", "t1"), finished=False).exit_code == 2


def test_plays_of_one_name_add_up():
    found = run(
        {"event": "play", "name": "runtime"},
        result("a", "t1"),
        {"event": "play", "name": "nodes"},
        {"event": "play", "name": "runtime"},
    )
    assert found.play_seconds == {"runtime": 3.0, "nodes": 1.0}
    assert found.seconds == 5.0


def test_a_prediction_is_compared_task_by_task():
    predicted = run(result("a", "t1", changed=True), result("a", "t3", changed=True), check=True)
    real = run(result("a", "t1", changed=True), result("a", "t2", changed=True))
    found = compare(predicted, real)
    assert predicted.is_check
    assert found.hit == {("a", "r", "t1")}
    assert found.missed == {("a", "r", "t2")}
    assert found.false == {("a", "r", "t3")}
    assert found.share == 0.5
    assert compare(run(), run()).share == 1.0


def test_a_half_written_last_line_is_left_out_and_one_in_the_middle_is_an_error():
    line = json.dumps({"event": "play", "name": "x"})
    assert len(parse([line, "", '{"event": "re'])) == 1
    with pytest.raises(MyriadError, match="line 1"):
        parse(["half", line])
