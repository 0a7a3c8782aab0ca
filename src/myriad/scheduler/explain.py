"""One answer to "why is my job waiting": the first cause, with numbers, who holds it and what would unblock it. Pure.

The caller gathers `JobFacts` (what Kubernetes and Kueue say of the workload), `QuotaView` (the ledger of its queue),
the planner's outcome and what runs; `why` turns them into an `Answer`. The sentences are the ones of `myriad why`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from myriad.scheduler.model import Gang, Outcome, Plan, Refusal, gpus_words, place
from myriad.symptoms import diagnose

State = Literal[
    "never", "quota", "placement", "check", "gated", "not_reached", "starting", "running", "finished", "held", "fits",
    "queue", "external",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class AheadJob:
    """A job in front in the same queue. ``position`` counts from 1."""

    name: str
    owner: str = ""
    gpus: int = 0
    pods: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class Holder:
    """A running job that holds what the waiting one needs.

    ``ends_in_s``: seconds until its limit ends it, None = it has no limit. ``uids``: its pods, for what-if.
    ``terminating``: its pods are stopping but still hold their GPUs.
    """

    name: str
    team: str = ""
    gpus: int = 0
    ends_in_s: float | None = None
    borrowed_gpus: int = 0
    uids: tuple[str, ...] = ()
    terminating: bool = False


@dataclass(frozen=True, slots=True)
class QuotaView:
    """The ledger of one team in one pool, in GPUs, and the queue as Kueue orders it.

    ``used`` counts what the team has, ``borrowed`` the part of it above nominal; ``lent`` is the part of its nominal
    quota that others use now. ``cohort_free``: what others of the cohort leave unused and lend now. ``borrow_limit``:
    None = no limit.
    """

    team: str
    pool: str
    nominal: int
    used: int
    borrowed: int = 0
    lent: int = 0
    borrow_limit: int | None = 0
    cohort_free: int = 0
    position: int = 0
    queue_length: int = 0
    ahead: tuple[AheadJob, ...] = ()
    holders: tuple[Holder, ...] = ()
    stopped: str = ""
    """Why the queue takes nothing (a Hold, an inactive ClusterQueue), as a sentence, or ""."""

    @property
    def left(self) -> int:
        """GPUs that the team can still get now: its own that are unused, and what it may borrow."""
        own = max(0, self.nominal - self.used - self.lent)
        may = (
            self.cohort_free if self.borrow_limit is None else min(self.cohort_free, self.borrow_limit - self.borrowed)
        )
        return own + max(0, may)

    @property
    def most(self) -> int | None:
        """GPUs that the team can hold at the very most; None = the cohort's whole."""
        return None if self.borrow_limit is None else self.nominal + self.borrow_limit


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a Workload."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What is known of the waiting job apart from quota and placement.

    ``problems`` are causes that others report and that come before everything (a missing PVC, a ResourceQuota, a
    webhook that refuses), each as a sentence. ``pending_checks`` are admission checks that are not Ready yet, with
    their message. ``gates`` are scheduling gates left on its pods.
    """

    gang: Gang
    waiting_s: float = 0.0
    has_workload: bool = True
    quota_reserved: bool = False
    admitted: bool = False
    admitted_s: float = 0.0
    finished: bool = False
    succeeded: bool | None = None
    evicted: bool = False
    suspended_by_user: bool = False
    pods_ready: int = 0
    pods_expected: int = 0
    nodes: Mapping[str, int] = field(default_factory=dict)
    pending_checks: Mapping[str, str] = field(default_factory=dict)
    gates: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    evaluated: bool = True
    """Whether Kueue has looked at it since it came or changed; False = "not yet reached", not "refused"."""
    unschedulable: str = ""
    """What the pod scheduler says of an admitted gang's pod that it cannot place (condition PodScheduled)."""


@dataclass(frozen=True, slots=True)
class Eta:
    """When it may start: seconds from now with an interval and its basis in words."""

    seconds: float
    low_s: float
    high_s: float
    basis: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The explanation. ``lines`` are (heading, text) in the order shown; `text` lays them out as `myriad why` does."""

    job: str
    state: State
    first_cause: str
    title: str
    lines: tuple[tuple[str, str], ...] = ()
    unblocks: tuple[str, ...] = ()
    looked_at: tuple[str, ...] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """The answer as people read it: a title and indented lines under headings."""
        width = max([len(h) for h, _ in self.lines] + [9]) + 3
        out = [self.title]
        for heading, text in self.lines:
            for k, line in enumerate(text.split("\n")):
                out.append(f"  {(heading if k == 0 else ''):<{width}}{line}".rstrip())
        return "\n".join(out)

    def as_dict(self) -> dict[str, Any]:
        """The same for ``--json``."""
        return {
            "job": self.job,
            "state": self.state,
            "first_cause": self.first_cause,
            "lines": [{"about": h, "text": t} for h, t in self.lines],
            "unblocks": list(self.unblocks),
            "looked_at": list(self.looked_at),
            "numbers": dict(self.numbers),
        }


SILENCE_S = 120.0
"""A workload that Kueue has not looked at for so long is reported as a fault of the system (kueue#2391)."""

LOOKED_AT = ("events", "Workload", "admission checks", "quota", "placement", "nodes")


def why(
    facts: JobFacts,
    *,
    quota: QuotaView | None = None,
    placement: Outcome | None = None,
    holders: Sequence[Holder] = (),
    after: Holder | None = None,
    eta: Eta | None = None,
    gpu_name: str = "",
    looked_at: Sequence[str] = LOOKED_AT,
) -> Answer:
    """The first failing cause and everything a user needs to judge it.

    Args:
        facts: the job's own state.
        quota: the ledger of its queue; None = not known.
        placement: the planner's outcome for the gang now; None = not planned.
        holders: running jobs on the nodes that it could use, any order.
        after: the running job whose end makes room (`placement.first_end_that_fits`).
        eta: an estimate, where there is one.
        gpu_name: what to call the GPUs (`placement.gpu_name_of`); "" = as the refusal calls them, else GPUs.
        looked_at: what was looked at, for the last line.
    """
    if not gpu_name:
        gpu_name = str(placement.numbers.get("gpu_name", "")) if isinstance(placement, Refusal) else ""
    return _Explainer(facts, quota, placement, holders, after, eta, gpu_name or "GPUs", tuple(looked_at)).answer()


class _Explainer:
    def __init__(
        self,
        facts: JobFacts,
        quota: QuotaView | None,
        placement: Outcome | None,
        holders: Sequence[Holder],
        after: Holder | None,
        eta: Eta | None,
        gpu_name: str,
        looked_at: tuple[str, ...],
    ) -> None:
        self.facts, self.quota, self.placement = facts, quota, placement
        self.holders, self.after, self.eta = holders, after, eta
        self.gpu_name, self.looked_at = gpu_name, looked_at
        self.lines: list[tuple[str, str]] = []
        self.unblocks: list[str] = []
        self.numbers: dict[str, Any] = {"gpus": facts.gang.gpus, "pods": facts.gang.pods}

    # -- which state ---------------------------------------------------------------------------------------------

    def answer(self) -> Answer:
        f = self.facts
        if f.finished:
            return self._close("finished", "finished" if f.succeeded in (True, None) else "failed", waiting=False)
        if f.admitted and f.pods_expected and f.pods_ready >= f.pods_expected:
            self._on_nodes()
            return self._close("running", f"running, {f.pods_ready} of {f.pods_expected} pods ready", waiting=False)
        if f.admitted:
            return self._starting()
        if f.suspended_by_user:
            self.lines.append(("state", "suspended by its owner, not by a queue"))
            self.unblocks.append("resume the job")
            return self._close("held", "suspended by its owner")
        if isinstance(self.placement, Refusal) and self.placement.kind == "never":
            return self._never(self.placement)
        impossible = self._quota_never()
        if impossible:
            self.lines.append(("quota", impossible))
            return self._close("never", impossible)
        if f.problems:
            for problem in f.problems:
                self._problem_line(problem)
            return self._close("external", f.problems[0])
        if not f.has_workload:
            sentence = "Kueue has made no Workload of it yet: not yet reached"
            self.lines.append(("queue", sentence))
            return self._close("not_reached", sentence)
        if self.quota and self.quota.stopped:
            self.lines.append(("quota", self.quota.stopped))
            return self._close("held", self.quota.stopped)
        return self._waiting()

    def _never(self, refusal: Refusal) -> Answer:
        self.lines.append(("never", refusal.sentence))
        self.unblocks.extend(refusal.unblocks)
        self.numbers.update(refusal.numbers)
        return self._close("never", refusal.sentence)

    def _quota_never(self) -> str:
        q, gpus = self.quota, self.facts.gang.gpus
        if q is None or q.most is None or gpus <= q.most or self._min_gpus() <= q.most:
            return ""
        limit = f"{q.nominal}" if not q.borrow_limit else f"{q.nominal} and may borrow {q.borrow_limit}"
        self.numbers.update(nominal=q.nominal, borrow_limit=q.borrow_limit)
        self.unblocks.append(f"ask for {q.most} GPUs or fewer, or raise the quota of {q.team} in pool {q.pool}")
        return f"asks for {gpus} GPUs; {q.team} has {limit} in pool {q.pool}, so it can never be admitted"

    def _min_gpus(self) -> int:
        return sum(
            p.gpus_per_pod * (p.min_count if p.min_count is not None else p.count) for p in self.facts.gang.podsets
        )

    def _waiting(self) -> Answer:
        f, q = self.facts, self.quota
        waits_for_quota = q is not None and not f.quota_reserved and f.gang.gpus > q.left
        blocked = isinstance(self.placement, Refusal)
        state: State
        if waits_for_quota:
            cause = self._quota_line()
            state = "quota"
            if blocked and isinstance(self.placement, Refusal):
                self._placement_lines(self.placement)
        elif blocked and isinstance(self.placement, Refusal):
            cause = self._placement_lines(self.placement)
            state = "placement"
        elif f.pending_checks:
            cause = self._check_line()
            state = "check"
        elif not f.evaluated and not f.quota_reserved:
            cause = self._not_reached_line()
            state = "not_reached"
        elif q is not None and q.position > 1 and not f.quota_reserved:
            cause = f"{ordinal(q.position)} of {max(q.queue_length, q.position)} in the queue of {q.team}"
            state = "queue"
        elif isinstance(self.placement, Plan):
            cause = f"fits now: {self.placement.reason}"
            self.lines.append(("placement", cause))
            state = "fits"
        else:
            cause = kueue_says(f.conditions) or "no cause found in what was looked at"
            self.lines.append(("kueue", cause))
            state = "external"
        if f.evicted:
            # Whoever was preempted asks for that first, whatever the job waits for now (armada#4839).
            preempted = _message(f.conditions, "Preempted")
            text = preempted or _message(f.conditions, "Evicted") or "it was evicted and is queued again"
            self.lines.insert(0, ("preempted" if preempted else "evicted", text))
            cause = f"{'preempted' if preempted else 'evicted'} ({text.rstrip('.')}); now: {cause}"
        self._queue_line()
        self._eta_line()
        return self._close(state, cause)

    def _starting(self) -> Answer:
        f = self.facts
        self._on_nodes()
        if f.gates:
            cause = f"admitted, but its pods still carry the gate {', '.join(f.gates)}"
            self.lines.append(("gate", cause))
            self.unblocks.append(f"whoever set the gate {f.gates[0]} has to remove it")
            return self._close("gated", cause, waiting=False)
        if f.problems:
            self._problem_line(f.problems[0])
            return self._close("external", f.problems[0], waiting=False)
        cause = f"admitted {duration(f.admitted_s)} ago, {f.pods_ready} of {f.pods_expected} pods ready"
        if f.unschedulable:
            said = " ".join(f.unschedulable.split())
            cause = f"admitted {duration(f.admitted_s)} ago, not placeable: the pod scheduler says: {said}"
        elif isinstance(self.placement, Refusal) and not f.nodes:
            cause = f"admitted {duration(f.admitted_s)} ago, not placeable: {self.placement.sentence}"
        self.lines.append(("start", cause))
        return self._close("starting", cause, waiting=False)

    # -- lines ---------------------------------------------------------------------------------------------------

    def _problem_line(self, problem: str) -> None:
        """What somebody reports, and what it means where it is a known symptom."""
        self.lines.append(("cause", problem))
        found = diagnose(problem, {"node": next(iter(self.facts.nodes), "")})
        if found is not None:
            self.lines.append(("means", found.cause))
            self.unblocks.append(found.next[0])

    def _not_reached_line(self) -> str:
        f, q = self.facts, self.quota
        cause = "not yet reached: Kueue has not looked at it since it came or changed; nothing is known against it"
        if q is not None and q.position > 1:
            cause += f"; {q.position - 1} ahead of it"
        self.lines.append(("queue", cause))
        if f.waiting_s > SILENCE_S:
            self.lines.append(("alarm", f"{duration(f.waiting_s)} without a word is itself a fault"))
            self.unblocks.append(
                "look at Kueue: kubectl -n kueue-system get pods, "
                "kubectl -n kueue-system logs deploy/kueue-controller-manager"
            )
        return cause

    def _quota_line(self) -> str:
        q = self.quota
        assert q is not None  # noqa: S101 - narrows the type; the caller has tested it
        self.numbers.update(nominal=q.nominal, used=q.used, borrowed=q.borrowed, lent=q.lent, left=q.left)
        borrowed = f" ({q.borrowed} of them borrowed)" if q.borrowed else ""
        numbers = f"{q.team} has {q.nominal}, {q.used} in use{borrowed}"
        if q.lent:
            numbers += f", {q.lent} lent to others"
        if q.borrow_limit is None or q.borrow_limit > 0:
            numbers += f"; {q.cohort_free} to borrow now"
        place_in_queue = f"; {ordinal(q.position)} in the queue" if q.position else ""
        asked = self.facts.gang.gpus
        cause = f"waits for quota: needs {gpus_words(asked, self.gpu_name)}, {numbers}{place_in_queue}"
        self.lines.append(("quota", cause))
        if q.lent and asked <= q.nominal - q.used:
            self.unblocks.append(f"Kueue reclaims what {q.team} has lent ({gpus_words(q.lent, self.gpu_name)})")
        holders = by_end(q.holders)
        if holders:
            self.lines.append(("held by", holders_words(holders, self.gpu_name)))
            freed, first = q.left, []
            for h in holders:
                freed += h.gpus
                first.append(h)
                if freed >= asked:
                    break
            if freed >= asked:
                named = " and ".join(_holder_words(h, self.gpu_name) for h in first[:3])
                rest = f" and {len(first) - 3} more" if len(first) > 3 else ""
                self.unblocks.append(f"{'job' if len(first) == 1 else 'jobs'} {named}{rest}")
        return cause

    def _placement_lines(self, refusal: Refusal) -> str:
        self.numbers.update(refusal.numbers)
        self.lines.append(("placement", "\n".join([refusal.sentence, *refusal.details])))
        if self.after is not None:
            self.unblocks.append(f"job {_holder_words(self.after, self.gpu_name)}")
        else:
            holders = by_end(self.holders)
            if holders:
                self.lines.append(("held by", holders_words(holders, self.gpu_name)))
        self.unblocks.extend(refusal.unblocks)
        return refusal.sentence

    def _check_line(self) -> str:
        name, message = next(iter(self.facts.pending_checks.items()))
        others = len(self.facts.pending_checks) - 1
        cause = f"waits for the admission check {name}" + (f": {message}" if message else "")
        if others:
            cause += f" (and {others} more)"
        self.lines.append(("check", cause))
        return cause

    def _queue_line(self) -> None:
        q = self.quota
        if q is None or not q.position:
            return
        text = f"{ordinal(q.position)} of {max(q.queue_length, q.position)} in {q.team}"
        if q.ahead:
            names = ", ".join(
                f"{a.name} ({gpus_words(a.gpus, self.gpu_name)}{', ' + a.owner if a.owner else ''})"
                for a in q.ahead[:5]
            )
            more = f" and {len(q.ahead) - 5} more" if len(q.ahead) > 5 else ""
            pods = sum(a.pods for a in q.ahead)
            total = gpus_words(sum(a.gpus for a in q.ahead), self.gpu_name)
            in_all = f"; {total} in {pods} {'pod' if pods == 1 else 'pods'} ahead in all" if pods else ""
            text += f"; ahead: {names}{more}{in_all}"
        self.numbers.update(position=q.position, queue_length=q.queue_length, gpus_ahead=sum(a.gpus for a in q.ahead))
        self.lines.append(("queue", text))

    def _eta_line(self) -> None:
        if self.eta is not None:
            basis = f"; {self.eta.basis}" if self.eta.basis else ""
            span = f"{duration(self.eta.low_s)} to {duration(self.eta.high_s)}"
            self.lines.append(("ETA", f"{duration(self.eta.seconds)} ({span}{basis})"))
            self.numbers.update(eta_s=self.eta.seconds, eta_low_s=self.eta.low_s, eta_high_s=self.eta.high_s)

    def _on_nodes(self) -> None:
        if self.facts.nodes:
            where = ", ".join(f"{n} x{k}" if k > 1 else n for n, k in list(self.facts.nodes.items())[:8])
            more = f" and {len(self.facts.nodes) - 8} more" if len(self.facts.nodes) > 8 else ""
            self.lines.append(("nodes", where + more))

    def _close(self, state: State, cause: str, *, waiting: bool = True) -> Answer:
        f = self.facts
        if self.unblocks:
            self.lines.insert(self._after_cause(), ("unblocks", ", or ".join(self.unblocks)))
        if waiting and self.looked_at:
            clear = ": nothing else blocks" if state in ("quota", "placement", "check", "queue", "fits") else ""
            self.lines.append(("looked at", ", ".join(self.looked_at) + clear))
        about = [f.gang.team or f.gang.namespace, f.gang.size(self.gpu_name) if f.gang.podsets else ""]
        if waiting:
            about.append("can never run" if state == "never" else f"waiting {duration(f.waiting_s)}")
        else:
            about.append({"starting": "starting", "gated": "gated"}.get(state, cause.split(",")[0]))
        title = f"{f.gang.name} ({', '.join(a for a in about if a)})"
        name = f"{f.gang.namespace}/{f.gang.name}" if f.gang.namespace else f.gang.name
        return Answer(
            name, state, cause, title, tuple(self.lines), tuple(self.unblocks), self.looked_at, dict(self.numbers)
        )

    def _after_cause(self) -> int:
        heads = (
            "quota", "placement", "held by", "check", "never", "state", "gate", "cause", "nodes", "preempted",
            "evicted", "alarm",
        )  # fmt: skip
        k = 0
        while k < len(self.lines) and self.lines[k][0] in heads:
            k += 1
        return k


# -- words -------------------------------------------------------------------------------------------------------


def ordinal(n: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, ..."""
    suffix = "th" if 10 <= n % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{suffix}"


def duration(seconds: float) -> str:
    """Seconds as people say them: ``9 s``, ``14 min``, ``2 h 10 min``, ``3 d 4 h``."""
    s = max(0, round(seconds))
    if s < 60:
        return f"{s} s"
    minutes = round(s / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def by_end(holders: Iterable[Holder]) -> list[Holder]:
    """Holders in the order in which they let go: stopping ones, by limit, those without one; the larger first."""
    return sorted(holders, key=lambda h: (not h.terminating, h.ends_in_s is None, h.ends_in_s or 0.0, -h.gpus, h.name))


def holders_words(holders: Sequence[Holder], gpu_name: str = "GPUs") -> str:
    """The first five holders with team, GPUs and end."""
    words = ", ".join(_holder_words(h, gpu_name) for h in holders[:5])
    rest = holders[5:]
    return words + (f" and {len(rest)} more ({gpus_words(sum(h.gpus for h in rest), gpu_name)})" if rest else "")


def _holder_words(h: Holder, gpu_name: str = "GPUs") -> str:
    about = [h.team] if h.team else []
    borrowed = f", {h.borrowed_gpus} of them borrowed" if h.borrowed_gpus else ""
    about.append(gpus_words(h.gpus, gpu_name) + borrowed)
    if h.terminating:
        about.append("stopping, holds them until its pods have ended")
    elif h.ends_in_s is None:
        about.append("no time limit")
    else:
        about.append(f"ends by its limit in about {duration(h.ends_in_s)}")
    return f"{h.name} ({', '.join(about)})"


def _message(conditions: Sequence[Condition], kind: str) -> str:
    return next((c.message for c in conditions if c.type == kind and c.status == "True"), "")


def kueue_says(conditions: Sequence[Condition]) -> str:
    """Kueue's own words, where the facts gave no cause: the message of a condition that is false, cleaned of noise.

    A stale message is not repeated: a QuotaReserved condition that is True says nothing about waiting.
    """
    for kind in ("QuotaReserved", "Admitted", "PodsReady"):
        for c in conditions:
            if c.type == kind and c.status == "False" and c.message:
                return f"Kueue says: {' '.join(c.message.split())}"
    return ""


def where_words(outcome: Outcome) -> str:
    """A plan's place in words, for one-line tables; a refusal's sentence otherwise."""
    return place(outcome.domain) if isinstance(outcome, Plan) else outcome.sentence
