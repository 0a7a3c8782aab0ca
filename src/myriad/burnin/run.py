"""Runs the jobs of a burn-in on a cluster and collects what their pods measured."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from myriad.burnin.job import LABEL, NAMESPACE, Settings, deadline_s, link_result, nccl_bandwidth, objects
from myriad.burnin.judge import Pair, pairs_of, tournament
from myriad.errors import MyriadError
from myriad.fleet.problems import host_ranges
from myriad.kube.client import Api
from myriad.kube.kinds import JOBS, NODES, PODS, SERVICES

NCCL_ROUNDS = 3
"""Partners for each node with NCCL where nobody says another number: enough that the median blames no bystander."""

Json = dict[str, Any]
Say = Callable[[str], None]


def busy(api: Api, nodes: Sequence[str], resource: str) -> dict[str, list[str]]:
    """Nodes on which pods hold GPUs now, with these pods: a measurement would take their network."""
    found: dict[str, list[str]] = {}
    for pod in api.list(PODS)[0]:
        node = pod["spec"].get("nodeName")
        phase = (pod.get("status") or {}).get("phase")
        holds = any(
            resource in ((container.get("resources") or {}).get("limits") or {})
            for container in pod["spec"]["containers"]
        )
        if node in nodes and holds and phase not in ("Succeeded", "Failed"):
            found.setdefault(node, []).append(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}")
    return found


def absent(api: Api, nodes: Sequence[str]) -> dict[str, str]:
    """Nodes that cannot be measured, with the reason: not in the cluster, or not Ready."""
    ready: dict[str, bool] = {}
    for node in api.list(NODES)[0]:
        conditions = (node.get("status") or {}).get("conditions") or []
        ready[node["metadata"]["name"]] = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return {
        node: "is not Ready" if node in ready else "is not in the cluster"
        for node in nodes
        if not ready.get(node, False)
    }


def measure(api: Api, nodes: Sequence[str], settings: Settings, say: Say) -> list[Pair]:
    """Measure a group of nodes.

    Raises:
        MyriadError: a job did not end well; the message names what its pods said.
    """
    if not settings.uses_nccl:
        results = [
            found
            for message in _run(api, _name(), nodes, settings, say).values()
            if (found := link_result(message)) is not None
        ]
        return pairs_of(results)
    pairs: list[Pair] = []
    rounds = tournament(nodes, settings.rounds or NCCL_ROUNDS)
    with ThreadPoolExecutor(max_workers=16) as pool:
        for turn, matches in enumerate(rounds, 1):
            say(f"round {turn} of {len(rounds)}: {len(matches)} pairs")
            # The pairs of a round share no node.
            pairs += pool.map(lambda match: _nccl_pair(api, match, settings), matches)
    return pairs


def _nccl_pair(api: Api, match: tuple[str, str], settings: Settings) -> Pair:
    messages = _run(api, _name(), match, settings, lambda text: None)
    speeds = [speed for message in messages.values() if (speed := nccl_bandwidth(message)) is not None]
    if not speeds:
        raise MyriadError(
            f"{match[0]} with {match[1]}: the command printed no line `Avg bus bandwidth`",
            where=settings.command,
            hint="it must end as all_reduce_perf of nccl-tests does",
        )
    return Pair(*match, "nccl", min(speeds))


def _name() -> str:
    return f"burn-in-{secrets.token_hex(3)}"


def _run(api: Api, name: str, nodes: Sequence[str], settings: Settings, say: Say) -> dict[str, str]:
    """Run one Job to its end; node -> termination message. The objects are gone afterwards."""
    service, job = objects(name, nodes, settings)
    try:
        api.create(SERVICES, service, namespace=NAMESPACE)
        api.create(JOBS, job, namespace=NAMESPACE)
        return _wait(api, name, nodes, settings, say)
    finally:
        api.delete(JOBS, name, namespace=NAMESPACE)
        api.delete(SERVICES, name, namespace=NAMESPACE)


def _wait(api: Api, name: str, nodes: Sequence[str], settings: Settings, say: Say) -> dict[str, str]:
    until = time.monotonic() + deadline_s(len(nodes), settings) + 30
    said = ""
    while True:
        pods = api.list(PODS, namespace=NAMESPACE, labels=f"{LABEL}={name}")[0]
        status = (api.find(JOBS, name, namespace=NAMESPACE) or {}).get("status") or {}
        ended = {one["type"]: one for one in status.get("conditions") or [] if one["status"] == "True"}
        if "Complete" in ended:
            return {str(pod["spec"].get("nodeName")): message(pod) for pod in pods}
        if "Failed" in ended or time.monotonic() > until:
            why = ended.get("Failed", {}).get("message") or "it has not ended in time"
            raise MyriadError(
                f"the measurement of {host_ranges(list(nodes))} failed: {why}",
                where=f"{NAMESPACE}/{name}",
                hint="; ".join(sorted(trouble(pod) for pod in pods if trouble(pod))) or "no pod said why",
            )
        now = (
            f"{sum(1 for pod in pods if (pod.get('status') or {}).get('phase') == 'Running')} of {len(nodes)} pods run"
        )
        if now != said:
            said = now
            say(now)
        time.sleep(0.5)


def message(pod: Json) -> str:
    """The termination message of a pod's container; empty while it runs."""
    for container in (pod.get("status") or {}).get("containerStatuses") or []:
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended:
            return str(ended.get("message") or "")
    return ""


def trouble(pod: Json) -> str:
    """Why a pod has not ended well, as a sentence; empty where it has."""
    status = pod.get("status") or {}
    node = pod["spec"].get("nodeName") or "no node"
    if status.get("phase") == "Succeeded":
        return ""
    for condition in status.get("conditions") or []:
        if condition.get("reason") == "Unschedulable":
            return f"a pod found no node: {condition.get('message', '')}"
    for container in status.get("containerStatuses") or []:
        state = container.get("state") or {}
        if state.get("terminated"):
            last = (str(state["terminated"].get("message") or "").strip().splitlines() or ["it said nothing"])[-1]
            return f"{node}: exit {state['terminated'].get('exitCode')}: {last}"
        if state.get("waiting"):
            return f"{node}: {state['waiting'].get('reason')} {state['waiting'].get('message') or ''}".strip()
    return f"{node}: {status.get('phase', 'unknown')}"
