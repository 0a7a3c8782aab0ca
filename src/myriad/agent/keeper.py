"""Keeps the gate of one node: judges, asks the brake, runs the probe, and writes to the Node what is true.

The loop calls `Keeper.keep` at every look and whenever the Node changes. All that has to outlive the agent stands in
the Node's annotation (`report.Record`); what is kept here only spares calls.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from myriad.agent import brake, health, probe
from myriad.agent.gate import (
    HEALTH,
    SETTLING,
    Check,
    Kubelet,
    Surroundings,
    Verdict,
    agent_log,
    judge,
    registry_url,
    resources,
)
from myriad.agent.probe import ProbeResult
from myriad.agent.report import RUN_ANNOTATION, UNHEALTHY_TAINT, Record, operations, own_taints
from myriad.errors import MyriadError
from myriad.fleet.labels import GATE_TAINT, POOL_LABEL
from myriad.fleet.portrait import Expected, Portrait
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import NODES, PODS

log = logging.getLogger("myriad.gate")

Json = dict[str, Any]

FIELD_MANAGER = "myriad-agent"
SETTLE_S = 15.0
"""How long the kubelet's counts may differ before an open gate closes: a device plugin that restarts takes seconds."""
_BEGINS = 5
"""How often a Node that moves on is tried before the first look."""
_REGISTRY_S = 30.0
_RETRY_S = (20.0, 600.0)
"""Wait before a probe that failed is tried again: at first, and at most."""


@dataclass(frozen=True, slots=True)
class KeeperSettings:
    """Inputs.

    Attributes:
        node: the Node's name.
        image: the agent's own image, for the probe; empty: GPUs are not tried from a container.
    """

    node: str
    image: str = ""


@dataclass(slots=True)
class _Probing:
    """What is known of the probe's pod: when it was made, and when the next one may be."""

    made_at: float | None = None
    not_before: float = float("-inf")
    failures: int = 0


class Keeper:
    """The gate of one node.

    Args:
        api: the client.
        settings: inputs.
        now: the time of day.
        monotonic: seconds, for waits.
        reach: asks a registry; the reason why it cannot be reached, or "".
    """

    def __init__(
        self,
        api: Api,
        settings: KeeperSettings,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
        reach: Callable[[str], str] | None = None,
    ) -> None:
        self._api = api
        self._settings = settings
        self._now = now
        self._monotonic = monotonic
        self._reach = reach or reach_registry
        self._brake = brake.Brake(api, now=now)
        self._probing = _Probing()
        self._unsettled_at: float | None = None
        self._ask_after = float("-inf")
        self._registry: tuple[float, str] | None = None
        self._said: tuple[bool, str] | None = None
        self._baseline: tuple[str, Mapping[str, int]] = ("", {})

    def begin(self, node: Json, boot: str) -> Json | None:
        """Close the gate of a node that has started since it was judged, before anything is looked at.

        Its Node is the one from before, without a taint: a kubelet registers with taints once. Nothing is judged here,
        so the brake is not asked. Returns the Node as written, None where nothing was.

        Args:
            node: the Node as last seen.
            boot: which start of the node this is; empty where that is not known.

        Raises:
            MyriadError: the API server does not answer or refuses for another reason than a Node that moved on.
        """
        for _ in range(_BEGINS):
            before = Record.of(node)
            if not boot or not before.boot or before.boot == boot or own_taints(node):
                return None
            started = Check(
                "boot", "judged", "not judged", False, "the node has started since it was judged",
                f"its agent looks, which takes seconds; where this stays: {agent_log(self._settings.node)}",
            )  # fmt: skip
            at = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
            # The boot stays the one that was judged: this one has not been.
            record = replace(before, open=False, checks=(started,), since=at, held="", probe=None)
            todo = operations(node, record, {GATE_TAINT})
            try:
                return self._api.patch(NODES, self._settings.node, todo, kind="json", field_manager=FIELD_MANAGER)
            except ApiError as error:
                if not (error.is_conflict or error.is_not_found or error.status == 422):
                    raise
            # A kubelet that has just started writes often.
            now = self._api.find(NODES, self._settings.node)
            if now is None:
                return None
            node = now
        return None

    def keep(self, node: Json, expected: Expected, portrait: Portrait) -> Json | None:
        """Judge and write what differs. Returns the Node as written, None where nothing was.

        Raises MyriadError where the API server does not answer or refuses for another reason than a Node that moved on.
        """
        record, taints = self._decide(node, expected, portrait)
        said = (record.open, record.held or record.verdict.cause)
        if said != self._said:
            self._said = said
            log.info("gate %s%s", "open" if record.open else "closed", f": {said[1]}" if said[1] else "")
        todo = operations(node, record, taints)
        if not todo:
            return None
        try:
            return self._api.patch(NODES, self._settings.node, todo, kind="json", field_manager=FIELD_MANAGER)
        except ApiError as error:
            # 409 and 422: the Node moved on since it was read; its new state is on the way.
            if not (error.is_conflict or error.is_not_found or error.status == 422):
                raise
            return None

    # What should stand there

    def _decide(self, node: Json, expected: Expected, portrait: Portrait) -> tuple[Record, set[str]]:
        before = Record.of(node)
        same_boot = bool(before.checks) and before.boot == portrait.boot_id
        request = str((node["metadata"].get("annotations") or {}).get(RUN_ANNOTATION) or "")
        due = bool(request) and request != before.run
        was_open = same_boot and before.was_open
        # What the record says counts too: a taint that was taken off by hand, or could not be set, opens nothing.
        closed = bool(own_taints(node)) or (same_boot and not before.open)
        more = Surroundings(
            registry_fault=None,
            probing=bool(self._settings.image),
            baseline=health.seen(portrait) if due else self._dealt_with(before if same_boot else None, portrait),
            # Registry and images are asked for before a gate opens: an outage of the registry closes none.
            policy=due or not was_open or closed,
        )
        if more.policy and expected.registry:
            more = replace(more, registry_fault=self._registry_fault(expected.registry))
        kubelet = Kubelet.of(node)
        result = before.probe if same_boot and not due else None
        if due:
            self._probing.not_before = float("-inf")
        verdict = judge(expected, portrait, kubelet, result, surroundings=more)
        if more.probing:
            result = self._probe(node, expected, kubelet, verdict.without("devices"), result, closed=closed or due)
            verdict = judge(expected, portrait, kubelet, result, surroundings=more)
        record = Record(
            open=verdict.open, checks=verdict.checks, boot=portrait.boot_id, was_open=was_open or verdict.open,
            claimed=before.claimed, released=before.released, run=request or before.run, probe=result,
            baseline=more.baseline,
        )  # fmt: skip
        if verdict.open:
            self._unsettled_at = None
            taints: set[str] = set()
            if record.claimed:
                record = replace(record, claimed=False)
                self._forget(node, expected)
        elif closed or not was_open or (due and verdict.failing == ("devices",) and not (result and result.done)):
            taints = _taints(verdict, was_open)
        else:
            record, taints = self._close(node, expected, portrait, record, before)
        changed = (record.open, record.held, record.verdict.cause) != (before.open, before.held, before.verdict.cause)
        since = self._now().strftime("%Y-%m-%dT%H:%M:%SZ") if changed or not before.since else before.since
        return replace(record, since=since), taints

    def _dealt_with(self, before: Record | None, portrait: Portrait) -> Mapping[str, int]:
        """Error reports that were dealt with in this boot; remembered here too, over a Node that was deleted."""
        if before is not None:
            self._baseline = (portrait.boot_id, before.baseline)
        boot, baseline = self._baseline
        return baseline if boot == portrait.boot_id else {}

    def _close(
        self, node: Json, expected: Expected, portrait: Portrait, record: Record, before: Record
    ) -> tuple[Record, set[str]]:
        """An open gate wants to close: once it is no passing state, and with the brake's permission."""
        verdict = record.verdict
        if set(verdict.failing) <= SETTLING:
            self._unsettled_at = self._monotonic() if self._unsettled_at is None else self._unsettled_at
            if self._monotonic() - self._unsettled_at < SETTLE_S:
                return replace(before, run=record.run, baseline=record.baseline), set()
        if self._monotonic() < self._ask_after and before.held:
            return replace(record, open=True, held=before.held), set()
        place = _place(node, expected)
        try:
            waits_since = before.released if before.held.startswith(brake.ON) else None
            decision = self._brake.ask(self._settings.node, place, verdict.cause, waits_since=waits_since)
        except MyriadError as error:
            # Without the brake nothing is closed: when the control plane is in trouble, it is the last to add to it.
            return replace(record, open=True, held=f"the brake cannot be asked: {error.message}"), set()
        record = replace(record, released=decision.released)
        if not decision.granted and not decision.held:
            # Somebody let the brake go since: what was reported before that is not replayed.
            return replace(record, open=True, held="", baseline=health.seen(portrait)), set()
        if decision.granted:
            # What a container found before the fault proves nothing after it.
            return replace(record, claimed=True, probe=None), _taints(verdict, True)
        # The larger the pool, the longer the pause: all its nodes may be waiting.
        self._ask_after = self._monotonic() + max(10.0, self._brake.sizes(place.pool).nodes * 0.03) * (
            0.5 + random.random()  # noqa: S311 - jitter, not a secret
        )
        if decision.tripped:
            self._say(node, decision.held)
        return replace(record, open=True, held=decision.held), set()

    def _say(self, node: Json, text: str) -> None:
        log.warning("%s", text)
        about = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self._settings.node,
                 "uid": node["metadata"].get("uid", "")}}  # fmt: skip
        try:
            self._api.create_event(about, reason="GateBrake", message=text, type_="Warning", component=FIELD_MANAGER)
        except MyriadError as error:
            log.warning("the brake's event could not be written: %s", error)

    def _forget(self, node: Json, expected: Expected) -> None:
        try:
            self._brake.forget(self._settings.node, _place(node, expected))
        except MyriadError as error:
            log.info("the brake keeps this node's claim for its ten minutes: %s", error)

    # The probe

    def _probe(
        self,
        node: Json,
        expected: Expected,
        kubelet: Kubelet,
        rest: Verdict,
        result: ProbeResult | None,
        *,
        closed: bool,
    ) -> ProbeResult | None:
        """Start, read or drop the probe's pod. It runs only while the gate is closed and all else agrees."""
        if not rest.open:
            if self._probing.made_at is not None:
                self._remove()
            # What a container found before the fault proves nothing after it.
            return None if closed else result
        if result is not None and (result.ok or result.skipped):
            return result
        clock = self._monotonic()
        amounts = resources(expected, kubelet)
        try:
            if self._probing.made_at is None:
                if clock < self._probing.not_before:
                    return result
                pods, _ = self._api.list(PODS, fields=f"spec.nodeName={self._settings.node}")
                held = probe.blocked(pods, amounts)
                if held:
                    return ProbeResult(expected.gpus, skipped=held)
                if not expected.gpus:
                    return ProbeResult(0, skipped="no GPU is expected")
                self._api.delete(PODS, f"{probe.NAME_PREFIX}{self._settings.node}", namespace=probe.NAMESPACE)
                body = probe.pod(
                    node, self._settings.image, amounts, gpus=expected.gpus, mig=bool(expected.mig.profiles)
                )
                self._api.create(PODS, body, namespace=probe.NAMESPACE)
                self._probing.made_at = clock
                return replace(result, done=False) if result is not None else ProbeResult(expected.gpus, done=False)
            found = self._api.find(PODS, f"{probe.NAME_PREFIX}{self._settings.node}", namespace=probe.NAMESPACE)
        except ApiError as error:
            if error.is_conflict:
                # The pod before is still going.
                return result
            log.warning("the probe: %s", error)
            return result if result is not None and result.done else None
        if found is None:
            self._probing.made_at = None
            return None
        answer = probe.read(found, expected.gpus, age_s=clock - self._probing.made_at)
        if not answer.done:
            return answer
        self._remove()
        self._probing.failures = 0 if answer.ok else self._probing.failures + 1
        if not answer.ok:
            first, most = _RETRY_S
            self._probing.not_before = clock + min(most, first * 2 ** (self._probing.failures - 1))
        return answer

    def _remove(self) -> None:
        self._probing.made_at = None
        try:
            self._api.delete(PODS, f"{probe.NAME_PREFIX}{self._settings.node}", namespace=probe.NAMESPACE)
        except MyriadError as error:
            log.info("the probe's pod stays until its time is up: %s", error)

    def _registry_fault(self, registry: str) -> str:
        clock = self._monotonic()
        if self._registry is None or clock - self._registry[0] > _REGISTRY_S or self._registry[1]:
            self._registry = (clock, self._reach(registry_url(registry)))
        return self._registry[1]


def _place(node: Json, expected: Expected) -> brake.Place:
    return brake.Place.of((node["metadata"].get("labels") or {}).get(POOL_LABEL, "none"), expected.location)


def _taints(verdict: Verdict, was_open: bool) -> set[str]:
    """Which taint says it: not ready before the first time, and for what is no matter of a GPU's health."""
    if not was_open:
        return {GATE_TAINT}
    failing = set(verdict.failing)
    return ({UNHEALTHY_TAINT} if failing & HEALTH else set()) | ({GATE_TAINT} if failing - HEALTH else set())


def reach_registry(url: str) -> str:
    """Why a registry does not answer, in a few words; empty where it does (also when it wants a login)."""
    import httpx

    try:
        response = httpx.get(url, timeout=3.0)
    except httpx.HTTPError as error:
        return f"{url}: {type(error).__name__}: {error}"[:200]
    return f"{url} answers {response.status_code}" if response.status_code >= 500 else ""
