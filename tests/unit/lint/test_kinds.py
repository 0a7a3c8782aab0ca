"""Kinds of input that the fixtures do not show: other figures, forms of numbers, vendors, and what stays silent."""

from __future__ import annotations

from typing import Any

import pytest

from myriad.cli.lint import with_configurations
from myriad.lint import Finding, findings, scene_of
from myriad.lint.documents import Document, read_text
from myriad.lint.works import is_accelerator, works

Json = dict[str, Any]
DIGEST = "sha256:" + "5e" * 32


GANG_OF_TWO = {"scheduling.volcano.sh/group-min-member": "2"}


def found(*bodies: Json, sure: tuple[str, ...] = ()) -> list[Finding]:
    return findings(with_configurations(scene_of([Document(b) for b in bodies], sure=sure)))


def rules(*bodies: Json, sure: tuple[str, ...] = ()) -> set[str]:
    return {f.rule for f in found(*bodies, sure=sure)}


def container(gpus: object = 8, resource: str = "nvidia.com/gpu", **more: Any) -> Json:
    return {"name": "c", "image": f"r.example/a@{DIGEST}", "resources": {"limits": {resource: gpus}}, **more}


def job(name: str = "a", *, pods: int = 2, queue: str = "q", spec: Json | None = None, **metadata: Any) -> Json:
    labels = {"kueue.x-k8s.io/queue-name": queue} if queue else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "n", "labels": labels, **metadata},
        "spec": {
            "completionMode": "Indexed",
            "parallelism": pods,
            "completions": pods,
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 300,
                    "containers": [container()],
                    **(spec or {}),
                }
            },
        },
    }


def pytorch(master: object, workers: object, gpus: object, *, minimum: object = None, **more: Any) -> Json:
    spec = {"schedulerName": "volcano", "containers": [container(gpus)], "terminationGracePeriodSeconds": 300}
    template = {"spec": spec}
    policy = {} if minimum is None else {"runPolicy": {"schedulingPolicy": {"minAvailable": minimum}}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "p", "namespace": "n", **more},
        "spec": {
            **policy,
            "pytorchReplicaSpecs": {
                "Master": {"replicas": master, "template": template},
                "Worker": {"replicas": workers, "template": template},
            },
        },
    }


def volcano_queue(capability: Json | None = None, name: str = "train") -> Json:
    spec: Json = {"weight": 1} | ({"capability": capability} if capability else {})
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(
    ("most", "master", "workers", "gpus", "sentence"),
    [
        (64, 1, 8, 8, "asks for 9 x 8 = 72 GPUs, and never fits Volcano queue train of 64 GPUs"),
        ("64", 1, 8, "8", "asks for 9 x 8 = 72 GPUs, and never fits Volcano queue train of 64 GPUs"),
        ("0.1k", 1, 16, 8, "asks for 17 x 8 = 136 GPUs, and never fits Volcano queue train of 100 GPUs"),
        ("16", None, 2, 8, "asks for 3 x 8 = 24 GPUs, and never fits Volcano queue train of 16 GPUs"),
        ("64k", 1, 8, 8, ""),
        (72, 1, 8, 8, ""),
        ("lots", 1, 8, 8, ""),
    ],
)
def test_b15_a_job_is_held_against_its_queue_whatever_the_figures(
    most: object, master: object, workers: object, gpus: object, sentence: str
) -> None:
    body = pytorch(master, workers, gpus, minimum=1)
    if master is None:
        del body["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"]
    queue = volcano_queue({"nvidia.com/gpu": most})
    said = [f.message for f in found(queue, body) if f.rule == "volcano-queue-never-fits"]
    assert bool(said) == bool(sentence)
    assert not said or sentence in said[0]


def test_c6_a_queue_of_another_resource_than_the_job_asks_for_does_not_matter() -> None:
    other = volcano_queue({"huawei.com/Ascend910": 4})
    assert "volcano-queue-never-fits" not in rules(other, pytorch(1, 8, 8, minimum=9))
    npus = pytorch(1, 1, 8, minimum=2)
    for replica in npus["spec"]["pytorchReplicaSpecs"].values():
        replica["template"]["spec"]["containers"] = [container(8, "huawei.com/Ascend910")]
    said = [f for f in found(volcano_queue({"huawei.com/Ascend910": 8}), npus) if f.rule == "volcano-queue-never-fits"]
    assert "2 x 8 = 16 huawei.com/Ascend910" in said[0].message


def test_a_job_that_names_no_queue_fits_where_any_queue_is_large_enough() -> None:
    small, large = volcano_queue({"nvidia.com/gpu": 8}, "small"), volcano_queue({"nvidia.com/gpu": 80}, "large")
    assert "volcano-queue-never-fits" not in rules(large, small, pytorch(1, 8, 8, minimum=9))
    named = pytorch(1, 8, 8, minimum=9, annotations={"scheduling.volcano.sh/queue-name": "small"})
    assert "volcano-queue-never-fits" in rules(large, small, named)


def test_a4_what_the_init_container_asks_for_counts_once() -> None:
    """An init container runs before the others: the larger of the two counts. A sidecar counts on top."""
    plain = job(spec={"containers": [container(4)], "initContainers": [container(8)]})
    sidecar = job(spec={"containers": [container(4)], "initContainers": [container(4, restartPolicy="Always")]})
    for body in (plain, sidecar):
        (work,) = works(scene_of([Document(body)]))
        assert work.accelerators == {"nvidia.com/gpu": 16}


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("nvidia.com/gpu", True),
        ("amd.com/gpu", True),
        ("nvidia.com/mig-1g.10gb", True),
        ("huawei.com/Ascend910", True),
        ("huawei.com/Ascend310P", True),
        ("nvidia.com/gpu.shared", True),
        ("volcano.sh/vgpu-number", True),
        ("google.com/tpu", True),
        ("habana.ai/gaudi", True),
        ("aws.amazon.com/neuroncore", True),
        ("cambricon.com/mlu", True),
        ("nvidia.com/gpumem", False),
        ("volcano.sh/vgpu-memory", False),
        ("rdma/hca_shared_devices_a", False),
        ("cpu", False),
        ("hugepages-2Mi", False),
        ("example.com/license", False),
    ],
)
def test_accelerators_of_every_vendor_are_known(name: str, is_one: bool) -> None:
    assert is_accelerator(name) == is_one


def test_a_job_without_gpus_and_a_plain_pod_are_left_alone() -> None:
    spec = {"containers": [{"name": "c", "image": "busybox"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    assert found(pod) == []
    cpu = job(queue="", spec={"containers": [{"name": "c", "image": "busybox", "resources": {"requests": {"cpu": 1}}}]})
    assert found(cpu) == []


def test_requests_without_limits_and_limits_without_requests() -> None:
    only = {"name": "c", "image": f"r.example/a@{DIGEST}", "resources": {"requests": {"nvidia.com/gpu": "8"}}}
    said = [f.message for f in found(job(spec={"containers": [only]})) if f.rule == "requests-not-limits"]
    assert "asks for 8 GPUs in container c with no limit" in said[0]
    same = {**only, "resources": {"requests": {"nvidia.com/gpu": "8"}, "limits": {"nvidia.com/gpu": 8}}}
    assert "requests-not-limits" not in rules(job(spec={"containers": [same]}))


@pytest.mark.parametrize("amount", ["0.5", 0.5, "500m"])
def test_a_part_of_a_gpu_is_refused(amount: object) -> None:
    said = [f.message for f in found(job(spec={"containers": [container(amount)]})) if f.rule == "bad-quantity"]
    assert "devices are given whole" in said[0]


@pytest.mark.parametrize("value", ["eight", -1, True, "2"])
def test_a_number_of_pods_that_is_none(value: object) -> None:
    body = job()
    body["spec"]["parallelism"] = value
    assert "bad-quantity" in rules(body)


@pytest.mark.parametrize(
    ("image", "rule"),
    [
        ("a", "image-latest"),
        ("a:latest", "image-latest"),
        ("r.example:5000/a", "image-latest"),
        ("r.example:5000/a:1", "image-not-by-digest"),
        (f"r.example/a:1@{DIGEST}", ""),
        (f"r.example/a@{DIGEST}", ""),
        ("r.example/a@sha256:12", "image-name"),
        ("", "image-name"),
        ("r.example/A b", "image-name"),
        ("r.example/a@sha256:" + "0" * 64, "image-name"),
    ],
)
def test_images_by_every_kind_of_name(image: str, rule: str) -> None:
    body = job(spec={"containers": [{**container(), "image": image}]})
    images = {r for r in rules(body) if r.startswith("image")}
    assert images - ({"image-latest"} if rule == "image-name" else set()) == ({rule} if rule else set())


def test_e14_a_kind_whose_integration_is_commented_out_runs_unmanaged() -> None:
    configuration = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "integrations": {"frameworks": ["pod", "batch/job"]},
        "waitForPodsReady": {"timeout": "15m0s"},
    }
    labelled = pytorch(1, 1, 8, minimum=2, labels={"kueue.x-k8s.io/queue-name": "q"})
    assert "job-kind-unmanaged" in rules(configuration, labelled)
    assert "job-kind-unmanaged" not in rules(configuration, job())


def test_f20_a_missing_node_cache_capable_is_as_bad_as_false() -> None:
    body = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "extenders": [{"urlPrefix": "http://a", "filterVerb": "filter"}],
    }
    said = [f.message for f in found(body) if f.rule == "scheduler-extender"]
    assert len(said) == 3
    assert any("nodeCacheCapable" in m for m in said) and any("no pod is scheduled" in m for m in said)


@pytest.mark.parametrize(
    ("actions", "wrong"),
    [
        ("enqueue, allocate, backfill", []),
        ("allocate", []),
        ("enqueue,allocate,backfil", ["backfil"]),
        ("enqueue, allocate, elect, reserve", ["elect", "reserve"]),
        ("Enqueue, allocate", ["Enqueue"]),
        ("enqueue", ["allocate"]),
    ],
)
def test_f22_any_unknown_action_is_named(actions: str, wrong: list[str]) -> None:
    said = [f.message for f in found({"actions": actions, "tiers": []}) if f.rule == "volcano-unknown-action"]
    assert len(said) == len(wrong) and all(any(w in m for m in said) for w in wrong)


@pytest.mark.parametrize(
    ("factor", "said"), [(None, "1.2, the default"), (1.5, "1.5"), ("2", "2"), (1, ""), ("1.0", "")]
)
def test_d7_the_overcommit_factor_is_shown(factor: object, said: str) -> None:
    plugin: Json = {"name": "overcommit"} | ({"arguments": {"overcommit-factor": factor}} if factor is not None else {})
    messages = [
        f.message
        for f in found({"actions": "allocate", "tiers": [{"plugins": [plugin]}]})
        if f.rule == "volcano-overcommit"
    ]
    assert bool(messages) == bool(said) and (not said or f"overcommit-factor {said}" in messages[0])


def test_f25_two_schedulers_on_one_pool_are_named_once_each() -> None:
    default, volcano = job("a"), job("b", spec={"schedulerName": "volcano"}, annotations=GANG_OF_TWO)
    assert [f.object for f in found(default, volcano) if f.rule == "mixed-schedulers"] == ["Job n/a"]
    other = job("b", queue="q2", spec={"schedulerName": "volcano"}, annotations=GANG_OF_TWO)
    assert "mixed-schedulers" not in rules(default, other)


def test_a13_a_gang_for_another_scheduler() -> None:
    body = job(annotations=GANG_OF_TWO)
    assert "gang-scheduler-wrong" in rules(body)
    assert "gang-scheduler-wrong" not in rules(pytorch(1, 1, 8, minimum=2))


def test_a5_the_largest_node_is_what_counts_and_never_the_sum() -> None:
    def node(name: str, cpu: str) -> Json:
        offers = {"allocatable": {"cpu": cpu, "nvidia.com/gpu": 8}}
        return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": offers}

    def asks(cpu: object) -> Json:
        c = container()
        c["resources"]["requests"] = {"cpu": cpu, "nvidia.com/gpu": 8}
        return job(spec={"containers": [c]})

    nodes = (node("a", "72"), node("b", "72"))
    assert "pod-fits-no-node" in rules(*nodes, asks("73"))
    assert "pod-fits-no-node" not in rules(*nodes, asks("72000m"))


def test_e13_a_field_that_is_nearly_right_is_named_with_the_right_one() -> None:
    body = pytorch(1, 1, 8)
    body["spec"]["runPolicy"] = {"schedulingPolicy": {"minAvailble": 2, "queue": "train"}}
    said = [f for f in found(volcano_queue(), body) if f.rule == "unknown-field"]
    assert "spec.runPolicy.schedulingPolicy.minAvailble" in said[0].message and said[0].change == "write minAvailable"


def test_an_elastic_policy_under_kueue_is_told_and_a_low_minimum_with_it_is_no_mistake() -> None:
    body = pytorch(1, 7, 8, minimum=4, labels={"kueue.x-k8s.io/queue-name": "q"})
    assert "gang-minimum-odd" in rules(body)
    body["spec"]["elasticPolicy"] = {"minReplicas": 3, "maxReplicas": 8}
    assert "gang-minimum-odd" not in rules(body)
    assert "elastic-size" in rules(body)


def test_the_policy_of_the_site_makes_a_short_grace_an_error() -> None:
    body = job(spec={"terminationGracePeriodSeconds": 300})
    policy = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "myriad-policy", "namespace": "myriad-system"},
        "data": {"policy.json": '{"preemption": {"grace_s": 600}}'},
    }
    assert [f.severity for f in found(policy, body) if f.rule == "grace-too-short"] == ["error"]
    assert "grace-too-short" not in rules(body)
    broken = {**policy, "data": {"policy.json": "not json"}}
    assert "grace-too-short" not in rules(broken, body)


def test_objects_of_controllers_and_of_the_platform_are_not_judged() -> None:
    owned = job(queue="", ownerReferences=[{"kind": "JobSet", "name": "s", "controller": True}])
    assert found(owned) == []
    system = job(queue="")
    system["metadata"]["namespace"] = "kube-system"
    assert found(system) == []
    done = {**job(queue=""), "status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    assert found(done) == []


def test_context_is_known_and_not_judged() -> None:
    queue = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": "cq"},
        "spec": {"namespaceSelector": {}},
    }
    scene = scene_of([Document(job())], context=[Document(queue)], sure=["LocalQueue"])
    assert {f.object for f in findings(scene)} == {"Job n/a"}
    assert "queue-not-found" in {f.rule for f in findings(scene)}


def test_a_folded_configuration_has_the_line_of_its_block() -> None:
    text = (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  volcano-scheduler.conf: |\n    "
        "tiers: []\n    actions: nope\n"
    )
    said = findings(with_configurations(scene_of(read_text(text, "f.yml"))))
    assert {(f.line, f.rule) for f in said} == {(7, "volcano-unknown-action")}


def test_a_cronjob_names_its_queue_in_the_jobs_that_it_makes() -> None:
    inner = job()
    body = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "c", "namespace": "n", "labels": {"kueue.x-k8s.io/queue-name": "q"}},
        "spec": {"schedule": "@daily", "jobTemplate": {"spec": inner["spec"]}},
    }
    assert "no-queue-label" in rules(body)
    body["spec"]["jobTemplate"]["metadata"] = {"labels": {"kueue.x-k8s.io/queue-name": "q"}}
    assert "no-queue-label" not in rules(body)


def test_where_kueue_manages_all_jobs_one_without_a_queue_never_starts() -> None:
    configuration = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "manageJobsWithoutQueueName": True,
        "waitForPodsReady": {"timeout": "15m"},
    }
    said = [f.message for f in found(configuration, job(queue="")) if f.rule == "no-queue-label"]
    assert "holds it back for ever" in said[0]


def test_c16_cpu_jobs_in_the_order_of_gpu_jobs_are_a_note() -> None:
    def group(name: str, *resources: str) -> Json:
        quotas = [{"name": r, "nominalQuota": 8} for r in resources]
        return {"coveredResources": list(resources), "flavors": [{"name": name, "resources": quotas}]}

    queue = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": "cq"},
        "spec": {
            "namespaceSelector": {"matchLabels": {"a": "b"}},
            "resourceGroups": [group("cpu", "cpu", "memory"), group("h100", "nvidia.com/gpu")],
        },
    }
    assert [f.severity for f in found(queue) if f.rule == "mixed-flavors"] == ["note"]


def test_a_queue_label_on_the_pods_is_told_apart_from_none() -> None:
    body = job(queue="")
    body["spec"]["template"]["metadata"] = {"labels": {"kueue.x-k8s.io/queue-name": "q"}}
    said = [f for f in found(body) if f.rule == "no-queue-label"]
    assert "in the pod template" in said[0].message and said[0].key.startswith("spec.template.metadata.labels")


def cluster_queue(name: str, gpus: object, *, cohort: str = "", borrow: object = None) -> Json:
    row: Json = {"name": "nvidia.com/gpu", "nominalQuota": gpus}
    if borrow is not None:
        row["borrowingLimit"] = borrow
    quotas = [{"name": "cpu", "nominalQuota": "10M"}, {"name": "memory", "nominalQuota": "32Pi"}, row]
    group = {
        "coveredResources": ["cpu", "memory", "nvidia.com/gpu"],
        "flavors": [{"name": "h100", "resources": quotas}],
    }
    spec: Json = {"namespaceSelector": {"matchLabels": {"a": "b"}}, "resourceGroups": [group]}
    if cohort:
        spec["cohortName"] = cohort
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec}


def test_e6_a_volcano_queue_made_from_a_clusterqueue_is_compared_figure_by_figure() -> None:
    queue = cluster_queue("train", "16", cohort="c", borrow=8)
    same = volcano_queue({"nvidia.com/gpu": 24})
    same["spec"]["deserved"] = {"nvidia.com/gpu": "16"}
    assert "two-quota-ledgers" not in rules(queue, same)
    same["spec"]["deserved"] = {"nvidia.com/gpu": 32}
    same["spec"]["capability"]["cpu"] = 64
    said = [f.message for f in found(queue, same) if f.rule == "two-quota-ledgers"]
    assert len(said) == 2
    assert any("deserved 32 GPUs, and ClusterQueue train of the same team gives 16 GPUs" in m for m in said)


def test_d13_who_borrows_without_a_limit_gets_no_more_than_the_cohort_has() -> None:
    kueue = "kueue.x-k8s.io/v1beta2"
    metadata = {"name": "q", "namespace": "n"}
    local = {"apiVersion": kueue, "kind": "LocalQueue", "metadata": metadata, "spec": {"clusterQueue": "one"}}
    queues = [
        cluster_queue(name, gpus, cohort=c) for name, gpus, c in (("one", 16, "a"), ("two", 16, "b"), ("z", 99, "z"))
    ]
    tree = [
        {"apiVersion": kueue, "kind": "Cohort", "metadata": {"name": name}, "spec": {"parentName": "top"}}
        for name in ("a", "b")
    ]
    site = (*queues, *tree, local)
    sure = ("ClusterQueue", "Cohort", "LocalQueue")
    assert "queue-never-fits" not in rules(*site, job(pods=4), sure=sure)
    said = [f.message for f in found(*site, job(pods=5), sure=sure) if f.rule == "queue-never-fits"]
    assert "never gives more than 32 (the whole cohort top has no more)" in said[0]
    files = [f for f in found(*site, job(pods=5)) if f.rule == "queue-never-fits"]
    assert [f.severity for f in files] == ["warning"], "of files nobody knows whether they are all"
    assert "unless there are others in cohort a" in files[0].message
    alone = [f.rule for f in found(queues[0], local, job(pods=5))]
    assert "queue-never-fits" not in alone, "nothing is known of those that may lend"
