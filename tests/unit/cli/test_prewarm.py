"""`myriad prewarm plan`: waves from a description alone, wrong input, and the simulation; reports of runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from myriad.cli import build_app
from myriad.errors import InputError, MyriadError
from myriad.prewarm import report
from myriad.prewarm.limits import Limits
from myriad.prewarm.verdict import NodeOutcome

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = str(ROOT / "inventories" / "example")


def ask(*arguments: str) -> str:
    done = CliRunner().invoke(build_app("prewarm"), ["prewarm", *arguments], catch_exceptions=True)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout


def test_the_example_site_has_four_waves_and_two_registries() -> None:
    found = json.loads(ask("plan", "-i", EXAMPLE, "--json"))
    assert (found["nodes"], found["registries"], found["racks"]) == (1250, 2, 160)
    assert found["waves"] == [1, 12, 112, 1125]
    assert found["gb_assumed"] is True


def test_a_made_up_site_is_played_through() -> None:
    text = ask("plan", "--nodes", "60", "--racks", "8", "--blocks", "2", "--gb", "1", "--simulate", "--bad", "0.03")
    rows = [line.split()[0] for line in text.splitlines()[-3:]]
    assert rows == ["waves", "all-at-once", "one-by-one"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("plan", "-i", "inventories/none"), "there is no such inventory"),
        (("plan", "gang-chek", "-i", EXAMPLE), 'did you mean "gang-check"'),
        (("plan", "--pool", "h1000", "-i", EXAMPLE), "is not a pool"),
        (("plan", "--nodes", "3", "--racks", "5"), "there are too few of them"),
        (("run", "gang-chek", "-i", EXAMPLE), 'did you mean "gang-check"'),
        (("status", "-i", "inventories/none"), "there is no such inventory"),
        (("run", "--pool", "h100", "--limit", "gpu0001", "-i", EXAMPLE), "both say which nodes"),
        (("run", "--limit", "gpu00001", "-i", EXAMPLE), "neither a host nor a group"),
    ],
)
def test_wrong_input_is_a_sentence(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(InputError) as refused:
        ask(*arguments)
    assert words in str(refused.value)


def test_a_simulated_rollout_that_stops_itself_is_an_error() -> None:
    with pytest.raises(MyriadError, match="would stop itself"):
        ask("plan", "--nodes", "200", "--gb", "1", "--simulate", "--bad", "0.5")


def outcome(node: str, what: str, wave: int, **more: object) -> NodeOutcome:
    return NodeOutcome(node, what, wave, **more)  # type: ignore[arg-type]


class TestReport:
    outcomes = (
        outcome("g1", "pulled", 1, registry="http://a", fetched_bytes=10**9, details=(
            {"fetched_bytes": 10**9, "seconds": 4.0, "kept": True, "audit": ["it is pinned"]},)),
        outcome("g2", "pulled", 2, registry="http://a", fetched_bytes=10**9, details=(
            {"fetched_bytes": 10**9, "seconds": 2.0, "kept": False, "audit": ["it may go"]},)),
        outcome("g3", "failed", 2, sentence="nothing moved in 120 s"),
        outcome("g4", "waiting", 3),
        outcome("g5", "refused", 0, sentence="it needs 45.0 GB"),
    )  # fmt: skip
    lines = (
        {"host": "g1", "began": 0.0, "ended": 10.0},
        {"host": "g2", "began": 10.0, "ended": 13.0},
        {"host": "g3", "began": 10.0, "ended": 130.0},
    )

    def test_a_line_a_wave_and_everything_that_happened(self) -> None:
        text = "\n".join(report.text(self.outcomes, self.lines, Limits(), "1 of 2 nodes did not get their images"))
        assert "wave 1  1 node        ok" in text and "10 s" in text
        assert "wave 2  2 nodes       1 ok, 1 failed" in text and "120 s" in text
        assert "g3  failed: nothing moved in 120 s" in text
        assert "g5  refused: it needs 45.0 GB" in text
        assert "g2  it may go" in text
        assert "stopped: 1 of 2 nodes did not get their images" in text
        assert "1 node was not touched" in text
        assert "2.0 GB fetched; at most 1 of 8 nodes" in text
        assert "g2 drew 4.0 Gbit/s, more than the 2.5" in text

    def test_the_same_as_data(self) -> None:
        found = report.document(self.outcomes, self.lines, Limits(), "")
        assert found["exit_code"] == 2
        assert found["summary"] == {"pulled": 2, "failed": 1, "refused": 1, "waiting": 1}
        assert [wave["wave"] for wave in found["waves"]] == [1, 2, 3]
        assert json.loads(json.dumps(found))["peaks"]["fastest_node"] == "g2"

    def test_where_all_is_warm_there_is_nothing_to_do(self) -> None:
        assert report.text([outcome("g1", "warm", 0)], [], Limits(), "") == ["nothing to do: 1 node has its images"]
