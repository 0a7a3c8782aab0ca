"""What an API server refuses: kinds, versions, names, shapes, values, texts; and what another project's kinds are."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from myriad.errors import InputError
from myriad.lint import findings, scene_of
from myriad.lint.documents import Document, read_text
from tests.unit.lint.test_kinds import cluster_queue, container, found, job, pytorch, rules

Json = dict[str, Any]
KUEUE = "kueue.x-k8s.io/v1beta2"


def said(rule: str, *bodies: Json) -> list[str]:
    return [f"{f.message} -> {f.change}" for f in found(*bodies) if f.rule == rule]


def body(api_version: str, kind: str, **spec: Any) -> Json:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}


@pytest.mark.parametrize(
    ("api_version", "kind", "right"),
    [
        ("kueue.x-k8s.io/v1", "ClusterQueue", "kueue.x-k8s.io/v1beta2"),
        ("kueue.x-k8s.io/v1alpha1", "Topology", "kueue.x-k8s.io/v1beta2"),
        ("v1", "LocalQueue", "kueue.x-k8s.io/v1beta2"),
        ("kueue.k8s.io/v1beta1", "ResourceFlavor", "kueue.x-k8s.io/v1beta2"),
        ("scheduling.volcano.sh/v1alpha2", "Queue", "scheduling.volcano.sh/v1beta1"),
        ("batch/v1", "PyTorchJob", "kubeflow.org/v1"),
        ("batch/v1beta1", "CronJob", "batch/v1"),
        ("v1", "Job", "batch/v1 or batch.volcano.sh/v1alpha1"),
        ("kueue.x-k8s.io/v1beta1", "Clusterqueue", "kind: ClusterQueue"),
        ("kueue.x-k8s.io/v1beta1", "ClusterQueues", "kind: ClusterQueue"),
        ("kubeflow.org/v1", "PytorchJob", "kind: PyTorchJob"),
        ("v1", "pod", "kind: Pod"),
    ],
)
def test_a_kind_or_version_that_is_not_served_is_named_with_the_right_one(
    api_version: str, kind: str, right: str
) -> None:
    (sentence,) = said("unknown-kind", body(api_version, kind))
    assert right in sentence.partition("->")[2]


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [
        ("v1", "PersistentVolume"),
        ("v1", "Secret"),
        ("v1", "Service"),
        ("kubeflow.org/v1", "Notebook"),
        ("ray.io/v1", "RayService"),
        ("kueue.x-k8s.io/v1beta1", "ClusterQueue"),
        ("kueue.x-k8s.io/v1beta2", "MultiKueueCluster"),
        ("kubeflow.org/v2beta1", "MPIJob"),
        ("serving.knative.dev/v1", "Configuration"),
        ("scheduling.run.ai/v2", "Queue"),
        ("scheduling.x-k8s.io/v1alpha1", "PodGroup"),
        ("example.com/v1", "Topology"),
    ],
)
def test_kinds_of_others_are_none_of_lints_business(api_version: str, kind: str) -> None:
    other = body(api_version, kind)
    assert not said("unknown-kind", other)
    if kind not in ("ClusterQueue", "MPIJob"):
        assert not found(other)


def test_a_configuration_of_another_program_does_not_mean_that_kueue_is_there() -> None:
    knative = body("serving.knative.dev/v1", "Configuration", template={})
    assert not scene_of([Document(knative)]).kueue


@pytest.mark.parametrize(
    ("version", "field", "right"),
    [
        ("v1beta2", "cohort", "cohortName"),
        ("v1beta1", "cohortName", "cohort"),
        ("v1beta2", "admissionChecks", "admissionChecksStrategy"),
    ],
)
def test_a_field_of_the_other_version_is_dropped_and_told(version: str, field: str, right: str) -> None:
    queue = cluster_queue("one", 8)
    queue["apiVersion"] = f"kueue.x-k8s.io/{version}"
    assert not said("unknown-field", queue)
    queue["spec"][field] = "c"
    (sentence,) = said("unknown-field", queue)
    assert f"a ClusterQueue of {version} does not have" in sentence and f"write {right}" in sentence


@pytest.mark.parametrize("name", ["My_Job", "größe", "训练", "-a", "a.", "a b", "x" * 64, 7, None])
def test_a_name_that_kubernetes_refuses(name: object) -> None:
    broken = job()
    broken["metadata"]["name"] = name
    assert len(said("bad-name", broken)) == 1
    if name is None:
        del broken["metadata"]["name"]
        broken["metadata"]["generateName"] = "train-"
        assert not said("bad-name", broken)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("spec", "resourceGroups"), {"coveredResources": []}, "has a mapping at spec.resourceGroups"),
        (("spec", "resourceGroups", 0, "coveredResources"), "nvidia.com/gpu", "the text 'nvidia.com/gpu'"),
        (("spec", "resourceGroups", 0, "flavors"), {"name": "h100"}, "has a mapping at spec.resourceGroups[0].flavors"),
        (("spec", "namespaceSelector"), "team-a", "the text 'team-a' at spec.namespaceSelector"),
        (("spec", "preemption"), "Any", "where a mapping (KEY: VALUE) belongs"),
        (("metadata", "labels"), ["a"], "has a list at metadata.labels"),
        (("spec",), [], "has a list at spec"),
    ],
)
def test_a_list_for_a_mapping_and_the_other_way_round(path: tuple[str | int, ...], value: object, words: str) -> None:
    queue: Any = copy.deepcopy(cluster_queue("one", 8))
    holder = queue
    for part in path[:-1]:
        holder = holder[part]
    holder[path[-1]] = value
    assert any(words in sentence for sentence in said("wrong-shape", queue))
    assert not said("wrong-shape", cluster_queue("one", 8))


@pytest.mark.parametrize(
    ("place", "value", "right"),
    [
        ("queueingStrategy", "bestEffortFIFO", "BestEffortFIFO"),
        ("stopPolicy", "Pause", "None, Hold, HoldAndDrain"),
        ("flavorFungibility", {"whenCanBorrow": "Borrow"}, "MayStopSearch"),
        ("preemption", {"reclaimWithinCohort": "Always"}, "Any"),
        ("preemption", {"withinClusterQueue": True}, "truth value"),
        ("namespaceSelector", {"matchExpressions": [{"key": "a", "operator": "in", "values": ["b"]}]}, "write In"),
    ],
)
def test_a_value_that_a_field_does_not_take(place: str, value: object, right: str) -> None:
    queue = cluster_queue("one", 8)
    queue["spec"][place] = value
    (sentence,) = said("unknown-value", queue)
    assert right in sentence


def test_the_older_version_still_takes_its_own_words() -> None:
    queue = cluster_queue("one", 8)
    queue["spec"]["flavorFungibility"] = {"whenCanBorrow": "Borrow", "whenCanPreempt": "Preempt"}
    queue["apiVersion"] = "kueue.x-k8s.io/v1beta1"
    assert not said("unknown-value", queue)


@pytest.mark.parametrize(
    ("spec", "metadata", "words"),
    [
        ({"nodeSelector": {"gpu": True}}, {}, 'in quotes: "true"'),
        ({"nodeSelector": {"zone": 1}}, {}, 'in quotes: "1"'),
        ({}, {"annotations": {"a": 2}}, 'in quotes: "2"'),
        ({}, {"annotations": {"a": {"b": 1}}}, "write a text"),
        ({"nodeSelector": {"zone": "eu/west"}}, {}, "which no label can have"),
        ({"containers": [container(env=[{"name": "N", "value": 8}])]}, {}, "variable N the value 8"),
    ],
)
def test_labels_and_variables_are_texts(spec: Json, metadata: Json, words: str) -> None:
    (sentence,) = said("label-not-text", job(spec=spec, **metadata))
    assert words in sentence


def test_a_long_annotation_is_no_label() -> None:
    assert not said("label-not-text", job(annotations={"a": "any text / at all " * 20, "b": ""}))


@pytest.mark.parametrize("policy", [None, "Always", "never"])
def test_a_job_takes_never_or_on_failure(policy: str | None) -> None:
    broken = job()
    broken["spec"]["template"]["spec"]["restartPolicy"] = policy
    assert len(said("restart-policy", broken)) == 1
    broken["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    assert not said("restart-policy", broken)


def test_a_jobset_fills_in_the_policy_that_is_not_there() -> None:
    inner = job()["spec"]
    del inner["template"]["spec"]["restartPolicy"]
    jobs = body("jobset.x-k8s.io/v1alpha2", "JobSet", replicatedJobs=[{"name": "w", "template": {"spec": inner}}])
    assert not said("restart-policy", jobs)
    inner["template"]["spec"]["restartPolicy"] = "Always"
    assert said("restart-policy", jobs)


def test_the_training_operator_looks_for_its_container_and_takes_one_master() -> None:
    assert len(said("operator-refuses", pytorch(2, 3, 8, minimum=5))) == 3
    right = pytorch(1, 3, 8, minimum=4)
    for replica in right["spec"]["pytorchReplicaSpecs"].values():
        replica["template"] = {"spec": {"containers": [container(name="pytorch"), container(0, name="sidecar")]}}
    assert not said("operator-refuses", right)
    mpi = {**right, "apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob"}
    assert not said("operator-refuses", mpi), "it takes any name"


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("gpu", "nvidia.com/gpu"),
        ("nvidia.com/gpus", "nvidia.com/gpu"),
        ("nvidia/gpu", "nvidia.com/gpu"),
        ("nvidia.com/GPU", "nvidia.com/gpu"),
        ("amd/gpu", "amd.com/gpu"),
        ("nvidia.com/mig-1g10gb", "mig-1g.10gb"),
        ("ram", "cpu, memory"),
        ("nvidia.com/gpu", ""),
        ("amd.com/gpu", ""),
        ("nvidia.com/pgpu", ""),
        ("nvidia.com/gpumem", ""),
        ("nvidia.com/mig-1g.10gb.me", ""),
        ("nvidia.com/mig-3g.71gb", ""),
        ("example.com/gpu", ""),
        ("hugepages-2Mi", ""),
    ],
)
def test_a_device_by_a_name_that_is_nearly_right(name: str, right: str) -> None:
    sentences = said("resource-name", job(spec={"containers": [container(1, name)]}))
    assert bool(sentences) == bool(right) and (not right or right in sentences[0].partition("->")[2])


@pytest.mark.parametrize(
    ("resource", "amount", "words"),
    [
        ("memory", 64, "64 bytes"),
        ("memory", "400m", "less than a byte"),
        ("cpu", "16Gi", "a unit of memory"),
        ("cpu", 4000, "which no machine has"),
        ("nvidia.com/gpu", "8Gi", "a unit of memory"),
        ("memory", "64Gi", ""),
        ("memory", "64000Mi", ""),
        ("memory", "1e9", ""),
        ("cpu", "4000m", ""),
        ("ephemeral-storage", 0, ""),
    ],
)
def test_a_unit_that_nobody_means(resource: str, amount: object, words: str) -> None:
    limits = {"nvidia.com/gpu": 8, resource: amount}
    sentences = said("implausible-quantity", job(spec={"containers": [container(resources={"limits": limits})]}))
    assert bool(sentences) == bool(words) and (not words or words in sentences[0])


def test_a_quota_of_half_a_card() -> None:
    (sentence,) = said("implausible-quantity", cluster_queue("one", "4.5"))
    assert "no whole number of devices" in sentence and sentence.endswith("write 4")
    assert not said("implausible-quantity", cluster_queue("one", "32.0"))
    assert not said("implausible-quantity", cluster_queue("one", "8k"))


@pytest.mark.parametrize("value", ["high", None, 2_000_000_001, 1.5, True])
def test_a_priority_that_is_none(value: object) -> None:
    each = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "p"}, "value": value}
    assert "a priority is a whole number" in said("bad-quantity", {**each, "preemptionPolicy": "Never"})[0]


def test_the_pods_of_a_group_add_up() -> None:
    def pod(name: str, total: object) -> Json:
        made = body("v1", "Pod", containers=[{"name": "c", "image": "a"}])
        annotations = {} if total is None else {"kueue.x-k8s.io/pod-group-total-count": total}
        labels = {"kueue.x-k8s.io/queue-name": "q", "kueue.x-k8s.io/pod-group-name": "g"}
        made["metadata"] = {"name": name, "namespace": "n", "labels": labels, "annotations": annotations}
        return made

    assert not said("pod-group-count", pod("a", "2"), pod("b", "2"))
    assert "waits for the others" in said("pod-group-count", pod("a", "3"), pod("b", "3"))[0]
    assert "too many" in said("pod-group-count", pod("a", "1"), pod("b", "1"))[0]
    assert "2 and none" in said("pod-group-count", pod("a", "2"), pod("b", None))[0]


def test_a_selector_that_leaves_nobody_out_is_everybody() -> None:
    queue = cluster_queue("one", 8)
    for selector, everybody in (
        ({"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "Exists"}]}, True),
        ({"matchLabels": {}, "matchExpressions": []}, True),
        ({"matchExpressions": [{"key": "team", "operator": "Exists"}]}, False),
    ):
        queue["spec"]["namespaceSelector"] = selector
        assert ("everybody-admitted" in rules(queue)) == everybody


def test_a_podgroup_and_a_policy_have_priorities_and_topology_wishes_too() -> None:
    wanted = {"apiVersion": KUEUE, "kind": "WorkloadPriorityClass", "metadata": {"name": "high"}, "value": 1000}
    low = {
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "low"}, "value": 10,
        "preemptionPolicy": "Never",
    }  # fmt: skip
    group = body("scheduling.volcano.sh/v1beta1", "PodGroup", priorityClassName="low", networkTopology={"mode": "hard"})
    group["metadata"]["namespace"] = "n"
    member = job(labels={"kueue.x-k8s.io/queue-name": "q", "kueue.x-k8s.io/priority-class": "high"})
    wishes = {"scheduling.k8s.io/group-name": "x", "kueue.x-k8s.io/podset-required-topology": "rack"}
    member["spec"]["template"]["metadata"] = {"annotations": wishes}
    told = {(f.rule, f.object) for f in found(wanted, low, group, member)}
    assert {("two-priorities", "PodGroup n/x"), ("two-topology-engines", "PodGroup n/x")} <= told
    policy = pytorch(1, 1, 8, minimum=2, labels={"kueue.x-k8s.io/priority-class": "high"})
    policy["spec"]["runPolicy"]["schedulingPolicy"]["priorityClass"] = "low"
    assert "two-priorities" in rules(wanted, low, policy)


def test_the_queue_in_an_annotation_is_told_apart_from_none() -> None:
    broken = job(queue="", annotations={"kueue.x-k8s.io/queue-name": "q"})
    assert "names its queue in an annotation" in said("no-queue-label", broken)[0]


def test_an_object_that_stands_twice_with_two_contents() -> None:
    text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n---\n"
    other = text.replace("{name: a}", "{name: a, labels: {x: y}}")
    assert not findings(scene_of(read_text(text + text, "f.yml")))
    (finding,) = findings(scene_of(read_text(text + other, "f.yml")))
    assert finding.rule == "defined-twice" and finding.severity == "error" and "f.yml:1" in finding.message
    (finding,) = findings(scene_of([*read_text(text, "a.yml"), *read_text(other, "b.yml")]))
    assert finding.severity == "warning", "overlays of a folder are not applied together"


def test_the_items_of_a_typed_list_have_the_kind_of_the_list() -> None:
    (one,) = read_text('{"kind": "JobList", "apiVersion": "batch/v1", "items": [{"metadata": {"name": "a"}}]}', "f")
    assert one.body["kind"] == "Job" and one.body["apiVersion"] == "batch/v1"
    assert read_text("apiVersion: v1\nkind: List\nitems: null\n", "f") == []


def test_a_list_that_holds_itself_is_refused() -> None:
    with pytest.raises(InputError, match="without end"):
        read_text("apiVersion: v1\nkind: List\nitems: &i\n- apiVersion: v1\n  kind: List\n  items: *i\n", "f")


def test_files_that_were_joined_bring_their_byte_order_marks() -> None:
    one = "\ufeffapiVersion: v1\r\nkind: Namespace\r\nmetadata: {name: a}\r\n---\r\n"
    assert [d.line(("kind",)) for d in read_text(one + one, "f")] == [2, 6]


def test_what_kueue_refuses_of_lending_and_borrowing() -> None:
    queue = cluster_queue("one", 8, cohort="c")
    row = queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][2]
    row["lendingLimit"] = 8
    queue["spec"]["preemption"] = {"reclaimWithinCohort": "Any", "borrowWithinCohort": {"policy": "LowerPriority"}}
    assert not said("sharing-refused", queue)
    row["lendingLimit"] = 9
    queue["spec"]["preemption"]["reclaimWithinCohort"] = "Never"
    assert len(said("sharing-refused", queue)) == 2
    cohort = body(KUEUE, "Cohort", resourceGroups=queue["spec"]["resourceGroups"])
    assert "no parent to share with" in said("limits-without-cohort", cohort)[0]
    assert "can be spent nowhere" in said("flavor-not-found", cohort)[0]


def test_an_admission_check_without_a_controller_or_for_a_flavor_that_is_not_used() -> None:
    queue = cluster_queue("one", 8)
    queue["spec"]["admissionChecksStrategy"] = {"admissionChecks": [{"name": "x", "onFlavors": ["z"]}]}
    assert len(said("admission-check-missing", queue, body(KUEUE, "AdmissionCheck"))) == 2
    queue["spec"]["admissionChecksStrategy"]["admissionChecks"][0]["onFlavors"] = ["h100"]
    assert not said("admission-check-missing", queue, body(KUEUE, "AdmissionCheck", controllerName="a/b"))


@pytest.mark.parametrize(
    ("field", "value", "right"),
    [
        ("waitForPodReady", {"timeout": "15m"}, "write waitForPodsReady"),
        ("waitForPodsReady", {"timeout": "soon"}, "15m"),
        ("waitForPodsReady", {"timeout": 900}, "15m"),
        ("integrations", {"frameworks": ["batch/Job"]}, "write batch/job"),
        ("fairSharing", {"enable": True}, "take it out"),
        ("fairSharing", {"preemptionStrategies": ["LessThanFinalShare"]}, "LessThan"),
        ("manageJobsWithoutQueueName", "true", "without quotes"),
        ("waitForPodsReady", {"timeout": "15m0s", "requeuingStrategy": {}}, ""),
        ("integrations", {"frameworks": ["leaderworkerset.x-k8s.io/leaderworkerset", "ray.io/rayservice"]}, ""),
    ],
)
def test_a_configuration_with_which_kueue_does_not_start(field: str, value: object, right: str) -> None:
    configuration = {"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration", field: value}
    sentences = said("kueue-configuration", configuration)
    assert bool(sentences) == bool(right) and (not right or right in sentences[0])
    if field == "fairSharing" and "enable" in str(value):
        assert not said("kueue-configuration", {**configuration, "apiVersion": "config.kueue.x-k8s.io/v1beta1"})


@pytest.mark.parametrize("tier", ["1", None, -1, True, 1.5])
def test_a_tier_is_a_whole_number(tier: object) -> None:
    hyper = body("topology.volcano.sh/v1alpha1", "HyperNode", tier=tier, members=[])
    assert "a tier is a whole number" in said("hypernode-tree", hyper)[0]


@pytest.mark.parametrize("figure", ["9" * 5000, "²", "٣", "1e5"])
def test_figures_that_python_reads_otherwise_than_kubernetes(figure: str) -> None:
    limited = job(labels={"kueue.x-k8s.io/queue-name": "q", "kueue.x-k8s.io/max-exec-time-seconds": figure})
    assert "bad-time-limit" in rules(limited)
    assert "checkpoint-interval" in rules(job(annotations={"myriad.dev/checkpoint-interval": f"{figure}h"}))
    surge = {
        **body("apps/v1", "Deployment", replicas=2, strategy={"rollingUpdate": {"maxSurge": f"{figure}%"}}),
        "metadata": {"name": "d", "annotations": {"scheduling.volcano.sh/group-min-member": "2"}},
    }
    assert isinstance(found(surge), list)
