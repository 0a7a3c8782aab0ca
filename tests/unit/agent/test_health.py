"""Health: which error reports count, for how long, and what is to be done about each kind."""

from __future__ import annotations

from typing import Any

import pytest

from myriad.agent.health import XIDS, Finding, findings, seen
from myriad.fleet.portrait import RowRemap, Xid

from .gate_cases import gpu, portrait


def xid_finding(*xids: Xid, baseline: dict[str, int] | None = None, **more: Any) -> Finding:
    found = findings(portrait(gpus=[gpu(0, xids=xids, **more)]), baseline or {})
    return next(finding for finding in found if finding.check == "xid")


@pytest.mark.parametrize("code", [46, 48, 62, 64, 74, 79, 94, 95, 119, 120, 140])
def test_reports_of_the_gpu_itself_keep_new_work_away(code: int) -> None:
    finding = xid_finding(Xid(code=code))
    assert not finding.ok and f"Xid {code}: {XIDS[code].words}" in finding.cause
    assert ("reboot" in finding.next) == (XIDS[code].effect == "reboot")
    assert ("--gpu-reset -i 0" in finding.next) == (XIDS[code].effect == "reset")


@pytest.mark.parametrize("code", [13, 31, 43, 45, 92, 9999])
def test_faults_of_programs_and_unknown_reports_do_not(code: int) -> None:
    assert xid_finding(Xid(code=code, at_least=64)).ok


def test_a_row_that_was_remapped_counts_only_while_a_reset_is_due() -> None:
    assert xid_finding(Xid(code=63)).ok
    assert not xid_finding(Xid(code=63), row_remap=RowRemap(pending=True, failure=False)).ok
    assert xid_finding(Xid(code=63), row_remap=None).ok


def test_the_gravest_report_says_what_to_do_and_many_are_shortened() -> None:
    finding = xid_finding(Xid(code=74), Xid(code=79), Xid(code=119), Xid(code=120), Xid(code=48))
    assert finding.next == "kubectl drain NODE --ignore-daemonsets --delete-emptydir-data && ssh NODE reboot"
    assert finding.cause.endswith("and 2 more") and finding.found == 5


def test_what_was_dealt_with_is_a_baseline_by_card_and_kind() -> None:
    found = portrait(gpus=[gpu(0, xids=(Xid(code=74, at_least=4),)), gpu(1, uuid="", pci_address="0000:43:00.0",
                                                                        xids=(Xid(code=48),))])  # fmt: skip
    assert seen(found) == {"GPU-0/74": 4, "0000:43:00.0/48": 1}
    assert all(finding.ok for finding in findings(found, seen(found)))
    assert not xid_finding(Xid(code=74, at_least=8), baseline=seen(found)).ok, "more of them are new ones"
    assert not xid_finding(Xid(code=119), baseline=seen(found)).ok


def test_what_a_card_does_not_tell_is_not_judged() -> None:
    bare = portrait(gpus=[gpu(0, ecc=None, row_remap=None, xids=None)])
    assert [finding.check for finding in findings(bare, {})] == ["lost"]


def test_every_kind_names_its_source() -> None:
    assert all(kind.source.startswith("https://docs.nvidia.com/") and kind.words for kind in XIDS.values())
