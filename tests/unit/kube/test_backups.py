"""Which backup a restore takes, and what a restored cluster has lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from myriad.kube.backups import Lost, choose, compare, read_running, sentences


def archive(
    path: str, taken: int, revision: int = 1, *, source: str = "snapshot", cluster: str = "lab"
) -> dict[str, Any]:
    return {"path": path, "taken_at": taken, "revision": revision, "source": source, "cluster": cluster}


LOOKS = {
    "cp1": {"archives": [archive("/b/1", 100, 7)]},
    "cp2": {"archives": [archive("/b/2", 200, 9), archive("/b/m2", 300, 11, source="member")]},
    "cp3": {"archives": [archive("/b/m3", 290, 12, source="member"), archive("/b/x", 900, cluster="other")]},
    "cp4": {},
}


def test_the_newest_of_all_control_planes_is_taken() -> None:
    found = choose(LOOKS, "newest", cluster="lab")
    assert (found.host, found.path, found.meta["taken_at"], found.problem) == ("cp2", "/b/2", 200, "")


def test_of_members_that_are_left_the_one_that_knows_most() -> None:
    """The clock of another host may be late; the revision is the cluster's own count."""
    found = choose(LOOKS, "survivor", cluster="lab")
    assert (found.host, found.path) == ("cp3", "/b/m3")


def test_a_file_of_the_controller_is_taken_as_it_is() -> None:
    found = choose({}, "/srv/a.tar", cluster="lab")
    assert (found.host, found.path, found.problem) == ("", "/srv/a.tar", "")


@pytest.mark.parametrize("wanted", ["newest", "survivor"])
def test_where_there_is_none_it_says_what_to_do(wanted: str) -> None:
    problem = choose({"cp1": {"archives": [archive("/b/x", 9, cluster="other")]}}, wanted, cluster="lab").problem
    assert "cp1" in problem
    assert "-e restore_archive=FILE" in problem


def pod(uid: str, name: str, node: str, phase: str = "Running", **annotations: str) -> dict[str, Any]:
    return {
        "metadata": {"uid": uid, "namespace": "vision", "name": name, "annotations": annotations},
        "spec": {"nodeName": node},
        "status": {"phase": phase},
    }


def test_what_runs_and_is_unknown_and_what_is_known_and_does_not_run() -> None:
    running = {"gpu1": {"a": "vision/a", "new": "vision/new", "hash": "kube-system/kube-proxy"}, "gpu2": {}}
    static = pod("mirror", "kube-proxy", "gpu1")
    static["metadata"]["annotations"] = {"kubernetes.io/config.hash": "hash"}
    pods = [
        pod("a", "a", "gpu1"), pod("gone", "gone", "gpu2"), pod("done", "done", "gpu2", "Succeeded"), static,
        pod("x", "x", "not-asked"),
    ]  # fmt: skip
    assert compare(running, pods) == Lost(("vision/new on gpu1",), ("vision/gone on gpu2",), 2)


def test_the_words_of_the_runtime_are_read() -> None:
    pods = [{"id": "1", "metadata": {"name": "a", "uid": "u1", "namespace": "vision", "attempt": 0}}]
    assert read_running(json.dumps({"items": pods})) == {"u1": "vision/a"}
    assert read_running('{"items": []}') == {}
    assert read_running("") == {}


def test_people_are_told_what_was_lost() -> None:
    lost = Lost(("vision/new on gpu1",), ("vision/gone on gpu2",), 12)
    lines = sentences(lost, archive("/b", 1790000000, 40), revisions=[50, 62], at=1790000300.4)
    assert lines == [
        "the cluster is back from the archive of 2026-09-21 14:13:20 UTC",
        "everything that was written in the 300 s after it is lost",
        "22 writes are lost",
        "12 pods run on as before",
        "unknown to the cluster now, and ended: vision/new on gpu1",
        "had ended since then, and is started again: vision/gone on gpu2",
    ]


def test_from_a_member_that_was_left_nothing_is_said_of_time() -> None:
    lines = sentences(Lost((), (), 3), archive("/b", 100, 40, source="member"), revisions=[40], at=500.0)
    assert lines == [
        "the cluster is back from what a member that was left held", "0 writes are lost", "3 pods run on as before",
    ]  # fmt: skip


@pytest.mark.parametrize("revisions", [[], [3, 1]])
def test_where_no_member_had_its_data_nobody_counts_what_was_lost(revisions: list[int]) -> None:
    lines = sentences(Lost((), (), 3), archive("/b", 100, 40), revisions=revisions, at=500.0)
    assert "how many writes is unknown: no member had the data that the archive was taken from" in lines
    assert not [line for line in lines if line.endswith("writes are lost")]
