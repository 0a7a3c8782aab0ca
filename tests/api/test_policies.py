"""Admission rules on a real API server: each refuses (or tells of) what it is for, with a message that says how to mend
it, and lets the mended form in. What has no GPUs, and what is not in a team's namespace, is touched by none."""

from __future__ import annotations

import copy
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apiserver
import httpx
import pytest
import yaml
from apiserver import ControlPlane
from jinja2 import Environment, FileSystemLoader

from myriad.fleet import Fleet, check, objects_for_cluster_policy
from myriad.fleet.access import access_objects
from myriad.fleet.admission import DEFAULT_EFFECTS
from myriad.fleet.source import inventory_from_groups
from myriad.kube.spread import spread

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
IMAGE = f"registry.myriad.internal/team/train@sha256:{'0' * 64}"
QUEUE = "kueue.x-k8s.io/queue-name"
LIMIT = "kueue.x-k8s.io/max-exec-time-seconds"
USER = "alice"

pytestmark = [apiserver.AT_HAND]


def fleet() -> Fleet:
    """Two teams; pools for training (one of Volcano's, one that wants limits, one with a default) and for inference."""
    pools = ("h100", "v100", "l40s", "a100", "b200")
    model = {"model": "H100-SXM5-80GB"}
    checked = check(
        inventory_from_groups(
            {
                "myriad_pools": {
                    "h100": model,
                    "v100": model | {"engine": "volcano"},
                    "l40s": model | {"use": "inference"},
                    "a100": model | {"unlimited": "refuse", "max_hours": 10},
                    "b200": model | {"default_hours": 24},
                },
                "myriad_teams": {
                    "vision": {
                        "namespaces": ["vision"],
                        "quota": dict.fromkeys(pools, 8),
                    }
                },
            },
            {"control_plane": ["cp1"], "gpu_nodes": [], **{f"pool_{pool}": [] for pool in pools}},
        )
    )
    return checked.fleet


def pytorchjob_kind() -> Json:
    """The CRD as far as the rules look into it: everything below spec is kept as it was sent."""
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "pytorchjobs.kubeflow.org"},
        "spec": {
            "group": "kubeflow.org",
            "names": {"kind": "PyTorchJob", "plural": "pytorchjobs", "singular": "pytorchjob"},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def container(**resources: Any) -> Json:
    return {"name": "main", "image": IMAGE, "resources": resources or {"limits": {"nvidia.com/gpu": 8}}}


def template(**spec: Any) -> Json:
    return {
        "metadata": {"annotations": {"myriad.dev/handles-sigterm": "true"}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 300, "containers": [container()], **spec},
    }


def job(queue: str | None = "h100", *, pods: int = 2, annotations: Json | None = None, **spec: Any) -> Json:
    labels = {QUEUE: queue} if queue else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "bert", "namespace": "vision", "labels": labels, "annotations": annotations or {}},
        "spec": {"suspend": True, "parallelism": pods, "completions": pods, "template": template(**spec)},
    }


def pytorchjob(queue: str | None = "h100", *, minimum: int | None = 3, **spec: Any) -> Json:
    body = job(queue)
    replicas = {
        "Master": {"replicas": 1, "template": template(**spec)},
        "Worker": {"replicas": 2, "template": template()},
    }
    body |= {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": replicas}}
    if minimum is not None:
        body["spec"]["runPolicy"] = {"schedulingPolicy": {"minAvailable": minimum}}
    return body


def pod(queue: str | None = "h100", *, gated: bool = True, **spec: Any) -> Json:
    body = job(queue)
    made = template(**spec)
    if gated:
        # As Kueue's webhook has set it by then, where Kueue counts pods.
        made["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    return body | {"apiVersion": "v1", "kind": "Pod", "spec": made["spec"]}


def service(queue: str | None = "l40s") -> Json:
    body = job(queue)
    made = template(restartPolicy="Always")
    made["metadata"]["labels"] = {"app": "x"}
    body |= {"apiVersion": "apps/v1", "kind": "Deployment"}
    body["spec"] = {"selector": {"matchLabels": {"app": "x"}}, "template": made}
    return body


def limited(body: Json, seconds: str) -> Json:
    body["metadata"]["labels"][LIMIT] = seconds
    return body


def image(name: str) -> Json:
    return job(containers=[container() | {"image": name}])


def deaf(body: Json, **more: Any) -> Json:
    body["spec"]["template"]["metadata"] = {}
    body["spec"]["template"]["spec"]["containers"][0] |= more
    return body


HOOK = {"lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "touch /tmp/stop"]}}}}
HALF = {"requests": {"nvidia.com/gpu": 4}, "limits": {"nvidia.com/gpu": 8}}
MIG = {"limits": {"nvidia.com/mig-1g.10gb": 1}}

# rule: what is wrong, words of the answer, and the mended form
CASES: list[tuple[str, Json, tuple[str, ...], Json]] = [
    ("queue", job(None), ("Job bert asks for GPUs and names no queue", f"{QUEUE}: a100 or b200 or h100"), job()),
    ("queue", pytorchjob(None), ("PyTorchJob bert asks for GPUs and names no queue",), pytorchjob()),
    ("queue", pod(None), ("Pod bert asks for GPUs and names no queue",), pod()),
    ("queue", service(None), ("Deployment bert asks for GPUs and names no queue",), service()),
    ("queue", pod(gated=False), ("Kueue does not count single pods here: make it a Job",), pod()),
    ("queue", job("h10"), ('names the queue "h10", which namespace vision does not have',), job("h100")),
    (
        "gpu-limits",
        pytorchjob(containers=[container(**HALF)]),
        ("container main requests another number of GPUs than it limits", "resources.limits"),
        pytorchjob(containers=[container(requests={"nvidia.com/gpu": 8}, limits={"nvidia.com/gpu": "8"})]),
    ),
    (
        "gpu-limits",
        pytorchjob(containers=[container(requests={"nvidia.com/gpu": 8})]),
        ("requests another number of GPUs than it limits",),
        pytorchjob(),
    ),
    (
        "whole-gpus",
        job(containers=[container(**MIG)]),
        ("asks for nvidia.com/mig-1g.10gb", "pool h100 is for training on whole GPUs: ask for nvidia.com/gpu"),
        job(),
    ),
    ("gang", pytorchjob(minimum=2), ("a gang of 3 pods of which 2", "minAvailable: 3"), pytorchjob(minimum=3)),
    ("gang", pytorchjob(minimum=9), ("a gang of 3 pods of which 9", "minAvailable: 3"), pytorchjob(minimum=None)),
    (
        "gang",
        pytorchjob("v100", minimum=None),
        ("does not say how many of them must start together", "minAvailable: 3"),
        pytorchjob("v100"),
    ),
    (
        "gang",
        job("v100"),
        ("is a gang of 2 pods", 'the annotation scheduling.volcano.sh/group-min-member: "2"'),
        job("v100", annotations={"scheduling.volcano.sh/group-min-member": "2"}),
    ),
    (
        "inference-queue",
        job("l40s"),
        ("is a batch job in pool l40s", "myriad.dev/use: inference"),
        job("l40s", annotations={"myriad.dev/use": "inference"}),
    ),
    ("time-limit", job("a100"), ("has no time limit", LIMIT), limited(job("a100"), "3600")),
    (
        "time-limit",
        limited(job("a100"), "40000"),
        ("asks for 40000 s", "allows 36000 s"),
        limited(job("a100"), "36000"),
    ),
    ("time-limit-default", job("b200"), ("gets that of pool b200: 24 h",), limited(job("b200"), "3600")),
    ("image-tag", image("your-registry/train-image:latest"), ("runs your-registry/train-image:latest",), image(IMAGE)),
    ("image-tag", image("host:5000/train"), ("name it by digest",), image("registry.myriad.internal/train:1.2")),
    (
        "image-registry",
        image("nvcr.io/nvidia/pytorch:26.01"),
        ("not of this site", "registry.myriad.internal"),
        image(IMAGE),
    ),
    ("image-digest", image("registry.myriad.internal/train:1.2"), ("name it by digest",), image(IMAGE)),
    ("grace", job(terminationGracePeriodSeconds=30), ("less than 300 s to save",), job()),
    ("stop-signal", deaf(job()), ('myriad.dev/handles-sigterm: "true"',), deaf(job(), **HOOK)),
]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    wanted = ("Namespace", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    objects = [o for o in objects_for_cluster_policy(fleet()) if o["kind"] in wanted]
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": USER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
    }
    with apiserver.api_server(tmp_path_factory.mktemp("policies") / "plane", users=[USER], namespaces=["other"]) as it:
        it.apply([pytorchjob_kind(), role, *objects])
        # The API server notices new kinds and policies by watches of its own.
        end = time.monotonic() + 30
        while time.monotonic() < end and (
            ask(it, pytorchjob(None)).status_code != 422 or "stop-signal" not in told(ask(it, deaf(job())))
        ):
            time.sleep(0.2)
        yield it


def ask(plane: ControlPlane, body: Json, namespace: str = "vision", user: str = USER) -> httpx.Response:
    """Create an object as a dry run: admission is asked, nothing stays."""
    group = body["apiVersion"]
    plural = {
        "Deployment": "deployments",
        "Pod": "pods",
        "Job": "jobs",
        "PyTorchJob": "pytorchjobs",
        "Service": "services",
    }
    path = f"{'/api' if '/' not in group else '/apis'}/{group}/namespaces/{namespace}/{plural[body['kind']]}"
    sent = copy.deepcopy(body)
    sent["metadata"]["namespace"] = namespace
    return httpx.post(
        f"{plane.url}{path}",
        params={"dryRun": "All"},
        json=sent,
        headers={"Authorization": f"Bearer {plane.tokens[user]}"},
        verify=ssl.create_default_context(cafile=str(plane.ca)),
    )


def told(answer: httpx.Response) -> dict[str, str]:
    """What was said, by rule: refusals and warnings alike."""
    lines = [line.split(" ", 2)[2].strip('"').replace('\\"', '"') for line in answer.headers.get_list("Warning")]
    if answer.status_code >= 400:
        lines.append(answer.json()["message"])
    found = {}
    for line in lines:
        for rule in DEFAULT_EFFECTS:
            if f"'myriad-{rule}'" in line:
                found[rule] = line
    return found


@pytest.mark.parametrize(
    ("rule", "wrong", "words", "right"), CASES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_rule_says_what_is_wrong_and_takes_the_mended_form(
    plane: ControlPlane, rule: str, wrong: Json, words: tuple[str, ...], right: Json
) -> None:
    answer = ask(plane, wrong)
    said = told(answer)
    assert rule in said, answer.text
    for word in words:
        assert word in said[rule]
    assert answer.status_code == (422 if DEFAULT_EFFECTS[rule] == "deny" else 201), answer.text
    mended = ask(plane, right)
    assert mended.status_code == 201, mended.text
    assert rule not in told(mended)


def test_every_rule_has_a_case() -> None:
    assert {rule for rule, *_ in CASES} == set(DEFAULT_EFFECTS)


def test_nobody_is_touched_without_gpus_or_outside_of_teams(plane: ControlPlane) -> None:
    plain = container() | {"image": "busybox:latest", "resources": {"limits": {"memory": "1Gi"}}}
    for body in (pod(None, containers=[plain]), job(None, containers=[plain])):
        answer = ask(plane, body)
        assert (answer.status_code, told(answer)) == (201, {})
    for namespace in ("other", "kube-system"):
        answer = ask(plane, image("busybox:latest"), namespace=namespace)
        assert (answer.status_code, told(answer)) == (201, {})


def test_what_a_controller_makes_of_a_checked_job_is_let_in(plane: ControlPlane) -> None:
    made = pod(None)
    made["metadata"]["ownerReferences"] = [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "bert", "uid": "1", "controller": True}
    ]
    assert ask(plane, made, user="admin").status_code == 201
    answer = ask(plane, made)
    assert answer.status_code == 422 and "queue" in told(answer), "a person cannot name a job to get past the rules"


def test_the_examples_are_let_in_without_a_word(plane: ControlPlane) -> None:
    for path in sorted((ROOT / "docs/examples").glob("*.yml")):
        for body in yaml.safe_load_all(path.read_text()):
            if body["kind"] in ("Job", "PyTorchJob"):
                answer = ask(plane, body)
                assert answer.status_code == 201, (path.name, answer.text)
                assert set(told(answer)) <= {"image-digest"}, "an example of the lab has the bundle's tag"


def test_no_shape_of_an_object_is_refused_by_an_expression_that_fails(plane: ControlPlane) -> None:
    for spec in ({}, {"pytorchReplicaSpecs": {}}, {"pytorchReplicaSpecs": {"Worker": {}}}, {"pytorchReplicaSpecs": 7}):
        answer = ask(plane, pytorchjob() | {"spec": spec})
        assert (answer.status_code, told(answer)) == (201, {})


def kueue_says(work: Path, **variables: Any) -> str:
    """What the real Kueue says of the configuration that the role renders; it stops when it has read it."""
    environment = Environment(loader=FileSystemLoader(ROOT / "roles/kueue/templates"), autoescape=False)  # noqa: S701 - YAML, no page
    environment.filters["to_nice_yaml"] = yaml.safe_dump
    environment.filters["myriad.gpu.spread"] = spread
    defaults = yaml.safe_load((ROOT / "roles/kueue/defaults/main.yml").read_text())
    given = {"kueue_grace_s": 300, "kueue_integrations": ["batch/job"], "kueue_tolerations": [], **variables}
    values = yaml.safe_load(environment.get_template("values.yaml.j2").render(**defaults | given))
    (work / "kueue.yaml").write_text(values["managerConfig"]["controllerManagerConfigYaml"])
    process = subprocess.Popen(
        [apiserver.find("kueue") or "kueue", f"--config={work}/kueue.yaml", f"--kubeconfig={work}/none"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said = ""
    with process:
        for line in process.stdout:
            said += line
            if '"Initializing"' in line:
                process.kill()
    return said


def test_kueue_takes_the_configuration_that_the_role_renders(tmp_path: Path) -> None:
    every = ["batch/job", "kubeflow.org/pytorchjob", "pod", "deployment", "statefulset"]
    for integrations in (["batch/job"], every):
        said = kueue_says(tmp_path, kueue_integrations=integrations)
        assert '"Initializing"' in said and "Unable to load" not in said, said
    read = yaml.safe_load((tmp_path / "kueue.yaml").read_text())
    assert read["waitForPodsReady"]["timeout"] == "1200s", "300 s of grace, 600 s of a pull, 300 s of a start"
    assert read["fairSharing"]["preemptionStrategies"], "weights count only with fair sharing"
    assert (read["clientConnection"]["qps"], read["clientConnection"]["burst"]) == (100, 200)
    assert "Unable to load the configuration" in kueue_says(tmp_path, kueue_integrations=["batch/jobs"])


def may(plane: ControlPlane, verb: str, group: str, resource: str, namespace: str = "", sub: str = "") -> bool:
    """Whether somebody of team vision may do it, by the API server's own answer."""
    attributes = {"verb": verb, "group": group, "resource": resource, "namespace": namespace, "subresource": sub}
    answer = httpx.post(
        f"{plane.url}/apis/authorization.k8s.io/v1/subjectaccessreviews",
        json={
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": "bob", "groups": ["myriad:vision"], "resourceAttributes": attributes},
        },
        headers={"Authorization": f"Bearer {plane.tokens['admin']}"},
        verify=ssl.create_default_context(cafile=str(plane.ca)),
    )
    return bool(answer.json()["status"]["allowed"])


def test_a_team_may_work_in_its_namespace_and_see_why_it_waits(plane: ControlPlane) -> None:
    system = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "myriad-system"}}
    plane.apply([system, *access_objects(fleet())])
    end = time.monotonic() + 20
    while time.monotonic() < end and not may(plane, "create", "batch", "jobs", "vision"):
        time.sleep(0.1)
    kueue = "kueue.x-k8s.io"
    for verb, group, resource, sub in (
        ("create", "batch", "jobs", ""),
        ("create", "kubeflow.org", "pytorchjobs", ""),
        ("get", "", "pods", "log"),
        ("list", kueue, "workloads", ""),
        ("watch", "", "events", ""),
    ):
        assert may(plane, verb, group, resource, "vision", sub), resource
        assert not may(plane, verb, group, resource, "other", sub), resource
        assert not may(plane, verb, group, resource, "", sub), "not in all namespaces"
    assert may(plane, "list", kueue, "clusterqueues") and may(plane, "list", "", "nodes")
    assert may(plane, "get", kueue, "localqueues", "vision")
    for verb, group, resource in (
        ("update", kueue, "localqueues"),
        ("patch", kueue, "workloads"),
        ("create", "rbac.authorization.k8s.io", "rolebindings"),
        ("delete", "networking.k8s.io", "networkpolicies"),
        ("create", "", "serviceaccounts"),
    ):
        assert not may(plane, verb, group, resource, "vision"), resource
    assert not may(plane, "get", "", "secrets", "myriad-system")


def test_a_teams_namespace_takes_no_privileged_pods(plane: ControlPlane) -> None:
    answer = ask(plane, pod(hostNetwork=True))
    assert answer.status_code == 403 and "PodSecurity" in answer.text
