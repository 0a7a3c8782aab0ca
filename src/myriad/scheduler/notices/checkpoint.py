"""Checkpoints as jobs report them, and what an eviction costs. Pure.

A job says by the annotation `myriad.dev/checkpoint-interval` how often it saves, and by `myriad.dev/last-checkpoint`
when it last did, on the Job or on any of its pods: the newest counts. Both are written by people and by training code
of every kind, so several forms are read, and what cannot be read is said instead of guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

LAST_CHECKPOINT = "myriad.dev/last-checkpoint"
CHECKPOINT_INTERVAL = "myriad.dev/checkpoint-interval"

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|min|s|m|h|d)")
_SKEW = timedelta(minutes=2)
"""Clocks of nodes differ; a checkpoint from further ahead is no time of a checkpoint."""


class Unreadable(ValueError):
    """An annotation that says nothing usable; the text says what is expected."""


def parse_interval(text: str) -> float:
    """Seconds of `600`, `15m`, `1h30m` or `PT15M`. Raises Unreadable."""
    value = "".join(text.split()).lower().removeprefix("p").replace("t", "")
    try:
        seconds = float(value)
    except ValueError:
        if not value or _PART.sub("", value):
            raise Unreadable(
                f'"{text}" is no duration: write seconds or a number with a unit, such as 900 or 15m'
            ) from None
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value))
    if not (math.isfinite(seconds) and 0 < seconds <= 366 * 86400):
        raise Unreadable(f'"{text}" is no interval between checkpoints: it must be more than 0 and less than a year')
    return seconds


def parse_time(text: str, now: datetime) -> datetime:
    """The time of `2026-11-30T14:58:00Z` (RFC 3339) or of seconds since 1970. Raises Unreadable.

    Args:
        text: the annotation.
        now: an aware time; a checkpoint from the future (beyond what clocks differ) is refused, one from within
            counts as now.
    """
    value = text.strip()
    try:
        try:
            at = datetime.fromtimestamp(float(value), UTC)
        except ValueError:
            at = datetime.fromisoformat(value.replace("Z", "+00:00").replace("z", "+00:00"))
            at = at if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError):
        raise Unreadable(
            f'"{text}" is no time: write it like {now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}, or as seconds since 1970'
        ) from None
    if at > now + _SKEW:
        raise Unreadable(f'"{text}" lies in the future: look at the clock of the node that wrote it')
    return min(at, now)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a job says about its checkpoints.

    Attributes:
        last: the newest one, None where none was reported.
        interval_s: as promised, None where nothing is promised.
        faults: annotations that could not be read, each as a sentence.
    """

    last: datetime | None = None
    interval_s: float | None = None
    faults: tuple[str, ...] = ()


def read(annotations: Iterable[Mapping[str, str] | None], now: datetime) -> Checkpoint:
    """From the annotations of a Job, its pod template and its pods: the newest time, the first interval."""
    last: datetime | None = None
    interval: float | None = None
    faults: dict[str, None] = {}
    for found in annotations:
        if not found:
            continue
        try:
            if interval is None and found.get(CHECKPOINT_INTERVAL):
                interval = parse_interval(str(found[CHECKPOINT_INTERVAL]))
        except Unreadable as error:
            faults[f"{CHECKPOINT_INTERVAL} {error}"] = None
        try:
            if found.get(LAST_CHECKPOINT):
                at = parse_time(str(found[LAST_CHECKPOINT]), now)
                last = at if last is None else max(last, at)
        except Unreadable as error:
            faults[f"{LAST_CHECKPOINT} {error}"] = None
    return Checkpoint(last, interval, tuple(faults))


def at_risk_s(checkpoint: Checkpoint, started: datetime | None, now: datetime) -> float:
    """Seconds of work that a kill now would lose: since the last checkpoint, or since this run began.

    A checkpoint from before this run is where it resumed: what came before is lost already or safe.
    """
    if started is None:
        return 0.0
    since = started if checkpoint.last is None else max(started, checkpoint.last)
    return max(0.0, (now - since).total_seconds())


def victim_cost(gpus: int, checkpoint: Checkpoint, started: datetime | None, now: datetime) -> float:
    """GPU-seconds that evicting a job now would waste (kueue#477). What is cheap to evict has just saved."""
    return gpus * at_risk_s(checkpoint, started, now)


def warning(checkpoint: Checkpoint, max_age_s: float) -> str:
    """What to tell at submit, "" where the job promises a checkpoint often enough."""
    if checkpoint.faults:
        return checkpoint.faults[0]
    want = f"the policy expects one at least every {_words(max_age_s)}"
    if checkpoint.interval_s is None:
        return (
            f"the job does not say how often it saves a checkpoint ({want}): set the annotation "
            f"{CHECKPOINT_INTERVAL} on the Job, and {LAST_CHECKPOINT} after each; without it a preemption may cost the "
            "whole run, and victims are chosen as if nothing were saved"
        )
    if checkpoint.interval_s > max_age_s:
        return (
            f"the job saves a checkpoint every {_words(checkpoint.interval_s)}, and {want}: a preemption may lose "
            f"{_words(checkpoint.interval_s)} of work; save more often or expect to lose it"
        )
    return ""


def _words(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 or minutes % 60 else f"{minutes // 60} h"
