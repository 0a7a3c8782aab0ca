"""`python -m myriad.agent`: follows one Node, measures its GPUs every few seconds, keeps its gate true."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from myriad.agent.counts import Measurement, changes, judge
from myriad.agent.measure import Source, measure
from myriad.errors import InputError, MyriadError
from myriad.kube.client import NODES, Api, ApiError, connect
from myriad.kube.watch import Watch

log = logging.getLogger("myriad.agent")

Json = dict[str, Any]

FIELD_MANAGER = "myriad-agent"


@dataclass(frozen=True, slots=True)
class Settings:
    """Inputs of the agent, from its environment.

    Attributes:
        node: the Node's name ($NODE_NAME).
        source: how to ask ($HOST_ROOT, $NVIDIA_SMI, $PCI_DEVICES).
        resource: what the kubelet counts GPUs by ($GPU_RESOURCE).
        interval_s: time between measurements ($INTERVAL_S).
    """

    node: str
    source: Source
    resource: str = "nvidia.com/gpu"
    interval_s: float = 5.0

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read the environment. Raises InputError that names the variable."""
        env = os.environ if env is None else env
        if not env.get("NODE_NAME"):
            raise InputError("no node is named", where="NODE_NAME", hint="set it to the name of the Node to follow")
        try:
            interval_s = float(env.get("INTERVAL_S") or 5.0)
        except ValueError:
            raise InputError(f"{env['INTERVAL_S']!r} is no number of seconds", where="INTERVAL_S") from None
        default = Source()
        source = Source(
            root=Path(env.get("HOST_ROOT") or "/"),
            nvidia_smi=env.get("NVIDIA_SMI") or default.nvidia_smi,
            pci_devices=env.get("PCI_DEVICES") or default.pci_devices,
        )
        return cls(env["NODE_NAME"], source, env.get("GPU_RESOURCE") or "nvidia.com/gpu", interval_s)


class Agent:
    """Keeps the gate of one node true.

    Args:
        api: the client.
        settings: inputs.
        measure: asks the node; replaced in tests.
    """

    def __init__(self, api: Api, settings: Settings, *, measure: Callable[[Source], Measurement] = measure) -> None:
        self._api = api
        self._settings = settings
        self._measure = measure
        self._lock = threading.Lock()
        self._node: Json | None = None
        self.changed = threading.Event()
        self._said: tuple[bool, str] | None = None

    # What the watch calls

    def replace(self, items: list[Json]) -> None:
        """The node as listed; none where it does not exist (yet)."""
        self._take(items[0] if items else None)

    def upsert(self, obj: Json) -> None:
        """The node changed."""
        self._take(obj)

    def remove(self, obj: Json) -> None:
        """The node is gone."""
        del obj
        self._take(None)

    def _take(self, node: Json | None) -> None:
        with self._lock:
            self._node = node
        self.changed.set()

    # One look

    def look(self, measured: Measurement | None = None) -> bool:
        """Judge and write what differs; True when something was written."""
        with self._lock:
            node = self._node
        if node is None:
            return False
        measured = measured or self._measure(self._settings.source)
        verdict = judge(node, measured, resource=self._settings.resource)
        if (verdict.open, verdict.cause) != self._said:
            self._said = (verdict.open, verdict.cause)
            log.info("gate open" if verdict.open else f"gate closed: {verdict.cause}")
        operations = changes(node, verdict, measured)
        if not operations:
            return False
        try:
            self._take(
                self._api.patch(NODES, self._settings.node, operations, kind="json", field_manager=FIELD_MANAGER)
            )
        except ApiError as error:
            # 409 and 422: the node moved on since it was read; its new state is on the way.
            if not (error.is_conflict or error.is_not_found or error.status == 422):
                raise
            return False
        return True

    def run(self, stop: threading.Event) -> None:
        """Look every interval, and at once (with the last measurement) when the node changes."""
        Watch(self._api, NODES, self, stop=stop, fields=f"metadata.name={self._settings.node}").start()
        measured: Measurement | None = None
        measured_at = float("-inf")
        while not stop.is_set():
            due_s = measured_at + self._settings.interval_s - time.monotonic()
            if due_s > 0:
                self.changed.wait(due_s)
            self.changed.clear()
            if measured is None or time.monotonic() - measured_at >= self._settings.interval_s:
                measured, measured_at = self._measure(self._settings.source), time.monotonic()
            try:
                self.look(measured)
            except MyriadError as error:
                log.warning("%s", error)
                stop.wait(1.0)


def main() -> int:
    """Entry point."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    for noisy in ("httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        settings = Settings.from_env()
        agent = Agent(connect(), settings)
    except MyriadError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    stop = threading.Event()
    worker = threading.Thread(target=agent.run, args=(stop,), name="agent")
    worker.start()
    while worker.is_alive() and signal.sigtimedwait(ends, 0.5) is None:
        pass
    died = not worker.is_alive()
    stop.set()
    # The gate stays as it is: another agent takes over, or the node goes with this one.
    agent.changed.set()
    worker.join()
    return 2 if died else 0


if __name__ == "__main__":
    sys.exit(main())
