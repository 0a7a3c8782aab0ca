"""Draining: what leaves, what is in the way, giving back exactly what was taken. The API is played in memory."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from myriad.errors import InputError
from myriad.kube.client import ApiError
from myriad.kube.drain import (
    CORDON_ANNOTATION,
    Cordon,
    DrainBlockedError,
    DrainError,
    DrainOptions,
    budgets_of,
    cordon_patch,
    drain,
    gangs_of,
    pod_view,
    preflight,
    release,
    release_patch,
    selects,
)
from myriad.kube.kinds import DISRUPTION_BUDGETS, NODES, PODS

Json = dict[str, Any]
BY = DrainOptions(by="reboot", reason="the kernel is old", deadline_s=10, poll_s=1)


def node(name: str, *, unschedulable: bool = False, **annotations: str) -> Json:
    return {
        "metadata": {"name": name, "resourceVersion": "1", "annotations": dict(annotations)},
        "spec": {"unschedulable": True} if unschedulable else {},
    }


def pod(name: str, on: str, *, owner: str = "Job", labels: Json | None = None, **metadata: Any) -> Json:
    owners = [{"kind": owner, "name": name.rsplit("-", 1)[0], "controller": True}] if owner else []
    return {
        "metadata": {
            "name": name, "namespace": "vision", "uid": f"uid-{name}", "ownerReferences": owners,
            "labels": labels or {}, **metadata,
        },
        "spec": {"nodeName": on},
        "status": {"phase": "Running"},
    }  # fmt: skip


def budget(name: str, allows: int, **match: str) -> Json:
    return {
        "metadata": {"name": name, "namespace": "vision"},
        "spec": {"selector": {"matchLabels": match}},
        "status": {"disruptionsAllowed": allows},
    }


class FakeApi:
    """Nodes, pods and budgets; an eviction removes the pod unless its budget is used up."""

    def __init__(self, nodes: list[Json], pods: list[Json], budgets: list[Json] | None = None) -> None:
        self.nodes = {item["metadata"]["name"]: item for item in nodes}
        self.pods = {item["metadata"]["name"]: item for item in pods}
        self.budgets = budgets or []
        self.calls: list[str] = []
        self.stuck: set[str] = set()
        self.conflicts = 0

    def list(self, resource: Any, *, fields: str = "") -> tuple[list[Json], str]:
        self.calls.append(f"list {resource.plural} {fields}".rstrip())
        kinds = {NODES: self.nodes.values(), PODS: self.pods.values(), DISRUPTION_BUDGETS: self.budgets}
        node = fields.removeprefix("spec.nodeName=")
        return copy.deepcopy([o for o in kinds[resource] if not fields or o["spec"].get("nodeName") == node]), "1"

    def get(self, _resource: Any, name: str, **_: Any) -> Json:
        if name not in self.nodes:
            raise ApiError(404, "NotFound", "gone", where=name)
        return copy.deepcopy(self.nodes[name])

    def patch(self, _resource: Any, name: str, body: Json, **_: Any) -> Json:
        found = self.nodes[name]
        if self.conflicts or body["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            self.conflicts = max(0, self.conflicts - 1)
            raise ApiError(409, "Conflict", "the object has been modified", where=name)
        self.calls.append(f"patch {name}")
        for key, value in body["metadata"]["annotations"].items():
            found["metadata"]["annotations"].pop(key, None)
            if value is not None:
                found["metadata"]["annotations"][key] = value
        for key, value in body.get("spec", {}).items():
            found["spec"].pop(key, None)
            if value is not None:
                found["spec"][key] = value
        found["metadata"]["resourceVersion"] = str(int(found["metadata"]["resourceVersion"]) + 1)
        return found

    def evict(self, name: str, *, namespace: str, dry_run: bool = False, uid: str = "") -> None:
        self.calls.append(f"{'ask' if dry_run else 'evict'} {name}")
        item = self.pods.get(name)
        if item is None:
            raise ApiError(404, "NotFound", "gone", where=name)
        for found in self.budgets:
            if selects(found["spec"]["selector"], item["metadata"]["labels"]):
                if found["status"]["disruptionsAllowed"] < 1:
                    text = "Cannot evict pod as it would violate the pod's disruption budget."
                    raise ApiError(429, "TooManyRequests", text, where=name)
                if not dry_run:
                    found["status"]["disruptionsAllowed"] -= 1
        if not dry_run and name not in self.stuck:
            del self.pods[name]

    def closed(self) -> set[str]:
        return {name for name, item in self.nodes.items() if item["spec"].get("unschedulable")}


class Clock:
    """Time that passes by sleeping."""

    def __init__(self, api: FakeApi | None = None) -> None:
        self.now = 0.0
        self.api = api

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for item in self.api.budgets if self.api else []:
            item["status"]["disruptionsAllowed"] = 1  # what was evicted is up again elsewhere


def run(api: FakeApi, *nodes: str, options: DrainOptions = BY) -> Any:
    clock = Clock(api)
    return drain(api, nodes, options, sleep=clock.sleep, clock=clock)  # type: ignore[arg-type]


def test_pods_leave_and_what_belongs_to_the_node_stays() -> None:
    api = FakeApi(
        [node("gpu1"), node("gpu2")],
        [
            pod("train-0", "gpu1"), pod("agent-x", "gpu1", owner="DaemonSet"), pod("other-0", "gpu2"),
            pod("etcd-gpu1", "gpu1", owner="Node", annotations={"kubernetes.io/config.mirror": "x"}),
        ],
    )  # fmt: skip
    foreseen, closed = run(api, "gpu1")
    assert set(api.pods) == {"agent-x", "other-0", "etcd-gpu1"}
    assert closed == ["gpu1"] and api.closed() == {"gpu1"}
    assert [p.name for p in foreseen.pods["gpu1"]] == ["train-0"]
    assert Cordon.of(api.nodes["gpu1"]) == Cordon("reboot", Cordon.of(api.nodes["gpu1"]).at, "the kernel is old", False)  # type: ignore[union-attr]


def test_the_whole_clusters_pods_are_listed_once_and_then_those_of_its_nodes() -> None:
    names = [f"gpu{k}" for k in range(20)]
    api = FakeApi([node(name) for name in names], [pod(f"a{k}-0", name) for k, name in enumerate(names)])
    run(api, *names)
    assert api.calls.count("list pods") == 1, "the preflight: gangs are told by their pods elsewhere"
    asked = [call for call in api.calls if call.startswith("list pods spec.nodeName=")]
    assert sorted(asked) == sorted(f"list pods spec.nodeName={name}" for name in [*names, *names]), (
        "what is to go, and that nothing is left"
    )
    assert api.calls.count("list nodes") == 1


def test_d3_t14_a_budget_is_named_with_the_pod_before_anything_is_touched() -> None:
    api = FakeApi(
        [node("gpu1")],
        [pod("db-0", "gpu1", labels={"app": "db"}), pod("train-0", "gpu1")],
        [budget("db", 0, app="db")],
    )
    with pytest.raises(DrainBlockedError) as caught:
        run(api, "gpu1")
    assert not any(call.startswith(("patch", "evict")) for call in api.calls)
    assert api.closed() == set()
    assert "1 pod would not leave, nothing was touched" in str(caught.value)
    assert "vision/db-0 on gpu1: budget db (allows 0)" in str(caught.value)
    assert caught.value.blockers[0].budgets == ("db (allows 0)",)


def test_d2_a_drain_that_runs_out_of_time_gives_back_exactly_what_it_closed() -> None:
    api = FakeApi(
        [node("gpu1"), node("gpu2"), node("gpu3", unschedulable=True)], [pod("a-0", "gpu1"), pod("b-0", "gpu2")]
    )
    api.stuck = {"b-0"}
    with pytest.raises(DrainError, match=r"1 pod is left after 10 s.*\n.*vision/b-0 on gpu2"):
        run(api, "gpu1", "gpu2", "gpu3")
    assert api.closed() == {"gpu3"}, "the one that a person had cordoned stays so"
    assert all(CORDON_ANNOTATION not in item["metadata"]["annotations"] for item in api.nodes.values())


def test_d2_ctrl_c_gives_back_too() -> None:
    api = FakeApi([node("gpu1")], [pod("a-0", "gpu1")])
    api.stuck = {"a-0"}

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drain(api, ["gpu1"], BY, sleep=interrupted, clock=Clock())  # type: ignore[arg-type]
    assert api.closed() == set()


def test_d1_a_foreign_cordon_is_left_alone() -> None:
    api = FakeApi([node("gpu1", unschedulable=True), node("gpu2")], [])
    assert release(api, ["gpu1", "gpu2"], by="reboot") == []  # type: ignore[arg-type]
    assert api.closed() == {"gpu1"}
    run(api, "gpu1", "gpu2")
    assert api.closed() == {"gpu1", "gpu2"}
    assert release(api, ["gpu1", "gpu2"], by="mig") == [], "another part of Myriad did not close them"  # type: ignore[arg-type]
    assert release(api, ["gpu1", "gpu2"], by="reboot") == ["gpu1", "gpu2"]  # type: ignore[arg-type]
    assert api.closed() == {"gpu1"}


def test_d1_taints_are_never_part_of_a_patch() -> None:
    tainted = node("gpu1")
    tainted["spec"]["taints"] = [{"key": "health-check", "effect": "NoSchedule"}]
    assert "taints" not in (cordon_patch(tainted, "reboot", "", "now") or {})["spec"]
    api = FakeApi([tainted], [])
    run(api, "gpu1")
    release(api, ["gpu1"], by="reboot")  # type: ignore[arg-type]
    assert api.nodes["gpu1"]["spec"] == {"taints": [{"key": "health-check", "effect": "NoSchedule"}]}


def test_a_person_who_uncordons_meanwhile_keeps_the_last_word() -> None:
    ours = Cordon("reboot", before=True).text()
    assert "spec" not in (release_patch(node("gpu1", **{CORDON_ANNOTATION: ours}), "reboot") or {})


def test_a_node_that_another_part_closed_is_refused_with_its_reason() -> None:
    closed = node(
        "gpu1", unschedulable=True, **{CORDON_ANNOTATION: Cordon("mig", "10:00", "layout all-1g.10gb").text()}
    )
    with pytest.raises(DrainError, match=r"closed by mig since 10:00 \(layout all-1g.10gb\)"):
        cordon_patch(closed, "reboot", "", "now")


def test_a_resumed_drain_keeps_what_stood_there_at_first() -> None:
    closed = node("gpu1", unschedulable=True, **{CORDON_ANNOTATION: Cordon("reboot", "10:00", "x", False).text()})
    assert cordon_patch(closed, "reboot", "x", "11:00") is None
    patch = cordon_patch(closed, "reboot", "another reason", "11:00")
    assert patch is not None and '"at":"10:00"' in patch["metadata"]["annotations"][CORDON_ANNOTATION]
    assert '"unschedulable":false' in patch["metadata"]["annotations"][CORDON_ANNOTATION]


def test_an_annotation_that_is_not_ours_is_no_cordon() -> None:
    for text in ("", "yes", "[]", '{"by": "x"}', "null"):
        assert Cordon.of(node("gpu1", **{CORDON_ANNOTATION: text})) is None


def test_a_budget_that_allows_one_at_a_time_only_takes_longer() -> None:
    api = FakeApi(
        [node("gpu1")],
        [pod("web-0", "gpu1", labels={"app": "web"}), pod("web-1", "gpu1", labels={"app": "web"})],
        [budget("web", 1, app="web")],
    )
    foreseen, _ = run(api, "gpu1")
    assert foreseen.notes == ("budget vision/web allows 1 of 2 pods at a time: they go in turn",)
    assert api.pods == {}


def test_a_pod_without_a_controller_is_not_thrown_away() -> None:
    api = FakeApi([node("gpu1")], [pod("lonely", "gpu1", owner="")])
    with pytest.raises(DrainBlockedError, match="belongs to no controller"):
        run(api, "gpu1")
    run(api, "gpu1", options=DrainOptions(by="reboot", unmanaged=True))
    assert api.pods == {}


def test_ended_pods_hold_nothing() -> None:
    ended = pod("done-0", "gpu1")
    ended["status"]["phase"] = "Succeeded"
    api = FakeApi([node("gpu1")], [ended])
    run(api, "gpu1")
    assert set(api.pods) == {"done-0"}


def test_a_conflict_is_read_again() -> None:
    api = FakeApi([node("gpu1")], [])
    api.conflicts = 2
    run(api, "gpu1")
    assert api.closed() == {"gpu1"}


def test_a_node_that_does_not_exist_is_wrong_input() -> None:
    with pytest.raises(InputError, match="no node gpu9"):
        run(FakeApi([node("gpu1")], []), "gpu9")


@pytest.mark.parametrize(
    ("labels", "annotations", "owner", "gang"),
    [
        ({"batch.kubernetes.io/job-name": "bert"}, {}, "Job", "vision/bert"),
        ({}, {"scheduling.k8s.io/group-name": "podgroup-1"}, "Job", "vision/podgroup-1"),
        ({"jobset.sigs.k8s.io/jobset-name": "set", "job-name": "set-workers-0"}, {}, "Job", "vision/set"),
        ({"training.kubeflow.org/job-name": "pt"}, {}, "PyTorchJob", "vision/pt"),
        ({}, {}, "Job", "vision/x"),
        ({}, {}, "ReplicaSet", ""),
        ({}, {}, "StatefulSet", ""),
        ({}, {}, "", ""),
    ],
)
def test_d9_the_gang_of_a_pod(labels: Json, annotations: Json, owner: str, gang: str) -> None:
    assert pod_view(pod("x-0", "gpu1", owner=owner, labels=labels, annotations=annotations)).gang == gang


def test_d9_gangs_that_span_nodes_are_named() -> None:
    job = {"batch.kubernetes.io/job-name": "bert"}
    pods = [pod("bert-0", "gpu1", labels=job), pod("bert-1", "gpu2", labels=job), pod("one-0", "gpu1")]
    gangs = gangs_of([pod_view(item) for item in pods])
    assert [gang.sentence() for gang in gangs] == ["vision/bert (2 pods) runs on gpu1, gpu2"]
    api = FakeApi([node("gpu1"), node("gpu2")], pods)
    assert [gang.name for gang in preflight(api, ["gpu1"], BY).gangs] == ["vision/bert"]  # type: ignore[arg-type]


def test_selectors() -> None:
    assert selects({}, {"a": "b"})
    assert not selects(None, {"a": "b"})
    assert selects({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}, {"a": "b"})
    assert not selects({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]}, {"a": "b"})
    assert selects({"matchExpressions": [{"key": "x", "operator": "NotIn", "values": ["b"]}]}, {"a": "b"})
    assert not selects({"matchExpressions": [{"key": "x", "operator": "Exists"}]}, {"a": "b"})
    assert selects({"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}, {"a": "b"})
    elsewhere = budget("db", 0, app="db") | {"metadata": {"name": "db", "namespace": "speech"}}
    assert budgets_of(pod_view(pod("db-0", "gpu1", labels={"app": "db"})), [elsewhere]) == []
