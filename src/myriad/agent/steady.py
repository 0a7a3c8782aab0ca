"""Keeps a portrait quiet: what flickers is believed once it stood for several looks. Pure, with memory."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from myriad.fleet.portrait import GPUS, Gpu, Nic, Portrait, Xid

_FLICKERS: dict[type[Gpu] | type[Nic], tuple[str, ...]] = {
    Gpu: ("throttle", "temperature"),
    Nic: ("state", "rate_gbit_s"),
}


@dataclass(slots=True)
class Steady:
    """Takes portraits in the order in which they were made.

    Attributes:
        looks: how many looks in a row have to agree before a value that flickers replaces the one before.
    """

    looks: int = 3
    _last: Portrait | None = None
    _pending: dict[Hashable, tuple[Any, int]] = field(default_factory=dict)
    _silent: int = 0

    def calm(self, new: Portrait) -> Portrait:
        """`new` with the settled value of everything that flickers."""
        last = self._last
        if last is None or last.boot_id != new.boot_id:
            self._last, self._pending, self._silent = new, {}, 0
            return new
        new = self._answer(new, last)
        gpus = {gpu.index: gpu for gpu in last.gpus}
        nics = {nic.name: nic for nic in last.nics}
        new = new.model_copy(
            update={
                "gpus": tuple(self._settled(gpu, gpus.get(gpu.index), gpu.index) for gpu in new.gpus),
                "nics": tuple(self._settled(nic, nics.get(nic.name), nic.name) for nic in new.nics),
            }
        )
        self._last = new
        return new

    def _answer(self, new: Portrait, last: Portrait) -> Portrait:
        """A driver that does not answer once may be busy (a reset, a driver that loads); twice is a fault."""
        if not new.fault(GPUS) or last.fault(GPUS):
            self._silent = 0
            return new
        self._silent += 1
        if self._silent >= 2:
            self._silent = 0
            return new
        kept = {key: look for key, look in last.observations.items() if key == GPUS or key.startswith(f"{GPUS}/")}
        return new.model_copy(
            update={
                "gpus": last.gpus,
                "fabric": last.fabric,
                "drivers": last.drivers,
                "observations": dict(sorted((new.observations | kept).items())),
            }
        )

    def _settled(self, new: Any, old: Any, key: Hashable) -> Any:
        if old is None:
            return new
        update = {}
        for name in _FLICKERS[type(new)]:
            now, before = getattr(new, name), getattr(old, name)
            place = (type(new).__name__, key, name)
            if now == before or before is None:
                self._pending.pop(place, None)
                continue
            value, times = self._pending.get(place, (now, 0))
            times = times + 1 if value == now else 1
            if times >= self.looks:
                self._pending.pop(place, None)
                continue
            self._pending[place] = (now, times)
            update[name] = before
        return new.model_copy(update=update) if update else new


def carried(new: Portrait, old: Portrait | None) -> Portrait:
    """`new` with the Xids that `old` saw in the same boot: the kernel's log forgets, and an agent restarts."""
    if old is None or old.boot_id != new.boot_id:
        return new
    before = {gpu.pci_address: gpu.xids for gpu in old.gpus if gpu.xids}
    gpus = tuple(
        gpu.model_copy(update={"xids": _both(gpu.xids, before[gpu.pci_address])})
        if gpu.xids is not None and gpu.pci_address in before
        else gpu
        for gpu in new.gpus
    )
    return new.model_copy(update={"gpus": gpus})


def _both(new: tuple[Xid, ...], old: tuple[Xid, ...] | None) -> tuple[Xid, ...]:
    merged = {xid.code: xid for xid in old or ()}
    for xid in new:
        before = merged.get(xid.code)
        if before is None:
            merged[xid.code] = xid
        else:
            merged[xid.code] = xid.model_copy(
                update={
                    "at_least": max(xid.at_least, before.at_least),
                    "first_at": before.first_at or xid.first_at,
                }
            )
    return tuple(merged[code] for code in sorted(merged))
