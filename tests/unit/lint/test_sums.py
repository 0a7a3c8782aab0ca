"""Whether a job can ever fit: sums over pods, flavors, cohorts, parents of queues, and nodes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.lint.test_kinds import cluster_queue, container, found, job, pytorch, rules, volcano_queue

Json = dict[str, Any]
KUEUE = "kueue.x-k8s.io/v1beta2"
ALL = ("ClusterQueue", "Cohort", "LocalQueue")
LOCAL: Json = {
    "apiVersion": KUEUE,
    "kind": "LocalQueue",
    "metadata": {"name": "q", "namespace": "n"},
    "spec": {"clusterQueue": "one"},
}


def said(rule: str, *bodies: Json, sure: tuple[str, ...] = ()) -> list[str]:
    return [f.message for f in found(*bodies, sure=sure) if f.rule == rule]


def flavors(**gpus: int) -> Json:
    """A ClusterQueue with one resource group and a flavor for each figure."""
    queue = cluster_queue("one", 0)
    group = queue["spec"]["resourceGroups"][0]
    first = group["flavors"][0]["resources"]
    group["flavors"] = [
        {"name": name, "resources": [*first[:2], {"name": "nvidia.com/gpu", "nominalQuota": most}]}
        for name, most in gpus.items()
    ]
    return queue


def flavor(name: str, **labels: str) -> Json:
    return {"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": {"nodeLabels": labels}}


def node(name: str, gpus: int, *, capacity: int | None = None, **labels: str) -> Json:
    status = {"allocatable": {"nvidia.com/gpu": str(gpus)}, "capacity": {"nvidia.com/gpu": str(capacity or gpus)}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def test_b21_what_is_left_in_several_flavors_does_not_add_up_for_pods_of_one_shape() -> None:
    queue = flavors(a=32, b=32)
    (message,) = said("queue-never-fits", queue, LOCAL, job(pods=8))
    assert "8 x 8 = 64 GPUs for pods of one shape" in message and "(a 32, b 32)" in message
    assert not said("queue-never-fits", queue, LOCAL, job(pods=4))
    (message,) = said("queue-never-fits", queue, LOCAL, job(pods=9))
    assert "never gives more than 64 (64 in all its flavors)" in message
    shapes = pytorch(1, 4, 8, minimum=5, labels={"kueue.x-k8s.io/queue-name": "q"})
    assert not said("queue-never-fits", queue, LOCAL, shapes), "master and workers may take a flavor each"


def test_a_flavor_that_the_pods_do_not_select_gives_them_nothing() -> None:
    site = (flavors(a=32, b=16), flavor("a", card="a100"), flavor("b", card="h100"), LOCAL)
    wants = job(pods=4, spec={"nodeSelector": {"card": "h100"}})
    plain = (flavors(a=64, b=16), flavor("a", zone="z"), flavor("b", card="h100"), LOCAL)
    assert "(b 16)" in said("queue-never-fits", *plain, wants)[0], "a has no card at all"
    assert "(b 16)" in said("queue-never-fits", *site, wants)[0]
    assert not said("queue-never-fits", *site, job(pods=4, spec={"nodeSelector": {"card": "a100"}}))
    assert not said("queue-never-fits", *site, job(pods=4, spec={"nodeSelector": {"zone": "z"}}))


@pytest.mark.parametrize(
    ("lending", "borrowing", "pods", "figure"),
    [
        (None, None, 6, ""),
        (None, None, 7, "never gives more than 48 (the whole cohort c has no more)"),
        (8, None, 5, ""),
        (8, None, 6, "never gives more than 40 (the whole cohort c has no more to lend)"),
        (0, None, 5, "never gives more than 32 (the whole cohort c has no more to lend)"),
        (8, 4, 5, "never gives more than 36 (32 of its own and 4 borrowed)"),
        (8, 99, 6, "never gives more than 40 (the whole cohort c has no more to lend)"),
    ],
)
def test_d13_what_others_lend_and_what_may_be_borrowed(
    lending: int | None, borrowing: int | None, pods: int, figure: str
) -> None:
    other = cluster_queue("two", 16, cohort="c")
    if lending is not None:
        other["spec"]["resourceGroups"][0]["flavors"][0]["resources"][2]["lendingLimit"] = lending
    site = (cluster_queue("one", 32, cohort="c", borrow=borrowing), other, LOCAL)
    messages = said("queue-never-fits", *site, job(pods=pods), sure=ALL)
    assert bool(messages) == bool(figure) and (not figure or figure in messages[0])


def test_a_cohort_lends_flavor_by_flavor_and_through_the_cohort_above() -> None:
    other = cluster_queue("two", 64, cohort="c")
    other["spec"]["resourceGroups"][0]["flavors"][0]["name"] = "a100"
    one = cluster_queue("one", 8, cohort="c")
    assert "never gives more than 8 " in said("queue-never-fits", one, other, LOCAL, job(pods=2), sure=ALL)[0]
    top = cluster_queue("three", 8, cohort="top")
    cohort = {"apiVersion": KUEUE, "kind": "Cohort", "metadata": {"name": "c"}, "spec": {"parentName": "top"}}
    assert not said("queue-never-fits", one, other, top, cohort, LOCAL, job(pods=2), sure=ALL)
    assert said("queue-never-fits", one, other, top, cohort, LOCAL, job(pods=3), sure=ALL)


def test_cohorts_in_a_circle_or_a_very_deep_tree_are_summed_all_the_same() -> None:
    def cohort(name: str, parent: str) -> Json:
        return {"apiVersion": KUEUE, "kind": "Cohort", "metadata": {"name": name}, "spec": {"parentName": parent}}

    circle = (cluster_queue("one", 8, cohort="a"), cohort("a", "b"), cohort("b", "a"), LOCAL)
    assert "cohort-cycle" in rules(*circle, job(pods=9), sure=ALL)
    deep = [cohort(f"c{i}", f"c{i + 1}") for i in range(3000)]
    assert rules(cluster_queue("one", 8, cohort="c0"), *deep, LOCAL, job(pods=9), sure=ALL)


def test_more_pods_than_shall_complete_never_run_together() -> None:
    queue = cluster_queue("one", 32)
    body = job(pods=16)
    assert said("queue-never-fits", queue, LOCAL, body)
    body["spec"]["completions"] = 4
    assert not said("queue-never-fits", queue, LOCAL, body)


def test_a_worker_of_ray_is_as_many_pods_as_it_has_hosts() -> None:
    template = {"spec": {"terminationGracePeriodSeconds": 300, "containers": [container()]}}
    cluster: Json = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "r", "namespace": "n", "labels": {"kueue.x-k8s.io/queue-name": "q"}},
        "spec": {
            "headGroupSpec": {"template": {"spec": {"containers": [{"name": "h", "image": "a"}]}}},
            "workerGroupSpecs": [{"groupName": "w", "replicas": 2, "numOfHosts": 4, "template": template}],
        },
    }
    assert "8 x 8 = 64 GPUs" in said("queue-never-fits", cluster_queue("one", 32), LOCAL, cluster)[0]
    cluster["spec"]["enableInTreeAutoscaling"] = True
    assert "scales itself" in said("elastic-size", cluster)[0]
    cluster["metadata"]["annotations"] = {"kueue.x-k8s.io/elastic-job": "true"}
    assert not said("elastic-size", cluster)


def test_b15_a_queue_below_another_holds_no_more_than_that_one() -> None:
    team = {**volcano_queue(name="team"), "spec": {"weight": 1, "parent": "org"}}
    body = pytorch(1, 8, 8, minimum=9, annotations={"scheduling.volcano.sh/queue-name": "team"})
    (message,) = said("volcano-queue-never-fits", volcano_queue({"nvidia.com/gpu": 64}, "org"), team, body)
    assert "never fits Volcano queue team, whose parent org is one of 64 GPUs" in message
    assert not said("volcano-queue-never-fits", volcano_queue({"nvidia.com/gpu": 72}, "org"), team, body)


@pytest.mark.parametrize(
    ("minimum", "severity", "words"),
    [(8, "error", "the gang waits for ever"), (5, "error", "for ever"), (4, "warning", "starts with a part")],
)
def test_a_volcano_job_that_starts_with_a_part_is_told_apart(minimum: int, severity: str, words: str) -> None:
    task = {"name": "w", "replicas": 8, "template": {"spec": {"restartPolicy": "Never", "containers": [container()]}}}
    body: Json = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "v", "namespace": "n"},
        "spec": {"queue": "train", "minAvailable": minimum, "tasks": [task]},
    }
    (finding,) = [f for f in found(volcano_queue({"nvidia.com/gpu": 32}), body) if f.rule == "volcano-queue-never-fits"]
    assert finding.severity == severity and words in finding.message


def test_b15_a_gang_is_held_against_the_nodes_it_may_stand_on_one_by_one() -> None:
    mixed = (node("a", 8), node("b", 12), node("c", 4))
    (message,) = said("gang-fits-no-nodes", *mixed, job(pods=3))
    assert "asks for 3 pods of 8 GPUs, and the 3 nodes can hold 2 of them" in message, "24 GPUs in sum"
    assert not said("gang-fits-no-nodes", *mixed, job(pods=2))
    withdrawn = (node("a", 8), node("b", 5, capacity=8))
    assert not said("gang-fits-no-nodes", *withdrawn, job(pods=2)), "the missing GPUs come back"
    labelled = (node("a", 8, pool="p"), node("b", 8, pool="x"))
    selects = job(pods=2, spec={"nodeSelector": {"pool": "p"}})
    assert "the 1 node with pool=p can hold 1" in said("gang-fits-no-nodes", *labelled, selects)[0]
    queue = flavors(f=64)
    assert said("gang-fits-no-nodes", *labelled, queue, flavor("f", pool="p"), LOCAL, job(pods=2))
    nowhere = job(pods=1, spec={"nodeSelector": {"pool": "y"}})
    assert "no node has that" in said("gang-fits-no-nodes", *labelled, nowhere)[0]
    (finding,) = [f for f in found(*mixed, job(pods=3), sure=("Node",)) if f.rule == "gang-fits-no-nodes"]
    assert finding.severity == "error", "all nodes are known"


def test_a_negative_amount_is_told_as_such_and_counts_nothing() -> None:
    queue = cluster_queue("one", "-8")
    bad = said("bad-quantity", queue, LOCAL, job(spec={"containers": [container(-8)]}))
    assert len(bad) == 2 and all("which is below 0" in message for message in bad)
    assert not said("queue-never-fits", queue, LOCAL, job(spec={"containers": [container(-8)]}))


@pytest.mark.parametrize("figure", ["1e5000", "1e300", "1e999999999999", "9" * 400, "9" * 5000, "1" + "0" * 30 + "Ei"])
def test_a_figure_beyond_any_measure_is_told_and_nothing_breaks(figure: str) -> None:
    messages = [
        f.message for f in found(cluster_queue("one", figure), LOCAL, job(spec={"containers": [container(figure)]}))
    ]
    assert any("than Kubernetes counts" in m or "no quantity" in m for m in messages)
    assert all(len(m) < 800 or "9" * 400 in m for m in messages)


def test_a_gang_that_has_to_stay_in_one_domain_is_held_against_the_largest() -> None:
    racks = [node(f"n{i}", 8, rack="r1" if i < 3 else "r2") for i in range(5)]
    wish = {"metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"}}}
    body = job(pods=4)
    body["spec"]["template"] |= wish
    (message,) = said("gang-fits-no-nodes", *racks, body)
    assert "wants its 4 pods within one rack, and the largest (r1) can hold 3 of them" in message
    body["spec"] |= {"parallelism": 3, "completions": 3}
    assert not said("gang-fits-no-nodes", *racks, body)


@pytest.mark.parametrize(
    ("tolerations", "selector", "words"),
    [
        ([], {}, "f has the taint gpu, which they do not tolerate"),
        ([{"key": "gpu", "operator": "Equal", "value": "no"}], {}, "the taint gpu"),
        ([{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}], {}, "the taint gpu"),
        ([{"key": "gpu", "operator": "Exists"}], {}, ""),
        ([{"key": "gpu", "value": "yes", "effect": "NoSchedule"}], {}, ""),
        ([{"operator": "Exists"}], {}, ""),
        ([{"operator": "Exists"}], {"card": "a100"}, "f is card=h100, and they select a100"),
        ([{"operator": "Exists"}], {"card": "h100", "zone": "z"}, ""),
    ],
)
def test_a_flavor_that_pods_cannot_have(tolerations: list[Json], selector: Json, words: str) -> None:
    tainted = flavor("f", card="h100")
    tainted["spec"]["nodeTaints"] = [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]
    wants = job(spec={"tolerations": tolerations, "nodeSelector": selector})
    messages = said("no-flavor-for-job", flavors(f=64), tainted, LOCAL, wants)
    assert bool(messages) == bool(words) and (not words or words in messages[0])
    tainted["spec"]["tolerations"] = [{"key": "gpu", "operator": "Exists"}]
    assert bool(said("no-flavor-for-job", flavors(f=64), tainted, LOCAL, wants)) == bool("select" in words)


def test_each_resource_and_each_figure_of_a_quota_that_is_too_small_is_named() -> None:
    queue = cluster_queue("one", 8)
    queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = 4
    limits = {"nvidia.com/gpu": 8, "cpu": 8}
    wants = job(spec={"containers": [container(resources={"limits": limits})]})
    assert len(said("queue-never-fits", queue, LOCAL, wants)) == 2
    hard = {"requests.nvidia.com/gpu": 8, "pods": 1}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "r", "namespace": "n"}}
    assert len(said("namespace-quota-too-small", {**quota, "spec": {"hard": hard}}, wants)) == 2


def test_a_leader_and_its_workers_are_counted_in_each_group() -> None:
    body: Json = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "s", "namespace": "n", "labels": {"kueue.x-k8s.io/queue-name": "q"}},
        "spec": {
            "replicas": 2,
            "leaderWorkerTemplate": {"size": 4, "workerTemplate": {"spec": {"containers": [container()]}}},
        },
    }
    assert "8 x 8 = 64 GPUs" in said("queue-never-fits", cluster_queue("one", 32), LOCAL, body)[0]
    body["spec"]["leaderWorkerTemplate"]["leaderTemplate"] = {"spec": {"containers": [container(4)]}}
    assert "2 x 4 + 6 x 8 = 56 GPUs" in said("queue-never-fits", cluster_queue("one", 32), LOCAL, body)[0]
    assert not said("queue-never-fits", cluster_queue("one", 56), LOCAL, body)


def test_ray_names_volcanos_queue_in_its_own_words() -> None:
    template = {"spec": {"containers": [container()]}}
    labels = {"ray.io/scheduler-name": "volcano", "volcano.sh/queue-name": "train"}
    cluster: Json = {
        "apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "r", "labels": labels},
        "spec": {"workerGroupSpecs": [{"groupName": "w", "replicas": 9, "template": template}]},
    }  # fmt: skip
    site = (volcano_queue({"nvidia.com/gpu": 64}), cluster)
    assert "9 x 8 = 72 GPUs" in said("volcano-queue-never-fits", *site)[0]
    assert "gang-minimum-missing" not in rules(*site), "KubeRay says it"
    labels["volcano.sh/queue-name"] = "trian"
    assert "names the Volcano queue trian" in said("volcano-queue-not-found", *site)[0]


def test_a9_the_minimum_of_a_podgroup_and_of_a_task() -> None:
    group: Json = {
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": "n"},
        "spec": {"minMember": 3, "minResources": {"nvidia.com/gpu": 16}},
    }  # fmt: skip
    member = job(spec={"schedulerName": "volcano"})
    member["spec"]["template"]["metadata"] = {"annotations": {"scheduling.k8s.io/group-name": "g"}}
    assert "wants 3 pods to start, and 2 name it" in said("gang-minimum-odd", group, member)[0]
    group["spec"]["minMember"] = "2"
    assert "is no number of pods" in said("gang-minimum-odd", group, member)[0]
    group["spec"]["minMember"] = 2
    assert not said("gang-minimum-odd", group, member)
    task = {"name": "w", "replicas": 2, "minAvailable": 3, "template": {"spec": {"containers": [container()]}}}
    tasks: Json = {
        "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "v", "namespace": "n"},
        "spec": {"tasks": [task], "schedulerName": "default-scheduler", "plugin": {}},
    }  # fmt: skip
    assert {"gang-minimum-odd", "gang-scheduler-wrong", "unknown-field"} <= rules(tasks)
