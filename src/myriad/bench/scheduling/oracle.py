"""Is a reason right? Worked out anew from what was asked, the quotas and what was held, by other code than `why`. Pure.

A reason is judged against the states of the cluster between the job's submission and the moment it was read: it is
right where its numbers are those of one of them.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["right", "wrong", "no numbers", "not yet reached"]

SLACK_S = 1.0
"""Watches bring one change to different readers at different times; so far apart they may be."""

_OURS = re.compile(r"waits for quota: needs (\d+) \S+?, (\S+) has (\d+), (\d+) in use")
_OURS_NEVER = re.compile(r"asks for (\d+) GPUs; (\S+) has (\d+)")
_KUEUES = re.compile(r"insufficient unused quota for nvidia\.com/gpu in flavor \S+, (\d+) more needed")
_KUEUES_NEVER = re.compile(
    r"insufficient quota for nvidia\.com/gpu in flavor \S+, request > maximum capacity \((\d+) > (\d+)\)"
)
_SILENT = ("not yet reached", "Kueue has made no Workload")


@dataclass(frozen=True, slots=True)
class Asked:
    """A waiting job: GPUs of all pods, its team, and when it was submitted."""

    gpus: int
    team: str
    submitted: float


@dataclass(frozen=True, slots=True)
class Ledger:
    """Quotas and what was held of them.

    Attributes:
        nominal: GPUs by team.
        used: for each team (time, GPUs held from then on), by time.
    """

    nominal: Mapping[str, int]
    used: Mapping[str, Sequence[tuple[float, int]]]

    def between(self, team: str, since: float, until: float) -> set[int]:
        """All amounts that were held at some time between the two."""
        changes = self.used.get(team) or [(0.0, 0)]
        first = max(0, bisect.bisect_right(changes, (since, 1 << 60)) - 1)
        return {gpus for at, gpus in changes[first:] if at <= until} or {changes[first][1]}


def judge(sentence: str, read_at: float, asked: Asked, ledger: Ledger) -> Verdict:
    """Whether a sentence about quota has the numbers of a state that there was."""
    if any(words in sentence for words in _SILENT):
        return "not yet reached"
    nominal = ledger.nominal[asked.team]
    used = ledger.between(asked.team, asked.submitted - SLACK_S, read_at + SLACK_S)
    if found := _OURS.search(sentence):
        gpus, team, has, in_use = int(found[1]), found[2], int(found[3]), int(found[4])
        right = (gpus, team, has) == (asked.gpus, asked.team, nominal) and in_use in used
        return "right" if right and asked.gpus > nominal - in_use else "wrong"
    if found := _KUEUES.search(sentence):
        more = int(found[1])
        return "right" if any(asked.gpus - (nominal - held) == more for held in used) else "wrong"
    if found := _OURS_NEVER.search(sentence):
        right = (int(found[1]), found[2], int(found[3])) == (asked.gpus, asked.team, nominal)
        return "right" if right and asked.gpus > nominal else "wrong"
    if found := _KUEUES_NEVER.search(sentence):
        right = (int(found[1]), int(found[2])) == (asked.gpus, nominal)
        return "right" if right and asked.gpus > nominal else "wrong"
    return "no numbers"


def first_reason(said: Sequence[tuple[float, str]], asked: Asked, ledger: Ledger) -> tuple[float, Verdict, str] | None:
    """When the first reason with numbers could be read, whether it is right, and its words; None where there was none.

    What says that nobody has looked yet does not count, and neither does what has no numbers.
    """
    for at, sentence in said:
        verdict = judge(sentence, at, asked, ledger)
        if verdict in ("right", "wrong"):
            return at, verdict, sentence
    return None
