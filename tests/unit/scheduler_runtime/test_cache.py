"""The cache: nothing counted twice, nothing forgotten, one layout for many new nodes."""

from __future__ import annotations

import threading
from typing import Any

from myriad.kube.kinds import CLUSTER_QUEUES, NODES, PODS, RESOURCE_FLAVORS, TOPOLOGIES, WORKLOADS
from myriad.scheduler.cache import Cache
from myriad.scheduler.notices.gather import pods_of


def free(cache: Cache, name: str) -> int:
    snapshot = cache.snapshot()
    return int(snapshot.free[snapshot.row["nvidia.com/gpu"], snapshot.index[name]])


def test_assigned_nodes_are_held_until_the_pods_stand_there(world: Any, make: Any) -> None:
    assert free(world.cache, "n0") == 8
    world.put(WORKLOADS, make.workload("a", pods=2, gpus=3, assigned={"n0": 2}))
    assert free(world.cache, "n0") == 2
    world.put(PODS, make.pod("a-0", gpus=3, of="a"))
    assert free(world.cache, "n0") == 2
    world.put(PODS, make.pod("a-0", gpus=3, of="a", node_name="n0"))
    assert free(world.cache, "n0") == 2
    world.put(PODS, make.pod("a-1", gpus=3, of="a", node_name="n0"))
    assert free(world.cache, "n0") == 2
    world.put(PODS, make.pod("a-1", gpus=3, of="a", node_name="n0", phase="Succeeded"))
    assert free(world.cache, "n0") == 5, "a finished pod gives its GPUs back"
    world.put(PODS, make.pod("a-0", gpus=3, of="a", node_name="n0", phase="Failed"))
    assert free(world.cache, "n0") == 5, "a failed one is replaced on the same node"
    world.put(WORKLOADS, make.workload("a", pods=2, gpus=3, assigned={"n0": 2}, conditions={"Evicted": ("True", "")}))
    assert free(world.cache, "n0") == 8


def test_an_evicted_gangs_pods_hold_their_gpus_until_they_are_gone(world: Any, make: Any) -> None:
    world.put(WORKLOADS, make.workload("a", pods=1, assigned={"n0": 1}))
    world.put(PODS, make.pod("a-0", of="a", node_name="n0"))
    world.put(WORKLOADS, make.workload("a", pods=1, conditions={"Evicted": ("True", "")}))
    world.put(PODS, make.pod("a-0", of="a", node_name="n0", deletionTimestamp="2026-01-01T00:00:00Z"))
    assert free(world.cache, "n0") == 0
    world.drop(PODS, "vision/a-0")
    assert free(world.cache, "n0") == 8


def test_a_listing_replaces_everything(world: Any, make: Any) -> None:
    world.put(PODS, make.pod("p", node_name="n0"))
    world.put(WORKLOADS, make.workload("a", pods=1, assigned={"n1": 1}))
    assert (free(world.cache, "n0"), free(world.cache, "n1")) == (0, 0)
    world.cache.replace("pods", [make.pod("a-0", of="a", node_name="n1"), make.pod("q", node_name="n2", gpus=1)])
    assert [free(world.cache, n) for n in ("n0", "n1", "n2")] == [8, 0, 7]
    world.cache.replace("workloads", [])
    assert world.cache.views() == [] and free(world.cache, "n1") == 0
    world.cache.replace("nodes", [make.node("n2")])
    assert [n.name for n in world.cache.snapshot().nodes] == ["n2"]


def test_incremental_changes_equal_a_fresh_start(world: Any, make: Any) -> None:
    world.put(PODS, make.pod("p", node_name="late", gpus=2))
    world.put(NODES, make.node("late"))
    body = make.node("n0")
    body["spec"]["unschedulable"] = True
    world.put(NODES, body)
    world.put(WORKLOADS, make.workload("a", pods=2, gpus=4, assigned={"n1": 2}))
    world.put(PODS, make.pod("a-0", of="a", node_name="n1", gpus=4))
    world.drop(NODES, "n7")
    fresh = Cache(check_name="myriad")
    for kind in (PODS, WORKLOADS, TOPOLOGIES, NODES):
        fresh.replace(kind.plural, world.api.list(kind)[0])
    assert fresh.snapshot().digest() == world.cache.snapshot().digest()


def test_a_snapshot_belongs_to_the_caller(world: Any, make: Any) -> None:
    mine = world.cache.snapshot()
    world.put(PODS, make.pod("p", node_name="n0"))
    assert int(mine.free[mine.row["nvidia.com/gpu"], mine.index["n0"]]) == 8
    assert free(world.cache, "n0") == 0


def test_a_topology_of_other_levels_is_taken_over(world: Any) -> None:
    labels = ["myriad.dev/room", "myriad.dev/block", "kubernetes.io/hostname"]
    world.put(TOPOLOGIES, {"metadata": {"name": "myriad"}, "spec": {"levels": [{"nodeLabel": x} for x in labels]}})
    assert world.cache.levels == ("room", "block")
    assert world.cache.snapshot().nodes[0].location == ("hall1", "b1")
    world.put(TOPOLOGIES, {"metadata": {"name": "other"}, "spec": {"levels": [{"nodeLabel": "x"}]}})
    assert world.cache.levels == ("room", "block")


def test_a_view_carries_pool_team_and_the_flavors_tolerations(world: Any, make: Any) -> None:
    toleration = {"key": "gpu", "operator": "Exists"}
    world.put(RESOURCE_FLAVORS, {"metadata": {"name": "h100"}, "spec": {"tolerations": [toleration]}})
    world.put(WORKLOADS, make.workload("a"))
    view = world.cache.view_of_job("vision", "a")
    assert view is not None and (view.gang.pool, view.gang.team) == ("h100", "vision")
    assert view.gang.podsets[0].tolerations[-1].key == "gpu"
    assert world.cache.view_of_job("vision", "job-a") is not None
    assert world.cache.view_of_job("speech", "a") is None


def test_gpus_held_are_counted_from_the_workloads(world: Any, make: Any) -> None:
    world.put(CLUSTER_QUEUES, make.cluster_queue())
    world.put(WORKLOADS, make.workload("a", assigned={"n0": 1, "n1": 1}))
    world.put(WORKLOADS, make.workload("b"))
    assert world.cache.gpus_held() == {"vision-h100": 16}
    world.put(WORKLOADS, make.workload("a", assigned={"n0": 1, "n1": 1}, conditions={"Finished": ("True", "")}))
    assert world.cache.gpus_held() == {}


def test_waiting_ends_with_a_change_or_in_time(world: Any, make: Any) -> None:
    seen = world.cache.version
    assert world.cache.wait(seen, timeout_s=0.01) == seen
    timer = threading.Timer(0.05, lambda: world.cache.upsert("pods", make.pod("p")))
    timer.start()
    assert world.cache.wait(seen, timeout_s=5) != seen
    timer.join()


def test_workloads_are_found_by_uids_of_theirs_and_of_their_jobs(world: Any, make: Any) -> None:
    world.put(WORKLOADS, make.workload("a"))
    first = world.cache.view_of_uid("uid-a")
    assert first is not None and first.key == "vision/job-a"
    assert world.cache.view_of_uid("", "job-uid-a") == first and world.cache.view_of_uid("none", "none") is None
    # A job of the same name that was made anew: the old uids mean nothing any more.
    again = make.workload("a")
    again["metadata"]["uid"] = "uid-a2"
    again["metadata"]["ownerReferences"][0]["uid"] = "job-uid-a2"
    world.put(WORKLOADS, again)
    assert world.cache.view_of_uid("uid-a", "job-uid-a") is None
    assert world.cache.view_of_uid("uid-a2") == world.cache.view_of_uid("", "job-uid-a2") == world.cache.views()[0]
    world.cache.replace("workloads", [])
    assert world.cache.view_of_uid("uid-a2", "job-uid-a2") is None


def test_pods_are_found_by_their_owner(world: Any, make: Any) -> None:
    def owned(uid: str) -> list[dict[str, str]]:
        return [{"kind": "Job", "name": "a", "uid": uid}]

    def names(uid: str, namespace: str = "vision") -> list[str]:
        return sorted(pod["metadata"]["name"] for pod in world.cache.gpu_pods_owned(namespace, uid))

    for i in range(2):
        world.put(PODS, make.pod(f"a-{i}", ownerReferences=owned("one")))
    world.put(PODS, make.pod("b-0", ownerReferences=owned("two")))
    assert (names("one"), names("two"), names("one", "speech")) == (["a-0", "a-1"], ["b-0"], [])
    world.put(PODS, make.pod("a-1", ownerReferences=owned("two")))
    assert (names("one"), names("two")) == (["a-0"], ["a-1", "b-0"])
    world.drop(PODS, "vision/b-0")
    assert names("two") == ["a-1"]
    world.cache.replace("pods", [make.pod("c-0", ownerReferences=owned("two"))])
    assert (names("one"), names("two")) == ([], ["c-0"])


class Walked(dict[str, Any]):
    """Objects that are only asked for by their keys: thousands of questions a look come from records of evictions."""

    def values(self) -> Any:
        raise AssertionError("every object was looked at for one")


def test_one_is_found_without_looking_at_all(world: Any, make: Any) -> None:
    world.put(WORKLOADS, make.workload("a"))
    world.put(PODS, make.pod("a-0", ownerReferences=[{"kind": "Job", "name": "a", "uid": "job-uid-a"}]))
    view = world.cache.view_of_uid("uid-a")
    world.cache._views, world.cache._gpu_pods = Walked(world.cache._views), Walked(world.cache._gpu_pods)
    assert world.cache.view_of_uid("uid-a") == world.cache.view_of_uid("", "job-uid-a") == view
    assert [pod["metadata"]["name"] for pod in pods_of(world.cache, view)] == ["a-0"]
