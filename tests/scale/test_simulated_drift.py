"""`myriad drift` over simulated hosts: one task a host, whatever their number, and nothing differs after a site run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from myriad.drift.report import report_of
from myriad.lab.simulated import site
from myriad.runs import parse
from tests.scale.bench_scale import play

pytestmark = pytest.mark.slow
SETTINGS = {"MYRIAD_SIMULATED_ANSWER_S": "0", "MYRIAD_SIMULATED_TIMEOUT_S": "1"}
ONLY = ("--limit", "gpu_nodes")
HOSTS = 10


def test_a_look_costs_one_task_a_host_and_finds_the_description_that_moved(tmp_path: Path) -> None:
    made = site.write_site(tmp_path / "site", HOSTS)
    code, run, _cost = play(made, "site", ONLY, SETTINGS)
    assert code == 0, (made.folder / "site.log").read_text()[-3000:]
    code, run, cost = play(made, "drift", ONLY, SETTINGS)
    report = report_of(parse((made.folder / "events.jsonl").read_text().splitlines()))
    assert code == 0, (made.folder / "drift.log").read_text()[-3000:]
    # What a site run recorded is what a drift compares: the same inputs, from another playbook.
    assert (report.differences, len(report.nodes), report.cluster_compared) == ([], HOSTS, False)
    assert max(host.tasks for name, host in run.hosts.items() if name != "gpu0001") == 1
    print(json.dumps({"hosts": HOSTS, "seconds": round(cost.seconds, 1), "cpu_s": round(cost.cpu_s, 1)}))
    settings = made.inventory / "group_vars" / "all" / "site.yml"
    settings.write_text(settings.read_text() + "node_base_time_sync_enabled: false\n")
    site.set_dead(made, ["gpu0002"], True)
    play(made, "drift", ONLY, SETTINGS)
    report = report_of(parse((made.folder / "events.jsonl").read_text().splitlines()))
    assert {entry.kind for entry in report.differences} == {"inputs"}
    assert len(report.drifted) == HOSTS - 1
    assert list(report.unreachable) == ["gpu0002"]
    assert report.lines()[0].startswith("gpu0001,gpu0003,gpu0004 and 6 more")
