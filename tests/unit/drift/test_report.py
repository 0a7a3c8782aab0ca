"""What the events of a look become: grouped lines, exit codes, the next command."""

from __future__ import annotations

from typing import Any

from myriad.drift.report import CLUSTER, report_of

Json = dict[str, Any]
PACKAGE = {
    "role": "gpu_driver", "kind": "package", "item": "libnvidia-ml1", "expected": "580.126.20", "found": "580.142.09",
    "by": "unattended-upgrade, 2026-11-29 06:12:01",
}  # fmt: skip


def result(host: str, *, play: str = "nodes", drift: list[Any] | None = None, **more: Any) -> Json:
    event: Json = {
        "event": "result",
        "host": host,
        "play": play,
        "task": "Compare",
        "status": "ok",
        "time": 2.0,
        **more,
    }
    return event | ({"drift": drift} if drift else {})


def events(*results: Json, finished: bool = True) -> list[Json]:
    return [
        {"event": "start", "time": 1.0},
        *results,
        *([{"event": "stats", "hosts": {}, "time": 3.0}] if finished else []),
    ]


def test_nothing_differs() -> None:
    report = report_of(events(result("cp1"), result("gpu1"), result("cp1", play="cluster as recorded")))
    assert report.exit_code == 0
    assert report.lines() == ["2 nodes, none differ; the cluster is as described: 2 s"]


def test_a_package_that_somebody_upgraded_is_named_with_who_did_it_and_what_to_do() -> None:
    report = report_of(
        events(result("gpu0041"), result("gpu0042", drift=[PACKAGE]), result("cp1", play="cluster as recorded"))
    )
    assert report.exit_code == 5
    assert report.lines("inventories/prod") == [
        "gpu0042  package libnvidia-ml1: 580.126.20 -> 580.142.09  (unattended-upgrade, 2026-11-29 06:12:01)",
        "2 nodes, 1 differs; the cluster is as described: 2 s",
        "next: myriad site -i inventories/prod --limit gpu0042",
    ]


def test_what_many_nodes_share_is_one_line() -> None:
    report = report_of(events(*(result(f"gpu{n:04}", drift=[{**PACKAGE, "by": ""}]) for n in range(1250))))
    assert len(report.differences) == 1250
    assert report.lines()[0].startswith("gpu0000,gpu0001,gpu0002 and 1,247 more")
    assert report.lines()[1].startswith("1,250 nodes, 1250 differ")
    assert "--limit" not in report.lines()[-1]


def test_digests_are_shortened_and_inputs_are_a_sentence() -> None:
    changed = {"kind": "file", "item": "/etc/a", "expected": "sha256 " + "a" * 64, "found": "sha256 " + "b" * 64}
    inputs = {"role": "_site", "kind": "inputs", "item": "inputs", "expected": "a" * 64, "found": "b" * 64}
    lines = report_of(events(result("gpu1", drift=[changed, inputs]))).lines()
    assert lines[0] == "gpu1  file /etc/a: content changed (sha256 aaaaaaaaaaaa -> sha256 bbbbbbbbbbbb)"
    assert lines[1].startswith("gpu1  the description, the lock, the bundle or Myriad itself changed")


def test_the_cluster_is_told_apart_and_sentences_of_its_record_count() -> None:
    field = {
        "role": "cluster-policy",
        "kind": "object",
        "item": "ClusterQueue a spec.x",
        "expected": "16",
        "found": "1",
    }
    report = report_of(
        events(
            result("gpu1"),
            result("cp1", play="cluster as recorded", drift=["ClusterQueue (kueue.x-k8s.io/v1beta2): not as applied"]),
            result("cp1", play="cluster, object by object", drift=[field]),
        )
    )
    assert [(entry.where, entry.kind) for entry in report.differences] == [(CLUSTER, "object")]
    assert report.nodes == ["gpu1"]
    # Without a field that explains it, the sentence itself is the finding.
    alone = report_of(
        events(result("cp1", play="cluster as recorded", drift=["Deployment a/b: 0 of 2 pods are ready"]))
    )
    assert [entry.item for entry in alone.differences] == ["Deployment a/b: 0 of 2 pods are ready"]
    assert alone.exit_code == 5


def test_hosts_that_do_not_answer_and_looks_that_fail() -> None:
    gone = result("gpu2", status="unreachable", message="ssh: no route to host")
    report = report_of(
        [*events(result("gpu1"), gone)[:-1], {"event": "stats", "hosts": {"gpu2": {"unreachable": 1}}, "time": 3.0}]
    )
    assert report.exit_code == 3
    assert report.unreachable == {"gpu2": "ssh: no route to host"}
    assert report_of(events(result("gpu1", drift=[PACKAGE]), gone)).exit_code == 5
    failed = result("gpu1", status="failed", message="state of gpu_driver cannot be read")
    assert (
        report_of([*events(failed)[:-1], {"event": "stats", "hosts": {"gpu1": {"failures": 1}}, "time": 3.0}]).exit_code
        == 2
    )
    assert report_of(events(result("gpu1"), finished=False)).exit_code == 2


def test_a_look_that_left_the_cluster_out_does_not_say_that_it_is_right() -> None:
    report = report_of(events(result("gpu1")))
    assert report.lines() == ["1 node, none differ; the cluster was not compared: 2 s"]
    assert report.as_dict()["cluster_compared"] is False


def test_a_look_at_nothing_is_no_agreement() -> None:
    """`--limit` with a host that no play takes ends well for Ansible, with no host matched."""
    report = report_of(events())
    assert report.exit_code == 2
    assert report.failures == {CLUSTER: "no host was looked at: the limit names none that Myriad manages"}


def test_reasons_are_one_line_and_not_only_its_announcement() -> None:
    stats = {"event": "stats", "hosts": {"gpu1": {"failures": 1}, "gpu2": {"unreachable": 1}}, "time": 3.0}
    failed = result("gpu1", status="failed", message="the description is wrong:\n  hosts.yml: gpu1 is twice\n  more")
    gone = result("gpu2", status="unreachable", message="Connection timed out\nConnection to 10.0.0.6 port 22")
    report = report_of([*events(failed, gone)[:-1], stats])
    assert report.failures["gpu1"].endswith("the description is wrong: hosts.yml: gpu1 is twice")
    assert report.unreachable["gpu2"] == "Connection timed out Connection to 10.0.0.6 port 22"
