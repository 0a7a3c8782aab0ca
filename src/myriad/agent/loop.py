"""The agent's loop: look, publish the portrait, assert labels and taints, keep the gate, renew the Lease."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from myriad.agent import asserted, warm
from myriad.agent.collect.assemble import assemble, collectors
from myriad.agent.collect.base import Collector, Findings
from myriad.agent.collect.kernel import Xids, boot_of
from myriad.agent.collect.network import Network
from myriad.agent.collect.source import Source
from myriad.agent.keeper import Keeper, KeeperSettings
from myriad.agent.metrics import AgentMetrics
from myriad.agent.publish import FIELD_MANAGER, Publisher
from myriad.agent.report import Record
from myriad.agent.settings import Settings
from myriad.agent.steady import Steady, carried
from myriad.agent.verdict import Kubelet
from myriad.errors import MyriadError
from myriad.fleet.derived_labels import MIXED, derive_labels, is_complete
from myriad.fleet.portrait import GPUS, Portrait, Spec, Summary, settle
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import NODE_PORTRAITS, NODES
from myriad.kube.watch import Watch

log = logging.getLogger("myriad.agent")

Json = dict[str, Any]


class Looking:
    """Runs the collectors, each at its own pace, and makes one quiet portrait of what they found."""

    def __init__(
        self,
        node: str,
        source: Source,
        using: Sequence[Collector],
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._source = source
        self._using = tuple(using)
        self._now = now
        self._monotonic = monotonic
        self._parts: dict[str, tuple[float, Findings]] = {}
        self._steady = Steady()
        self._last: Portrait | None = None
        self.findings = Findings()
        self.seconds: dict[str, float] = {}

    @property
    def xids(self) -> dict[tuple[str, int], int]:
        """Xids by PCI address and code."""
        return next((one.counts for one in self._using if isinstance(one, Xids)), {})

    def boot(self) -> str:
        """Which start of the node this is. It asks no program of the node: a slow driver holds nothing up."""
        return boot_of(self._source)

    def look(self, standing: Portrait | None, interfaces: Iterable[str] = ()) -> Portrait:
        """Ask whoever is due.

        Args:
            standing: the portrait that was published, for its times and its Xids.
            interfaces: those that the description names.
        """
        for one in self._using:
            if isinstance(one, Network):
                one.described = frozenset(interfaces)
        at = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        for one in self._using:
            asked_at, _ = self._parts.get(one.name, (float("-inf"), Findings()))
            began = self._monotonic()
            if began - asked_at < one.every_s:
                continue
            self._parts[one.name] = (began, one.collect(self._source, at))
            self.seconds[one.name] = self._monotonic() - began
        portrait, self.findings = assemble(self._node, [(one, self._parts[one.name][1]) for one in self._using], at)
        before = self._last or standing
        self._last = settle(carried(self._steady.calm(portrait), before), before)
        return self._last


class _Following:
    """One object by name, as a watch sees it."""

    def __init__(self, changed: threading.Event) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._object: Json | None = None

    @property
    def now(self) -> Json | None:
        """The object as last seen; None where it is not there."""
        with self._lock:
            return self._object

    def take(self, obj: Json | None) -> None:
        """It is this now."""
        with self._lock:
            self._object = obj
        self._changed.set()

    def replace(self, items: list[Json]) -> None:
        """See Handler."""
        self.take(items[0] if items else None)

    def upsert(self, obj: Json) -> None:
        """See Handler."""
        self.take(obj)

    def remove(self, obj: Json) -> None:
        """See Handler."""
        del obj
        self.take(None)


class Agent:
    """Keeps portrait, labels and gate of one node true.

    Args:
        api: the client.
        settings: inputs.
        looking: asks the node; made from the settings where not given.
        keeper: the gate; made from the settings where not given.
        publisher: writes portrait and Lease; made from the settings where not given.
    """

    def __init__(
        self,
        api: Api,
        settings: Settings,
        *,
        looking: Looking | None = None,
        keeper: Keeper | None = None,
        publisher: Publisher | None = None,
        metrics: AgentMetrics | None = None,
    ) -> None:
        self._api = api
        self._settings = settings
        self._looking = looking or Looking(
            settings.node,
            settings.host,
            collectors(kernel_log=settings.kernel_log, timeout_s=settings.timeout_s),
        )
        self._keeper = keeper or Keeper(api, KeeperSettings(settings.node, settings.image))
        self._publisher = publisher or Publisher(
            api, settings.node, namespace=settings.namespace, lease_s=settings.lease_s
        )
        self.metrics = metrics or AgentMetrics()
        self.changed = threading.Event()
        self.node = _Following(self.changed)
        self.object = _Following(self.changed)
        self._portrait: Portrait | None = None
        self._said = ""

    # One look

    def look(self) -> Portrait:
        """Ask the node what it is."""
        standing = self.object.now
        fabric = (((standing or {}).get("spec") or {}).get("expected") or {}).get("fabric") or {}
        self._portrait = self._looking.look(published(standing), fabric.get("interfaces") or {})
        self.metrics.show(self._portrait, self._looking.findings.gauges, self._looking.xids, self._looking.seconds)
        return self._portrait

    def begin(self) -> None:
        """Before the first look: a Node that is still there from before the node's start is not proven any more.

        Raises MyriadError where the API server cannot be reached or refuses.
        """
        node = self.node.now
        if node is None or self._spec(self.object.now) is None:
            return
        kept = self._keeper.begin(node, self._looking.boot())
        if kept is not None:
            self.metrics.wrote("gate")
            self.node.take(kept)

    def act(self) -> None:
        """Write what differs: labels and taints first, then the gate, then the portrait.

        Raises MyriadError where the API server cannot be reached or refuses.
        """
        portrait, standing = self._portrait, self.object.now
        if portrait is None:
            return
        spec = self._spec(standing)
        if standing is None or spec is None:
            return
        self._publisher_renew(standing)
        node = self.node.now
        if node is not None:
            node = self._assert(node, spec, portrait)
            kept = self._keeper.keep(node, spec.expected, portrait)
            if kept is not None:
                self.metrics.wrote("gate")
                self.node.take(kept)
                node = kept
        written = self._publisher.publish(summed(portrait, node), standing)
        if written is not None:
            self.metrics.wrote("portrait")
            self.object.take(written)
        if node is not None:
            self.metrics.gate(Record.of(node).open)

    def _publisher_renew(self, standing: Json) -> None:
        if self._publisher.renew(standing):
            self.metrics.wrote("lease")

    def _spec(self, standing: Json | None) -> Spec | None:
        said = ""
        spec = None
        if standing is None:
            said = f"no NodePortrait {self._settings.node}: the node is not described (myriad site writes it)"
        else:
            try:
                spec = Spec.model_validate(standing.get("spec") or {})
            except ValidationError as error:
                said = f"the spec of NodePortrait {self._settings.node} cannot be read: {error.errors()[0]['msg']}"
        if said != self._said and said:
            log.warning("%s", said)
        self._said = said
        return spec

    def _assert(self, node: Json, spec: Spec, portrait: Portrait) -> Json:
        labels = derive_labels(portrait, spec, spec.labelling)
        labels |= warm.warm_labels(warm.read(self._settings.host.root), Kubelet.of(node), datetime.now(UTC))
        todo = asserted.operations(node, labels, spec.taints, complete=is_complete(portrait))
        if not todo:
            return node
        try:
            node = self._api.patch(NODES, self._settings.node, todo, kind="json", field_manager=FIELD_MANAGER)
        except ApiError as error:
            # 409 and 422: the Node moved on since it was read; its new state is on the way.
            if not (error.is_conflict or error.is_not_found or error.status == 422):
                raise
            return node
        self.metrics.wrote("labels")
        self.node.take(node)
        return node

    # For as long as the process runs

    def run(self, stop: threading.Event) -> None:
        """Look every interval; act then, and at once (with the last look) when Node or NodePortrait change."""
        name = f"metadata.name={self._settings.node}"
        nodes = Watch(self._api, NODES, self.node, stop=stop, fields=name)
        nodes.start()
        portraits = Watch(self._api, NODE_PORTRAITS, self.object, stop=stop, fields=name)
        portraits.start()
        # Times and Xids of the portrait that stands are taken over: wait for it, not for ever.
        portraits.synced.wait(10.0)
        nodes.synced.wait(10.0)
        try:
            self.begin()
        except MyriadError as error:
            log.warning("%s", error)
        looked_at = float("-inf")
        while not stop.is_set():
            due_s = looked_at + self._settings.interval_s - time.monotonic()
            if due_s > 0:
                self.changed.wait(due_s)
            self.changed.clear()
            if stop.is_set():
                return
            if time.monotonic() - looked_at >= self._settings.interval_s:
                self.look()
                looked_at = time.monotonic()
            try:
                self.act()
            except MyriadError as error:
                log.warning("%s", error)
                stop.wait(1.0)


def published(standing: Json | None) -> Portrait | None:
    """The portrait in a NodePortrait; None where there is none, or none that can be read."""
    try:
        return Portrait.model_validate(standing["status"]) if standing and standing.get("status") else None
    except ValidationError:
        return None


def summed(portrait: Portrait, node: Json | None) -> Portrait:
    """The portrait with its one-line summary, which also shows the gate."""
    record = None if node is None else Record.of(node)
    models = {gpu.model or gpu.product for gpu in portrait.usable}
    driver = portrait.driver
    summary = Summary(
        gpus=None if portrait.fault(GPUS) else len(portrait.usable),
        model=models.pop() if len(models) == 1 else MIXED if models else "",
        driver=(driver.loaded or driver.userspace or "") if driver else "",
        gate="" if record is None else "open" if record.open else "closed",
        cause="" if record is None else record.held or record.verdict.cause,
    )
    return portrait.model_copy(update={"summary": summary})
