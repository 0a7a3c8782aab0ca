"""Utilisation of GPUs from a Prometheus server: the node agent's gauges, or those of DCGM's exporter. Reads only."""

from __future__ import annotations

from typing import Any

import httpx

from myriad.errors import MyriadError
from myriad.scheduler.diagnose.use import Usage

_QUERIES = (
    ("node agent", "node", "max_over_time(myriad_gpu_utilization_percent[{window}s])"),
    ("DCGM exporter", "Hostname", "max_over_time(DCGM_FI_DEV_GPU_UTIL[{window}s])"),
)


def usage_from(address: str, window_s: int, *, transport: httpx.BaseTransport | None = None) -> Usage:
    """How busy each node's busiest GPU was at most. Raises MyriadError where Prometheus does not answer.

    The maximum over the window and over the GPUs: one busy minute of one GPU is enough not to be idle.
    """
    with httpx.Client(base_url=address.rstrip("/"), timeout=15.0, transport=transport) as client:
        for source, label, query in _QUERIES:
            percent = _query(client, query.format(window=window_s), label)
            if percent:
                return Usage(float(window_s), percent, source)
    raise MyriadError(
        "Prometheus has no gauge of GPU utilisation",
        where=address,
        hint="it should scrape the node agents (myriad_gpu_utilization_percent) or DCGM's exporter",
    )


def _query(client: httpx.Client, query: str, label: str) -> dict[str, float]:
    try:
        answer = client.get("/api/v1/query", params={"query": f"max by ({label}) ({query})"})
        answer.raise_for_status()
        rows: list[Any] = answer.json()["data"]["result"]
        return {str(r["metric"][label]): float(r["value"][1]) for r in rows if label in r["metric"]}
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise MyriadError(
            f"Prometheus does not answer as it should: {error}", where=str(client.base_url), hint="look at its address"
        ) from error
