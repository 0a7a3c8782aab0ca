"""Estimates judged by what happened, and the next ones corrected by it. Pure.

A futures model errs in ways of its own: people cancel, nodes come back, somebody raises a quota. So every estimate is
kept until its job starts, and the errors of the last month move the next ones (split conformal prediction: Papadopoulos
et al. 2002; Lei et al. 2018). All of it on a logarithmic scale, where an hour for two errs as two hours for four:

    e      = log((actual + SOFT_S) / (mid + SOFT_S))                    the error of the middle
    shift  = median of e                                                what mid is moved by
    below  = 90th percentile of (shift - e) / (log mid - log low)       what the lower half is stretched by
    above  = 90th percentile of (e - shift) / (log high - log mid)      and the upper half

by classes of the estimated time (minutes, an hour, a shift, more), since a queue's first and last err differently.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from myriad.scheduler.eta.model import DAY_S, Eta

SOFT_S = 30.0
"""Errors of less than about half a minute are none: admission itself is not more exact."""
WINDOW_S = 30 * DAY_S
LEAST = 40
"""Judged estimates of a class before it is corrected by its own errors; with fewer, all classes together."""
TOLD = 20
"""Judged estimates before a share that held is told."""
KEPT = 4000
_CLASSES_S = (300.0, 3600.0, 6 * 3600.0)
_WIDTH = math.log(1.15)
"""The least half-width: a model that is sure of itself to a minute in an hour is not believed."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One estimate and its end.

    Attributes:
        at: epoch seconds when it was made.
        raw_low_s, raw_mid_s, raw_high_s: as the futures gave it, for the correction.
        low_s, mid_s, high_s: as it was told, for the share that held. None = beyond the horizon.
        actual_s: seconds from then to the start.
    """

    at: float
    raw_low_s: float | None
    raw_mid_s: float | None
    raw_high_s: float | None
    low_s: float | None
    mid_s: float | None
    high_s: float | None
    actual_s: float

    @property
    def held(self) -> bool:
        """Whether the job started inside the interval that was told (whole seconds, as people read it)."""
        low = math.inf if self.low_s is None else math.floor(self.low_s)
        high = math.inf if self.high_s is None else math.ceil(self.high_s)
        return low <= self.actual_s <= high


@dataclass(frozen=True, slots=True)
class Correction:
    """What a class of estimates is moved and stretched by."""

    shift: float = 0.0
    below: float = 1.0
    above: float = 1.0
    judged: int = 0


class Calibration:
    """The judged estimates of the last month, and the corrections that follow."""

    def __init__(self, judged: Iterable[Judged] = ()) -> None:
        self._judged: deque[Judged] = deque(sorted(judged, key=lambda j: j.at), maxlen=KEPT)
        self._corrections: dict[int, Correction] | None = None

    def add(self, judged: Judged) -> None:
        """Take in one more."""
        self._judged.append(judged)
        self._corrections = None

    def forget_before(self, at: float) -> None:
        """Drop what is older than the window."""
        before = len(self._judged)
        kept = [j for j in self._judged if j.at >= at]
        if len(kept) != before:
            self._judged = deque(kept, maxlen=KEPT)
            self._corrections = None

    def held(self, mid_s: float | None) -> tuple[float | None, int]:
        """Share of like estimates that held, None where fewer than TOLD were judged; and how many were."""
        like = [j for j in self._judged if _class(j.mid_s) == _class(mid_s)]
        if len(like) < TOLD:
            like = list(self._judged)
        share = sum(j.held for j in like) / len(like) if len(like) >= TOLD else None
        return share, len(like)

    def held_of_all(self) -> tuple[float | None, int]:
        """Share of all judged estimates that held, and how many there are."""
        count = len(self._judged)
        return (sum(j.held for j in self._judged) / count if count else None), count

    def correct(self, raw: Eta) -> Eta:
        """The estimate to tell: moved, stretched, and with the share that held."""
        mid, low, high = raw.mid_s, raw.low_s, raw.high_s
        if mid is not None:
            c = self._correction(mid)
            middle = math.log(mid + SOFT_S)
            moved = middle + c.shift
            down = max(_WIDTH, middle - math.log((mid if low is None else low) + SOFT_S))
            low = _seconds(moved - c.below * down)
            if high is not None:
                high = _seconds(moved + c.above * max(_WIDTH, math.log(high + SOFT_S) - middle))
            mid = _seconds(moved)
        told = replace(raw, low_s=low, mid_s=mid, high_s=high)
        share, judged = self.held(told.mid_s)
        return replace(told, held=share, judged=judged)

    def _correction(self, mid_s: float) -> Correction:
        if self._corrections is None:
            self._corrections = {-1: _fit(self._judged)}
            for k in range(len(_CLASSES_S) + 1):
                like = [j for j in self._judged if _class(j.raw_mid_s) == k]
                if len(like) >= LEAST:
                    self._corrections[k] = _fit(like)
        return self._corrections.get(_class(mid_s), self._corrections[-1])


def _seconds(log_s: float) -> float:
    return max(0.0, math.exp(log_s) - SOFT_S)


def _class(mid_s: float | None) -> int:
    """0 .. len(_CLASSES_S): by the size of the estimate."""
    if mid_s is None:
        return len(_CLASSES_S)
    return sum(mid_s >= bound for bound in _CLASSES_S)


def _fit(judged: Iterable[Judged]) -> Correction:
    """The correction that would have made these hold."""
    rows = []
    for j in judged:
        if j.raw_mid_s is None:
            continue
        middle = math.log(j.raw_mid_s + SOFT_S)
        error = math.log(j.actual_s + SOFT_S) - middle
        down = max(_WIDTH, middle - math.log((j.raw_mid_s if j.raw_low_s is None else j.raw_low_s) + SOFT_S))
        up = None if j.raw_high_s is None else max(_WIDTH, math.log(j.raw_high_s + SOFT_S) - middle)
        rows.append((error, down, up))
    if len(rows) < LEAST:
        return Correction(judged=len(rows))
    shift = _quantile([e for e, _, _ in rows], 0.5)
    below = _quantile([(shift - e) / down for e, down, _ in rows], 0.9)
    # An open end holds whatever happens.
    above = _quantile([-math.inf if up is None else (e - shift) / up for e, _, up in rows], 0.9)
    return Correction(shift, max(0.2, below), max(0.2, above), len(rows))


def _quantile(values: Sequence[float], share: float) -> float:
    """The conformal quantile: the ceil((n + 1) share)-th smallest."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil((len(ordered) + 1) * share) - 1)]
