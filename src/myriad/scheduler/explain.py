"""One answer to "why is my job waiting": the first cause, with numbers, who holds it and what would unblock it. Pure.

The caller gathers `JobFacts` (what Kubernetes and Kueue say of the workload), `QuotaView` (the ledger of its queue),
the planner's outcome and what runs; `why` turns them into an `Answer`. The sentences are the ones of `myriad why`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from myriad.scheduler.causes import Cause, in_order
from myriad.scheduler.facts import AheadJob, Answer, Condition, Eta, Holder, JobFacts, QuotaView, State
from myriad.scheduler.model import Outcome, Plan, Refusal, gpus_words, place
from myriad.scheduler.words import duration, ordinal
from myriad.symptoms import diagnose

__all__ = [
    "AheadJob", "Answer", "Condition", "Eta", "Holder", "JobFacts", "QuotaView", "State", "by_end", "duration",
    "holders_words", "kueue_says", "ordinal", "where_words", "why",
]  # fmt: skip

SILENCE_S = 120.0
"""A workload that Kueue has not looked at for so long is reported as a fault of the system (kueue#2391)."""

_ALSO = 6
"""Further causes that an answer lists."""

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
            how = "finished" if f.succeeded in (True, None) else "failed"
            if f.ended:
                self.lines.append(("ended", f.ended))
            return self._close("finished", f"{how}: {f.ended}" if f.ended else how, waiting=False)
        if f.admitted and f.pods_expected and f.pods_ready >= f.pods_expected:
            self._on_nodes()
            self.lines.extend(("odd", text) for text in f.odd)
            return self._close("running", f"running, {f.pods_ready} of {f.pods_expected} pods ready", waiting=False)
        if f.admitted and not any(c.layer == "suspended" for c in f.causes):
            return self._starting()
        if f.suspended_by_user:
            return self._held_by_owner()
        if isinstance(self.placement, Refusal) and self.placement.kind == "never":
            return self._never(self.placement)
        impossible = self._quota_never()
        if impossible:
            self.lines.append(("quota", impossible))
            self._also(self._causes())
            return self._close("never", impossible)
        causes = self._causes()
        if causes:
            return self._because(causes)
        if not f.has_workload:
            sentence = "Kueue has made no Workload of it yet: not yet reached"
            self.lines.append(("queue", sentence))
            if f.waiting_s > SILENCE_S:
                self._alarm()
            return self._close("not_reached", sentence)
        if self.quota and self.quota.stopped:
            self.lines.append(("quota", self.quota.stopped))
            return self._close("held", self.quota.stopped)
        return self._waiting()

    def _causes(self) -> tuple[Cause, ...]:
        """What others hold against it, the first to mend first."""
        f = self.facts
        gates = (
            Cause(
                "gate",
                f"its pods still carry the gate {', '.join(f.gates)}",
                (f"whoever set the gate {f.gates[0]} has to remove it",),
            )
            if f.gates
            else None
        )
        known = {c.layer for c in f.causes}
        own = (gates,) if gates and "gate" not in known else ()
        return in_order((*(Cause("job", p) for p in f.problems), *f.causes, *own))

    def _because(self, causes: Sequence[Cause]) -> Answer:
        """Layers outside quota and placement come first: a gang that gets its quota would only wait with it."""
        first = causes[0]
        self._cause_line(first)
        self._also(causes[1:])
        self._queue_line()
        states: dict[str, State] = {"queue": "held", "priority": "held", "check": "check", "topology": "placement"}
        state: State = (
            "never" if first.never and first.layer in ("quota", "topology") else states.get(first.layer, "external")
        )
        if first.layer == "quota" and not first.never:
            state = "quota"
        return self._close(state, first.text)

    def _also(self, causes: Sequence[Cause]) -> None:
        for cause in causes[:_ALSO]:
            self.lines.append(("also", cause.text))

    def _held_by_owner(self) -> Answer:
        said = next((c for c in self.facts.causes if c.layer in ("suspended", "deactivated")), None)
        sentence = said.text if said else "suspended by its owner, not by a queue"
        self.lines.append(("state", sentence))
        self.unblocks.extend(said.unblocks if said else ("resume the job",))
        return self._close("held", said.text if said else "suspended by its owner")

    def _never(self, refusal: Refusal) -> Answer:
        self.lines.append(("never", refusal.sentence))
        self.unblocks.extend(refusal.unblocks)
        self.numbers.update(refusal.numbers)
        self._also(self._causes())
        return self._close("never", refusal.sentence)

    def _quota_never(self) -> str:
        q, gpus = self.quota, self.facts.gang.gpus
        if q is None or q.most is None or gpus <= q.most or self._min_gpus() <= q.most:
            return ""
        limit = f"{q.nominal}" if not q.borrow_limit else f"{q.nominal} and may borrow {q.borrow_limit}"
        self.numbers.update(nominal=q.nominal, borrow_limit=q.borrow_limit)
        self.unblocks.append(f"ask for {q.most} GPUs or fewer, or raise the quota of {q.team} in pool {q.pool}")
        return f"asks for {gpus} GPUs; {q.team} has {limit} in pool {q.pool}, so it can never be admitted"

    def _between_words(self) -> str:
        """Where Kueue has said nothing and nothing is known against the job: it stands between two of Kueue's steps."""
        if self.facts.quota_reserved:
            return "it has its quota and no check is open: Kueue admits it next"
        if self.quota is not None:
            return "its quota is free now and nothing else is known against it: Kueue decides in one of its next cycles"
        return "no cause found in what was looked at"

    def _min_gpus(self) -> int:
        return sum(
            p.gpus_per_pod * (p.min_count if p.min_count is not None else p.count) for p in self.facts.gang.podsets
        )

    def _waiting(self) -> Answer:
        f, q = self.facts, self.quota
        waits_for_quota = q is not None and not f.quota_reserved and f.gang.gpus > q.left
        blocked = isinstance(self.placement, Refusal)
        state: State
        if f.told and q is None and self.placement is None:
            cause = f.told
            self.lines.append(("cause", cause))
            state = "external"
        elif f.victims:
            cause = self._victims_line()
            state = "quota"
        elif waits_for_quota:
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
            # With its quota the last word of Kueue is from before: it says that there is none.
            cause = self._between_words() if f.quota_reserved else kueue_says(f.conditions) or self._between_words()
            self.lines.append(("kueue", cause))
            state = "fits" if f.quota_reserved else "external"
        if f.evicted:
            # Whoever was preempted asks for that first, whatever the job waits for now (armada#4839).
            preempted = _message(f.conditions, "Preempted")
            text = preempted or _message(f.conditions, "Evicted") or "it was evicted and is queued again"
            self.lines.insert(0, ("preempted" if preempted else "evicted", text))
            cause = f"{'preempted' if preempted else 'evicted'} ({text.rstrip('.')}); now: {cause}"
        if f.set_back:
            self.lines.append(("set back", f"Kueue tries again later: {f.set_back}"))
        self._queue_line()
        self._eta_line()
        return self._close(state, cause)

    def _victims_line(self) -> str:
        victims = by_end(self.facts.victims)
        named = " and ".join(_holder_words(h, self.gpu_name) for h in victims[:3])
        more = f" and {len(victims) - 3} more" if len(victims) > 3 else ""
        last = max((h.ends_in_s or 0.0) for h in victims)
        until = f", at the latest in {duration(last)}" if last else ""
        have = "has" if len(victims) == 1 else "have"
        cause = f"room is being made for it: waits until {named}{more} {have} ended{until}"
        self.lines.append(("preempts", cause))
        self.numbers.update(victims=len(victims), victims_end_in_s=last)
        return cause

    def _starting(self) -> Answer:
        f = self.facts
        self._on_nodes()
        causes = self._causes()
        if causes:
            first = causes[0]
            self.numbers.update(first.numbers)
            text = first.text
            if first.layer == "gate":
                text = f"admitted, but {text}"
            elif first.layer == "scheduler":
                text = f"admitted {duration(f.admitted_s)} ago, not placeable: {text}"
            self._cause_line(first, text)
            if first.layer == "scheduler" and self.holders:
                self.lines.append(("held by", holders_words(by_end(self.holders), self.gpu_name)))
            self._also(causes[1:])
            return self._close("gated" if first.layer == "gate" else "external", text, waiting=False)
        let_go = "admitted" if f.has_workload else "let go (by no queue)"
        cause = f"{let_go} {duration(f.admitted_s)} ago, {f.pods_ready} of {f.pods_expected} pods ready"
        if f.unschedulable:
            said = " ".join(f.unschedulable.split())
            cause = f"admitted {duration(f.admitted_s)} ago, not placeable: the pod scheduler says: {said}"
        elif isinstance(self.placement, Refusal) and not f.nodes:
            cause = f"admitted {duration(f.admitted_s)} ago, not placeable: {self.placement.sentence}"
        self.lines.append(("start", cause))
        return self._close("starting", cause, waiting=False)

    # -- lines ---------------------------------------------------------------------------------------------------

    def _cause_line(self, cause: Cause, text: str = "") -> None:
        """What somebody reports, what mends it, and what it means where it is a known symptom."""
        self.lines.append(("gate" if cause.layer == "gate" else "cause", text or cause.text))
        self.numbers.update(cause.numbers)
        self.unblocks.extend(cause.unblocks)
        found = diagnose(cause.text, {"node": next(iter(self.facts.nodes), "")})
        if found is not None and not cause.unblocks:
            self.lines.append(("means", found.cause))
            self.unblocks.append(found.next[0])

    def _alarm(self) -> None:
        """Nobody has said a word for too long: that is a fault of the system, not of the job (kueue#2391)."""
        self.lines.append(("alarm", f"{duration(self.facts.waiting_s)} without a word is itself a fault"))
        self.unblocks.append(
            "look at Kueue: kubectl -n kueue-system get pods, "
            "kubectl -n kueue-system logs deploy/kueue-controller-manager"
        )

    def _not_reached_line(self) -> str:
        f, q = self.facts, self.quota
        cause = "not yet reached: Kueue has not looked at it since it came or changed; nothing is known against it"
        if q is not None and q.position > 1:
            cause += f"; {q.position - 1} ahead of it"
        self.lines.append(("queue", cause))
        if f.waiting_s > SILENCE_S:
            self._alarm()
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
        # What blocks in two ways, quota and room, may be unblocked by one and the same job.
        self.unblocks = list(dict.fromkeys(self.unblocks))
        if self.unblocks:
            self.lines.insert(self._after_cause(), ("unblocks", ", or ".join(self.unblocks)))
        if waiting and self.looked_at:
            clear = ": nothing else blocks" if state in ("quota", "placement", "check", "queue", "fits") else ""
            self.lines.append(("looked at", ", ".join(self.looked_at) + clear))
        about = [f.gang.team or f.gang.namespace, f.gang.size(self.gpu_name) if f.gang.podsets else ""]
        if waiting:
            about.append("can never run" if state == "never" else f"waiting {duration(f.waiting_s)}")
        else:
            short = {"starting": "starting", "gated": "gated", "external": "starting"}
            about.append(short.get(state, cause.split(",")[0].split(":")[0]))
        title = f"{f.gang.name} ({', '.join(a for a in about if a)})"
        name = f"{f.gang.namespace}/{f.gang.name}" if f.gang.namespace else f.gang.name
        return Answer(
            name, state, cause, title, tuple(self.lines), tuple(self.unblocks), self.looked_at, dict(self.numbers)
        )

    def _after_cause(self) -> int:
        heads = (
            "quota", "placement", "held by", "check", "never", "state", "gate", "cause", "nodes", "preempted",
            "evicted", "alarm", "preempts", "means", "odd", "ended",
        )  # fmt: skip
        k = 0
        while k < len(self.lines) and self.lines[k][0] in heads:
            k += 1
        return k


# -- words -------------------------------------------------------------------------------------------------------


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
