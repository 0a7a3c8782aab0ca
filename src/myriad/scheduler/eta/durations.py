"""How long jobs run: an empirical distribution for each kind of job, from what ran before. Pure.

A kind seen often speaks for itself; one seen rarely borrows from its team, its size and the whole pool. Each wider
class gets the weight that the narrower ones leave: n / (n + BORROW) of the rest, for n runs seen. What nobody has seen
is a log-uniform prior from a minute to thirty days, with little weight once there is any history.

A limit is an upper bound: who is drawn beyond it ends at it. A job that has run already is asked only about the runs
that lasted longer than it has.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable

import numpy as np
import numpy.typing as npt

from myriad.scheduler.eta.model import DAY_S, Kind, Run

FloatArray = npt.NDArray[np.float64]

BORROW = 4.0
"""Runs after which a class is believed as much as all wider ones together."""
KEPT = 400
"""Newest runs kept of one class: habits change, and memory is bounded."""
_PRIOR = np.geomspace(60.0, 30 * DAY_S, 48)


def size_class(gpus: int) -> int:
    """Powers of two: 1, 2, 4, 8, 16, ... (0 for no GPU)."""
    return 0 if gpus <= 0 else 1 << (gpus - 1).bit_length()


class RunTimes:
    """Run times by class, and draws from them."""

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._seen: dict[Hashable, deque[float]] = defaultdict(lambda: deque(maxlen=KEPT))
        self._mixed: dict[Hashable, tuple[FloatArray, FloatArray]] = {}
        self.count = 0
        for run in runs:
            self.add(run)

    def add(self, run: Run) -> None:
        """Take in a run that has ended; others are passed over."""
        if run.run_s is None:
            return
        value = max(1.0, run.run_s)
        for key in _classes(run.kind):
            self._seen[key].append(value)
        if run.limit_s:
            share = min(1.0, value / run.limit_s)
            for key in _limit_classes(run.kind):
                self._seen[key].append(share)
        self.count += 1
        self._mixed.clear()

    def like(self, kind: Kind) -> int:
        """Runs seen of this very kind."""
        seen = self._seen.get(_classes(kind)[0])
        return len(seen) if seen else 0

    def draw(self, kind: Kind, quantiles: FloatArray, *, elapsed_s: float = 0.0, limit_s: float | None) -> FloatArray:
        """Remaining seconds at the given quantiles (each in 0..1), shape as given.

        Args:
            kind: the job's kind.
            quantiles: where the distribution of the whole run time, given that it is longer than elapsed_s, is read.
            elapsed_s: how long it has run.
            limit_s: its limit for the whole run, None without one.
        """
        values, weights = self._mixture(kind, limit_s)
        first = int(np.searchsorted(values, elapsed_s, side="right"))
        tail = weights[first:]
        if not len(tail):
            # Older than anything known: what has lasted long lasts about as long again (P(T > t | T > e) = e / t).
            total = elapsed_s / np.maximum(1e-3, 1.0 - quantiles)
        else:
            # A run between two seen ones is as likely anywhere between them on the logarithmic axis.
            total = _read(values[first:], tail, quantiles, floor=max(1.0, elapsed_s))
        if limit_s is not None:
            total = np.minimum(total, limit_s)
        return np.asarray(np.maximum(0.0, total - elapsed_s), dtype=np.float64)

    def _mixture(self, kind: Kind, limit_s: float | None) -> tuple[FloatArray, FloatArray]:
        """(values ascending, weights) of the whole run time of a kind under a limit, before it has run at all."""
        key = (kind, limit_s)
        known = self._mixed.get(key)
        if known is not None:
            return known
        names: list[Hashable] = list(_classes(kind))
        if limit_s is not None:
            # How much of their limits jobs use says more than the pool's run times where a kind is not known.
            names[2:2] = _limit_classes(kind)
        parts: list[FloatArray] = []
        weights: list[FloatArray] = []
        rest = 1.0
        for name in names:
            seen = self._seen.get(name)
            if not seen:
                continue
            values = np.fromiter(seen, dtype=np.float64, count=len(seen))
            if isinstance(name, tuple) and name[0] == "share" and limit_s is not None:
                values = values * limit_s
            share = rest * len(seen) / (len(seen) + BORROW)
            parts.append(values)
            weights.append(np.full(len(seen), share / len(seen)))
            rest -= share
        parts.append(_PRIOR)
        weights.append(np.full(len(_PRIOR), rest / len(_PRIOR)))
        values, weight = np.concatenate(parts), np.concatenate(weights)
        order = np.argsort(values, kind="stable")
        found = self._mixed[key] = (values[order], weight[order])
        return found


def _read(values: FloatArray, weights: FloatArray, quantiles: FloatArray, *, floor: float) -> FloatArray:
    """The distribution of weighted values at quantiles, joined linearly on the logarithmic axis from `floor` on."""
    points = np.concatenate(([0.0], np.cumsum(weights)))
    points /= points[-1]
    logs = np.log(np.concatenate(([floor], np.maximum(values, floor))))
    return np.asarray(np.exp(np.interp(quantiles, points, logs)), dtype=np.float64)


def _classes(kind: Kind) -> list[Hashable]:
    """The classes of a kind, the narrowest first."""
    size = size_class(kind.gpus)
    return [
        ("kind", kind.team, kind.family, size),
        ("family", kind.team, kind.family),
        ("team", kind.team, size),
        ("size", size),
        ("all",),
    ]


def _limit_classes(kind: Kind) -> list[Hashable]:
    """Classes of the share of the limit that is used."""
    return [("share", kind.team), ("share",)]
