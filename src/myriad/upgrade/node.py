"""The end of one node's upgrade: its kubelet of the wanted version is Ready, its gate is open, it is given back.

All state is on the Node: `myriad.dev/cordon-owner` says that it is closed by `upgrade` and how it was found, so whoever
runs the upgrade again finishes what a killed run began.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from myriad.kube.client import Api, Json
from myriad.kube.drain import cordon_patch, now_text, patch_node, release
from myriad.kube.kinds import NODES
from myriad.kube.patience import patient, unless_away
from myriad.kube.reboot import CONTROL_PLANE_LABEL, EXPECTED_LABEL, GATE_RUN_ANNOTATION, NotBackError, gate_fault
from myriad.upgrade.plan import BY


@dataclass(frozen=True, slots=True)
class Waits:
    """How long one node may take.

    Attributes:
        ready_s: until its kubelet is Ready with the wanted version.
        gate_s: from then until its GPU gate is open.
        steady_s: an API server on it has to answer so long without a break: the new kubelet makes static pods anew some
            seconds after it is Ready.
        poll_s: between two looks.
    """

    ready_s: float = 300.0
    gate_s: float = 600.0
    steady_s: float = 20.0
    poll_s: float = 2.0


def finish(
    api: Api,
    name: str,
    version: str,
    *,
    waits: Waits,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    say: Callable[[str], None] = lambda _text: None,
) -> bool:
    """Wait until a node works with the wanted kubelet, and give it back as it was found.

    Args:
        api: the cluster.
        name: of the Node.
        version: of Kubernetes that its kubelet has to be.

    Returns:
        Whether it was closed by the upgrade until now.

    Raises:
        NotBackError: it does not come to that; it stays closed, with the reason on the Node.
    """
    try:
        _until(lambda: kubelet_fault(_node(api, name), version), waits.ready_s, waits.poll_s, sleep, clock)
        _steady(api, name, waits, sleep, clock)
        _gate(api, name, waits, sleep, clock, say)
    except NotBackError as error:
        reason = error.message
        patch_node(api, name, lambda node: cordon_patch(node, BY, reason, now_text()))
        raise NotBackError(
            f"{error.message}; it was left closed",
            where=name,
            hint="look at it; when it works again `myriad upgrade run` goes on with it first",
        ) from error
    return bool(patient(lambda: release(api, [name], by=BY), waits.ready_s, waits.poll_s, sleep=sleep, clock=clock))


def kubelet_fault(node: Json | None, version: str) -> str:
    """Why a node is not Ready with a kubelet of a version; "" where it is."""
    if node is None:
        return "the API server does not answer, or has no such node any more"
    status = node.get("status") or {}
    running = str((status.get("nodeInfo") or {}).get("kubeletVersion") or "").removeprefix("v")
    if running != version:
        return f"its kubelet is {running or 'unknown'}, not {version}"
    ready: Json = next((item for item in status.get("conditions") or [] if item.get("type") == "Ready"), {})
    if ready.get("status") != "True":
        return f"its kubelet is not ready: {ready.get('message') or ready.get('reason') or 'it has said nothing yet'}"
    return ""


def _steady(api: Api, name: str, waits: Waits, sleep: Callable[[float], None], clock: Callable[[], float]) -> None:
    """On a control plane: until its API server answers without a break."""
    node = _node(api, name)
    if node is not None and CONTROL_PLANE_LABEL not in (node["metadata"].get("labels") or {}):
        return
    since = clock()

    def fault() -> str:
        nonlocal since
        if _node(api, name) is None:
            since = clock()
            return "the API server does not answer"
        left = waits.steady_s - (clock() - since)
        return f"the API server has answered for {clock() - since:.0f} s only" if left > 0 else ""

    _until(fault, waits.ready_s, min(1.0, waits.poll_s), sleep, clock)


def _gate(
    api: Api,
    name: str,
    waits: Waits,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
    say: Callable[[str], None],
) -> None:
    """The GPU gate, judged afresh: a verdict from before the upgrade opens nothing."""
    node = _node(api, name)
    if node is not None and EXPECTED_LABEL not in (node["metadata"].get("labels") or {}):
        return
    say(f"{name}: ready, waiting for its gate")
    question = f"{BY}-{now_text()}"

    def ask(node: Json) -> Json:
        version = node["metadata"].get("resourceVersion")
        return {"metadata": {"resourceVersion": version, "annotations": {GATE_RUN_ANNOTATION: question}}}

    patient(lambda: patch_node(api, name, ask), waits.ready_s, waits.poll_s, sleep=sleep, clock=clock)

    def fault() -> str:
        node = _node(api, name)
        return "the API server does not answer" if node is None else gate_fault(node, question)

    _until(fault, waits.gate_s, waits.poll_s, sleep, clock)


def _node(api: Api, name: str) -> Json | None:
    """A Node; None where there is none, and while the API server is away, as while its own host is upgraded."""
    return unless_away(lambda: api.find(NODES, name))


def _until(
    fault: Callable[[], str],
    timeout_s: float,
    poll_s: float,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
) -> None:
    end = clock() + timeout_s
    while reason := fault():
        if clock() >= end:
            raise NotBackError(f"{reason}, {timeout_s:.0f} s long")
        sleep(poll_s)
