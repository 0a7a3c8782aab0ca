"""Metrics, alert rules and the dashboard: they name what exists, and the rules fire when they should."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from myriad.bench.page_world import fill
from myriad.cli import build_app
from myriad.scheduler.cache import Cache
from myriad.scheduler.inquiry import queue_report
from myriad.scheduler.metrics import Metrics
from myriad.scheduler.monitoring import ALERTS, dashboard, expressions, rules
from myriad.scheduler.web import state_metrics
from myriad.scheduler.web.state_metrics import StateCollector

PROMTOOL = os.environ.get("MYRIAD_PROMTOOL") or shutil.which("promtool")
needs_promtool = pytest.mark.skipif(not PROMTOOL, reason="promtool is not there: apt-get install prometheus")


def values(registry: CollectorRegistry) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


@pytest.fixture
def cache() -> Cache:
    made = Cache(check_name="myriad")
    fill(made, nodes=48, teams=2, waiting=10)
    return made


@pytest.fixture
def registry(cache: Cache) -> CollectorRegistry:
    metrics = Metrics()
    report = queue_report(cache)
    budgets = {("vision", "h100"): 12.5}
    metrics.registry.register(
        StateCollector(
            cache, report=lambda: report, budgets=lambda: budgets, stream=lambda: {"clients": 3, "dropped": 0}
        )
    )
    metrics.evictions.labels("InClusterQueue").inc()
    metrics.writes.labels("steered").inc()
    return metrics.registry


def test_the_state_is_counted_as_it_is(registry: CollectorRegistry, cache: Cache) -> None:
    found = values(registry)
    assert sum(found["myriad_waiting_jobs"].values()) == 10
    assert sum(found["myriad_waiting_jobs_by_reason"].values()) == 10
    asked = sum(v.gang.gpus for v in cache.views() if v.waiting)
    assert sum(found["myriad_waiting_gpus"].values()) == asked
    used = sum(v for labels, v in found["myriad_quota_gpus"].items() if ("kind", "used") in labels)
    assert used == sum(cache.gpus_held().values()) > 0
    assert sum(found["myriad_nodes"].values()) == 48 and sum(found["myriad_gpus"].values()) == 48 * 8
    assert found["myriad_budget_left_gpu_hours"][(("pool", "h100"), ("team", "vision"))] == 12.5
    assert found["myriad_largest_gang_gpus"] and found["myriad_page_stream"][(("what", "clients"),)] == 3


def test_no_label_names_a_job_a_namespace_or_a_node(registry: CollectorRegistry, cache: Cache) -> None:
    text = generate_latest(registry).decode()
    for view in cache.views():
        assert view.gang.name not in text and view.workload not in text
    assert "gpu0001" not in text
    labels = {key for series in values(registry).values() for labels in series for key, _ in labels}
    assert labels <= {
        "team",
        "pool",
        "kind",
        "state",
        "tier",
        "reason",
        "what",
        "why",
        "le",
        "route",
        "status",
        "method",
    }


def test_series_are_bounded_and_the_rest_is_added_up(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, registry: CollectorRegistry
) -> None:
    monkeypatch.setattr(state_metrics, "MOST_SERIES", 3)
    found = values(registry)
    assert all(len(v) <= 4 for k, v in found.items() if k in ("myriad_quota_gpus", "myriad_nodes", "myriad_gpus"))
    assert sum(found["myriad_gpus"].values()) == 48 * 8, "nothing is lost"


def test_a_replica_that_does_not_lead_says_nothing_of_the_cluster(cache: Cache) -> None:
    registry = CollectorRegistry()
    registry.register(StateCollector(cache, report=lambda: None, leads=lambda: False))
    assert not [name for name in values(registry) if name.startswith(("myriad_gpus", "myriad_quota", "myriad_waiting"))]


def test_every_expression_names_metrics_that_exist(registry: CollectorRegistry) -> None:
    names: set[str] = set()
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        names.add(family.name)
        names |= {sample.name for sample in family.samples}
        if family.type == "histogram":
            names |= {f"{family.name}_{part}" for part in ("bucket", "count", "sum")}
        if family.type == "counter":
            names.add(f"{family.name}_total")
    used = {name for text in expressions() for name in re.findall(r"myriad_\w+", text)}
    assert used - names == set()


def test_the_dashboard_is_whole() -> None:
    board = dashboard()
    graphs = [p for p in board["panels"] if p["type"] == "timeseries"]
    assert len({p["id"] for p in board["panels"]}) == len(board["panels"]) and len(graphs) >= 15
    cells = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in board["panels"]]
    assert len(set(cells)) == len(cells), "no panel lies on another"
    assert all(t["expr"] and t["datasource"]["uid"] == "${source}" for p in graphs for t in p["targets"])


def test_the_verb_writes_both_files(tmp_path: Path) -> None:
    result = CliRunner().invoke(build_app("monitoring"), ["monitoring", "render", "--out", str(tmp_path / "made")])
    assert result.exit_code == 0, result.output
    assert yaml.safe_load((tmp_path / "made/myriad-rules.yml").read_text()) == rules()
    assert json.loads((tmp_path / "made/myriad-dashboard.json").read_text()) == dashboard()
    (tmp_path / "file").write_text("")
    refused = CliRunner().invoke(build_app("monitoring"), ["monitoring", "render", "--out", str(tmp_path / "file/x")])
    assert "name another folder" in str(refused.exception)


def promtool(*arguments: str) -> str:
    assert PROMTOOL
    done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def case(name: str, series: dict[str, str], at: str, alerts: list[dict[str, Any]]) -> dict[str, Any]:
    """A test of one rule: series over minutes, and the labels of the alerts that are expected."""
    severity = next(a.severity for a in ALERTS if a.name == name)
    says = next(r for r in rules()["groups"][0]["rules"] if r["alert"] == name)["annotations"]
    expected = [
        {
            "exp_labels": {"severity": severity, **a.get("labels", {})},
            "exp_annotations": {**says, "summary": a["summary"]},
        }
        for a in alerts
    ]
    return {
        "interval": "1m",
        "input_series": [{"series": k, "values": v} for k, v in series.items()],
        "alert_rule_test": [{"eval_time": at, "alertname": name, "exp_alerts": expected}],
    }


@needs_promtool
def test_the_rules_are_good_and_fire_when_they_should(tmp_path: Path) -> None:
    pool = 'pool="h100"'
    leading = 'myriad_scheduler_leading{instance="%s"}'
    nobody = "No replica of the scheduler extension leads: jobs go on unsteered."
    nodes = 'myriad_nodes{pool="h100",state="%s"}'
    lost = "10% of the nodes of pool h100 are NotReady or unhealthy."
    cases = [
        case("MyriadNobodySteers", {leading % "a": "1+0x5", leading % "b": "0+0x5"}, "5m", []),
        case("MyriadNobodySteers", {leading % "a": "0+0x5", leading % "b": "0+0x5"}, "5m", [{"summary": nobody}]),
        case("MyriadNobodySteers", {leading % "a": "0 0 1+0x5"}, "5m", []),
        case("MyriadNobodySteers", {"other": "1+0x5"}, "5m", [{"summary": nobody}]),
        case("MyriadTwoLeaders", {leading % "a": "1+0x5", leading % "b": "1+0x5"}, "4m",
             [{"summary": "2 replicas lead at once."}]),
        case("MyriadBrakeOff", {"myriad_scheduler_brake_on": "1+0x5"}, "4m", []),
        case("MyriadBrakeOff", {"myriad_scheduler_brake_on": "0+0x5"}, "4m",
             [{"summary": "The extension's brake is off: in an outage it taints domains as if the nodes were dead."}]),
        case("MyriadNodesLost", {nodes % "ok": "90+0x10", nodes % "not_ready": "10+0x10"}, "8m",
             [{"summary": lost, "labels": {"pool": "h100"}}]),
        case("MyriadNodesLost", {nodes % "ok": "97+0x10", nodes % "not_ready": "3+0x10"}, "8m", []),
        case("MyriadGpusMissing", {"myriad_gpus{" + pool + ',state="missing"}': "8+0x30"}, "20m",
             [{"summary": "8 GPUs of pool h100 are described and not there.", "labels": {"pool": "h100"}}]),
        case("MyriadQuotaCannotBeHonoured",
             {'myriad_quota_gpus{team="a",pool="h100",kind="nominal"}': "60+0x60",
              'myriad_quota_gpus{team="b",pool="h100",kind="nominal"}': "60+0x60",
              'myriad_gpus{pool="h100",state="free"}': "20+0x60", 'myriad_gpus{pool="h100",state="used"}': "80+0x60"},
             "45m", [{"summary": "Pool h100 has promised 120 GPUs, more than its healthy nodes have.",
                      "labels": {"pool": "h100"}}]),
        case("MyriadJobsNeverFit", {'myriad_waiting_jobs_by_reason{reason="never"}': "2+0x60"}, "45m",
             [{"summary": "2 jobs wait that no state of this cluster can ever hold.", "labels": {"reason": "never"}}]),
        case("MyriadBudgetNearlyUsedUp", {'myriad_budget_left_gpu_hours{team="a",pool="h100"}': "50+0x30"}, "15m",
             [{"summary": "Team a has 50 GPU-hours left in pool h100.", "labels": {"team": "a", "pool": "h100"}}]),
        case("MyriadKubernetesApiFails",
             {'myriad_kube_request_seconds_count{method="GET",status="2xx"}': "0+90x30",
              'myriad_kube_request_seconds_count{method="GET",status="5xx"}': "0+10x30"},
             "20m", [{"summary": "10% of the requests to the Kubernetes API fail."}]),
    ]  # fmt: skip
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules(), width=10_000))
    (tmp_path / "tests.yml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": cases}, width=10_000)
    )
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", str(tmp_path / "rules.yml"))
    assert "SUCCESS" in promtool("test", "rules", str(tmp_path / "tests.yml"))


@needs_promtool
def test_what_is_scraped_passes_promtool(registry: CollectorRegistry) -> None:
    assert PROMTOOL
    done = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=generate_latest(registry), capture_output=True, check=False
    )
    assert done.returncode in (0, 3), done.stderr.decode()
    told = [line for line in done.stderr.decode().splitlines() if "error" in line]
    assert not told
