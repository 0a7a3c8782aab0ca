"""The plan of an upgrade: what changes, order, skew, jobs, blockers, what a killed run left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from jinja2 import Environment

from myriad.kube.client import Api
from myriad.kube.drain import CORDON_ANNOTATION, Gang
from myriad.upgrade.kubeadm import with_tags
from myriad.upgrade.plan import BY, HELD, Change, Limits, Look, Plan, Target, changes_of, cluster_changes, plan, skew
from myriad.upgrade.read import _api_server, jobs_of

Json = dict[str, Any]
NEW = Target(
    {"kubernetes": "1.35.4", "containerd": "2.3.4"},
    {"kubelet": ("new", "1.35.4"), "kubeadm": ("new", "1.35.4"), "runc": ("same", "1.4.3")},
)
OLD_LOOK = Look({"kubelet": "old", "kubeadm": "old", "runc": "same"})
NEW_LOOK = Look({"kubelet": "new", "kubeadm": "new", "runc": "same"})


def node(
    name: str, version: str = "1.34.4", *, rack: str = "", closed_by: str = "", reason: str = "", **more: Any
) -> Json:
    annotations = {}
    if closed_by:
        cordon = {"by": closed_by, "at": "2026-11-30T08:00:00Z", "reason": reason, "unschedulable": False}
        annotations[CORDON_ANNOTATION] = json.dumps(cordon)
    labels = {"myriad.dev/rack": rack or f"r-{name}"}
    if name.startswith("cp"):
        labels["node-role.kubernetes.io/control-plane"] = ""
    return {
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {"unschedulable": bool(closed_by) or more.get("cordoned", False)},
        "status": {
            "nodeInfo": {"kubeletVersion": f"v{version}", "containerRuntimeVersion": "containerd://2.3.4"},
            "allocatable": {} if name.startswith("cp") else {"nvidia.com/gpu": "8"},
        },
    }


def planned(nodes: list[Json], *, looks: dict[str, Look] | None = None, jobs: list[Gang] | None = None,
            limits: Limits | None = None, api_server: str = "1.34.4", **more: Any) -> Plan:  # fmt: skip
    by_name = {item["metadata"]["name"]: item for item in nodes}
    found = looks or dict.fromkeys(by_name, OLD_LOOK)
    names = [name for name in found if name.startswith("cp")]
    return plan(found, by_name, NEW, jobs or [], limits or Limits(), api_server=api_server,
                control_plane_hosts=names, **more)  # fmt: skip


def is_prepared(found: Plan, **given: Any) -> bool:
    """Whether playbooks/upgrade.yml keeps the way back for a plan."""
    plays = yaml.safe_load((Path(__file__).parents[3] / "playbooks/upgrade.yml").read_text())
    tasks = [task for play in plays for task in play.get("tasks") or []]
    (task,) = (task for task in tasks if task.get("myriad.gpu.node_upgrade", {}).get("state") == "prepared")
    expression = Environment(autoescape=False).compile_expression(task["when"])  # noqa: S701 - no page is made
    return bool(expression(__upgrade_plan=found.as_dict(), **given))


def test_the_way_back_is_kept_whatever_changes() -> None:
    """Else `myriad upgrade rollback kueue` finds nothing, or what stood before the upgrade before this one."""
    same = [node("gpu0", "1.35.4")]
    looks = {"gpu0": NEW_LOOK}
    kueue = Change("kueue-system/kueue-controller-manager", "0.17.0", "0.17.1")
    only_kueue = planned(same, looks=looks, api_server="1.35.4", cluster=[kueue])
    assert not only_kueue.order and is_prepared(only_kueue)
    assert not is_prepared(only_kueue, upgrade_plan_only=True)
    assert not is_prepared(planned(same, looks=looks, api_server="1.35.4"))
    assert is_prepared(planned([node("gpu0")]))


def test_control_planes_one_at_a_time_then_waves_by_rack() -> None:
    nodes = [node(f"gpu{n}", rack=f"r{n % 2}") for n in range(4)] + [node("cp2"), node("cp1")]
    found = planned(nodes, limits=Limits(batch=10, per_rack=1))
    assert found.control_plane == ("cp2", "cp1"), "in the order of the inventory"
    assert found.waves == (("gpu0", "gpu1"), ("gpu2", "gpu3"))
    assert found.changes["gpu0"] == (Change("kubeadm", "", "1.35.4"), Change("kubelet", "1.34.4", "1.35.4"))
    assert not found.refusals
    text = found.text()
    assert "upgrade of 6 nodes to Kubernetes 1.35.4: control planes one at a time, then 2 waves" in text
    assert "kubelet 1.34.4 -> 1.35.4" in text
    assert "at most 16 of 32 GPUs are away at a time" in text


def test_a_thousand_nodes_are_planned_at_once() -> None:
    nodes = [node(f"gpu{n:04}", rack=f"r{n // 16}") for n in range(1250)] + [node("cp1")]
    found = planned(nodes, limits=Limits(batch=100, per_rack=2))
    assert sum(len(wave) for wave in found.waves) == 1250
    assert max(len(wave) for wave in found.waves) <= 100
    assert len(found.text().splitlines()) < 60


def test_everything_at_the_lock() -> None:
    found = planned(
        [node("cp1", "1.35.4"), node("gpu1", "1.35.4")], looks={"cp1": NEW_LOOK, "gpu1": NEW_LOOK}, api_server="1.35.4"
    )
    assert (found.control_plane, found.waves, found.refusals) == ((), (), ())
    assert found.text().startswith("nothing to upgrade")


@pytest.mark.parametrize(
    ("api_server", "wanted", "words"),
    [
        ("1.34.4", "1.35.4", ""),
        ("1.35.1", "1.35.4", ""),
        ("1.33.9", "1.35.4", "more than one minor: lock a 1.34 first"),
        ("1.36.0", "1.35.4", "there is no way back"),
        ("1.35.9", "1.35.4", "there is no way back"),
        ("1.34.4", "2.0.0", "is another major version"),
        ("1.34.4+k3s1", "1.35.4", ""),
        ("unknown", "1.35.4", 'says that it is "unknown", which is no version'),
        ("1.34.4", "latest", 'the lock names Kubernetes "latest", which is no version'),
    ],
)
def test_versions_that_may_not_follow_one_another(api_server: str, wanted: str, words: str) -> None:
    found = skew(Target({"kubernetes": wanted}, {}), [], api_server)
    assert (words in found[0]) if words else found == []


def test_a_kubelet_that_would_be_too_far_behind_is_named() -> None:
    found = skew(Target({"kubernetes": "1.35.4"}, {}), [node("gpu1", "1.31.0"), node("gpu2", "1.32.0")], "1.34.4")
    assert found == ["kubelets would be more than 3 minors behind the API server: gpu1 (v1.31.0)"]


def test_kubelets_that_are_ahead_or_say_nothing_are_named() -> None:
    nodes = [node("gpu1", "1.36.0"), node("gpu2", "1.35.9"), node("gpu3", "weird"), node("gpu4", "1.35.4")]
    nodes[3]["status"]["nodeInfo"] = {}
    ahead, unknown = skew(Target({"kubernetes": "1.35.4"}, {}), nodes, "1.35.4")
    assert ahead.startswith("kubelets are ahead of the API server that the lock names (1.35.4)")
    assert "gpu1 (v1.36.0); lock their version" in ahead and "gpu2" not in ahead
    assert unknown.startswith("kubelets that name no version: gpu3 (vweird)")


@pytest.mark.parametrize(("api_server", "versions"), [("unknown", {"kubernetes": "1.35.4"}), ("1.34.4", {}), ("", {})])
def test_versions_that_are_none_are_no_exception(api_server: str, versions: dict[str, str]) -> None:
    nodes = [node("cp1", "weird"), node("gpu1", "")]
    looks, by_name = dict.fromkeys(("cp1", "gpu1"), OLD_LOOK), {item["metadata"]["name"]: item for item in nodes}
    found = plan(looks, by_name, Target(versions, {}), [], Limits(), api_server=api_server, control_plane_hosts=["cp1"])
    assert found.text()


def test_what_cannot_be_done_is_not_told_as_done() -> None:
    left = planned([node("gpu1")], looks={"gpu1": OLD_LOOK, "gone": OLD_LOOK}, blockers={"gpu1": "a budget"})
    assert left.text().startswith("nothing of the upgrade to Kubernetes 1.35.4 can be done now\n")
    unseen = plan({}, {"cp1": node("cp1")}, NEW, [], Limits(), api_server="1.34.4", control_plane_hosts=["cp1"])
    assert unseen.refusals and "everything is at the lock" not in unseen.text()
    one = planned([node("gpu1")], looks={"gpu1": OLD_LOOK})
    assert one.text().startswith("upgrade of 1 node to Kubernetes 1.35.4: 1 wave\n")


@pytest.mark.parametrize(
    ("images", "version"),
    [
        (["registry:5000/kube-apiserver:v1.34.4", "registry:5000/kube-apiserver:v1.35.4"], "1.34.4"),
        (["k8s/kube-apiserver:v1.9.1", "k8s/kube-apiserver:v1.10.0"], "1.9.1"),
        (["registry:5000/kube-apiserver@sha256:0", "k8s/kube-apiserver:ours"], "1.33.2"),
        ([], "1.33.2"),
    ],
)
def test_the_version_of_the_oldest_api_server(images: list[str], version: str) -> None:
    pods = [
        {
            "metadata": {"namespace": "kube-system", "labels": {"component": "kube-apiserver"}},
            "spec": {"containers": [{"image": image}]},
        }
        for image in images
    ]
    answer = httpx.MockTransport(lambda _request: httpx.Response(200, json={"gitVersion": "v1.33.2"}))
    assert _api_server(Api("http://api", transport=answer), pods) == version


def test_nodes_of_running_jobs_stay_unless_the_policy_asks_the_jobs_to_go() -> None:
    nodes = [node("cp1"), *(node(f"gpu{n}", rack="r1") for n in range(1, 4))]
    gang = Gang("vision/train", {"gpu1": 1, "gpu2": 1})
    for policy in ("wait", "leave"):
        found = planned(nodes, jobs=[gang], limits=Limits(jobs=policy))  # type: ignore[arg-type]
        assert found.waves == (("gpu3",),)
        assert found.left == dict.fromkeys(("gpu1", "gpu2"), "the job vision/train runs on it")
    found = planned(nodes, jobs=[gang], limits=Limits(jobs="checkpoint"))
    assert ("gpu1", "gpu2") in found.waves, "it is interrupted once and never runs on old and new nodes together"
    assert not found.left
    assert any("vision/train (2 pods) runs on gpu1, gpu2: asked to save" in note for note in found.notes)


def test_what_a_killed_run_left_goes_first_and_what_is_foreign_stays() -> None:
    nodes = [
        node("cp1", "1.35.4"), node("gpu1", rack="r1"), node("gpu2", rack="r2", closed_by=BY, reason="1.35.4"),
        node("gpu3", rack="r3", closed_by="reboot", reason="the kernel is old"), node("gpu4", rack="r4", cordoned=True),
    ]  # fmt: skip
    looks = {"cp1": NEW_LOOK, "gpu1": OLD_LOOK, "gpu2": NEW_LOOK, "gpu3": OLD_LOOK, "gpu4": OLD_LOOK}
    found = planned(nodes, looks=looks, api_server="1.35.4", limits=Limits(batch=1))
    assert found.control_plane == ()
    assert found.waves == (("gpu2",), ("gpu1",), ("gpu4",))
    assert found.changes["gpu2"] == (Change("kubelet", "1.34.4", "1.35.4"),), "its file is new, another one runs"
    assert found.left == {"gpu3": "it is closed by reboot since 2026-11-30T08:00:00Z (the kernel is old)"}
    assert "cordoned by hand, upgraded and left cordoned: gpu4" in found.notes


def test_a_node_that_is_done_and_still_closed_is_finished() -> None:
    found = planned([node("cp1", "1.35.4"), node("gpu1", "1.35.4", closed_by=BY, reason="1.35.4")],
                    looks={"cp1": NEW_LOOK, "gpu1": NEW_LOOK}, api_server="1.35.4")  # fmt: skip
    assert found.waves == (("gpu1",),)
    assert found.as_dict()["reasons"] == {"gpu1": "to be finished"}


def test_a_node_that_only_waits_is_not_taken_for_begun() -> None:
    nodes = [node("cp1", "1.35.4"), node("gpu1", "1.35.4", closed_by=BY, reason=f"{HELD}: the job a/b runs on it")]
    assert planned(nodes, looks={"cp1": NEW_LOOK, "gpu1": NEW_LOOK}, api_server="1.35.4").waves == ()


def test_a_control_plane_that_was_killed_between_its_files_and_its_pods() -> None:
    """The files are new, the kubelet is new, the API server that answers is the old one: it goes again."""
    found = planned([node("cp1", "1.35.4"), node("gpu1")], looks={"cp1": NEW_LOOK, "gpu1": OLD_LOOK})
    assert found.control_plane == ("cp1",)
    assert found.changes["cp1"] == (Change("control plane", "1.34.4", "1.35.4"),)


def test_workers_never_go_ahead_of_the_control_plane() -> None:
    found = planned([node("cp1"), node("gpu1")], blockers={"cp1": "kube-system/dns would not leave"})
    assert found.refusals == ("the control plane would stay behind (cp1: kube-system/dns would not leave)",)
    looks = {"gpu1": OLD_LOOK}
    found = plan(looks, {"gpu1": node("gpu1")}, NEW, [], Limits(), api_server="1.34.4", control_plane_hosts=["cp1"])
    assert found.refusals == ("the control plane would stay behind: cp1 was not looked at",)


def test_a_blocked_node_stays_and_the_others_go() -> None:
    found = planned(
        [node("cp1"), node("gpu1"), node("gpu2")], blockers={"gpu2": "a/b would not leave: budget c (allows 0)"}
    )
    assert (found.order, found.left) == (["gpu1"], {"gpu2": "a/b would not leave: budget c (allows 0)"})
    assert "stays" in found.text()


def test_only_tools_change() -> None:
    """crictl under a running job: nobody has to leave for that."""
    target = Target({"kubernetes": "1.35.4"}, {"crictl": ("new", "1.36.0")})
    look = Look({"crictl": "old"})
    found = plan({"gpu1": look}, {"gpu1": node("gpu1", "1.35.4")}, target, [Gang("a/b", {"gpu1": 1})], Limits())
    assert changes_of(look, node("gpu1", "1.35.4"), target) == (Change("crictl", "", "1.36.0"),)
    assert (found.order, found.left, found.as_dict()["empties"]) == (["gpu1"], {}, [])


def test_jobs_that_hold_gpus() -> None:
    def pod(name: str, kind: str, gpus: str, **labels: str) -> Json:
        limits = {"nvidia.com/gpu": gpus} if gpus else {"cpu": "1"}
        return {
            "metadata": {"name": name, "namespace": "a", "labels": labels,
                         "ownerReferences": [{"kind": kind, "name": "owner", "controller": True}]},
            "spec": {"nodeName": "gpu1", "containers": [{"resources": {"limits": limits}}]},
            "status": {"phase": "Running"},
        }  # fmt: skip

    pods = [pod("train-0", "Job", "8", **{"job-name": "train"}), pod("web", "ReplicaSet", "8"), pod("prep", "Job", "")]
    assert jobs_of(pods) == [Gang("a/train", {"gpu1": 1})]


def test_programs_of_the_cluster() -> None:
    def deployment(image: str) -> Json:
        return {"metadata": {"namespace": "kueue-system", "name": "kueue"},
                "spec": {"template": {"spec": {"containers": [{"image": image}]}}}}  # fmt: skip

    images = {"kueue-manager": "sha256:" + "b" * 64}
    running = deployment("registry.myriad.internal/kueue-manager:0.17.0@sha256:" + "a" * 64)
    assert cluster_changes(NEW, [running], images) == [Change("kueue-system/kueue", "0.17.0", "b" * 12)]
    same = deployment("registry.myriad.internal/kueue-manager:0.17.0@sha256:" + "b" * 64)
    assert cluster_changes(NEW, [same], images) == []


def test_tags_in_kubeadms_description() -> None:
    text = "etcd: {local: {imageTag: 3.6.13, dataDir: /var/lib/etcd}}\ndns: {imageTag: 1.13.1}\n"
    changed = with_tags(text, etcd="3.6.14", coredns="1.13.1")
    assert changed is not None
    assert "3.6.14" in changed
    assert "/var/lib/etcd" in changed
    assert with_tags(changed, etcd="3.6.14", coredns="1.13.1") is None
    assert with_tags("etcd: {external: {}}\ndns: {imageTag: 1.13.1}\n", etcd="3.6.14", coredns="1.13.1") is None
