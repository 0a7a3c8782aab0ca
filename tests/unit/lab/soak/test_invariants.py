"""Each rule of a soak, shown what breaks it and what comes near and does not."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from soak_looks import JOB, T0, look, node, pod, workload

from myriad.lab.soak.invariants import (
    MOST_BETWEEN_LOOKS_S,
    DoubleBooked,
    ForeignKept,
    GateKept,
    PartlyBound,
    Planted,
    Violation,
)
from myriad.lab.soak.seen import Look

GRACE_S = 10


def shown(rule: PartlyBound | DoubleBooked | GateKept | ForeignKept, looks: list[Look]) -> list[Violation]:
    return [violation for one in looks for violation in rule.see(one)]


# No gang in part


def gangs() -> PartlyBound:
    return PartlyBound({JOB: 2}, grace_s=GRACE_S)


def test_a_gang_of_which_one_pod_finds_no_place_is_told_after_its_grace_and_a_minute() -> None:
    rule = gangs()
    assert not shown(rule, [look(s, pod(0), pod(1, on="")) for s in range(0, 72, 2)])
    (found,) = rule.see(look(72, pod(0), pod(1, on="")))
    assert found.rule == "gang" and found.subject == JOB and found.at == T0 + 72
    assert found.text == f"{JOB} has stood with 1 of 2 pods for 72 s (allowed are 70)"
    assert found.shown == {"bound": {f"{JOB}-0": "gpu1"}, "succeeded": 0}


def test_a_pod_that_takes_its_grace_still_counts_as_bound() -> None:
    """Both were told to go; one is gone at once, the other takes its grace: in part from then on, and not for long."""
    leaving = [look(s, pod(0, is_leaving=True), pod(1, is_leaving=True)) for s in range(0, 300, 2)]
    half = [look(s, pod(1, is_leaving=True)) for s in range(300, 310, 2)]
    rule = gangs()
    assert not shown(rule, [*leaving, *half, look(310)])
    assert rule.partly_s == {}


def test_a_pod_that_never_leaves_its_lost_node_is_told_too() -> None:
    assert shown(gangs(), [look(s, pod(1, is_leaving=True)) for s in range(0, 90, 2)])


def test_a_gang_whose_first_pod_has_ended_well_is_whole() -> None:
    done = pod(0, is_terminal=True, is_succeeded=True)
    assert not shown(gangs(), [look(s, done, pod(1)) for s in range(0, 300, 2)])
    failed = pod(0, is_terminal=True)
    assert shown(gangs(), [look(s, failed, pod(1)) for s in range(0, 300, 2)])


def test_a_gang_that_waits_whole_and_one_that_was_whole_in_between_are_fine() -> None:
    assert not shown(gangs(), [look(s, pod(0, on=""), pod(1, on="")) for s in range(0, 300, 2)])
    half, whole = (pod(0), pod(1, on="")), (pod(0), pod(1))
    looks = [look(s, *(whole if s == 60 else half)) for s in range(0, 120, 2)]
    assert not shown(gangs(), looks)


def test_pods_of_others_are_nobody_s_gang() -> None:
    assert not shown(gangs(), [look(s, pod(0, job="team/theirs")) for s in range(0, 300, 2)])


def test_time_without_an_answer_counts_as_a_few_seconds() -> None:
    """While no API server answers nobody can bind the rest; after that the clock goes on."""
    rule = gangs()
    half = (pod(0), pod(1, on=""))
    assert not shown(rule, [look(0, *half), look(120, *half)])
    assert rule.partly_s[JOB] == MOST_BETWEEN_LOOKS_S
    assert shown(rule, [look(s, *half) for s in range(122, 200, 2)])


# No GPU twice


def gpus() -> DoubleBooked:
    return DoubleBooked({"gpu1": 8, "gpu2": 8})


def test_nine_gpus_of_pods_on_a_node_of_eight_are_told() -> None:
    found = gpus().see(look(0, pod(0, gpus=8), pod(0, job="speech/soak-1-1", gpus=1)))
    assert [one.text for one in found] == ["9 GPUs of gpu1, which has 8, are held by pods"]
    assert found[0].shown == {"pods": {f"{JOB}-0": 8, "speech/soak-1-1-0": 1}}


def test_a_pod_in_its_grace_holds_its_gpus_and_one_that_is_over_does_not() -> None:
    other = pod(0, job="speech/soak-1-1", gpus=8)
    assert gpus().see(look(0, pod(0, gpus=8, is_leaving=True), other))
    assert not gpus().see(look(0, pod(0, gpus=8, is_terminal=True), other))
    assert not gpus().see(look(0, pod(0, gpus=8, on=""), other))
    assert not gpus().see(look(0, pod(0, gpus=8, on="gpu2"), other))


def test_the_gate_s_probe_is_the_kubelet_s_affair() -> None:
    probe = pod(0, gpus=8, job="", name="myriad-system/probe-gpu1", uid="p")
    assert not gpus().see(look(0, pod(0, gpus=8), probe))
    both = {"gpu1": {"GPU-3": frozenset({f"{JOB}-0", "p"})}}
    (found,) = gpus().see(look(0, pod(0, gpus=8), probe, devices=both))
    assert found.text == f"GPU GPU-3 of gpu1 was given to myriad-system/probe-gpu1 and {JOB}-0"


def test_kueue_giving_a_node_away_twice_is_told_before_any_pod_stands() -> None:
    first = workload(holds_quota=True, gpus_by_node={"gpu1": 8})
    second = workload("speech/soak-1-1", holds_quota=True, gpus_by_node={"gpu1": 4, "gpu2": 4})
    (found,) = gpus().see(look(0, workloads=(first, second)))
    assert found.text == "12 GPUs of gpu1, which has 8, were given away by Kueue"
    finished = workload(gpus_by_node={})
    assert not gpus().see(look(0, workloads=(finished, second)))


def test_each_device_for_one_pod_is_fine_as_are_several_for_one() -> None:
    devices = {"gpu1": {"GPU-0": frozenset({"a"}), "GPU-1": frozenset({"a"}), "GPU-2": frozenset({"b"})}, "gpu2": {}}
    assert not gpus().see(look(0, devices=devices))


# No node without its gate


def gate() -> GateKept:
    return GateKept([JOB])


CLOSED = {"is_open": False, "gate_since": "s2", "taints": frozenset({"myriad.dev/gpu-unhealthy=agent:NoSchedule"})}


def test_a_pod_that_is_bound_while_the_gate_is_closed_is_told() -> None:
    looks = [look(s, nodes=[node(**CLOSED)]) for s in (0, 2, 4)]
    bound = look(8, pod(0, scheduled=T0 + 5), nodes=[node(**CLOSED)])
    (found,) = shown(gate(), [*looks, bound])
    assert found.text == (
        f"{JOB}-0 was bound to gpu1 while its gate was closed (myriad.dev/gpu-unhealthy=agent:NoSchedule)"
    )


def test_a_pod_from_before_the_gate_closed_stays_and_one_from_the_same_second_is_not_judged() -> None:
    before = [look(0, pod(0), nodes=[node()])]
    closed = [look(s, pod(0), nodes=[node(**CLOSED)]) for s in range(2, 60, 2)]
    assert not shown(gate(), [*before, *closed])
    same = [look(s, pod(0, scheduled=T0 + 2), nodes=[node(**CLOSED)]) for s in range(2, 60, 2)]
    assert not shown(gate(), same)


def test_a_gate_that_was_open_in_between_is_no_closed_gate() -> None:
    open_ = look(4, nodes=[node(gate_since="s3")])
    again = look(6, pod(0, scheduled=T0 + 4), nodes=[node(**CLOSED)])
    assert not shown(
        gate(), [look(0, nodes=[node(**CLOSED)]), open_, again, look(8, *again.pods, nodes=[node(**CLOSED)])]
    )
    # Nobody looked while it was open: its own word tells.
    since = {**CLOSED, "gate_since": "s4"}
    pods = (pod(0, scheduled=T0 + 4),)
    assert not shown(gate(), [look(0, nodes=[node(**CLOSED)]), look(6, *pods, nodes=[node(**since)])])


def test_a_pod_on_a_node_that_was_started_and_not_judged_since_is_told() -> None:
    started = {"started": T0 + 10.0}
    looks = [look(0, nodes=[node()]), look(12, nodes=[node(**started)])]
    (found,) = shown(gate(), [*looks, look(20, pod(0, scheduled=T0 + 15), nodes=[node(**started)])])
    assert found.text == f"{JOB}-0 was bound to gpu1 5 s after the node was started and before its gate had judged that"


def test_a_pod_after_the_judgement_or_from_before_the_start_is_fine() -> None:
    started = {"started": T0 + 10.0}
    begin = [
        look(0, pod(0), nodes=[node()]),
        look(12, pod(0), nodes=[node(**started)]),
        look(20, pod(0), nodes=[node(**started)]),
    ]
    judged = look(30, pod(0, scheduled=T0 + 25), nodes=[node(boot="b.2", **started)])
    assert not shown(gate(), [*begin, judged])


def test_pods_that_go_past_the_gate_by_their_own_wish_are_not_judged() -> None:
    probe = pod(0, job="", scheduled=T0 + 5)
    assert not shown(gate(), [look(0, nodes=[node(**CLOSED)]), look(8, probe, nodes=[node(**CLOSED)])])


# Nothing of somebody else's

TAINT = "example.com/soak=keep:PreferNoSchedule"


def foreign(*more: Planted) -> ForeignKept:
    return ForeignKept(
        [Planted("gpu1", "taint", TAINT, T0 + 1), Planted("gpu1", "label", "example.com/soak=keep", T0 + 1), *more]
    )


def test_what_somebody_set_is_missed_wherever_it_is_gone() -> None:
    kept = node(taints=frozenset({TAINT, "a=b:NoSchedule"}), labels={"example.com/soak": "keep"})
    assert not foreign().see(look(2, nodes=[kept]))
    found = foreign().see(look(2, nodes=[node(labels={"example.com/soak": "changed"})]))
    assert [one.subject for one in found] == ["gpu1 taint", "gpu1 label"]
    assert found[0].text == f"the taint {TAINT} that somebody set on gpu1 is gone"
    (first, _) = foreign().see(look(2, nodes=[]))
    assert first.shown == {"node": "gpu1", "exists": False}


def test_a_cordon_is_missed_while_it_stands_and_not_before_or_after() -> None:
    cordon = Planted("gpu1", "cordon", "", T0 + 10, T0 + 20)
    rule = ForeignKept([cordon])
    assert not rule.see(look(9)) and not rule.see(look(21))
    (found,) = rule.see(look(15))
    assert found.text == "the cordon that somebody set on gpu1 is gone"
    assert not rule.see(look(15, nodes=[node(is_cordoned=True)]))
    # Asked before it was taken back, answered after.
    assert not rule.see(look(19, nodes_read=T0 + 20.5))
