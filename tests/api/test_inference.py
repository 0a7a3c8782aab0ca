"""Services beside training on the real Kueue: what they are never taken for, and how they grow within a reserve."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import apiserver
import pytest
from apiserver import ControlPlane, fake_node, gang_job, until

from myriad.fleet import check, inventory_from_groups, objects_for_cluster_policy
from myriad.kube.apply import Applier, Options
from myriad.kube.client import Api, connect
from myriad.kube.kinds import PODS, WORKLOADS
from myriad.scheduler.objects import workload_view

Json = dict[str, Any]

pytestmark = [apiserver.AT_HAND, pytest.mark.slow]

TRAINING, SERVING = "h100", "l40s"
QUOTA, RESERVE, LENT = 8, 4, 4
"""Of each of two teams in the inference pool; vision keeps four of its GPUs, and lends the others."""
DESCRIPTION = {
    "myriad_cluster": {"name": "lab", "topology_levels": ["room", "block", "rack"]},
    "myriad_pools": {
        TRAINING: {"model": "H100-SXM5-80GB"},
        SERVING: {"model": "L40S", "use": "inference"},
    },
    "myriad_priorities": {"urgent": 1000, "normal": 500},
    "myriad_cohorts": {"research": {}},
    "myriad_teams": {
        "vision": {
            "namespaces": ["vision"],
            "quota": {TRAINING: 8, SERVING: QUOTA},
            "reserve": {SERVING: RESERVE},
            "cohort": "research",
        },
        "speech": {"namespaces": ["speech"], "quota": {TRAINING: 8, SERVING: QUOTA}, "cohort": "research"},
    },
}
NODES = {TRAINING: ["g0", "g1"], SERVING: ["i0", "i1"]}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    hosts = [name for names in NODES.values() for name in names]
    places = {name: f"hall1/b1/r{number}" for number, name in enumerate(hosts)}
    groups = {"control_plane": ["cp1"], "gpu_nodes": hosts, **{f"pool_{pool}": n for pool, n in NODES.items()}}
    fleet = check(inventory_from_groups(DESCRIPTION, {"all": ["cp1", *hosts], **groups}, locations=places)).fleet
    # As the description has it: playbooks/vars/stack.yml, site_kueue_integrations.
    kinds = ("batch/job", "pod", "deployment", "statefulset")
    with apiserver.control_plane(tmp_path_factory.mktemp("inference") / "plane", integrations=kinds) as running:
        nodes = [fake_node(n, places[n].split("/"), pool=pool) for pool, names in NODES.items() for n in names]
        running.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "myriad-system"}}, *nodes])
        with contextlib.closing(connect(running.kubeconfig)) as api:
            Applier(api, Options(set_name="cluster-policy")).apply(objects_for_cluster_policy(fleet))
        running.wait_for_nodes()
        yield running


def service(name: str, team: str, replicas: int) -> Json:
    """A Deployment of replicas with a GPU each."""
    limits = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}
    main = {"name": "main", "image": "registry.invalid/serve:1", "resources": {"requests": limits, "limits": limits}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": team, "labels": {"kueue.x-k8s.io/queue-name": SERVING}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [main]},
            },
        },
    }


def training(name: str, team: str, *, pods: int, priority: str = "normal", pool: str = TRAINING, gpus: int = 8) -> Json:
    job = gang_job(name, pods=pods, gpus=gpus, namespace=team, pool=pool)
    job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = priority
    return job


def serving(api: Api, name: str, team: str) -> dict[str, str]:
    """Nodes of the replicas that run, by uid."""
    return {
        pod["metadata"]["uid"]: pod["spec"]["nodeName"]
        for pod in api.list(PODS, namespace=team, labels=f"app={name}")[0]
        if (pod.get("status") or {}).get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
    }


def until_serving(api: Api, name: str, team: str, count: int) -> dict[str, str]:
    found: dict[str, str] = until(
        lambda: len(running := serving(api, name, team)) == count and running,
        f"{count} replicas of {name}",
        timeout_s=90,
    )
    return found


def has_room(api: Api, job: str, team: str) -> bool:
    """Whether a job is admitted."""
    views = [workload_view(body, check_name="myriad") for body in api.list(WORKLOADS, namespace=team)[0]]
    return any(v.gang.name == job and v.admitted for v in views)


def evictions(api: Api) -> set[str]:
    """Queues' Workloads that Kueue has evicted, as namespace/owner."""
    return {
        f"{body['metadata']['namespace']}/{body['metadata']['ownerReferences'][0]['name']}"
        for team in ("vision", "speech")
        for body in api.list(WORKLOADS, namespace=team)[0]
        for c in (body.get("status") or {}).get("conditions") or []
        if c["type"] in ("Evicted", "Preempted") and c["status"] == "True"
    }


@pytest.fixture(autouse=True)
def clean(plane: ControlPlane, api: Api) -> Iterator[None]:
    yield
    for team in ("vision", "speech"):
        plane.kubectl("-n", team, "delete", "deployment,job", "--all", "--wait=false")
        until(lambda: not api.list(PODS, namespace=team)[0], f"pods of {team} are gone", timeout_s=60)  # noqa: B023
        until(lambda: not api.list(WORKLOADS, namespace=team)[0], f"Workloads of {team} are gone", timeout_s=60)  # noqa: B023


def test_p10_a_service_is_never_a_training_jobs_victim(plane: ControlPlane, api: Api) -> None:
    plane.apply([service("chat", "vision", QUOTA)])
    before = until_serving(api, "chat", "vision", QUOTA)
    assert set(before.values()) <= set(NODES[SERVING])
    # vision's training borrows what is speech's; speech wants it back with the highest priority there is.
    plane.apply([training("borrows", "vision", pods=2)])
    until(lambda: has_room(api, "borrows", "vision"), "the borrower runs")
    plane.apply([training("owns", "speech", pods=1, priority="urgent")])
    until(lambda: has_room(api, "owns", "speech"), "the owner has its quota back")
    assert "vision/borrows" in evictions(api), "in training the owner reclaims"
    assert serving(api, "chat", "vision") == before, "the service has the pods that it had"
    assert evictions(api) == {"vision/borrows"}


def test_p10_nor_of_a_batch_job_in_its_own_queue(plane: ControlPlane, api: Api) -> None:
    plane.apply([service("chat", "vision", QUOTA), service("asr", "speech", QUOTA)])
    before = until_serving(api, "chat", "vision", QUOTA)
    until_serving(api, "asr", "speech", QUOTA)
    urgent = training("batch", "vision", pods=1, gpus=1, priority="urgent", pool=SERVING)
    done = plane.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(urgent), check=False)
    assert not done, "a training job has no business there: an admission policy refuses it"
    assert not plane.kubectl("-n", "vision", "get", "jobs", "-o", "name")
    urgent["metadata"]["annotations"] = {"myriad.dev/use": "inference"}
    plane.apply([urgent])

    def said() -> str:
        views = [workload_view(body, check_name="myriad") for body in api.list(WORKLOADS, namespace="vision")[0]]
        return next((v.quota_message for v in views if v.gang.name == "batch"), "")

    assert "insufficient unused quota" in until(said, "Kueue says that it waits")
    assert serving(api, "chat", "vision") == before and not evictions(api)
    assert not has_room(api, "batch", "vision")


def test_p10_within_its_reserve_it_grows_at_once_and_above_it_takes_back_its_own(plane: ControlPlane, api: Api) -> None:
    plane.apply([service("chat", "vision", 2), service("asr", "speech", 2 * QUOTA)])
    until_serving(api, "chat", "vision", 2)
    # speech borrows what vision lends, and not one GPU more, though two are idle.
    lent = until_serving(api, "asr", "speech", QUOTA + LENT)

    plane.kubectl("-n", "vision", "scale", "deployment", "chat", f"--replicas={RESERVE}")
    until_serving(api, "chat", "vision", RESERVE)
    assert serving(api, "asr", "speech") == lent and not evictions(api), "nobody had to go for it"

    plane.kubectl("-n", "vision", "scale", "deployment", "chat", f"--replicas={QUOTA}")
    mine = until_serving(api, "chat", "vision", QUOTA)
    left = until_serving(api, "asr", "speech", QUOTA)
    assert set(left) < set(lent), "the borrower gave back what was lent, and kept the rest"

    plane.kubectl("-n", "vision", "scale", "deployment", "chat", f"--replicas={QUOTA + 2}")
    pods = until(
        lambda: len(found := api.list(PODS, namespace="vision", labels="app=chat")[0]) == QUOTA + 2 and found,
        "two more pods",
    )
    waiting = [pod for pod in pods if pod["metadata"]["uid"] not in mine]
    assert all({"name": "kueue.x-k8s.io/admission"} in pod["spec"]["schedulingGates"] for pod in waiting)

    def refused() -> bool:
        views = [workload_view(body, check_name="myriad") for body in api.list(WORKLOADS, namespace="vision")[0]]
        return sum("insufficient unused quota" in view.quota_message for view in views) == len(waiting)

    until(refused, "Kueue says that they wait")
    assert serving(api, "asr", "speech") == left and serving(api, "chat", "vision") == mine, "above its quota it waits"
