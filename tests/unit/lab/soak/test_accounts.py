"""The ledger and the decision records against what was seen: what is wrong is told, what nobody could see is not."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from soak_looks import JOB, T0, look, pod, workload

from myriad.lab.soak.accounts import Decided, LedgerExact, is_late
from myriad.lab.soak.seen import Charge

UID = f"w-{JOB}"
BEGAN, ENDED = T0 + 10, T0 + 40
ROW = Charge(UID, BEGAN, ENDED, 8.0)
AFTER = T0 + 100.0


def followed() -> LedgerExact:
    """One admission from T0+10 to T0+40, seen every two seconds."""
    rule = LedgerExact([JOB])
    for s in range(0, 60, 2):
        seen = workload()
        if s >= 10:
            seen = workload(admitted=BEGAN, ended=ENDED if s >= 40 else 0, is_finished=s >= 40)
        assert rule.see(look(s, workloads=(seen,))) == []
    return rule


def wrong(rule: LedgerExact, *rows: Charge, is_settled: bool = True) -> list[str]:
    return [one.text for one in rule.judge(rows, AFTER, is_settled=is_settled)]


def test_the_row_that_was_seen_is_right_and_rows_of_others_are_nobody_s() -> None:
    assert wrong(followed(), ROW, Charge("another", T0, None, 1.0)) == []


def test_a_row_that_is_missing_is_late_while_the_soak_runs_and_wrong_at_its_end() -> None:
    assert wrong(followed(), is_settled=False) == []
    (found,) = followed().judge([], AFTER, is_settled=True)
    assert found.text == f"{JOB} was admitted, and is not charged" and is_late(found)
    assert found.shown["seen"] == {str(BEGAN): {"ended": ENDED, "gpus": 8}}


def test_a_row_twice_is_told() -> None:
    assert wrong(followed(), ROW, ROW) == [f"{JOB} stands twice in the ledger"]


def test_a_row_with_other_gpus_or_another_end_is_told() -> None:
    assert wrong(followed(), replace(ROW, gpus=16.0)) == [f"{JOB} is charged for 16 GPUs and had 8"]
    (found,) = followed().judge([replace(ROW, ended=ENDED + 1)], AFTER, is_settled=False)
    assert found.text == f"{JOB} is charged until 31 s after its begin and ended after 30 s" and not is_late(found)


def test_a_row_that_goes_on_after_the_end_is_late_and_then_wrong() -> None:
    open_ = replace(ROW, ended=None)
    assert wrong(followed(), open_, is_settled=False) == []
    (found,) = followed().judge([open_], AFTER, is_settled=True)
    assert found.text == f"{JOB} is charged on although it has ended" and is_late(found)


def test_a_row_for_a_time_at_which_it_was_seen_waiting_is_told() -> None:
    row = Charge(UID, T0 + 2, T0 + 8, 8.0)
    assert wrong(followed(), ROW, row) == [f"{JOB} is charged, and at no look was it admitted then"]


def test_an_admission_between_two_looks_may_stand_in_the_ledger_and_need_not() -> None:
    """No API server answered from T0+0 to T0+60."""
    rule = LedgerExact([JOB])
    rule.see(look(0, workloads=(workload(),)))
    rule.see(look(60, workloads=(workload(evicted=T0 + 30),)))
    unseen = Charge(UID, T0 + 20, T0 + 30, 8.0)
    assert wrong(rule, unseen) == [] and wrong(rule) == []
    # One that would still have been there at the look of T0+60 would have been seen.
    assert wrong(rule, Charge(UID, T0 + 20, T0 + 70, 8.0)) and wrong(rule, Charge(UID, T0 + 20, None, 8.0))


def test_an_admission_after_the_last_look_is_not_judged_yet() -> None:
    rule = followed()
    assert wrong(rule, ROW, Charge(UID, T0 + 70, None, 8.0), is_settled=False) == []


def evicted(*, seen: bool = True) -> LedgerExact:
    """Admitted at T0+10, evicted at T0+20, admitted again at T0+30, finished at T0+40."""
    rule = LedgerExact([JOB])
    states = {
        12: workload(admitted=BEGAN),
        22: workload(admitted=BEGAN, ended=T0 + 20, evicted=T0 + 20),
        26: workload(evicted=T0 + 20),
        32: workload(admitted=T0 + 30),
        42: workload(admitted=T0 + 30, ended=ENDED, is_finished=True),
    }
    for s, state in states.items():
        if seen or s not in (22, 26):
            rule.see(look(s, workloads=(state,)))
    return rule


def test_an_eviction_ends_a_row_to_the_second_and_the_next_admission_is_another_row() -> None:
    rows = (Charge(UID, BEGAN, T0 + 20, 8.0), Charge(UID, T0 + 30, ENDED, 8.0))
    assert wrong(evicted(), *rows) == []
    assert wrong(evicted(), rows[0]) == [f"{JOB} was admitted, and is not charged"]
    one_long = Charge(UID, BEGAN, ENDED, 8.0)
    assert wrong(evicted(), one_long, rows[1]) == [f"{JOB} is charged until 30 s after its begin and ended after 10 s"]


def test_an_eviction_that_no_look_showed_bounds_the_row() -> None:
    again = Charge(UID, T0 + 30, ENDED, 8.0)
    for end in (T0 + 12, T0 + 20, T0 + 30):
        assert wrong(evicted(seen=False), Charge(UID, BEGAN, end, 8.0), again) == []
    for end in (T0 + 9, T0 + 35):
        assert wrong(evicted(seen=False), Charge(UID, BEGAN, end, 8.0), again)


def test_an_estimated_end_may_charge_less_and_never_more() -> None:
    assert wrong(followed(), replace(ROW, ended=ENDED - 10, basis="estimated")) == []
    assert wrong(followed(), replace(ROW, ended=ENDED + 10, basis="event")) == [
        f"{JOB} is charged by estimate for longer than it ran"
    ]


# Decision records


def stood(*, leader: str = "ext-1", late_s: float = 0.0, seconds: int = 40) -> Decided:
    rule = Decided([JOB])
    for s in range(0, seconds, 2):
        assert rule.see(look(s, pod(0), pod(0, job="team/theirs"), leader=leader, renewed=T0 + s - late_s)) == []
    return rule


def test_a_gang_that_stands_where_no_record_put_it_is_told() -> None:
    rule = stood()
    assert rule.jobs() == [JOB] and rule.judge({JOB: {"gpu1", "gpu2"}}, AFTER) == []
    (found,) = rule.judge({JOB: {"gpu2"}}, AFTER)
    assert found.text == f"{JOB} stood on gpu1 for 38 s under a leader, and no record put it there"
    assert rule.judge({}, AFTER)


def test_what_came_and_went_or_had_no_leader_owes_no_record() -> None:
    assert stood(seconds=20).judge({}, AFTER) == []
    assert stood(leader="").judge({}, AFTER) == []
    assert stood(late_s=20).judge({}, AFTER) == []
