"""What `make bench-storm` prints of its two arms, and the scene that both are played on."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from myriad.bench.scheduling.judge import site_of
from tests.scale import bench_storm
from tests.scale.bench_storm import Scene, filler, measured, table


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene(argparse.Namespace(), site_of(5000), plane=None, api=None)  # type: ignore[arg-type]
    monkeypatch.setattr(Scene, "series", lambda _: {})
    monkeypatch.setattr(bench_storm, "processor_s", lambda _: {"extension": 1.0})
    monkeypatch.setattr(bench_storm, "memory_mb", lambda _: {"extension": 100})
    monkeypatch.setattr(bench_storm, "tainted", lambda _: 0)
    return made


def test_both_columns_of_a_storm_stand_in_one_line(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    tainted: dict[str, Any] = {"on": 0, "off": 16}
    for scene.brake, nodes in tainted.items():
        with measured(scene, "storm", what="a whole block gone", nodes=128) as line:
            line["tainted_meanwhile"] = nodes
    (row,) = table(scene.seen)
    assert row["what"] == "a whole block gone"
    assert (row["brake_on"]["tainted_meanwhile"], row["brake_off"]["tainted_meanwhile"]) == (0, 16)
    assert '"brake": "off"' in capsys.readouterr().out, "the lines of one arm say which it was"


def test_nodes_that_jobs_with_a_limit_hold_stay_up_and_have_no_other_pods(scene: Scene) -> None:
    falling = {*scene.site.names[::20], *scene.site.names[128:256]}
    assert len(scene.held) == 16 and not falling & set(scene.held)
    taken = {filler(scene.open_nodes, k)["spec"]["nodeName"] for k in range(len(scene.open_nodes))}
    assert taken == set(scene.open_nodes) and not taken & set(scene.held)
