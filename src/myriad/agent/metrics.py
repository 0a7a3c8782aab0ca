"""Numbers that move, for Prometheus: made from the last look when somebody asks. None stands in the portrait."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from myriad.agent.collect.base import Gauge
from myriad.fleet.portrait import Portrait

_HELP = {
    "temperature_celsius": "Temperature of the GPU",
    "memory_temperature_celsius": "Temperature of the GPU's memory",
    "utilization_percent": "Time during which the GPU computed",
    "memory_utilization_percent": "Time during which the GPU's memory was read or written",
    "memory_used_mib": "Memory in use",
    "sm_clock_mhz": "Clock of the multiprocessors now",
    "power_watts": "Power drawn",
    "pcie_generation": "PCIe generation of the link now; it falls while the card idles",
    "pcie_replays": "Packets sent again on the PCIe link",
    "ecc_corrected": "Corrected memory errors over the card's life",
    "throttled_seconds": "Time during which clocks were held back, by reason",
}


class AgentMetrics(Collector):
    """The last look as series. One registry, made at start; `show` replaces what is served."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._lock = threading.Lock()
        self._portrait: Portrait | None = None
        self._gauges: Sequence[Gauge] = ()
        self._xids: Mapping[tuple[str, int], int] = {}
        self._open: bool | None = None
        self._seconds: dict[str, float] = {}
        self._writes: dict[str, int] = {}
        self.registry.register(self)

    def show(
        self,
        portrait: Portrait,
        gauges: Sequence[Gauge],
        xids: Mapping[tuple[str, int], int],
        seconds: Mapping[str, float],
    ) -> None:
        """What a look found; `seconds` is what each collector took."""
        with self._lock:
            self._portrait, self._gauges, self._xids = portrait, tuple(gauges), dict(xids)
            self._seconds = dict(seconds)

    def gate(self, is_open: bool) -> None:
        """Whether the gate is open."""
        with self._lock:
            self._open = is_open

    def wrote(self, what: str) -> None:
        """Count a request that changed something: `portrait`, `labels`, `gate` or `lease`."""
        with self._lock:
            self._writes[what] = self._writes.get(what, 0) + 1

    def serve(self, port: int) -> None:
        """Serve /metrics in the background."""
        start_http_server(port, registry=self.registry)

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        with self._lock:
            portrait, gauges, xids = self._portrait, self._gauges, self._xids
            is_open, seconds, writes = self._open, dict(self._seconds), dict(self._writes)
        yield _counter(
            "myriad_agent_writes", "Requests that changed an object", ["what"], {(k,): v for k, v in writes.items()}
        )
        if is_open is not None:
            yield GaugeMetricFamily("myriad_gpu_gate_open", "1 while the node takes work", value=float(is_open))
        if portrait is None:
            return
        ids = {str(gpu.index): (str(gpu.index), gpu.uuid, gpu.model or gpu.product) for gpu in portrait.gpus}
        for name in dict.fromkeys(gauge.name for gauge in gauges):
            more = ["reason"] if name == "throttled_seconds" else []
            family = GaugeMetricFamily(
                f"myriad_gpu_{name}", _HELP.get(name, name), labels=["gpu", "uuid", "model", *more]
            )
            for gauge in gauges:
                if gauge.name == name:
                    family.add_metric(
                        [*ids.get(gauge.gpu, (gauge.gpu, "", "")), *([gauge.label] if more else [])], gauge.value
                    )
            yield family
        throttled = GaugeMetricFamily(
            "myriad_gpu_throttled",
            "1 while the GPU is slowed down for a serious reason",
            labels=["gpu", "uuid", "model"],
        )
        for gpu in portrait.gpus:
            if gpu.throttle is not None:
                throttled.add_metric(ids[str(gpu.index)], float(bool(gpu.throttle)))
        yield throttled
        yield _counter(
            "myriad_gpu_xid",
            "Error reports of the driver since the agent began to read",
            ["pci_address", "code"],
            {(where, str(code)): count for (where, code), count in xids.items()},
        )
        took = GaugeMetricFamily("myriad_agent_collect_seconds", "What the last look took", labels=["collector"])
        for name, value in seconds.items():
            took.add_metric([name], value)
        yield took


def _counter(name: str, text: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(list(key), value)
    return family
