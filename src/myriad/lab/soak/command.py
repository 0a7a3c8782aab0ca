"""What `myriad lab soak` asks for: the plan for a clone's lab, and the soak on it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from myriad.errors import InputError
from myriad.lab.soak.inject import LEFT_OUT
from myriad.lab.soak.plan import KINDS, Plan, read_plan, schedule
from myriad.lab.soak.report import Result
from myriad.lab.soak.run import Soak, parts_of
from myriad.lab.state import lab_paths, require_state
from myriad.lab.topology import read_nodes

SOME_SUBNET = "10.77.0.0/24"
"""A plan names nodes and no addresses: it can be made before there is a lab."""


def planned(clone: Path, *, minutes: int, seed: int | None, replay: Path | None, only: Sequence[str]) -> Plan:
    """The plan: from a file, or from a seed and the nodes that the lab's inventory lists. Touches nothing.

    Args:
        clone: the clone's folder.
        minutes, seed, only: see `schedule`; a seed is drawn where there is none.
        replay: JSON lines of an earlier soak; the rest is then passed over.

    Raises:
        InputError: for a file without a plan, a plan for nodes that the lab does not have, or what `schedule` refuses.
    """
    nodes = read_nodes(lab_paths(clone).inventory, SOME_SUBNET)
    if replay is None:
        return schedule(
            random.SystemRandom().randrange(10**6) if seed is None else seed,
            minutes,
            list(only) or list(KINDS),
            gpu_nodes=[node.name for node in nodes if node.gpus],
            control_planes=[node.name for node in nodes if not node.gpus],
            left_out=LEFT_OUT,
        )
    if not replay.is_file():
        raise InputError("there is no such file", where=str(replay), hint="A soak says at its end where its lines are.")
    plan = read_plan(replay.read_text().splitlines())
    named = {name for fault in plan.faults for name in (fault.node, fault.peer) if name} | {plan.marked}
    foreign = sorted(named - {node.name for node in nodes})
    if foreign:
        raise InputError(
            f"the plan is for a lab with {', '.join(foreign)}",
            where=str(replay),
            hint="Bring that lab up, or take a seed.",
        )
    return plan


def soaked(clone: Path, plan: Plan, *, out: Path | None, say: Callable[[str], None]) -> Result:
    """Run a plan on the clone's lab.

    Args:
        clone: the clone's folder.
        plan: what happens.
        out: JSON lines; without it a file of its own in the lab's logs.
        say: told what happens.

    Raises:
        MyriadError: there is no lab, it is not in order, or the harness could not go on.
    """
    paths = lab_paths(clone)
    state = require_state(paths)
    lines = out or paths.logs / f"soak-{plan.seed}-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    try:
        return Soak(plan, parts_of(paths, state), out=lines, say=say).run()
    finally:
        if lines.is_file():
            say(f"JSON lines: {lines} (the same again: myriad lab soak --replay {lines})")
