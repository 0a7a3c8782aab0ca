"""Jobs on the real API server with the real Kueue: what `myriad job` renders is accepted and admitted, what `submit`
says comes true, what it refuses leaves nothing behind; and the corrected fixtures of lint are accepted too."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apiserver
import pytest
import yaml
from apiserver import ControlPlane, fake_node, queue_objects, until
from typer.testing import CliRunner

from myriad.cli import build_app
from myriad.errors import MyriadError
from myriad.fleet import check, objects_for_cluster_policy
from myriad.fleet.source import inventory_from_groups
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import CLUSTER_QUEUES, JOBS, PODS, PYTORCH_JOBS, SERVICES, WORKLOADS

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
IMAGE = f"registry.invalid/team/train@sha256:{'5e' * 32}"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "myriad"
PYTORCH_CRD = (
    CACHE / "go/mod/github.com/kubeflow/training-operator@v1.8.1/manifests/base/crds/kubeflow.org_pytorchjobs.yaml"
)
#: A folder with the CustomResourceDefinitions of Volcano, where somebody has one.
VOLCANO_CRDS = os.environ.get("MYRIAD_VOLCANO_CRDS", "")

NORMAL = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "WorkloadPriorityClass",
    "metadata": {"name": "normal"},
    "value": 500,
}
MIRROR = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "normal"},
    "value": 500,
    "preemptionPolicy": "Never",
}

pytestmark = [apiserver.AT_HAND]


def rights() -> list[Json]:
    """What a member of a team may do (role team_access): jobs in its own namespace, and a look at the rest."""
    rbac = "rbac.authorization.k8s.io"
    jobs = {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list", "create", "delete"]}
    beside = {"apiGroups": [""], "resources": ["pods", "services"], "verbs": ["get", "list", "create", "delete"]}
    queues = {"apiGroups": ["kueue.x-k8s.io"], "resources": ["workloads", "localqueues"], "verbs": ["get", "list"]}
    nodes = {"apiGroups": [""], "resources": ["nodes", "namespaces"], "verbs": ["get", "list"]}
    rest = ["clusterqueues", "resourceflavors", "topologies", "cohorts", "admissionchecks", "workloadpriorityclasses"]
    kueue = {"apiGroups": ["kueue.x-k8s.io"], "resources": rest, "verbs": ["get", "list"]}
    found = []
    for kind, rules in (("Role", [jobs, beside, queues]), ("ClusterRole", [nodes, kueue])):
        place = {"namespace": "vision"} if kind == "Role" else {}
        found += [
            {"apiVersion": f"{rbac}/v1", "kind": kind, "metadata": {"name": "member", **place}, "rules": rules},
            {
                "apiVersion": f"{rbac}/v1",
                "kind": f"{kind}Binding",
                "metadata": {"name": "member", **place},
                "roleRef": {"apiGroup": rbac, "kind": kind, "name": "member"},
                "subjects": [{"apiGroup": rbac, "kind": "User", "name": "alice"}],
            },
        ]
    return found


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with apiserver.control_plane(tmp_path_factory.mktemp("jobs") / "plane", users=["alice"]) as running:
        nodes = [fake_node(f"g{i}", ("hall1", "b1", f"r{i // 2}")) for i in range(4)]
        running.apply([*nodes, *queue_objects(gpus=24), NORMAL, MIRROR, *rights()])
        running.wait_for_nodes()
        yield running


def myriad(plane: ControlPlane, *arguments: str, stdin: str | None = None, user: str = "") -> tuple[int, str]:
    """Exit code and standard output of `myriad ...`; an error's text instead where it ends in one."""
    app = build_app(arguments[0])
    credentials = plane.kubeconfig_for(user) if user else plane.kubeconfig
    done = CliRunner().invoke(app, [*arguments, "--kubeconfig", str(credentials)], input=stdin)
    if isinstance(done.exception, MyriadError):
        return done.exception.exit_code, str(done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout


def new(plane: ControlPlane, name: str, *options: str, form: str = "batch") -> str:
    """A rendered job."""
    arguments = ["job", "new", form, "--name", name, "--namespace", "vision", "--image", IMAGE, "--hours", "6"]
    code, text = myriad(plane, *arguments, *options)
    assert code == 0, text
    return text


def workload(api: Api, job: str) -> Json | None:
    for item in api.list(WORKLOADS, namespace="vision")[0]:
        if any(owner["name"] == job for owner in item["metadata"].get("ownerReferences") or []):
            return item
    return None


def admitted(api: Api, job: str) -> Json | None:
    found = workload(api, job)
    conditions = ((found or {}).get("status") or {}).get("conditions") or []
    return found if any(c["type"] == "Admitted" and c["status"] == "True" for c in conditions) else None


def clear(api: Api, *names: str) -> None:
    for name in names:
        api.delete(JOBS, name, namespace="vision")
        api.delete(SERVICES, name, namespace="vision")
    until(lambda: all(workload(api, name) is None for name in names), f"{names} are gone")
    until(lambda: not api.list(PODS, namespace="vision")[0], "their pods are gone")
    # What a member reads; Kueue writes it a moment after the Workload has gone.
    until(lambda: not reserved(api), "Kueue's status of the queue says so")


def reserved(api: Api) -> int:
    """GPUs that the queue's status counts as given out."""
    status = api.get(CLUSTER_QUEUES, "vision-h100").get("status") or {}
    resources = [r for flavor in status.get("flavorsReservation") or [] for r in flavor["resources"]]
    return sum(int(r.get("total") or 0) for r in resources if r["name"] == "nvidia.com/gpu")


def test_what_submit_says_comes_true(plane: ControlPlane, api: Api) -> None:
    first = new(plane, "bert", "--nodes", "2", "--gpus", "8", "--priority", "normal")
    code, text = myriad(plane, "job", "submit", "-", "--dry-run", stdin=first)
    assert code == 0 and text.startswith("bert: fits now. 2 x 8 H100 in hall1/b1/r")
    assert "(same rack), 96 GPU-hours at most. Not created (dry run)." in text
    assert api.find(JOBS, "bert", namespace="vision") is None

    code, text = myriad(plane, "job", "submit", "-", stdin=first)
    assert code == 0 and "fits now" in text, text
    found = until(lambda: admitted(api, "bert"), "bert is admitted")
    assert found["spec"]["maximumExecutionTimeSeconds"] == 21600
    assert found["spec"]["podSets"][0]["topologyRequest"]["preferred"] == "myriad.dev/rack"
    pods = until(
        lambda: (
            [p for p in api.list(PODS, namespace="vision")[0] if p["spec"].get("nodeName")][1:]
            and api.list(PODS, namespace="vision")[0]
        ),
        "its pods stand on nodes",
    )
    racks = {p["spec"]["nodeName"][1:] for p in pods}
    assert racks in ({"0", "1"}, {"2", "3"}), "both pods in one rack"
    assert api.find(SERVICES, "bert", namespace="vision")

    second = new(plane, "clip", "--nodes", "2", "--gpus", "8")
    code, text = myriad(plane, "job", "submit", "-", stdin=second)
    assert code == 0 and text.startswith("clip: waits for quota: needs 16 H100, vision has 24, 16 in use"), text
    assert "Created." in text and until(lambda: workload(api, "clip"), "clip stands in the queue")
    assert admitted(api, "clip") is None

    code, text = myriad(plane, "job", "submit", "-", stdin=second)
    assert code == 1 and "there is already a Job clip" in text
    clear(api, "bert", "clip")


def test_a_job_that_can_never_run_is_refused_and_nothing_is_created(plane: ControlPlane, api: Api) -> None:
    for name, options, said in (
        ("wide", ("--nodes", "2", "--gpus", "16"), "no node has more than 8 GPUs"),
        ("many", ("--nodes", "4", "--gpus", "8"), "never gives more than 24"),
        ("class", ("--gpus", "8", "--priority", "urgent"), "names the WorkloadPriorityClass urgent"),
    ):
        code, text = myriad(plane, "job", "submit", "-", stdin=new(plane, name, *options))
        assert code == 1 and said in text and "Nothing was created." in text, text
        assert api.find(JOBS, name, namespace="vision") is None and api.find(SERVICES, name, namespace="vision") is None


def test_an_elastic_job_is_admitted_with_what_is_free(plane: ControlPlane, api: Api) -> None:
    code, text = myriad(plane, "job", "submit", "-", stdin=new(plane, "base", "--nodes", "2", "--gpus", "8"))
    assert code == 0, text
    until(lambda: admitted(api, "base"), "base is admitted")
    elastic = new(plane, "el", "--elastic", "1:2", "--gpus", "8")
    code, text = myriad(plane, "job", "submit", "-", "--json", stdin=elastic)
    assert code == 0 and json.loads(text)["jobs"][0]["state"] == "fits", text
    until(lambda: admitted(api, "el"), "el is admitted with 1 of its 2 pods")
    job = until(
        lambda: (found := api.get(JOBS, "el", namespace="vision"))["spec"]["parallelism"] == 1 and found, "one pod"
    )
    assert job["spec"]["completions"] == 1, "the number of ranks follows"
    clear(api, "base", "el")


def test_a_member_of_a_team_submits_with_its_own_rights(plane: ControlPlane, api: Api) -> None:
    first = new(plane, "ann", "--nodes", "2", "--gpus", "8")
    code, text = myriad(plane, "job", "submit", "-", stdin=first, user="alice")
    assert code == 0 and text.startswith("ann: its quota is free. 2 x 8 H100"), text
    assert "may not read other teams' pods" in text
    until(lambda: admitted(api, "ann"), "ann is admitted")
    second = new(plane, "bea", "--nodes", "2", "--gpus", "8")

    def waits() -> bool:
        code, text = myriad(plane, "job", "submit", "-", "--dry-run", stdin=second, user="alice")
        return code == 0 and text.startswith("bea: waits for quota: needs 16 H100, vision has 24, 16 in use")

    until(waits, "Kueue has written what is given out into the queue's status")
    code, text = myriad(
        plane, "job", "submit", "-", stdin=second.replace("namespace: vision", "namespace: speech"), user="alice"
    )
    assert code == 1 and "forbidden" in text and "nothing was created" in text
    clear(api, "ann")


def test_lint_looks_at_the_cluster(plane: ControlPlane, api: Api) -> None:
    stray = apiserver.gang_job("stray", pods=1, gpus=1)
    del stray["metadata"]["labels"]
    api.create(JOBS, stray, namespace="vision")
    code, text = myriad(plane, "lint", "--json")
    found = json.loads(text)
    rules = {(f["object"], f["rule"]) for f in found["findings"] if f["severity"] == "error"}
    assert code == 4 and ("Job vision/stray", "no-queue-label") in rules
    assert not any(name.startswith(("ClusterQueue", "LocalQueue", "Topology", "Node")) for name, _ in rules)
    assert found["objects"] > 10 and found["not_readable"] == []
    api.delete(JOBS, "stray", namespace="vision")


@pytest.mark.skipif(not PYTORCH_CRD.exists(), reason="the training operator's CRD is not in the cache of Go modules")
def test_a_pytorchjob_follows_the_cluster(plane: ControlPlane, api: Api) -> None:
    before = list(yaml.safe_load_all(new(plane, "torch", "--nodes", "2", form="pytorch")))
    assert [o["kind"] for o in before] == ["Service", "Job"], "without PyTorchJobs it is a Job that runs torchrun"
    plane.kubectl("apply", "--server-side", "-f", str(PYTORCH_CRD))
    until(lambda: established(plane), "PyTorchJobs are served")
    text = new(plane, "torch", "--nodes", "2", form="pytorch")
    code, said = myriad(plane, "job", "submit", "-", stdin=text)
    assert code == 0 and "2 x 8 H100" in said, said
    made = api.get(PYTORCH_JOBS, "torch", namespace="vision")
    wanted = yaml.safe_load(text)["spec"]
    assert (
        made["spec"]["runPolicy"]["schedulingPolicy"] == {"minAvailable": 2} == wanted["runPolicy"]["schedulingPolicy"]
    )
    assert made["spec"]["pytorchReplicaSpecs"].keys() == {"Master", "Worker"}
    api.delete(PYTORCH_JOBS, "torch", namespace="vision")


@pytest.fixture
def rules(plane: ControlPlane, api: Api) -> Iterator[None]:
    """The admission rules of a site, in force for one test alone: the others' objects are not written for them."""
    checked = check(
        inventory_from_groups(
            {
                "myriad_pools": {"h100": {"model": "H100-SXM5-80GB"}},
                "myriad_priorities": {"normal": 500},
                "myriad_teams": {"vision": {"namespaces": ["vision"], "quota": {"h100": 24}}},
            },
            {"control_plane": ["cp1"], "gpu_nodes": [], "pool_h100": []},
        )
    )
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ConfigMap")
    objects = [o for o in objects_for_cluster_policy(checked.fleet) if o["kind"] in kinds]
    assert any(o["kind"] == kinds[0] for o in objects)
    plane.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "myriad-system"}}, *objects])

    def refused() -> bool:
        body = apiserver.gang_job("loose", pods=2, gpus=8)
        body["spec"]["template"]["spec"]["containers"][0]["image"] = "registry.invalid/train:latest"
        try:
            api.create(JOBS, body, namespace="vision", dry_run=True)
        except ApiError as error:
            return "digest" in error.message
        return False

    until(refused, "the rules are in force")
    yield
    text = "---\n".join(yaml.safe_dump(body) for body in objects)
    plane.kubectl("delete", "-f", "-", stdin=text)
    until(lambda: not refused(), "the rules are gone")


def test_what_is_rendered_passes_the_admission_rules_of_the_site(plane: ControlPlane, rules: None) -> None:
    """The rules that the same description renders: a `:latest` is refused by them, every form of `job new` is not."""
    for name, form, options in (
        ("one", "batch", ("--nodes", "1", "--gpus", "1")),
        ("two", "batch", ("--nodes", "2", "--gpus", "8", "--priority", "normal")),
        ("three", "batch", ("--elastic", "1:2", "--gpus", "8")),
        ("four", "pytorch", ("--nodes", "2", "--gpus", "8")),
    ):
        code, text = myriad(plane, "job", "submit", "-", "--dry-run", stdin=new(plane, name, *options, form=form))
        assert code == 0 and "Not created (dry run)." in text, text


def test_the_corrected_manifests_are_accepted(plane: ControlPlane) -> None:
    """The three of the articles, and the corrected fixtures of all kinds that are served: no field is unknown."""
    served = {"ResourceFlavor", "ClusterQueue", "LocalQueue", "Topology", "Cohort", "WorkloadPriorityClass"}
    served |= {"Job", "PriorityClass", "Deployment", "ResourceQuota"}
    if PYTORCH_CRD.exists():
        plane.kubectl("apply", "--server-side", "-f", str(PYTORCH_CRD))
        served.add("PyTorchJob")
    if VOLCANO_CRDS:
        plane.kubectl("apply", "--server-side", "-f", VOLCANO_CRDS)
        served |= {"Queue", "HyperNode", "PodGroup"}
    until(lambda: established(plane), "all kinds are served")
    plane.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in ("team-a",)])
    bodies: dict[str, Json] = {}
    for file in sorted((ROOT / "tests/fixtures/lint").glob("*/fixed.yml")):
        for body in yaml.safe_load_all(file.read_text()):
            own = body.get("metadata", {}).get("namespace") in (None, "vision", "team-a")
            if body["kind"] in served and not body["apiVersion"].startswith("batch.volcano.sh") and own:
                body.pop("status", None)
                body["metadata"]["name"] += "-fixture"  # This cluster has queues of the same names.
                bodies.setdefault(json.dumps(body, sort_keys=True), body)
    text = "---\n".join(yaml.safe_dump(body) for body in bodies.values())
    out = plane.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text)
    assert out.count("created (server dry run)") == len(bodies)
    assert {body["kind"] for body in bodies.values()} == served, "kinds without a corrected manifest prove nothing"


def established(plane: ControlPlane) -> bool:
    """Whether every CustomResourceDefinition is served."""
    crds = json.loads(plane.kubectl("get", "crd", "-o", "json"))["items"]
    return all(
        any(c["type"] == "Established" and c["status"] == "True" for c in crd.get("status", {}).get("conditions") or [])
        for crd in crds
    )
