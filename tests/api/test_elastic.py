"""An elastic job, as `myriad job new batch --elastic` renders it, on the real Kueue: it loses a worker and gets it
back, starts with fewer where no more is free, and is done with its rank 0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apiserver
import pytest
from apiserver import ControlPlane, fake_node, gang_job, queue_objects, until

from myriad.jobs.render import render
from myriad.jobs.request import Request, checked
from myriad.kube.client import Api
from myriad.kube.kinds import JOBS, PODS, WORKLOADS

Json = dict[str, Any]

pytestmark = [apiserver.AT_HAND, pytest.mark.slow]

INDEX = "batch.kubernetes.io/job-completion-index"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with apiserver.control_plane(tmp_path_factory.mktemp("elastic") / "plane") as running:
        nodes = [fake_node(f"g{i}", ("hall1", "b1", f"r{i // 2}")) for i in range(4)]
        running.apply([*nodes, *queue_objects(gpus=32)])
        running.wait_for_nodes()
        yield running


def elastic(name: str) -> list[Json]:
    """Two to three workers of eight GPUs."""
    image = f"registry.invalid/myriad/gang-check@sha256:{'5e' * 32}"
    wanted = Request(
        form="batch", name=name, namespace="vision", queue="h100", nodes=3, minimum=2, gpus=8, image=image, cpu="1",
        memory="1Gi", grace_s=1,
    )  # fmt: skip
    return list(render(checked(wanted)).objects)


def workers(api: Api, job: str, count: int) -> dict[str, Json] | None:
    """The workers that run, by index, where there are so many."""
    found = {
        pod["metadata"]["labels"][INDEX]: pod
        for pod in api.list(PODS, namespace="vision", labels=f"batch.kubernetes.io/job-name={job}")[0]
        if (pod.get("status") or {}).get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
    }
    return found if len(found) == count else None


def conditions(api: Api, job: str) -> dict[str, tuple[str, str]]:
    """Of the job's Workload: status and since when."""
    (body,) = [
        w for w in api.list(WORKLOADS, namespace="vision")[0] if w["metadata"]["ownerReferences"][0]["name"] == job
    ]
    return {c["type"]: (c["status"], c["lastTransitionTime"]) for c in body["status"]["conditions"]}


def ended(api: Api, job: str) -> set[str]:
    """What a Job says of its end."""
    states = api.get(JOBS, job, namespace="vision")["status"].get("conditions") or []
    return {c["type"] for c in states if c["status"] == "True" and c["type"] != "Suspended"}


@pytest.fixture(autouse=True)
def _clean(plane: ControlPlane, api: Api) -> Iterator[None]:
    yield
    plane.kubectl("-n", "vision", "delete", "jobs,services", "--all", "--wait=false")
    until(lambda: not api.list(PODS, namespace="vision")[0], "its pods are gone", timeout_s=90)


def ends(api: Api, pod: Json, phase: str, code: int) -> None:
    """What a kubelet says of a pod whose container has ended."""
    ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "finishedAt": "2026-11-30T15:00:00Z"}
    status = {**pod["status"]["containerStatuses"][0], "ready": False, "state": {"terminated": ended}}
    api.patch(
        PODS, pod["metadata"]["name"], {"status": {"phase": phase, "containerStatuses": [status]}}, namespace="vision",
        subresource="status",
    )  # fmt: skip


def test_p10_a_lost_worker_comes_back_and_the_others_never_notice(plane: ControlPlane, api: Api) -> None:
    plane.apply(elastic("train"))
    before = until(lambda: workers(api, "train", 3), "three workers run", timeout_s=90)
    admitted = conditions(api, "train")["Admitted"]
    ends(api, before["1"], "Failed", 143)

    def back() -> dict[str, Json] | None:
        now = workers(api, "train", 3)
        return now if now and now["1"]["metadata"]["uid"] != before["1"]["metadata"]["uid"] else None

    after = until(back, "it is back", timeout_s=90)
    for index in ("0", "2"):
        assert after[index]["metadata"]["uid"] == before[index]["metadata"]["uid"], "the others are the same pods"
    assert after["1"]["spec"]["nodeName"] == before["1"]["spec"]["nodeName"], "in its own place: nothing has moved"
    now = conditions(api, "train")
    assert now["Admitted"] == admitted and now.get("Evicted", ("False", ""))[0] == "False"
    assert not ended(api, "train"), "143 is no failure of the job"

    # Done with rank 0, whoever of the others is on the way back.
    ends(api, after["1"], "Failed", 143)
    ends(api, after["0"], "Succeeded", 0)
    until(lambda: conditions(api, "train").get("Finished", ("", ""))[0] == "True", "the job is done", timeout_s=90)
    until(lambda: ended(api, "train") == {"SuccessCriteriaMet", "Complete"}, "by its own word", timeout_s=90)
    until(lambda: workers(api, "train", 0) == {}, "nobody holds GPUs any more", timeout_s=90)


def test_p10_it_starts_with_its_least_number_where_no_more_is_free(plane: ControlPlane, api: Api) -> None:
    plane.apply([gang_job("other", pods=2, gpus=8)])
    until(lambda: workers(api, "other", 2), "the other runs", timeout_s=90)
    plane.apply(elastic("small"))
    found = until(lambda: workers(api, "small", 2), "two workers run", timeout_s=90)
    assert set(found) == {"0", "1"}
    spec = api.get(JOBS, "small", namespace="vision")["spec"]
    assert (spec["parallelism"], spec["completions"]) == (2, 2), "the indices follow"
