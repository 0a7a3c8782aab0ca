"""Utilisation of GPUs and the times of a job's steps from a Prometheus server. Reads only.

GPUs: the node agent's gauges, or those of DCGM's exporter, by node. Steps: what the training loop itself exposes, by
namespace and pod (docs/jobs.md): nobody else can tell a step that waits for data from one that waits for its peers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import httpx

from myriad.errors import MyriadError
from myriad.scheduler.diagnose.use import Measured, Standing, Usage

_QUERIES = (
    ("node agent", "node", "max_over_time(myriad_gpu_utilization_percent[{window}s])"),
    ("DCGM exporter", "Hostname", "max_over_time(DCGM_FI_DEV_GPU_UTIL[{window}s])"),
)

STEP, LOADER, COMMUNICATION = (f"myriad_training_{part}_seconds" for part in ("step", "loader", "communication"))
"""Gauges of a training loop: seconds of a step, and how many of them it waited for data and for collectives."""

# By what is measured: whose gauge, the label that names the node, and what makes percent of it.
_OF_NODES = {
    "gpu": (("myriad_gpu_utilization_percent", "node", 1), ("DCGM_FI_DEV_GPU_UTIL", "Hostname", 1)),
    "memory": (("myriad_gpu_memory_utilization_percent", "node", 1), ("DCGM_FI_PROF_DRAM_ACTIVE", "Hostname", 100)),
    "occupancy": (("DCGM_FI_PROF_SM_OCCUPANCY", "Hostname", 100),),
}


def measured_from(
    address: str, job: Standing, window_s: int, *, transport: httpx.BaseTransport | None = None
) -> Measured:
    """What was measured of a job, as means over its pods and nodes and over a window. Asks at most eight times.

    A node's figures count for the whole node: a job that shares it is judged by its neighbours too.

    Raises:
        MyriadError: Prometheus does not answer.
    """
    with httpx.Client(base_url=address.rstrip("/"), timeout=15.0, transport=transport) as client:

        def mean(metric: str, **labels: Iterable[str]) -> float | None:
            chosen = ",".join(f'{name}=~"{_any_of(values)}"' for name, values in labels.items())
            found = _series(client, f"avg(avg_over_time({metric}{{{chosen}}}[{window_s}s]))")
            return float(found[0]["value"][1]) if found else None

        def of_nodes(what: str) -> float | None:
            for metric, label, times in _OF_NODES[what]:
                value = mean(metric, **{label: job.nodes})
                if value is not None:
                    return times * value
            return None

        def of_pods(metric: str) -> float | None:
            return mean(metric, namespace=(job.gang.namespace,), pod=job.pods)

        step_s, waits_s = of_pods(STEP), of_pods(COMMUNICATION)
        return Measured(
            gpu_percent=of_nodes("gpu"),
            sm_occupancy_percent=of_nodes("occupancy"),
            memory_percent=of_nodes("memory"),
            communication_percent=None if waits_s is None or not step_s else 100 * waits_s / step_s,
            loader_s=of_pods(LOADER),
            step_s=step_s,
        )


def _any_of(values: Iterable[str]) -> str:
    """A regular expression for these names, inside a PromQL string."""
    return "|".join(re.escape(value) for value in sorted(values)).replace("\\", "\\\\")


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
    rows = _series(client, f"max by ({label}) ({query})")
    return {str(row["metric"][label]): float(row["value"][1]) for row in rows if label in row["metric"]}


def _series(client: httpx.Client, query: str) -> list[dict[str, Any]]:
    """Rows of an instant query: {"metric": labels, "value": [time, "number"]}."""
    try:
        # By POST: a gang of a thousand nodes is named whole, which no address holds.
        answer = client.post("/api/v1/query", data={"query": query})
        answer.raise_for_status()
        rows = list(answer.json()["data"]["result"])
        for row in rows:
            float(row["value"][1]), row["metric"]
        return rows
    except (httpx.HTTPError, ValueError, KeyError, TypeError, IndexError) as error:
        raise MyriadError(
            f"Prometheus does not answer as it should: {error}", where=str(client.base_url), hint="look at its address"
        ) from error
