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
from myriad.scheduler.replay import inputs_of as replay_inputs


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


def test_a_file_that_is_not_there_is_no_job(app: typer.Typer, tmp_path: Path) -> None:
    for name, words in (("a.json", "no such file"), ("./a", "no such file"), (str(tmp_path), "this is a folder")):
        result = CliRunner().invoke(app, ["replay", name])
        assert isinstance(result.exception, InputError) and words in str(result.exception), name


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is no JSON"),
        (b"\x1f\x8b\x08\x00broken", "is no JSON"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xff\xff\xff", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"[]", "holds no decision's inputs"),
        (b'{"a": 1}', "they say no format"),
        (b'{"format": 1}', "is missing"),
        (b'{"nodes_in": "../../etc/passwd"}', "is no hash"),
        (b'{"nodes_in": "sha256:00"}', "beside it"),
    ],
)
def test_a_file_that_holds_no_inputs_is_told_in_a_sentence(
    app: typer.Typer, tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "inputs.json"
    path.write_bytes(content)
    result = CliRunner().invoke(app, ["replay", str(path)])
    assert isinstance(result.exception, InputError) and words in str(result.exception), result.exception


def test_inputs_that_are_damaged_anywhere_are_refused_or_planned(decided: Any) -> None:
    whole = json.dumps(replay_inputs(*decided))
    for path in list(_paths(json.loads(whole)))[:400]:
        for odd in (None, "x", -1, [], {}):
            data = json.loads(whole)
            holder = data
            for part in path[:-1]:
                holder = holder[part]
            holder[path[-1]] = odd
            try:
                replay(data)
            except InputError as error:
                assert error.hint


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from _paths(inner, (*path, key))
