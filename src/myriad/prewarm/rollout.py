"""A rollout as the playbook runs it: its plan from what was found on the nodes, the verdict between waves. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from myriad.prewarm.limits import Limits
from myriad.prewarm.verdict import UNREACHABLE, WAITING, NodeOutcome, may_go_on
from myriad.prewarm.waves import Node, plan

Json = dict[str, Any]
_SHOWN = 10


def plan_rollout(
    looks: Mapping[str, Mapping[str, Any]], limits: Limits, *, seed: str = "", look_only: bool = False
) -> Json:
    """Waves of the nodes that have something to do.

    Args:
        looks: by host what the look found (`outcome`, `images`, `surplus`), and its `rack` and `registry`.
        limits: of the rollout.
        seed: of the order.
        look_only: nobody is to pull: `hosts` stays empty.

    Returns:
        `order` and `sizes` of the waves; `hosts`, those of a play (`sizes` is its `serial`);
        `wave` by host; `warm` and `refused` hosts; `surplus`, those of the warm that keep images which nobody wants
        there any more: they are in no wave, and have something to do all the same;
        `first`, whether the first wave is the single node that tries the image; `text` for people.
    """
    warm = sorted(host for host, look in looks.items() if look.get("outcome") == "warm")
    refused = {host: _sentence(look) for host, look in looks.items() if look.get("outcome") == "refused"}
    failed = {
        host: _sentence(look) for host, look in looks.items() if look.get("outcome") == "failed" or look.get("failed")
    }
    waiting = [
        Node(host, str(look.get("rack") or ""), str(look.get("registry") or ""))
        for host, look in sorted(looks.items())
        if host not in refused and host not in failed and look.get("outcome") != "warm"
    ]
    found = plan(waiting, warm=len(warm), seed=seed)
    order = [node.name for wave in found for node in wave]
    result = {
        "order": order,
        "hosts": [] if look_only else order,
        "sizes": [len(wave) for wave in found],
        "wave": {node.name: number for number, wave in enumerate(found, start=1) for node in wave},
        "warm": warm,
        "surplus": [] if look_only else [host for host in warm if looks[host].get("surplus")],
        "refused": refused,
        "failed": failed,
        "first": not warm,
        "needs_bytes": sum(
            int(one.get("needs_bytes") or 0) for look in looks.values() for one in look.get("images") or []
        ),
    }
    return {"changed": False, **result, "text": _text(result, limits)}


def judge_rollout(
    plan_: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]], batch: Sequence[str], limits: Limits
) -> str:
    """Why the wave of `batch` does not begin; empty where it does.

    Args:
        plan_: what `plan_rollout` gave.
        results: by host what came of it, of the hosts that were tried; unreachable ones say `unreachable`.
        batch: hosts of the wave that is about to begin.
    """
    order = list(plan_.get("order") or [])
    sizes = [int(size) for size in plan_.get("sizes") or []]
    begins = min((order.index(host) for host in batch if host in order), default=0)
    done, number = 0, 0
    while number < len(sizes) and done < begins:
        done += sizes[number]
        number += 1
    if not done:
        return ""
    outcomes = [_outcome(host, results.get(host) or {}, plan_) for host in order[:done]]
    return may_go_on(outcomes, limits, first=number == 1 and bool(plan_.get("first")))


def _outcome(host: str, result: Mapping[str, Any], plan_: Mapping[str, Any]) -> NodeOutcome:
    wave = int((plan_.get("wave") or {}).get(host) or 0)
    if result.get("unreachable"):
        return NodeOutcome(host, UNREACHABLE, wave, str(result.get("msg") or "it does not answer"))
    if result.get("failed"):
        outcome = str(result.get("outcome") or "failed")
        return NodeOutcome(host, outcome if outcome == "refused" else "failed", wave, str(result.get("msg") or ""))
    if not result:
        # A host that Ansible lost before its task began has no result at all.
        return NodeOutcome(host, UNREACHABLE, wave, "it was lost before its pull began")
    return NodeOutcome(host, str(result.get("outcome") or "warm"), wave)


def outcomes_of(
    hosts: Sequence[str],
    plan_: Mapping[str, Any],
    journal: Sequence[Mapping[str, Any]],
    unreachable: Mapping[str, str],
) -> list[NodeOutcome]:
    """What came of every host, after a run that may have been broken off anywhere.

    Args:
        hosts: all that the run was about.
        plan_: its plan.
        journal: its lines, in the order in which nodes were done.
        unreachable: hosts that could not be reached, with the reason.
    """
    lines = {str(line["host"]): line for line in journal}
    result = []
    for host in hosts:
        wave = int((plan_.get("wave") or {}).get(host) or 0)
        if host in lines:
            line = lines[host]
            images = [one for one in line.get("images") or [] if isinstance(one, Mapping)]
            result.append(
                NodeOutcome(
                    host,
                    str(line.get("outcome") or "failed"),
                    wave,
                    str(line.get("sentence") or ""),
                    registry=next((str(one["registry"]) for one in images if one.get("registry")), ""),
                    tried=tuple(str(one) for one in line.get("tried") or ()),
                    fetched_bytes=sum(int(one.get("fetched_bytes") or 0) for one in images),
                    seconds=round(float(line.get("ended") or 0) - float(line.get("began") or 0), 1),
                    details=tuple(images),
                )
            )
        elif host in (plan_.get("refused") or {}):
            result.append(NodeOutcome(host, "refused", 0, plan_["refused"][host]))
        elif host in (plan_.get("failed") or {}):
            result.append(NodeOutcome(host, "failed", 0, plan_["failed"][host]))
        elif host in unreachable:
            result.append(NodeOutcome(host, UNREACHABLE, wave, unreachable[host]))
        elif host in (plan_.get("warm") or []):
            result.append(NodeOutcome(host, "warm", 0))
        else:
            result.append(NodeOutcome(host, WAITING, wave, "its wave did not begin"))
    return result


def _sentence(look: Mapping[str, Any]) -> str:
    said = [str(one["sentence"]) for one in look.get("images") or [] if one.get("sentence")]
    return "; ".join(said) or str(look.get("msg") or "")


def _text(found: Mapping[str, Any], limits: Limits) -> str:
    waiting, warm = len(found["order"]), len(found["warm"])
    lack, has = ("node lacks" if waiting == 1 else "nodes lack"), ("has" if warm == 1 else "have")
    head = f"{waiting} {lack} images, {warm} {has} them"
    lines = [head + (f", {len(found['refused'])} have no room" if found["refused"] else "")]
    if found["sizes"]:
        lines[0] += f": waves of {', '.join(map(str, found['sizes']))}"
        lines.append(
            f"at a time {limits.rack_slots} of a rack and {limits.registry_slots} from a registry "
            f"(a node draws up to {limits.node_gbit:g} Gbit/s; caps: rack {limits.rack_gbit:g}, "
            f"registry {limits.registry_gbit:g} Gbit/s)"
        )
    if found["surplus"]:
        lines.append(f"{len(found['surplus'])} of the warm let go of images that nobody wants there any more")
    for kind in ("refused", "failed"):
        shown = list(found[kind].items())[:_SHOWN]
        lines += [f"  {host}  {kind}: {sentence}" for host, sentence in shown]
        lines += [f"  and {len(found[kind]) - _SHOWN} more"] if len(found[kind]) > _SHOWN else []
    return "\n".join(lines)
