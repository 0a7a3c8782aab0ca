"""`myriad diagnose JOB --prometheus`: jobs whose GPUs look alike, told apart by what Prometheus has kept of them."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import parse_qs

import pytest
import typer
from typer.testing import CliRunner

from myriad.cli import _cluster, diagnose
from myriad.errors import MyriadError
from myriad.kube.kinds import PODS, WORKLOADS
from myriad.scheduler.diagnose.prometheus import measured_from
from myriad.scheduler.diagnose.use import Standing, standing

KEPT = Path(__file__).parents[2] / "fixtures" / "prometheus" / "steps.json"
_MEAN = re.compile(r"avg\(avg_over_time\((\w+)\{(.*)\}\[\d+s\]\)\)")
_MOST = re.compile(r"max by \((\w+)\) \(max_over_time\((\w+)\[\d+s\]\)\)")


def answer(series: list[dict[str, Any]], query: str) -> list[dict[str, Any]]:
    """An instant query as Prometheus answers it, of the two forms that are asked."""
    if mean := _MEAN.fullmatch(query):
        # In PromQL a backslash in a string is written twice.
        wanted = {label: json.loads(f'"{text}"') for label, text in re.findall(r'(\w+)=~"([^"]*)"', mean[2])}
        found = [
            fmean(float(value) for _, value in one["values"])
            for one in series
            if one["metric"]["__name__"] == mean[1]
            and all(re.fullmatch(text, one["metric"].get(label, "")) for label, text in wanted.items())
        ]
        return [{"metric": {}, "value": [0, str(fmean(found))]}] if found else []
    most = _MOST.fullmatch(query)
    assert most is not None, query
    by: dict[str, float] = {}
    for one in series:
        if one["metric"]["__name__"] == most[2]:
            name = one["metric"][most[1]]
            by[name] = max(by.get(name, 0.0), *(float(value) for _, value in one["values"]))
    return [{"metric": {most[1]: name}, "value": [0, str(value)]} for name, value in by.items()]


@pytest.fixture
def prometheus() -> Iterator[str]:
    """The address of a server that answers from what was kept."""
    series = json.loads(KEPT.read_text())

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            body = json.dumps({"status": "success", "data": {"result": answer(series, form["query"][0])}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def runs(world: Any, make: Any, job: str, nodes: tuple[str, ...]) -> None:
    """A job with a pod of eight GPUs on each of these nodes."""
    world.put(WORKLOADS, make.workload(job, pods=len(nodes), assigned=dict.fromkeys(nodes, 1), admitted=True))
    for number, node in enumerate(nodes):
        world.put(PODS, make.pod(f"{job}-{number}", of=job, node_name=node, ownerReferences=owner(job)))


def owner(job: str) -> list[dict[str, Any]]:
    return [{"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": f"job-uid-{job}", "controller": True}]


@pytest.fixture
def call(world: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The verb, on a cluster with both jobs: one over two racks, one inside one."""
    runs(world, make, "wide", ("n0", "n4"))
    runs(world, make, "hungry", ("n1", "n2"))
    monkeypatch.setattr(_cluster, "connect", lambda *_, **__: world.api)
    monkeypatch.setattr(world.api, "get_raw", lambda *_, **__: {}, raising=False)
    app = typer.Typer()
    diagnose.register(app)

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, " ".join(done.output.split())

    return run


def test_p10_a_spread_job_and_a_data_starved_job_are_told_apart(call: Any, prometheus: str) -> None:
    code, wide = call("wide", "--prometheus", prometheus)
    assert code == 0
    assert "wide: spread: its GPUs compute 40 % of the time; 49 % of a step is communication" in wide
    assert "stands across a block" in wide and "where one rack could hold it" in wide and "NCCL_DEBUG=INFO" in wide
    _, hungry = call("hungry", "--prometheus", prometheus)
    assert "hungry: data starved: its GPUs compute 40 % of the time; 42 % of a step" in hungry
    assert "it waits for data" in hungry and "nsys profile" in hungry


def test_the_advice_is_one_of_the_documents_fields(call: Any, prometheus: str) -> None:
    _, text = call("vision/hungry", "--prometheus", prometheus, "--json")
    advice = json.loads(text)["advice"]
    assert advice["verdict"] == "data_starved" and 41 < advice["numbers"]["loader_share_percent"] < 43
    _, nothing = call("nobody", "--prometheus", prometheus, "--json")
    assert json.loads(nothing)["advice"] is None


def test_what_is_not_measured_is_none_and_dcgm_stands_in_for_the_agent(call: Any, world: Any, prometheus: str) -> None:
    wide = standing(world.cache, "vision/wide")
    assert wide is not None and wide.nodes == {"n0": 1, "n4": 1}
    found = measured_from(prometheus, wide, 600)
    assert found.memory_percent is None, "nobody has that gauge"
    assert found.sm_occupancy_percent == pytest.approx(35.0), "a share, given as percent"
    other = Standing(wide.gang, {"elsewhere.0": "n0"})
    assert measured_from(prometheus, other, 600).step_s is None


def test_a_job_that_does_not_run_is_not_judged(world: Any, make: Any) -> None:
    world.put(WORKLOADS, make.workload("waits"))
    assert standing(world.cache, "waits") is None


def test_a_prometheus_that_is_away_is_named(call: Any, world: Any) -> None:
    wide = standing(world.cache, "wide")
    assert wide is not None
    with pytest.raises(MyriadError, match="does not answer as it should"):
        measured_from("http://127.0.0.1:1", wide, 60)
