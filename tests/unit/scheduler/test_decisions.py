"""The decision log: records of plans and refusals, rotation, crashes, and a decision made again from its inputs."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from myriad.errors import InputError, MyriadError
from myriad.scheduler.decisions import (
    DecisionLog,
    assigned_record,
    inputs_hash,
    read_records,
    record_from_dict,
    record_of,
)
from myriad.scheduler.model import (
    DecisionRecord,
    Expression,
    NodeTerm,
    PlacementPolicy,
    Plan,
    Taint,
    Toleration,
)
from myriad.scheduler.placement import plan
from myriad.scheduler.replay import inputs_of, replay
from myriad.scheduler.snapshot import Snapshot

NOW = "2026-11-29T18:00:00.000Z"
SHAPE = {"n1": "h/b1/r1", "n2": "h/b1/r1", "n3": "h/b1/r2", "n4": "h/b2/r3"}


def line(k: int) -> DecisionRecord:
    return DecisionRecord(NOW, "planned", f"u{k}", "vision", f"job-{k % 3}", reason="x" * 50)


def test_the_record_of_a_plan_names_choice_scores_and_classes(make: SimpleNamespace) -> None:
    snapshot, gang = make.cluster(SHAPE, {"n3": 4}), make.gang(make.podset(2, 8))
    outcome = plan(snapshot, gang)
    record = record_of(gang, outcome, "planned", time=NOW, inputs="sha256:0", versions={"myriad": "0.1.0"})
    data = record.as_dict()
    assert data["nodes"] == {"n1": 1, "n2": 1}
    assert data["tier"] == "rack"
    assert data["scores"][0]["domain"] == "h/b1/r1"
    assert data["counts"] == {"eligible": 4, "fitting": 1}
    assert "agree" not in data
    assert record_from_dict(json.loads(json.dumps(data))) == record_from_dict(data)


def test_the_record_of_a_refusal_keeps_kind_and_numbers(make: SimpleNamespace) -> None:
    gang = make.gang(make.podset(1, 16))
    record = record_of(gang, plan(make.cluster(SHAPE), gang), "refused", time=NOW)
    assert record.extra["kind"] == "never"
    assert record.extra["numbers"]["largest_node"] == 8
    assert record.reason.startswith("no node of pool h100 has 16 GPUs")


@pytest.mark.parametrize(
    ("assigned", "agree", "same", "tier"),
    [
        ({"n1": 1, "n2": 1}, True, True, "rack"),
        ({"n1": 1, "n4": 1}, False, False, "room"),
        ({"n3": 2}, True, False, "node"),  # elsewhere, but nearer than planned
    ],
)
def test_an_assignment_against_its_plan(
    make: SimpleNamespace, assigned: dict[str, int], agree: bool, same: bool, tier: str
) -> None:
    snapshot, gang = make.cluster(SHAPE), make.gang(make.podset(2, 8))
    planned = plan(snapshot, gang)
    assert isinstance(planned, Plan)
    record = assigned_record(gang, planned, assigned, snapshot, time=NOW)
    assert (record.agree, record.extra["same_nodes"], record.assigned_tier) == (agree, same, tier)
    assert assigned_record(gang, None, assigned, snapshot, time=NOW).agree is None


def test_appended_lines_come_back_in_order_and_filtered(tmp_path: Path) -> None:
    with DecisionLog(tmp_path / "log" / "decisions.jsonl", fsync="always") as log:
        for k in range(9):
            log.append(line(k))
    assert [r.uid for r in log.read()] == [f"u{k}" for k in range(9)]
    assert [r.uid for r in log.read(name="job-1")] == ["u1", "u4", "u7"]
    assert [r.uid for r in log.read(limit=2)] == ["u7", "u8"]
    assert log.read(namespace="speech") == []
    assert [r.uid for r in log.read(uid="u3", events=["planned"], since=NOW)] == ["u3"]
    assert log.read(since="2027") == []


def test_rotation_bounds_the_size_and_keeps_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    with DecisionLog(path, max_bytes=1000, keep=2, fsync="never") as log:
        for k in range(100):
            log.append(line(k))
    files = sorted(tmp_path.iterdir())
    assert [f.name for f in files] == ["decisions.jsonl", "decisions.jsonl.1", "decisions.jsonl.2"]
    assert all(f.stat().st_size <= 1000 for f in files)
    kept = [int(r.uid[1:]) for r in log.read()]
    assert kept == list(range(kept[0], 100))
    assert len(kept) > 10


def test_a_line_cut_by_a_crash_is_passed_over_and_the_next_starts_fresh(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    with DecisionLog(path) as log:
        log.append(line(1))
    with path.open("a") as f:
        f.write('{"time":"2026-11-29T18:00')
    with DecisionLog(path) as again:
        again.append(line(2))
    assert [r.uid for r in again.read()] == ["u1", "u2"]


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    with DecisionLog(tmp_path / "d.jsonl", max_bytes=20_000, keep=20, fsync="never") as log:
        threads = [threading.Thread(target=lambda: [log.append(line(k)) for k in range(200)]) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert len(log.read()) == 800


def test_after_a_failed_write_the_next_record_starts_a_line_of_its_own(tmp_path: Path) -> None:
    class Full:
        """A disk that takes half a line and is then full."""

        def __init__(self, path: Path) -> None:
            self.path = path

        def write(self, text: str) -> None:
            with self.path.open("a") as f:
                f.write(text[:10])
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            raise OSError(28, "No space left on device")

    path = tmp_path / "d.jsonl"
    with DecisionLog(path) as log:
        log.append(line(1))
        assert log._file is not None
        log._file.close()
        log._file = Full(path)  # type: ignore[assignment]
        with pytest.raises(MyriadError, match="No space left"):
            log.append(line(2))
        log.append(line(3))
        assert [r.uid for r in log.read()] == ["u1", "u3"]


def test_a_log_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MyriadError, match="decision log cannot be written") as caught:
        DecisionLog(tmp_path / "file" / "d.jsonl").append(line(1))
    assert caught.value.hint


def test_a_file_that_is_no_log_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text('{"hello": 1}\n')
    with pytest.raises(InputError, match="without time, event, name") as caught:
        list(read_records(path))
    assert caught.value.where == f"{path}:1"


def test_fields_of_a_newer_version_are_kept() -> None:
    record = record_from_dict({"time": NOW, "event": "planned", "name": "a", "shade": "blue"})
    assert record.extra == {"shade": "blue"}


class TestReplay:
    def case(self, make: SimpleNamespace) -> tuple[Snapshot, object]:
        nodes = [
            make.node(n, at, taints=(Taint("t", "v"),) if n == "n1" else (), cordoned=n == "n4")
            for n, at in SHAPE.items()
        ]
        gang = make.gang(
            make.podset(
                1,
                4,
                affinity=(NodeTerm((Expression("myriad.dev/block", "In", ("h.b1",)),)),),
                tolerations=(Toleration("t", "Exists"),),
                topology="preferred rack",
            ),
            make.podset(2, 2, name="b", node_selector={"myriad.dev/pool": "h100"}),
        )
        return Snapshot.build(nodes, [make.use("p", "n2", 3), make.use("q", "n2", 1)]), gang

    def test_the_choice_is_the_same_bit_for_bit_after_json(self, make: SimpleNamespace) -> None:
        snapshot, gang = self.case(make)
        policy = PlacementPolicy(tier_weights={"rack": 2.0})
        penalty = np.array([0.2, 0.0, 1.5, 0.0])
        data = json.loads(json.dumps(inputs_of(snapshot, gang, policy, node_penalty=penalty)))
        outcome, digest = replay(data)
        assert outcome == plan(snapshot, gang, policy, node_penalty=penalty)
        assert digest == data["hash"] == inputs_hash(snapshot, gang, policy, node_penalty=penalty)

    def test_another_policy_on_the_same_state(self, make: SimpleNamespace) -> None:
        snapshot, gang = self.case(make)
        data = inputs_of(snapshot, gang, PlacementPolicy())
        outcome, digest = replay(data, policy=PlacementPolicy(tier_weights={"node": 7.0}))
        assert isinstance(outcome, Plan)
        assert outcome.cost == 7.0
        assert digest != data["hash"]

    def test_the_hash_follows_every_input(self, make: SimpleNamespace) -> None:
        snapshot, gang = self.case(make)
        policy = PlacementPolicy()
        base = inputs_hash(snapshot, gang, policy)
        assert inputs_hash(snapshot.clone(), gang, policy) == base
        changed = snapshot.clone()
        changed.apply_pod(make.use("r", "n1", 1))
        cordoned = snapshot.clone()
        cordoned.update_node(make.node("n3", SHAPE["n3"], cordoned=True))
        hashes = {
            base,
            inputs_hash(changed, gang, policy),
            inputs_hash(cordoned, gang, policy),
            inputs_hash(snapshot, make.gang(make.podset(1, 1)), policy),
            inputs_hash(snapshot, gang, PlacementPolicy(keep_candidates=5)),
            inputs_hash(snapshot, gang, policy, node_penalty=np.zeros(4)),
        }
        assert len(hashes) == 6
        changed.remove_pod("r")
        assert inputs_hash(changed, gang, policy) == base

    @pytest.mark.parametrize("data", [{}, {"format": 1}, {"format": 2}])
    def test_what_is_no_input_is_refused(self, data: dict[str, int]) -> None:
        with pytest.raises(InputError):
            replay(data)
