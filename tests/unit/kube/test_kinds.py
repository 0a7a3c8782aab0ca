"""Kinds: each once, and whoever goes through kinds of jobs knows all of them."""

from __future__ import annotations

from collections import Counter

from myriad.jobs import submit
from myriad.kube import kinds
from myriad.kube.kinds import PODS, WORKLOADS, Resource
from myriad.lint import live, works
from myriad.scheduler import subject

ALL = {name: value for name, value in vars(kinds).items() if isinstance(value, Resource)}


def test_every_kind_stands_once() -> None:
    assert [resource for resource, count in Counter(ALL.values()).items() if count > 1] == []
    assert kinds.NODES.path(name="gpu1") == "/api/v1/nodes/gpu1"
    assert kinds.JOBS.path("vision", "a", "status") == "/apis/batch/v1/namespaces/vision/jobs/a/status"


def test_what_can_be_asked_about_can_be_submitted() -> None:
    """`myriad why` knew an MPIJob as Kueue manages it, and `myriad job submit` refused it."""
    assert {kind for kind in subject.KINDS if kind not in (PODS, WORKLOADS)} <= set(submit.KINDS)


def test_a_live_lint_reads_every_kind_of_work_that_its_rules_know() -> None:
    read = {resource.kind for resource in live.READ}
    assert set(works.FRAMEWORKS) <= read
