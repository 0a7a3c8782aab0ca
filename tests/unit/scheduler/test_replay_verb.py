"""Inputs of decisions are kept and bounded; `myriad replay` makes the choice again, bit for bit, or another way."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from myriad.cli import _cluster
from myriad.cli import replay as verb
from myriad.errors import InputError
from myriad.scheduler.inputs import InputsFolder, Keeper
from myriad.scheduler.model import PlacementPolicy
from myriad.scheduler.placement import plan
from myriad.scheduler.replay import inputs_hash, replay


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    verb.register(made)
    made.callback()(lambda: None)
    return made


@pytest.fixture
def decided(make: SimpleNamespace) -> Any:
    snapshot = make.cluster({f"n{i}": f"h/b/r{i // 2}" for i in range(8)})
    gang = make.gang(make.podset(2, 8), name="bert")
    return snapshot, gang, PlacementPolicy()


def kept(folder: Path, decided: Any) -> tuple[str, Path]:
    snapshot, gang, policy = decided
    digest = inputs_hash(snapshot, gang, policy)
    return digest, InputsFolder(folder).put(snapshot, gang, policy, digest)


def test_a_decision_is_made_again_bit_for_bit(tmp_path: Path, decided: Any) -> None:
    digest, _ = kept(tmp_path, decided)
    data = InputsFolder(tmp_path).get(digest)
    assert data is not None
    outcome, again = replay(json.loads(json.dumps(data)))
    assert again == digest and outcome == plan(*decided)


def test_nodes_are_written_once_and_old_inputs_go(tmp_path: Path, decided: Any, make: SimpleNamespace) -> None:
    snapshot, _, policy = decided
    folder = InputsFolder(tmp_path, max_bytes=6000)
    digests = []
    for k in range(1, 30):
        gang = make.gang(make.podset(1, 8), name=f"job{k}")
        digests.append(inputs_hash(snapshot, gang, policy))
        folder.put(snapshot, gang, policy, digests[-1])
    assert sum(f.stat().st_size for f in tmp_path.iterdir()) <= 6000
    assert folder.get(digests[0]) is None and folder.get(digests[-1]) is not None
    with pytest.raises(InputError, match="is no hash"):
        folder.get("../../etc/passwd")


def test_the_keeper_writes_what_was_recorded_and_nothing_else(tmp_path: Path, decided: Any) -> None:
    keeper = Keeper(InputsFolder(tmp_path))
    digest = keeper.hashed(*decided)
    assert digest == inputs_hash(*decided)
    assert not keeper.keep("sha256:" + "0" * 64)
    assert keeper.keep(digest)
    keeper.flush()
    assert keeper.folder.get(digest) is not None


def test_replay_of_a_file_with_another_configuration(app: typer.Typer, tmp_path: Path, decided: Any) -> None:
    _, path = kept(tmp_path, decided)
    result = CliRunner().invoke(app, ["replay", str(path), "--json"])
    report = json.loads(result.output)
    assert result.exit_code == 0 and report["same_inputs"] and report["choice"]["nodes"] == plan(*decided).nodes
    result = CliRunner().invoke(app, ["replay", str(path), "--config", "keep_whole=room"])
    assert result.exit_code == 0 and "differs" in result.output and "with       keep_whole=room" in result.output
    for wrong, said in (("keep_whol=x", "did you mean keep_whole"), ("search_limit=many", "no value of search_limit")):
        error = CliRunner().invoke(app, ["replay", str(path), "--config", wrong]).exception
        assert isinstance(error, InputError) and said in str(error)


def test_changed_inputs_are_found_out(app: typer.Typer, tmp_path: Path, decided: Any) -> None:
    digest, _ = kept(tmp_path, decided)
    data = InputsFolder(tmp_path).get(digest)
    assert data is not None
    data["used"] = {"n0": {"nvidia.com/gpu": 8}}
    forged = tmp_path / "forged.json"
    forged.write_bytes(gzip.compress(json.dumps(data).encode()))
    result = CliRunner().invoke(app, ["replay", str(forged)])
    assert result.exit_code == 4 and "CHANGED" in result.output
    forged.write_text("[1, 2]")
    assert isinstance(CliRunner().invoke(app, ["replay", str(forged)]).exception, InputError)


def test_replay_of_a_job_compares_with_its_record(
    app: typer.Typer, tmp_path: Path, decided: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest, _ = kept(tmp_path, decided)
    record = {"time": "t", "event": "steered", "name": "bert", "inputs": digest, "nodes": plan(*decided).nodes}
    answers = {"/v1/decisions": [record], "/v1/decisions/inputs": InputsFolder(tmp_path).get(digest)}
    monkeypatch.setattr(_cluster, "reach", lambda *_: None)
    monkeypatch.setattr(_cluster, "ask_extension", lambda _api, path, _params=None: answers[path])
    result = CliRunner().invoke(app, ["replay", "vision/bert"])
    assert result.exit_code == 0 and "the same nodes" in result.output
    answers["/v1/decisions/inputs"] = None
    assert "not kept any more" in str(CliRunner().invoke(app, ["replay", "vision/bert"]).exception)
