"""An estimate on its Workload, where everybody who may read the Workload can read it. Pure.

Times are absolute, so that what stands there does not go stale with the clock; it is written anew only when it says
something else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from myriad.scheduler.eta.model import Eta, epoch

ANNOTATION = "myriad.dev/eta"
STALE_S = 6 * 3600.0
"""An estimate that nobody has confirmed for so long is no longer told."""
_CHANGED = math.log(1.3)
_SOFT_S = 120.0


@dataclass(frozen=True, slots=True)
class Published:
    """What the annotation says: epoch seconds; None = beyond the horizon."""

    at: float
    low_at: float | None
    mid_at: float | None
    high_at: float | None
    basis: str
    held: float | None
    judged: int

    def eta(self, now: float) -> Eta:
        """Seconds from now; what has passed is 0."""

        def left(at: float | None) -> float | None:
            return None if at is None else max(0.0, at - now)

        return Eta(left(self.low_at), left(self.mid_at), left(self.high_at), self.basis, self.held, self.judged)

    def fresh(self, now: float) -> bool:
        """Whether it may still be told."""
        return now - self.at <= STALE_S


def to_text(eta: Eta, now: float) -> str:
    """The annotation's value."""

    def time(seconds: float | None) -> str | None:
        return None if seconds is None else datetime.fromtimestamp(now + seconds, UTC).isoformat(timespec="seconds")

    body = {
        "at": time(0.0),
        "low": time(eta.low_s),
        "mid": time(eta.mid_s),
        "high": time(eta.high_s),
        "basis": eta.basis,
        "held": None if eta.held is None else round(eta.held, 2),
        "judged": eta.judged,
    }
    return json.dumps({k: v for k, v in body.items() if v is not None}, separators=(",", ":"))


def read(workload: Mapping[str, Any] | None) -> Published | None:
    """The estimate on a Workload; None where there is none that can be read."""
    text = ((workload or {}).get("metadata") or {}).get("annotations") or {}
    try:
        body = json.loads(text[ANNOTATION])
        at = epoch(body["at"])
        if at is None:
            return None
        held = body.get("held")
        return Published(
            at=at,
            low_at=epoch(body.get("low")),
            mid_at=epoch(body.get("mid")),
            high_at=epoch(body.get("high")),
            basis=str(body.get("basis") or ""),
            held=float(held) if isinstance(held, int | float) else None,
            judged=int(body.get("judged") or 0),
        )
    except (KeyError, TypeError, ValueError):
        # Anybody who may write the Workload may write nonsense here.
        return None


def says_else(old: Published | None, eta: Eta, now: float) -> bool:
    """Whether an estimate differs enough from what stands there to be written."""
    if old is None or now - old.at > STALE_S / 2:
        return True
    was = old.eta(now)
    return any(_differ(a, b) for a, b in ((was.low_s, eta.low_s), (was.mid_s, eta.mid_s), (was.high_s, eta.high_s)))


def _differ(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is not b
    return abs(math.log((a + _SOFT_S) / (b + _SOFT_S))) > _CHANGED
