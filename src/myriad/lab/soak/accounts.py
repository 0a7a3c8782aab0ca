"""Whether the ledger and the decision records say what was seen. Pure.

Looks come every few seconds, and none while no API server answers: what began and ended between two looks was seen by
nobody, so it may stand in the ledger and need not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from myriad.lab.soak.invariants import MOST_BETWEEN_LOOKS_S, Violation
from myriad.lab.soak.seen import Charge, Look

ROUNDING_S = 1.0
"""Times of conditions are rounded down."""
RECORDED_WITHIN_S = 30.0
"""A gang that stands so long under a leader has a record of where it was put."""
EXACT = ("condition", "deleted")
"""How the end of a row is known where somebody saw it."""
NOT_CHARGED, NOT_ENDED = "was admitted, and is not charged", "is charged on although it has ended"


@dataclass(slots=True)
class _Span:
    """An admission as it was seen.

    Attributes:
        job, gpus: whose, and how much.
        ended: exactly, from a condition; None where no look showed it.
        not_before, not_after: what is known of an end that was not seen.
    """

    job: str
    gpus: float
    ended: int | None = None
    not_before: float = 0.0
    not_after: float = float("inf")


class LedgerExact:
    """Rows of the ledger are the admissions that were seen: from Admitted to Evicted or Finished, once.

    Args:
        jobs: whose Workloads are judged.
    """

    name = "ledger"
    text = "the ledger has each admission once, from Admitted to Evicted or Finished"

    def __init__(self, jobs: Iterable[str]) -> None:
        self._jobs = frozenset(jobs)
        self._spans: dict[str, dict[int, _Span]] = {}
        self._began: list[float] = []
        self._ended: list[float] = []

    def see(self, look: Look) -> list[Violation]:
        """Remember a look; what it is worth shows when rows are judged."""
        self._began.append(look.at)
        self._ended.append(look.ended)
        for workload in look.workloads:
            if workload.job not in self._jobs:
                continue
            spans = self._spans.setdefault(workload.uid, {})
            last = max(spans, default=0)
            if workload.admitted:
                if last and workload.admitted > last and spans[last].ended is None:
                    spans[last].not_after = min(spans[last].not_after, workload.admitted)
                if workload.gpus:
                    span = spans.setdefault(workload.admitted, _Span(workload.job, workload.gpus))
                    span.not_before = look.at - ROUNDING_S
                    if workload.ended:
                        span.ended = workload.ended
            elif last and spans[last].ended is None:
                # Evicted, and no longer admitted. Nothing says when where the condition is younger than another end.
                if workload.evicted >= last:
                    spans[last].ended = workload.evicted
                spans[last].not_after = min(spans[last].not_after, look.ended + ROUNDING_S)
        return []

    def knows(self, uid: str) -> bool:
        """Whether a Workload is one of those that are judged."""
        return uid in self._spans

    def judge(self, rows: Sequence[Charge], at: float, *, is_settled: bool) -> list[Violation]:
        """Compare.

        Args:
            rows: all of the ledger, read after the last look; those of other Workloads are passed over.
            at: when they were read.
            is_settled: everything has ended and the ledger had its time: what is missing is wrong, not late.
        """
        found: list[Violation] = []
        kept: set[tuple[str, int]] = set()
        for row in rows:
            spans = self._spans.get(row.uid)
            if spans is None:
                continue
            key = (row.uid, row.began)
            span = spans.get(row.began)
            if key in kept:
                found.append(self._wrong(at, row, "stands twice in the ledger"))
            elif span is None:
                if not self._between_looks(row):
                    found.append(self._wrong(at, row, "is charged, and at no look was it admitted then"))
            else:
                found += self._compare(row, span, at, is_settled=is_settled)
            kept.add(key)
        if is_settled:
            for uid, spans in sorted(self._spans.items()):
                for began, span in sorted(spans.items()):
                    if (uid, began) not in kept:
                        row = Charge(uid, began, span.ended, span.gpus)
                        found.append(self._wrong(at, row, NOT_CHARGED))
        return found

    def _compare(self, row: Charge, span: _Span, at: float, *, is_settled: bool) -> list[Violation]:
        found = []
        if row.gpus != span.gpus:
            found.append(self._wrong(at, row, f"is charged for {row.gpus:g} GPUs and had {span.gpus:g}"))
        if row.ended is None:
            if is_settled and (span.ended is not None or span.not_after < float("inf")):
                found.append(self._wrong(at, row, NOT_ENDED))
        elif row.basis not in EXACT:
            # Nobody saw the end while the extension was away; the report names such hours. More than was used is wrong.
            if row.ended > (span.not_after if span.ended is None else span.ended) + ROUNDING_S:
                found.append(self._wrong(at, row, "is charged by estimate for longer than it ran"))
        elif span.ended is not None:
            if row.ended != span.ended:
                text = f"is charged until {row.ended - row.began} s after its begin and ended after "
                found.append(self._wrong(at, row, f"{text}{span.ended - row.began} s"))
        elif not span.not_before - ROUNDING_S <= row.ended <= span.not_after + ROUNDING_S:
            found.append(self._wrong(at, row, "is charged to an end at which it was seen admitted, or long gone"))
        return found

    def _between_looks(self, row: Charge) -> bool:
        """Whether it began and ended between two looks, or after the last."""
        # The first look of which every answer came after it began.
        number = bisect_right(self._began, row.began + ROUNDING_S)
        if number >= len(self._began):
            return True
        return row.ended is not None and row.ended <= self._ended[number] + ROUNDING_S

    def _wrong(self, at: float, row: Charge, text: str) -> Violation:
        spans = self._spans[row.uid]
        job = next((span.job for span in spans.values()), row.uid)
        shown = {
            "row": {"uid": row.uid, "began": row.began, "ended": row.ended, "gpus": row.gpus, "basis": row.basis},
            "seen": {str(began): {"ended": span.ended, "gpus": span.gpus} for began, span in sorted(spans.items())},
        }
        return Violation(self.name, at, f"{job} {row.began}", f"{job} {text}", shown)


def is_late(one: Violation) -> bool:
    """Whether only more time is missing, as far as one can tell: a row, or its end, that is not there yet."""
    return one.rule == LedgerExact.name and one.text.endswith((NOT_CHARGED, NOT_ENDED))


class Decided:
    """Gangs stand where a decision record says that they were put.

    A record is owed for a node on which a gang stood for half a minute under a leader; what came and went faster, or
    while nobody led, need not have one.

    Args:
        jobs: whose pods are judged.
    """

    name = "record"
    text = "gangs stand where the decision records put them"

    def __init__(self, jobs: Iterable[str]) -> None:
        self._jobs = frozenset(jobs)
        self._led_s: dict[str, dict[str, float]] = {}
        self._before: float | None = None

    def see(self, look: Look) -> list[Violation]:
        """Remember a look."""
        passed_s = 0.0 if self._before is None else min(look.at - self._before, MOST_BETWEEN_LOOKS_S)
        self._before = look.at
        if look.is_led:
            for job, node in {(pod.job, pod.node) for pod in look.pods if pod.holds and pod.job in self._jobs}:
                by_node = self._led_s.setdefault(job, {})
                by_node[node] = by_node.get(node, 0.0) + passed_s
        return []

    def jobs(self) -> list[str]:
        """Whose records are wanted."""
        return sorted(self._led_s)

    def judge(self, assigned: Mapping[str, Iterable[str]], at: float) -> list[Violation]:
        """Compare with the nodes of all records `assigned` of each job."""
        found = []
        for job, by_node in sorted(self._led_s.items()):
            known = set(assigned.get(job, ()))
            for node, led_s in sorted(by_node.items()):
                if led_s >= RECORDED_WITHIN_S and node not in known:
                    text = f"{job} stood on {node} for {led_s:.0f} s under a leader, and no record put it there"
                    found.append(Violation(self.name, at, f"{job} {node}", text, {"recorded": sorted(known)}))
        return found
