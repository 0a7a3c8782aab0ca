"""What each layer holds against a job: recorded objects in, the first cause out. Each case bears its id."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from myriad.kube.kinds import CLUSTER_QUEUES, LOCAL_QUEUES, PODS, WORKLOADS
from myriad.scheduler.causes import Evidence, read_refusal
from myriad.scheduler.causes_queue import selects
from myriad.scheduler.explain import Answer
from myriad.scheduler.inquiry import why_job

NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)
Json = dict[str, Any]


def ask(world: Any, name: str, **evidence: Any) -> Answer:
    found = why_job(world.cache, "vision", name, evidence=Evidence(**evidence), now=NOW)
    assert found is not None
    return found


def job(name: str = "a", *, pods: int = 2, labels: Json | None = None, **spec: Any) -> Json:
    requests = {"nvidia.com/gpu": "8", "cpu": "4", "memory": "8Gi"}
    containers = [{"name": "main", "resources": {"requests": requests, "limits": requests}}]
    return {
        "metadata": {
            "name": name, "namespace": "vision", "uid": f"job-uid-{name}", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"kueue.x-k8s.io/queue-name": "h100"} if labels is None else labels,
        },
        "spec": {"parallelism": pods, "suspend": True, "template": {"spec": {"containers": containers, **spec}}},
        "status": {},
    }  # fmt: skip


def event(reason: str, message: str, kind: str = "Job", name: str = "a", **more: Any) -> Json:
    about = {"kind": kind, "name": name}
    return {
        "reason": reason,
        "message": message,
        "involvedObject": about,
        "lastTimestamp": "2026-01-01T00:59:00Z",
        **more,
    }


def admit(world: Any, make: Any, name: str = "a", **more: Any) -> None:
    world.put(WORKLOADS, make.workload(name, assigned={"n0": 1, "n1": 1}, admitted=True, **more))


def test_a11_a_resource_quota_that_takes_only_part_of_the_pods(world: Any, make: Any) -> None:
    world.put(WORKLOADS, make.workload("a"))
    quota = {
        "metadata": {"name": "team"},
        "status": {"hard": {"requests.nvidia.com/gpu": "24"}, "used": {"requests.nvidia.com/gpu": "16"}},
    }
    answer = ask(world, "a", job=job(), quotas=(quota,))
    assert answer.first_cause == (
        "ResourceQuota team of the namespace leaves 8 GPUs of 24 GPUs; the job's pods need 16 GPUs, so some of them "
        "cannot be made"
    )
    quota["status"]["hard"] = {"requests.nvidia.com/gpu": "8"}
    assert "more than it ever gives" in ask(world, "a", job=job(), quotas=(quota,)).first_cause
    quota["status"] = {"hard": {"requests.nvidia.com/gpu": "64", "pods": "10"}, "used": {"pods": "9"}}
    assert "leaves 1 pods of 10 pods" in ask(world, "a", job=job(), quotas=(quota,)).first_cause
    quota["status"]["used"] = {}
    assert "ResourceQuota" not in ask(world, "a", job=job(), quotas=(quota,)).first_cause


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            'pods "a-0" is forbidden: exceeded quota: team, requested: pods=1, used: pods=4, limited: pods=4',
            "ResourceQuota team of the namespace is used up (asked pods=1; used pods=4 of pods=4)",
        ),
        (
            'pods "a-0" is forbidden: failed quota: team: must specify limits.cpu for: main',
            "counts limits.cpu for: main, and the pods do not say them",
        ),
        (
            'admission webhook "validate.kyverno.svc" denied the request: resource Pod/a was blocked: no latest tag',
            "refused by the admission webhook validate.kyverno.svc: resource Pod/a was blocked: no latest tag",
        ),
        (
            'Internal error occurred: failed calling webhook "x.example.com": connection refused',
            "the admission webhook x.example.com does not answer",
        ),
        (
            'pods "a-0" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true',
            'refused by pod security "restricted:latest" of the namespace: runAsNonRoot != true',
        ),
        (
            'pods "a-0" is forbidden: maximum cpu usage per Container is 2, but limit is 4',
            "refused by a LimitRange of the namespace: maximum cpu usage per Container is 2, but limit is 4",
        ),
        (
            "pods \"a-0\" is forbidden: ValidatingAdmissionPolicy 'gpu-rules' with binding 'b' denied request: "
            "requests must equal limits",
            "refused by the admission policy gpu-rules: requests must equal limits",
        ),
    ],
)
def test_a11_c19_pods_that_cannot_be_made(world: Any, make: Any, message: str, said: str) -> None:
    admit(world, make)
    answer = ask(world, "a", job=job() | {"spec": {"suspend": False}}, events=(event("FailedCreate", message),))
    assert answer.state == "external" and said in answer.first_cause and answer.unblocks, answer


def test_an_old_event_is_no_cause(world: Any, make: Any) -> None:
    admit(world, make)
    old = event("FailedCreate", "exceeded quota", lastTimestamp="2026-01-01T00:10:00Z")
    assert "quota" not in ask(world, "a", events=(old,)).first_cause


def test_c4_missing_pvc_comes_first(world: Any, make: Any) -> None:
    """Before the gang's own words and before quota, and already while it waits."""
    world.put(WORKLOADS, make.workload("first", pods=4, assigned={f"n{i}": 1 for i in range(4)}, admitted=True))
    world.put(WORKLOADS, make.workload("a"))
    answer = ask(world, "a", claims={"data": None})
    assert answer.first_cause.startswith("PersistentVolumeClaim data not found") and answer.state == "external"
    admit(world, make, "b")
    body = make.pod("b-0", phase="Pending")
    said = '0/8 nodes are available: persistentvolumeclaim "data" not found. preemption: not helpful'
    body["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    ]
    assert ask(world, "b", pods=(body,)).first_cause == "PersistentVolumeClaim data not found"


def test_c4_a_claim_that_is_bound_on_first_use_is_no_cause(world: Any, make: Any) -> None:
    world.put(WORKLOADS, make.workload("a"))
    claim = {"metadata": {"name": "data"}, "spec": {"storageClassName": "fast"}, "status": {"phase": "Pending"}}
    assert "data is not bound (storage class fast)" in ask(world, "a", claims={"data": claim}).first_cause
    waits = event("WaitForFirstConsumer", "waiting for first consumer", "PersistentVolumeClaim", "data")
    assert "data" not in ask(world, "a", claims={"data": claim}, events=(waits,)).first_cause


def test_f30_a_foreign_gate_is_named(world: Any, make: Any) -> None:
    admit(world, make)
    body = make.pod("a-0", phase="Pending")
    body["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/topology"}, {"name": "example.com/licence"}]
    answer = ask(world, "a", pods=(body,))
    assert answer.state == "gated" and answer.first_cause.endswith("the scheduling gate example.com/licence")


def test_b9_kueues_topology_gate_that_stays(world: Any, make: Any) -> None:
    admit(world, make)
    body = make.pod("a-0", phase="Pending")
    body["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/topology"}]
    answer = ask(world, "a", pods=(body,))
    assert answer.state == "gated" and "Kueue's topology gate" in answer.first_cause


def test_b17_b18_rejections_are_counted_by_node_with_advice(world: Any, make: Any) -> None:
    admit(world, make)
    pods = []
    for k in range(3):
        body = make.pod(f"a-{k}", node_name="n0", gpus=4, phase="Failed")
        body["status"] |= {"reason": "TopologyAffinityError", "message": "Resources cannot be allocated"}
        pods.append(body)
    answer = ask(world, "a", pods=tuple(pods))
    assert "TopologyAffinityError on n0 x3" in answer.first_cause and answer.numbers["rejections"] == 3
    assert any("4 GPUs split across NUMA nodes, 2+2" in u for u in answer.unblocks)


def test_f25_out_of_gpus_means_two_schedulers(world: Any, make: Any) -> None:
    admit(world, make)
    body = make.pod("a-0", node_name="n0", phase="Failed")
    body["status"]["reason"] = "OutOfnvidia.com/gpu"
    assert "two schedulers on one node" in ask(world, "a", pods=(body,)).first_cause


def test_c5_c19_a_bind_that_fails_names_who_refuses_and_how_often(world: Any, make: Any) -> None:
    admit(world, make)
    said = 'binding rejected: admission webhook "kyverno" denied the request: policy'
    answer = ask(
        world, "a", pods=(make.pod("a-0", phase="Pending"),),
        events=(event("FailedScheduling", said, "Pod", "a-0", count=7),),
    )  # fmt: skip
    assert "binding its pod to the node fails (7 times): the admission webhook kyverno refuses" in answer.first_cause


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "ErrImagePull", "CreateContainerError", "CrashLoopBackOff"])
def test_containers_that_do_not_start(world: Any, make: Any, reason: str) -> None:
    admit(world, make)
    body = make.pod("a-0", node_name="n0", phase="Pending")
    state = {"waiting": {"reason": reason, "message": "because"}}
    body["status"]["containerStatuses"] = [{"name": "main", "image": "x:1", "state": state}]
    assert f"container main: {reason}" in ask(world, "a", pods=(body,)).first_cause


def test_a20_admitted_and_not_placeable_names_who_is_still_leaving(world: Any, make: Any) -> None:
    admit(world, make)
    leaving = make.pod("old-0", node_name="n0", deletionTimestamp="2026-01-01T01:03:00Z")
    world.put(PODS, leaving)
    body = make.pod("a-0", phase="Pending")
    body["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient nvidia.com/gpu"}
    ]
    answer = ask(world, "a", pods=(body,))
    assert "not placeable: kube-scheduler finds no node: Insufficient nvidia.com/gpu" in answer.first_cause
    assert any(h == "held by" and "old-0" in t and "stopping" in t for h, t in answer.lines)


def test_e14_a_kind_that_kueue_does_not_manage(world: Any) -> None:
    body = job("p")
    body["spec"] = {
        "runPolicy": {"suspend": True},
        "pytorchReplicaSpecs": {"Master": {"template": body["spec"]["template"]}},
    }
    frameworks = frozenset({"batch/job"})
    answer = ask(world, "p", job=body, kind="PyTorchJob", frameworks=frameworks)
    assert "its integration kubeflow.org/pytorchjob is off" in answer.first_cause


def test_a12_a_podgroup_that_volcano_never_looked_at(world: Any, make: Any) -> None:
    admit(world, make)
    group = {"metadata": {"name": "g", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}}
    answer = ask(world, "a", pod_groups=(group,), volcano_queues=())
    assert "Volcano has not looked at PodGroup g" in answer.first_cause


def test_a13_a_gang_whose_pods_go_to_another_scheduler(world: Any, make: Any) -> None:
    admit(world, make)
    body = make.pod("a-0", phase="Pending")
    body["spec"]["schedulerName"] = "default-scheduler"
    group = {"metadata": {"name": "g"}, "status": {"phase": "Running"}}
    answer = ask(world, "a", pods=(body,), pod_groups=(group,), volcano_queues=())
    assert "which binds them one by one" in answer.first_cause


def test_c6_c7_the_compared_vector_of_a_volcano_queue(world: Any, make: Any) -> None:
    admit(world, make)
    group = {
        "metadata": {"name": "g"}, "spec": {"queue": "q", "minResources": {"nvidia.com/gpu": "16", "cpu": "8"}},
        "status": {"phase": "Pending"},
    }  # fmt: skip
    queue = {
        "metadata": {"name": "q"}, "spec": {"capability": {"nvidia.com/gpu": 9999, "cpu": "10"}},
        "status": {"state": "Open", "allocated": {"cpu": "4"}},
    }  # fmt: skip
    answer = ask(world, "a", pod_groups=(group,), volcano_queues=(queue,))
    assert answer.first_cause == (
        "the capability of the Volcano queue q leaves 6 of 10 cpu (4 in use); the gang needs 8"
    )
    queue["spec"] = {"deserved": {"nvidia.com/gpu": 8}}
    assert (
        "the deserved share of the Volcano queue q leaves 8 of 8"
        in ask(world, "a", pod_groups=(group,), volcano_queues=(queue,)).first_cause
    )


def test_c3_a_podgroup_that_runs_has_no_stale_reason(world: Any, make: Any) -> None:
    admit(world, make)
    stale = {"type": "Unschedulable", "status": "True", "message": "pod group is not ready"}
    group = {"metadata": {"name": "g"}, "status": {"phase": "Running", "conditions": [stale]}}
    assert "not ready" not in ask(world, "a", pod_groups=(group,), volcano_queues=()).first_cause


def test_a_hold_says_by_whom_why_and_until_when(world: Any, make: Any) -> None:
    queue = {
        "metadata": {"name": "h100", "namespace": "vision"},
        "spec": {"clusterQueue": "vision-h100", "stopPolicy": "Hold"},
    }
    world.put(LOCAL_QUEUES, queue)
    world.put(WORKLOADS, make.workload("a"))
    answer = ask(world, "a", stopped_by={"LocalQueue/h100": "kubectl-edit"})
    assert answer.state == "held" and "stopped (Hold by kubectl-edit)" in answer.first_cause
    notes = {
        "hold-reason": "the budget of 5000 GPU-hours is used up",
        "hold-until": "2026-02-01T00:00:00Z",
        "held-by": "budget",
    }
    queue["metadata"]["annotations"] = {f"myriad.dev/{k}": v for k, v in notes.items()}
    world.put(LOCAL_QUEUES, queue)
    answer = ask(world, "a")
    assert "until 2026-02-01T00:00:00Z): the budget of 5000 GPU-hours is used up" in answer.first_cause


def test_d17_d21_who_is_stopping_to_make_room(world: Any, make: Any) -> None:
    victim = make.workload("victim", pods=4, assigned={f"n{i}": 1 for i in range(4)}, admitted=True)
    said = "Preempted to accommodate a workload (UID: uid-a, JobUID: job-uid-a) due to prioritization"
    victim["status"]["conditions"] += [
        {"type": "Evicted", "status": "True", "reason": "Preempted", "message": said},
        {"type": "Preempted", "status": "True", "reason": "InClusterQueue", "message": said},
    ]
    world.put(WORKLOADS, victim)
    world.put(PODS, make.pod("victim-0", of="victim", node_name="n0", deletionTimestamp="2026-01-01T01:02:00Z"))
    world.put(WORKLOADS, make.workload("a", priority=5))
    answer = ask(world, "a")
    assert answer.state == "quota" and answer.first_cause == (
        "room is being made for it: waits until victim (vision, 32 GPUs, stopping, holds them until its pods have "
        "ended) has ended, at the latest in 2 min"
    )


def test_suspended_by_somebody_though_admitted(world: Any, make: Any) -> None:
    admit(world, make)
    answer = ask(world, "a", job=job())
    assert answer.state == "held" and "somebody has suspended it" in answer.first_cause


@pytest.mark.parametrize(
    ("succeeded", "conditions", "named"),
    [
        (2, (), True),
        (2, ("SuccessCriteriaMet",), True),
        (1, ("SuccessCriteriaMet",), True),
        (1, (), False),
        (2, ("SuccessCriteriaMet", "Complete"), False),
    ],
)
def test_a_job_that_was_done_when_it_was_preempted_is_told_from_one_that_waits(
    world: Any, make: Any, succeeded: int, conditions: tuple[str, ...], *, named: bool
) -> None:
    world.put(WORKLOADS, make.workload("a", pods=2))
    body = job()
    body["spec"]["completions"] = 2
    body["status"] = {"succeeded": succeeded, "conditions": [{"type": t, "status": "True"} for t in conditions]}
    answer = ask(world, "a", job=body)
    assert ("all its work was done" in answer.first_cause) == named
    if named:
        assert answer.state == "held" and f"{succeeded} of 2 pods succeeded" in answer.first_cause
        assert "kubectl -n vision delete job a" in " ".join(answer.unblocks)


def test_d13_kueues_words_about_other_resources_are_read() -> None:
    beyond = (
        "couldn't assign flavors to pod set main: insufficient quota for cpu in flavor h100, previously considered "
        "podsets requests (0) + current podset request (12) > maximum capacity (8)"
    )
    read = read_refusal(beyond)
    assert read is not None and (read.kind, read.resource, read.asked, read.most) == ("beyond", "cpu", "12", "8")
    waits = (
        "insufficient unused quota for memory in flavor h100, 4Gi more needed. Pending the preemption of 2 workload(s)"
    )
    read = read_refusal(waits)
    assert read is not None and (read.kind, read.resource, read.more, read.preempting) == ("unused", "memory", "4Gi", 2)
    assert read_refusal("") is None


def test_c8_the_named_resource_is_said(world: Any, make: Any) -> None:
    said = (
        "couldn't assign flavors to pod set main: insufficient unused quota for memory in flavor h100, 4Gi more needed"
    )
    world.put(WORKLOADS, make.workload("a", conditions={"QuotaReserved": ("False", said)}))
    answer = ask(world, "a")
    assert answer.state == "quota" and "waits for quota of memory: 4Gi more needed" in answer.first_cause


def test_a_namespace_that_the_queue_does_not_take(world: Any, make: Any) -> None:
    queue = make.cluster_queue()
    queue["spec"]["namespaceSelector"] = {"matchExpressions": [{"key": "team", "operator": "In", "values": ["x"]}]}
    world.put(CLUSTER_QUEUES, queue)
    world.put(WORKLOADS, make.workload("a"))
    assert "takes no jobs from namespace vision: its labels do not match team In (x)" in ask(world, "a").first_cause
    assert selects({}, {}) and not selects({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {})


def test_d22_a_job_that_runs_says_so_with_what_is_odd(world: Any, make: Any) -> None:
    body = make.workload("a", pods=1, assigned={"n0": 1}, admitted=True)
    body["status"]["schedulingStats"] = {"evictions": [{"reason": "Preempted", "count": 3}]}
    world.put(WORKLOADS, body)
    pod = make.pod("a-0", node_name="n0")
    pod["status"] |= {
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "m", "restartCount": 2}],
    }
    answer = ask(world, "a", pods=(pod,))
    odd = " ".join(t for h, t in answer.lines if h == "odd")
    assert answer.state == "running" and "restarted 2 times (a-0 x2)" in odd and "Preempted x3" in odd


def test_a_namespace_users_answer_takes_what_the_extension_wrote(world: Any, make: Any) -> None:
    body = make.workload("a")
    said = {"type": "myriad.dev/Waiting", "status": "True", "reason": "WaitingForQuota", "message": "waits for 16 GPUs"}
    body["status"]["conditions"] = [said]
    world.put(WORKLOADS, body)
    answer = why_job(world.cache, "vision", "a", now=NOW, missing=("clusterqueues", "nodes"))
    assert answer is not None and answer.first_cause == "waits for 16 GPUs" and "nodes" not in answer.looked_at
