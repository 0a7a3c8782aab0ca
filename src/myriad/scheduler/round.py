"""One round of planning: where each waiting gang should go, given those before it. Pure.

Steering makes a round of every pass, and the simulator of every pass that it plays, so that both decide by the same
lines. A gang that was given a place holds it on the round's own copy of the cluster: two gangs are never led to the
same nodes.

Thousands of waiting jobs ask for few different things. A shape (what is asked for, of whom) that has no place has none
until the copy changes to the better, and it never does inside a round: the answer is remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from myriad.scheduler.model import Gang, Outcome, PlacementPolicy, Plan, PodUse, Refusal, Toleration
from myriad.scheduler.objects import PodSetUpdate, WorkloadView
from myriad.scheduler.placement import plan
from myriad.scheduler.rules import Wish, steered_to, updates_for, with_updates
from myriad.scheduler.snapshot import Snapshot

_MESSAGE = 1000  # characters; a check's message may be longer, but nobody reads more


@dataclass(frozen=True, slots=True)
class Passes:
    """Tolerations that a waiting gang may be given in this round; see `myriad.scheduler.protect`.

    Attributes:
        own: of the domain that is protected for this gang.
        domain: that domain's label and value: TAS is to look there; empty where it spans the cluster.
        backfill: of domains that are protected for others and that this gang would leave in time.
        why: a word for the message.
    """

    own: tuple[Toleration, ...] = ()
    domain: Mapping[str, str] | None = None
    backfill: tuple[Toleration, ...] = ()
    why: str = ""


NO_PASSES = Passes()


@dataclass(frozen=True, slots=True)
class Wished:
    """What a round says about one gang.

    Attributes:
        wish: for `rules.next_write`.
        plan: where it would stand, None where it has no place now.
        refusal: why it has none.
        kept: the gang stays with the domain that it was led to before.
        asked: the gang as it was planned, with tolerations that it was given.
        inputs: hash of what the plan was made from, where the round was asked to take it.
    """

    wish: Wish
    plan: Plan | None
    refusal: Refusal | None
    kept: bool
    asked: Gang
    inputs: str = ""


class Round:
    """One round. See the module's text.

    Args:
        now: the cluster; not changed.
        policy: the planner's inputs.
        passes: tolerations that a gang may be given.
        hashed: takes the hash of a decision's inputs, for its record.
    """

    def __init__(
        self,
        now: Snapshot,
        policy: PlacementPolicy,
        *,
        passes: Callable[[WorkloadView], Passes] | None = None,
        hashed: Callable[[Snapshot, Gang, PlacementPolicy], str] | None = None,
    ) -> None:
        self.now = now
        self.held = now.clone()
        self._policy = policy
        self._passes = passes
        self._hashed = hashed
        self._refused: dict[object, Refusal] = {}

    def plan(self, gang: Gang) -> Outcome:
        """Plan a gang on what is left; a shape that was refused in this round is not planned again."""
        shape = _shape(gang)
        known = self._refused.get(shape)
        if known is not None:
            return known
        outcome = plan(self.held, gang, self._policy)
        if isinstance(outcome, Refusal):
            self._refused[shape] = outcome
        return outcome

    def wish(self, view: WorkloadView) -> Wished:
        """Where a waiting gang should go; its place is held from here on."""
        passes = self._passes(view) if self._passes is not None else NO_PASSES
        current = led_to(view)
        if current and _may_keep(current, passes):
            # Stay with a domain as long as it can hold the gang: a better one is no reason to write.
            asked = with_updates(view.gang, current)
            outcome = self.plan(asked)
            if isinstance(outcome, Plan):
                self.hold(view.gang, outcome)
                return Wished(Wish(current, view.check.message if view.check else ""), outcome, None, True, asked)
        asked, outcome, given = self._plan_with_passes(view.gang, passes)
        if isinstance(outcome, Refusal):
            if passes.own and view.steerable:
                # Its protected domain is still draining. With the toleration in place it starts the moment that the
                # last node is free, without waiting for us.
                updates = _everywhere(view.gang, passes.domain or {}, passes.own)
                return Wished(
                    Wish(updates, f"{passes.why}: {outcome.sentence}"[:_MESSAGE]), None, outcome, False, asked
                )
            sentence = f"left to Kueue's topology: {outcome.sentence}"[:_MESSAGE]
            return Wished(Wish((), sentence), None, outcome, False, asked)
        inputs = self._hashed(self.held, asked, self._policy) if self._hashed is not None else ""
        self.hold(view.gang, outcome)
        if not view.steerable:
            updates, text = (), "left to Kueue's topology: slices and podset groups are not steered"
        else:
            updates = updates_for(view.gang, outcome, self.held.levels, tolerations=given)
            text = "left to Kueue's topology: every domain will do"
        if updates:
            where = steered_to(updates) or "the whole cluster"
            note = f" ({passes.why})" if given and passes.why else ""
            text = f"steered to {where}{note}: {outcome.reason}"
        return Wished(Wish(updates, text[:_MESSAGE]), outcome, None, False, asked, inputs)

    def _plan_with_passes(self, gang: Gang, passes: Passes) -> tuple[Gang, Outcome, tuple[Toleration, ...]]:
        """Outside protected domains first, unless one is protected for this very gang."""
        if passes.own:
            asked = tolerating(gang, passes.own)
            return asked, self.plan(asked), passes.own
        outcome = self.plan(gang)
        if isinstance(outcome, Plan) or not passes.backfill:
            return gang, outcome, ()
        asked = tolerating(gang, passes.backfill)
        again = self.plan(asked)
        return (asked, again, passes.backfill) if isinstance(again, Plan) else (gang, outcome, ())

    def hold(self, gang: Gang, outcome: Plan) -> None:
        """Count a gang's place as taken for the rest of the round."""
        requests = {p.name: p.requests for p in gang.podsets}
        for placement in outcome.placements:
            for node, pods in placement.nodes:
                for i in range(pods):
                    uid = f"hold:{gang.uid}:{placement.podset}:{node}:{i}"
                    self.held.apply_pod(PodUse(uid=uid, node=node, requests=requests[placement.podset]))


def led_to(view: WorkloadView) -> tuple[PodSetUpdate, ...]:
    """Where a waiting gang has been steered; empty where nowhere."""
    return view.check.updates if view.check and view.check.state == "Ready" else ()


def tolerating(gang: Gang, tolerations: Sequence[Toleration]) -> Gang:
    """The gang with tolerations added to all its podsets."""
    return replace(gang, podsets=tuple(replace(p, tolerations=(*p.tolerations, *tolerations)) for p in gang.podsets))


def _everywhere(
    gang: Gang, selector: Mapping[str, str], tolerations: tuple[Toleration, ...]
) -> tuple[PodSetUpdate, ...]:
    """One update for every podset; a label that the user selects by already is not selected again."""
    return tuple(
        PodSetUpdate(p.name, {k: v for k, v in selector.items() if k not in p.node_selector}, tolerations)
        for p in gang.podsets
    )


def _may_keep(updates: Sequence[PodSetUpdate], passes: Passes) -> bool:
    """Whether the tolerations that a gang carries are still given to it, and the one that it should have is there."""
    carried = {t for u in updates for t in u.tolerations}
    return carried <= {*passes.own, *passes.backfill} and carried >= set(passes.own)


def _shape(gang: Gang) -> object:
    """What `plan` reads of a gang."""
    return (
        gang.pool,
        tuple(
            (
                p.count,
                p.min_count,
                tuple(sorted(p.requests.items())),
                tuple(sorted(p.node_selector.items())),
                p.affinity,
                p.tolerations,
                p.topology,
                p.group,
                p.gpu_resource,
                p.images,
            )
            for p in gang.podsets
        ),
    )
