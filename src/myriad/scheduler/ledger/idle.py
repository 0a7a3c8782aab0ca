"""GPU-hours that were held and not used, from a Prometheus server with DCGM's exporter. Reads only.

The exporter names the pod that has a GPU (https://github.com/NVIDIA/dcgm-exporter#how-to-include-pod-labels): a series
with a namespace is a GPU that somebody holds. Each sample below the threshold is one step of idleness of one GPU.
"""

from __future__ import annotations

from typing import Any

import httpx

from myriad.errors import MyriadError

STEP_S = 300
_DAY_S = 86_400
# Where Prometheus puts its own labels first, those of the exporter come as exported_*.
_LABELS = ("exported_namespace", "namespace")
_QUERY = (
    "sum by ({label}, Hostname) (count_over_time("
    '(max by ({label}, Hostname, UUID) (avg_over_time(DCGM_FI_DEV_GPU_UTIL{{{label}!=""}}[{step}s])) < {threshold})'
    "[{range}s:{step}s]))"
)


def idle_hours(
    address: str,
    *,
    since: int,
    until: int,
    threshold_percent: float,
    transport: httpx.BaseTransport | None = None,
) -> dict[tuple[str, str], float]:
    """GPU-hours below the threshold by (namespace, node).

    Args:
        address: http://HOST:PORT.
        since, until: seconds since the epoch.
        threshold_percent: a GPU whose mean of five minutes is below it idles.
        transport: replaces the network in tests.

    Raises:
        MyriadError: Prometheus does not answer, or has no gauge of GPUs by pod in that time.
    """
    with httpx.Client(base_url=address.rstrip("/"), timeout=60.0, transport=transport) as client:
        for label in _LABELS:
            if not _query(client, f'count(last_over_time(DCGM_FI_DEV_GPU_UTIL{{{label}!=""}}[30d]))', until):
                continue
            found: dict[tuple[str, str], float] = {}
            end = until
            # A day at a time: a month of ten thousand GPUs in one query is more samples than a server takes.
            while end > since:
                begin = max(since, end - _DAY_S)
                text = _QUERY.format(label=label, step=STEP_S, threshold=threshold_percent, range=end - begin)
                for row in _query(client, text, end):
                    key = str(row["metric"].get(label, "")), str(row["metric"].get("Hostname", ""))
                    found[key] = found.get(key, 0.0) + float(row["value"][1]) * STEP_S / 3600
                end = begin
            return found
    raise MyriadError(
        "Prometheus has no gauge of GPUs by pod",
        where=address,
        hint="it should scrape DCGM's exporter with its Kubernetes mapping on (DCGM_EXPORTER_KUBERNETES=true)",
    )


def _query(client: httpx.Client, query: str, at: int) -> list[Any]:
    try:
        answer = client.post("/api/v1/query", data={"query": query, "time": str(at)})
        answer.raise_for_status()
        rows: list[Any] = answer.json()["data"]["result"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise MyriadError(
            f"Prometheus does not answer as it should: {error}", where=str(client.base_url), hint="look at its address"
        ) from error
    return rows
