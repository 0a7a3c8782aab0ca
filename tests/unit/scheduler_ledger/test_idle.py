"""Idle GPU-hours: what is asked of Prometheus, and what its answers add up to."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import httpx
import pytest

from myriad.errors import MyriadError
from myriad.scheduler.ledger.idle import idle_hours


class Prometheus:
    """Answers instant queries: 12 idle steps (an hour) of one GPU a day on each of two nodes."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.asked: list[dict[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        form = {k: v[0] for k, v in parse_qs(request.content.decode()).items()}
        self.asked.append(form)
        rows: list[Any] = []
        if f'{{{self.label}!=""}}' in form["query"]:
            rows = [{"metric": {}, "value": [0, "16"]}]
            if form["query"].startswith("sum by"):
                rows = [{"metric": {self.label: "vision", "Hostname": n}, "value": [0, "12"]} for n in ("g1", "g2")]
        return httpx.Response(200, json={"status": "success", "data": {"resultType": "vector", "result": rows}})


@pytest.mark.parametrize("label", ["namespace", "exported_namespace"])
def test_days_are_asked_one_by_one_and_added_up(label: str) -> None:
    server = Prometheus(label)
    found = idle_hours(
        "http://p:9090", since=0, until=2 * 86_400 + 3600, threshold_percent=5, transport=httpx.MockTransport(server)
    )
    assert found == {("vision", "g1"): 3.0, ("vision", "g2"): 3.0}
    sums = [form for form in server.asked if form["query"].startswith("sum by")]
    assert [form["time"] for form in sums] == ["176400", "90000", "3600"]
    assert ["[86400s:300s]" in form["query"] for form in sums] == [True, True, False] and "< 5" in sums[0]["query"]
    assert "[3600s:300s]" in sums[2]["query"], "the first day is not longer than the period"


def test_a_server_without_such_gauges_is_named() -> None:
    with pytest.raises(MyriadError, match="no gauge of GPUs by pod"):
        idle_hours(
            "http://p:9090", since=0, until=60, threshold_percent=5, transport=httpx.MockTransport(Prometheus("pod"))
        )
