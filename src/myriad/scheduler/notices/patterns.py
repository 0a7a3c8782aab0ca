"""What many evictions say together: pairs, loops, evictions for nothing. Pure, over the records."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from myriad.scheduler.explain import duration, ordinal
from myriad.scheduler.notices.facts import Eviction, moment

LOOP_TIMES = 3
LOOP_WINDOW = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class Pair:
    """Who preempted whom how often.

    Attributes:
        victim, preemptor: `namespace/job`, or `queue NAME` for a preemptor that was gone already.
        times: how often.
        last: when last (RFC 3339).
        gpu_h: GPU-hours at risk, in all.
    """

    victim: str
    preemptor: str
    times: int
    last: str
    gpu_h: float


@dataclass(frozen=True, slots=True)
class Loop:
    """A pair that meets again and again, or a job that is thrown out by one after the other.

    Attributes:
        id: of the loop; the same while it goes on.
        victim, preemptor: as in `Pair`; a preemptor of "" = several.
        times: within the window that ended with the last one.
        since, last: RFC 3339.
        mutual: each of the two preempted the other.
        cause: what keeps it going, as far as it is known.
        advice: what to do.
    """

    id: str
    victim: str
    preemptor: str
    times: int
    since: str
    last: str
    mutual: bool
    cause: str
    advice: str

    def sentence(self) -> str:
        """One line."""
        if self.mutual:
            who = f"{self.victim} and {self.preemptor} preempt each other"
        else:
            who = f"{self.preemptor or 'several jobs'} preempted {self.victim}"
        start, end = moment(self.since), moment(self.last)
        span = duration((end - start).total_seconds()) if start and end else "a short time"
        return f"{who}: {self.times} times in {span}. {self.cause} {self.advice}"


def preemptor_key(e: Eviction) -> str:
    """What a preemptor is counted under."""
    p = e.preemptor
    if p is None:
        return ""
    return p.key if p.job else f"queue {p.queue or 'unknown'}"


def pairs(evictions: Iterable[Eviction]) -> list[Pair]:
    """Counts by pair, the most frequent first."""
    found: dict[tuple[str, str], list[Eviction]] = defaultdict(list)
    for e in evictions:
        if e.is_preemption:
            found[e.victim.key, preemptor_key(e)].append(e)
    result = [
        Pair(victim, preemptor, len(es), max(e.at for e in es), round(sum(e.at_risk_gpu_h for e in es), 3))
        for (victim, preemptor), es in found.items()
    ]
    return sorted(result, key=lambda p: (-p.times, p.victim, p.preemptor))


def loops(
    evictions: Sequence[Eviction],
    now: datetime,
    *,
    times: int = LOOP_TIMES,
    window: timedelta = LOOP_WINDOW,
    impossible: Iterable[str] = (),
) -> list[Loop]:
    """Loops that go on: at least `times` within `window`, the last of them within `window` of now.

    Args:
        evictions: oldest first; all that are known, as a loop is named by its beginning.
        now: an aware time.
        times, window: what counts as a loop.
        impossible: jobs (`namespace/job`) that can never run as they are.
    """
    never = set(impossible)
    by_pair: dict[frozenset[str] | tuple[str, str], list[Eviction]] = defaultdict(list)
    by_victim: dict[str, list[Eviction]] = defaultdict(list)
    for e in evictions:
        if not e.is_preemption or moment(e.at) is None:
            continue
        by_pair[frozenset((e.victim.key, preemptor_key(e)))].append(e)
        by_victim[e.victim.key].append(e)
    found: list[Loop] = []
    told: set[str] = set()
    for es in by_pair.values():
        loop = _loop(es, now, times, window, never)
        if loop is not None:
            found.append(loop)
            told.update((loop.victim, loop.preemptor))
    for victim, es in by_victim.items():
        # A job that several others throw out in turn has no pair of its own, and its owner no peace.
        if victim not in told and len({preemptor_key(e) for e in es}) > 1:
            loop = _loop(es, now, times, window, never, several=True)
            if loop is not None:
                found.append(loop)
    return sorted(found, key=lambda loop: (-loop.times, loop.victim))


def _loop(
    es: Sequence[Eviction], now: datetime, times: int, window: timedelta, never: set[str], *, several: bool = False
) -> Loop | None:
    at = [t for e in es if (t := moment(e.at)) is not None]
    if not at or now - at[-1] > window:
        return None
    recent = [e for e, t in zip(es, at, strict=True) if at[-1] - t <= window]
    if len(recent) < times:
        return None
    last = recent[-1]
    victim, preemptor = last.victim.key, preemptor_key(last)
    mutual = not several and len({e.victim.key for e in recent}) > 1
    if mutual:
        victim, preemptor = sorted((victim, preemptor))
    cause, advice = _why(last, preemptor, mutual, several, never)
    # Named by who meets and since when: uids change with every run of a preemptor, the window with every eviction.
    begun = len(at) - 1
    while begun and at[begun] - at[begun - 1] <= window:
        begun -= 1
    who = hashlib.sha256(f"{victim} {'' if several else preemptor}".encode()).hexdigest()[:16]
    stamp = "".join(c for c in es[begun].at if c.isalnum())
    return Loop(
        f"loop.{who}.{stamp}",
        victim,
        "" if several else preemptor,
        len(recent),
        recent[0].at,
        last.at,
        mutual,
        cause,
        advice,
    )


def _why(e: Eviction, preemptor: str, mutual: bool, several: bool, never: set[str]) -> tuple[str, str]:
    if preemptor in never:
        return (
            f"{preemptor} can never run as it is, and still makes room for itself.",
            f"End or shrink it: `myriad why {preemptor}` says what it asks for that no node or quota has.",
        )
    if several:
        return (
            f"{e.victim.key} runs on what its team borrows, and others take theirs back in turn.",
            "Give its team quota for it, let it borrow less, or submit it when the owners are quiet; min_run_s shields "
            "it from priorities, not from owners.",
        )
    if mutual:
        return (
            "Each takes back what the other borrowed or counts higher for a while.",
            "Let one of the two teams borrow less (borrowingLimit) or keep some back (lendingLimit), or give the jobs "
            "the same priority class.",
        )
    if e.policy == "InCohortFairSharing":
        return (
            "Their shares lie so close together that each start tips the balance.",
            "Set weights further apart, or raise min_run_s so that each runs for a while.",
        )
    if e.policy == "InClusterQueue":
        return (
            f"{preemptor} comes back again and again with a higher priority in the same queue.",
            "Run it with the same class, or as one longer job; min_run_s gives the other a longer turn.",
        )
    return (
        f"{preemptor} comes back again and again to quota of its own that was lent out meanwhile.",
        "Keep that much back with a lendingLimit, or let it wait a little between its runs.",
    )


def count_words(count: int, last: str) -> str:
    """`preempted for the 3rd time, last at 14:59`; "" for none."""
    at = moment(last)
    when = f", last at {at:%Y-%m-%d %H:%M} UTC" if at else ""
    return f"preempted for the {ordinal(count)} time{when}" if count else ""


@dataclass(frozen=True, slots=True)
class Vain:
    """An eviction whose preemptor did not start (volcano#4648, ROCm/spur#888)."""

    eviction: Eviction
    waited_s: float
    kind: str

    def sentence(self) -> str:
        """One line."""
        e = self.eviction
        preemptor = preemptor_key(e)
        since = f"{duration(self.waited_s)} after {e.victim.key} was evicted for it"
        if self.kind == "gone":
            return f"{preemptor} was deleted before it started, {since}: {e.victim.key} lost its place for nothing"
        if self.kind == "impossible":
            return (
                f"{preemptor} can never run as it is, and {e.victim.key} was evicted for it: end or shrink it "
                f"(`myriad why {preemptor}`)"
            )
        return f"{preemptor} has not started {since}: `myriad why {preemptor}` says what it still waits for"


def inverted(e: Eviction) -> bool:
    """Whether a job was evicted for one that does not go before it (volcano#2612): Kueue never does, so it is said.

    Only within a queue does the priority alone decide.
    """
    return (
        e.policy == "InClusterQueue"
        and e.preemptor is not None
        and bool(e.preemptor.job)
        and e.victim.priority >= e.preemptor.priority
    )
