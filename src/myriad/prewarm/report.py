"""What a rollout came to, for people and for programs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from myriad.prewarm.limits import Limits
from myriad.prewarm.verdict import WAITING, NodeOutcome, exit_code, summary
from myriad.prewarm.words import bytes_text

Json = dict[str, Any]
_SHOWN = 20


def document(outcomes: Sequence[NodeOutcome], lines: Sequence[Mapping[str, Any]], limits: Limits, stop: str) -> Json:
    """The whole report as data.

    Args:
        outcomes: of all nodes.
        lines: the journal, for the times.
        limits: of the rollout.
        stop: why no further wave began; empty where all did.
    """
    return {
        "exit_code": exit_code(outcomes),
        "summary": summary(outcomes),
        "stopped": stop,
        "waves": [_wave(number, outcomes, lines) for number in sorted({one.wave for one in outcomes if one.wave})],
        "peaks": peaks(outcomes, lines, limits),
        "nodes": [
            {**asdict(one), "details": [dict(detail) for detail in one.details]}
            for one in sorted(outcomes, key=lambda one: one.node)
        ],
    }


def _wave(number: int, outcomes: Sequence[NodeOutcome], lines: Sequence[Mapping[str, Any]]) -> Json:
    members = [one for one in outcomes if one.wave == number]
    names = {one.node for one in members}
    times = [(float(line["began"]), float(line["ended"])) for line in lines if line.get("host") in names]
    seconds = max(end for _, end in times) - min(begin for begin, _ in times) if times else 0.0
    return {"wave": number, "nodes": len(members), **summary(members), "seconds": round(seconds, 1)}


def peaks(outcomes: Sequence[NodeOutcome], lines: Sequence[Mapping[str, Any]], limits: Limits) -> Json:
    """The most that came from one registry at a time, from the journal: nodes, and Gbit/s by each pull's own mean."""
    spans = {str(line.get("host")): line for line in lines}
    events: list[tuple[float, int, float, str]] = []
    fastest = (0.0, "")
    for one in outcomes:
        line = spans.get(one.node)
        for image in one.details:
            took = float(image.get("seconds") or 0)
            if line is None or not image.get("fetched_bytes") or took <= 0:
                continue
            rate = float(image["fetched_bytes"]) * 8 / took / 1e9
            fastest = max(fastest, (rate, one.node))
            end = float(line["ended"])
            events += [(end - took, 1, rate, one.registry), (end, -1, -rate, one.registry)]
    most_nodes, most_gbit = 0, 0.0
    now: dict[str, tuple[int, float]] = {}
    for _, count, rate, registry in sorted(events):
        nodes, gbit = now.get(registry, (0, 0.0))
        now[registry] = (nodes + count, gbit + rate)
        most_nodes, most_gbit = max(most_nodes, nodes + count), max(most_gbit, gbit + rate)
    return {
        "registry_nodes": most_nodes,
        "registry_slots": limits.registry_slots,
        "registry_gbit": round(most_gbit, 3),
        "registry_cap_gbit": limits.registry_gbit,
        "node_gbit": round(fastest[0], 3),
        "fastest_node": fastest[1],
        "node_cap_gbit": limits.node_gbit,
    }


def text(outcomes: Sequence[NodeOutcome], lines: Sequence[Mapping[str, Any]], limits: Limits, stop: str) -> list[str]:
    """The report as lines: a line a wave, then every node that is not warm, then what it means."""
    found = document(outcomes, lines, limits, stop)
    rows = []
    for wave in found["waves"]:
        good = sum(wave.get(kind, 0) for kind in ("warm", "pulled", "pinned", "proven"))
        bad = [f"{wave[kind]} {kind}" for kind in ("refused", "failed", "unreachable", WAITING) if wave.get(kind)]
        nodes = "1 node" if wave["nodes"] == 1 else f"{wave['nodes']} nodes"
        said = "ok" if good == wave["nodes"] else ", ".join([*([f"{good} ok"] if good else []), *bad])
        rows.append(f"wave {wave['wave']}  {nodes:<12}  {said:<28}  {wave['seconds']:.0f} s".rstrip())
    if not rows and not [one for one in outcomes if not one.good]:
        rows.append(
            f"nothing to do: {len(outcomes)} {'node has its' if len(outcomes) == 1 else 'nodes have their'} images"
        )
    bad_nodes = [one for one in outcomes if not one.good and one.outcome != WAITING]
    rows += [f"{one.node}  {one.outcome}: {one.sentence}" for one in bad_nodes[:_SHOWN]]
    if len(bad_nodes) > _SHOWN:
        rows.append(f"and {len(bad_nodes) - _SHOWN} more; --json has all of them")
    rows += [f"{one.node}  {' '.join(one.tried)}" for one in outcomes if one.good and one.tried][:_SHOWN]
    rows += _audited(outcomes)
    waiting = sum(one.outcome == WAITING for one in outcomes)
    if stop:
        rows.append(f"stopped: {stop.splitlines()[0]}")
    if waiting:
        rows.append(
            f"{waiting} {'node was' if waiting == 1 else 'nodes were'} not touched. Run it again once that is "
            "repaired: nodes that have their images are passed over"
        )
    peak = found["peaks"]
    if peak["registry_nodes"]:
        fetched = sum(one.fetched_bytes for one in outcomes)
        rows.append(
            f"{bytes_text(fetched)} fetched; at most {peak['registry_nodes']} of {peak['registry_slots']} nodes and "
            f"{peak['registry_gbit']:.2g} of {limits.registry_gbit:g} Gbit/s from one registry at a time"
        )
    if peak["node_gbit"] > limits.node_gbit:
        rows.append(
            f"{peak['fastest_node']} drew {peak['node_gbit']:.1f} Gbit/s, more than the {limits.node_gbit:g} that the "
            "caps count with: set myriad_images.prewarm.node_gbit to what your nodes can draw"
        )
    return rows


def _audited(outcomes: Sequence[NodeOutcome]) -> list[str]:
    """Nodes that may not keep what they have; those of which the same is said stand together."""
    doubts: dict[str, list[str]] = {}
    for one in outcomes:
        for image in one.details:
            if one.good and image.get("kept") is not True and image.get("audit"):
                doubts.setdefault(str(image["audit"][0]), []).append(one.node)
            for warning in image.get("warnings") or []:
                doubts.setdefault(str(warning), []).append(one.node)
    return [
        f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}  {said}"
        for said, names in doubts.items()
    ]
