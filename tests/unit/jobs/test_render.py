"""What `myriad job new` renders, and what it refuses to."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import pytest
import yaml

from myriad.errors import InputError
from myriad.jobs.render import render, to_yaml
from myriad.jobs.request import Form, PoolFacts, Request, checked, parse_elastic, parse_hours
from myriad.lint import findings, scene_of
from myriad.lint.documents import Document, read_text

Json = dict[str, Any]
IMAGE = f"registry.myriad.internal/vision/train@sha256:{'5e' * 32}"


def request(form: Form = "batch", **changes: Any) -> Request:
    plain = Request(
        form=form, name="bert", namespace="vision", queue="h100", nodes=2, gpus=8, image=IMAGE, hours=Fraction(6)
    )
    return dataclasses.replace(plain, **changes)


def job(wanted: Request, **served: bool) -> Json:
    return render(checked(wanted), **served).objects[-1]


FORMS = [
    request(),
    request(nodes=1, gpus=1),
    request(nodes=8, minimum=4),
    request(nodes=2, minimum=1, priority="normal"),
    request("pytorch"),
    request("pytorch", nodes=1),
    request("pytorch", nodes=9, priority="urgent", cpu="32", memory="256Gi"),
    request(pool=PoolFacts(engine="volcano")),
    request("pytorch", pool=PoolFacts(engine="volcano")),
    request(pool=PoolFacts(resource="huawei.com/Ascend910")),
    request(checkpoint_claim="ckpt", env=(("A", "1"),), command=("python", "-c", "print(1)")),
]


@pytest.mark.parametrize(
    "wanted", FORMS, ids=lambda r: f"{r.form}-{r.nodes}-{r.minimum}-{r.pool.engine}-{r.pool.resource}"
)
@pytest.mark.parametrize("served", [True, False])
def test_lint_finds_nothing_in_what_is_rendered(wanted: Request, served: bool) -> None:
    rendered = render(checked(wanted), pytorch_served=served)
    documents = read_text(to_yaml(rendered, ["a header"]), "job.yml")
    assert [d.body for d in documents] == list(rendered.objects), "the text says what the objects say"
    assert [(f.rule, f.message) for f in findings(scene_of(documents))] == []


def test_a_gang_has_all_that_it_needs() -> None:
    service, body = render(request(checkpoint_interval="15m", priority="normal")).objects
    assert body["metadata"]["labels"] == {
        "kueue.x-k8s.io/queue-name": "h100",
        "kueue.x-k8s.io/priority-class": "normal",
        "kueue.x-k8s.io/max-exec-time-seconds": "21600",
    }
    assert body["metadata"]["annotations"]["myriad.dev/checkpoint-interval"] == "15m"
    template, spec = body["spec"]["template"], body["spec"]["template"]["spec"]
    assert (body["spec"]["completionMode"], body["spec"]["completions"], body["spec"]["parallelism"]) == (
        "Indexed",
        2,
        2,
    )
    assert template["metadata"]["annotations"]["kueue.x-k8s.io/podset-preferred-topology"] == "myriad.dev/rack"
    assert spec["terminationGracePeriodSeconds"] == 300 and spec["subdomain"] == service["metadata"]["name"] == "bert"
    (container,) = spec["containers"]
    assert container["image"] == IMAGE and "preStop" in container["lifecycle"]
    assert container["resources"]["requests"] == container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    env = {e["name"]: e.get("value") for e in container["env"]}
    assert (env["MASTER_ADDR"], env["WORLD_SIZE"]) == ("bert-0.bert", "2") and "RANK" in env
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]


def test_one_pod_needs_neither_service_nor_neighbours() -> None:
    (body,) = render(request(nodes=1)).objects
    assert "subdomain" not in body["spec"]["template"]["spec"]
    assert "kueue.x-k8s.io/podset-preferred-topology" not in body["spec"]["template"]["metadata"]["annotations"]


def test_an_elastic_job_has_a_minimum_and_ranks_that_follow() -> None:
    body = job(request(nodes=8, minimum=4))
    annotations = body["metadata"]["annotations"]
    assert annotations["kueue.x-k8s.io/job-min-parallelism"] == "4"
    assert annotations["kueue.x-k8s.io/job-completions-equal-parallelism"] == "true"
    env = {e["name"]: e.get("value") for e in body["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert env["PET_NNODES"] == "4:8" and env["PET_RDZV_ENDPOINT"] == "bert-0.bert:29500" and "WORLD_SIZE" not in env
    assert body["spec"]["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
    assert "successPolicy" not in job(request(nodes=8))["spec"], "of a gang all ranks have to end"


def test_a_pytorchjob_is_one_master_and_the_rest_workers_with_the_gangs_minimum() -> None:
    spec = job(request("pytorch", nodes=9))["spec"]
    replicas = spec["pytorchReplicaSpecs"]
    assert (replicas["Master"]["replicas"], replicas["Worker"]["replicas"]) == (1, 8)
    assert spec["runPolicy"]["schedulingPolicy"]["minAvailable"] == 9 and spec["nprocPerNode"] == "8"
    assert all(r["template"]["spec"]["containers"][0]["name"] == "pytorch" for r in replicas.values())
    assert "Worker" not in job(request("pytorch", nodes=1))["spec"]["pytorchReplicaSpecs"]


def test_without_pytorchjobs_the_same_command_runs_in_a_job_and_that_is_said() -> None:
    rendered = render(request("pytorch"), pytorch_served=False)
    assert [o["kind"] for o in rendered.objects] == ["Service", "Job"]
    assert any("no PyTorchJobs" in line for line in rendered.says)
    container = rendered.objects[1]["spec"]["template"]["spec"]["containers"][0]
    env = {e["name"]: e.get("value") for e in container["env"]}
    assert container["command"][0] == "torchrun" and (env["PET_NNODES"], env["PET_NPROC_PER_NODE"]) == ("2", "8")


def test_a_pool_of_volcano_gets_its_scheduler_queue_and_minimum() -> None:
    body = job(request(pool=PoolFacts(engine="volcano")))
    assert body["spec"]["template"]["spec"]["schedulerName"] == "volcano"
    assert body["metadata"]["annotations"]["scheduling.volcano.sh/group-min-member"] == "2"
    # Volcano reads the minimum on the Job, and queue and topology on its pods (seen with Volcano 1.15.1).
    of_pods = body["spec"]["template"]["metadata"]["annotations"]
    assert of_pods["scheduling.volcano.sh/queue-name"] == "myriad"
    assert of_pods["volcano.sh/network-topology-mode"] == "soft"
    assert "kueue.x-k8s.io/podset-preferred-topology" not in body["spec"]["template"]["metadata"]["annotations"]
    torch = job(request("pytorch", pool=PoolFacts(engine="volcano")))
    assert torch["spec"]["runPolicy"]["schedulingPolicy"] == {"minAvailable": 2, "queue": "myriad"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "Bert"}, "--name 'Bert' is no name"),
        ({"name": "b" * 53}, "up to 52"),
        ({"name": "-b"}, "no dash at an end"),
        ({"namespace": ""}, "namespace '' is no name"),
        ({"nodes": 0}, "1 node or more"),
        ({"gpus": 0}, "1 GPU or more"),
        ({"gpus": 16, "pool": PoolFacts(gpus_per_node=8)}, "no node of pool h100 has 16 GPUs (8 at most)"),
        ({"image": "a:latest"}, "not named by digest"),
        ({"image": "a@sha256:12"}, "not named by digest"),
        ({"hours": Fraction(0)}, "--hours is 0"),
        ({"hours": Fraction(9000)}, "at most"),
        ({"checkpoint_interval": "often"}, "is no time"),
        ({"minimum": 2}, "below the maximum"),
        ({"minimum": 0}, "1 or more"),
        ({"form": "pytorch", "nodes": 8, "minimum": 4}, "a PyTorchJob cannot be elastic here"),
        ({"pool": PoolFacts(resource="gpu")}, "no resource name"),
        ({"pool": PoolFacts(resource="nvidia.com/mig-1g.10gb")}, "slices do not reach each other"),
        ({"env": (("A B", "1"),)}, "no name of a variable"),
        ({"memory": "64 GB"}, "--memory '64 GB' is no quantity"),
        ({"cpu": "0"}, "above 0"),
        ({"cpu": "16Gi"}, "--cpu 16Gi is 17,179,869,184 cores: Gi is a unit of memory; write 16"),
        ({"memory": "64"}, "--memory 64 is 64 bytes"),
        ({"cpu": "1e999999999"}, "is no quantity"),
        ({"nodes": 99_999_999_999}, "a job has 100,000 nodes at most"),
        ({"gpus": 999}, "a pod has 256 GPUs at most"),
        ({"pool": PoolFacts(resource="nvidia.com/gpus")}, "the device is called nvidia.com/gpu"),
        ({"checkpoint_claim": "My_Claim"}, "no name of a PersistentVolumeClaim"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(changes: Json, said: str) -> None:
    with pytest.raises(InputError) as caught:
        checked(request(**changes))
    assert said in caught.value.message and caught.value.where and caught.value.hint


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(InputError) as caught:
        checked(request(name="B", nodes=0, image="x"))
    assert len(caught.value.message.splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "hours"), [("12", 12), ("0.5", Fraction(1, 2)), ("1h30m", Fraction(3, 2)), ("45m", Fraction(3, 4))]
)
def test_hours_in_every_form(text: str, hours: Fraction) -> None:
    assert parse_hours(text) == hours


@pytest.mark.parametrize("text", ["", "soon", "1d", "1/0", "h", "1e999999999", "9" * 5000, "9" * 5000 + "h"])
def test_hours_that_are_none(text: str) -> None:
    with pytest.raises(InputError):
        parse_hours(text)


def test_ranges() -> None:
    assert parse_elastic("4:8") == (4, 8)
    for text in ("4", "4:", ":8", "a:b", "4:8:16", "-1:8", "٤:٨", "1:" + "9" * 5000):
        with pytest.raises(InputError):
            parse_elastic(text)


def test_the_text_begins_with_its_header_and_is_yaml() -> None:
    text = to_yaml(render(request()), ["one", "two"])
    assert text.startswith("# one\n# two\n")
    assert len(list(yaml.safe_load_all(text))) == 2 and Document({}).line() is None
