"""The status page: queues, quotas, nodes and the newest decisions as one HTML document without scripts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from myriad.scheduler.explain import duration

Json = dict[str, Any]

_STYLE = """
body{font:14px/1.45 system-ui,sans-serif;margin:1.5rem auto;max-width:72rem;padding:0 1rem}
body{color:#1a1a1a;background:#fff}
h1{font-size:1.3rem;margin:0}h2{font-size:1.05rem;margin:1.6rem 0 .4rem}
p{margin:.3rem 0}table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid #ddd;vertical-align:top}
th{font-weight:600;color:#555}.n{text-align:right;font-variant-numeric:tabular-nums}
.bad{color:#a40000;font-weight:600}.dim{color:#777}
.bar{display:inline-block;width:8rem;height:.7rem;background:#eee;border:1px solid #ccc;vertical-align:middle}
.bar>i{display:block;height:100%;background:#3a6ea5}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}th,td{border-color:#333}th{color:#aaa}
.bad{color:#ff7b72}.bar{background:#333;border-color:#555}}
"""


def render(status: Json, queues: Sequence[Json], decisions: Sequence[Json]) -> str:
    """The page from the same data as `/v1/status`, `/v1/queue` and `/v1/decisions`."""
    extension = status["extension"]
    notes = []
    if extension["cache_behind"]:
        notes.append(f"the cache does not follow yet: {', '.join(extension['cache_behind'])}")
    if not extension["leader"]:
        notes.append("no replica leads: nothing is steered")
    if status["queues_not_steered"]:
        notes.append(f"not steered: {', '.join(status['queues_not_steered'])}")
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content=5>",
        "<meta name=viewport content='width=device-width'><title>Myriad</title>",
        f"<style>{_STYLE}</style><h1>Myriad</h1>",
        f"<p>{status['nodes_taking_work']} of {status['nodes_total']} GPU nodes take work, "
        f"{status['gpus_used']} of {status['gpus_allocatable']} GPUs in use, "
        f"{status['jobs_running']} jobs hold quota, {status['jobs_waiting']} wait. "
        f"<span class=dim>Leader: {escape(extension['leader'] or 'none')}</span></p>",
        *(f"<p class=bad>{escape(note)}</p>" for note in notes),
        _queues(queues),
        _waiting(queues),
        _running(queues),
        _fits(status["fits_now"]),
        _nodes(status["nodes"]),
        _decisions(decisions),
        "</html>",
    ]
    return "\n".join(parts)


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], empty: str) -> str:
    if not rows:
        return f"<h2>{title}</h2><p class=dim>{empty}</p>"
    head = "".join(f"<th{_number(h)}>{h.rstrip('#')}</th>" for h in heads)
    body = "".join(
        "<tr>" + "".join(f"<td{_number(h)}>{cell}</td>" for h, cell in zip(heads, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<h2>{title}</h2><table><tr>{head}</tr>{body}</table>"


def _number(head: str) -> str:
    return " class=n" if head.endswith("#") else ""


def _queues(queues: Sequence[Json]) -> str:
    rows = []
    for q in queues:
        nominal, used = q["nominal_gpus"], q["used_gpus"]
        share = min(100, round(100 * used / nominal)) if nominal else 0
        rows.append(
            [
                escape(q["team"] or q["cluster_queue"]),
                escape(q["pool"]),
                f"{used} of {nominal}",
                f"<span class=bar><i style='width:{share}%'></i></span>",
                str(q["borrowed_gpus"]),
                str(q["lent_by_others_now"]),
                str(len(q["running"])),
                str(len(q["waiting"])),
            ]
        )
    heads = ["team", "pool", "GPUs#", "", "borrowed#", "to borrow now#", "running#", "waiting#"]
    return _table("Quotas", heads, rows, "no queue is known")


def _waiting(queues: Sequence[Json]) -> str:
    rows = [
        [
            escape(q["cluster_queue"]),
            str(j["position"]),
            escape(f"{j['namespace']}/{j['job']}"),
            escape(j["size"]),
            str(j["priority"]),
            duration(j["waiting_s"]),
            f"<span class={'bad' if j['state'] == 'never' else 'why'}>{escape(j['reason'])}</span>",
        ]
        for q in queues
        for j in q["waiting"]
    ]
    return _table("Waiting", ["queue", "#", "job", "size", "priority#", "for#", "why"], rows, "nothing waits")


def _running(queues: Sequence[Json]) -> str:
    rows = [
        [
            escape(q["cluster_queue"]),
            escape(f"{j['namespace']}/{j['job']}"),
            escape(j["size"]),
            escape(", ".join(list(j["nodes"])[:8]) + (" ..." if len(j["nodes"]) > 8 else "")),
        ]
        for q in queues
        for j in q["running"]
    ]
    return _table("Holding quota", ["queue", "job", "size", "nodes"], rows, "nothing runs")


def _fits(fits: Sequence[Json]) -> str:
    rows = [[escape(f["tier"]), escape(f["place"]), str(f["whole_nodes"]), str(f["gpus"])] for f in fits]
    return _table("Largest gang that fits now", ["within one", "place", "whole nodes#", "GPUs#"], rows, "no node")


def _nodes(nodes: Sequence[Json]) -> str:
    rows = []
    for n in nodes:
        state = "takes work"
        if not n["takes_work"]:
            causes = [
                cause
                for cause, holds in (
                    ("not ready", not n["ready"]),
                    ("cordoned", n["cordoned"]),
                    (f"gate closed {n['gate_reason']}".strip(), n["gate"] == "closed"),
                    ("no GPU allocatable", n["allocatable_gpus"] == 0),
                )
                if holds
            ]
            state = f"<span class=bad>{escape(', '.join(causes) or 'takes no work')}</span>"
        expected = "?" if n["expected_gpus"] is None else n["expected_gpus"]
        rows.append(
            [
                escape(n["node"]),
                escape(n["pool"]),
                escape(n["place"]),
                f"{expected} / {n['allocatable_gpus']}",
                str(n["used_gpus"]),
                state,
            ]
        )
    shown = rows[:500]
    heads = ["node", "pool", "place", "expected / allocatable#", "in use#", "state"]
    return _table("Nodes" + (f" (500 of {len(rows)})" if len(rows) > 500 else ""), heads, shown, "no GPU node")


def _decisions(decisions: Sequence[Json]) -> str:
    rows = [
        [
            escape(str(d["time"])),
            escape(str(d["event"])),
            escape(f"{d.get('namespace', '')}/{d['name']}"),
            escape("/".join(d.get("domain", ())) or str(d.get("assigned_tier", ""))),
            escape(str(d.get("reason") or ", ".join(d.get("assigned") or d.get("nodes") or {}))[:200]),
        ]
        for d in reversed(decisions)
    ]
    return _table("Newest decisions", ["time", "event", "job", "place", ""], rows, "none yet")
