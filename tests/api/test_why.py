"""Why a job waits, on real Kueue objects: the sentence, and the same as a condition on the job itself.

The observer runs here without an extension around it; what it writes is judged by the real API server and the real job
controller and Kueue.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apiserver
import pytest
from apiserver import ControlPlane, fake_node, gang_job, queue_objects, until
from prometheus_client import CollectorRegistry

from myriad.kube.client import Api, connect
from myriad.kube.kinds import EVENTS, JOBS, WORKLOADS
from myriad.scheduler.cache import Cache
from myriad.scheduler.events import EventSink
from myriad.scheduler.evidence import gather
from myriad.scheduler.explain import Answer
from myriad.scheduler.inquiry import why_job
from myriad.scheduler.job_facts import WAITING
from myriad.scheduler.settings import Settings
from myriad.scheduler.telling import telling

Json = dict[str, Any]
KUEUE = "kueue.x-k8s.io/v1beta2"
LABEL = "kueue.x-k8s.io/queue-name"
MEMBER = "mallory"
ROOT = Path(__file__).resolve().parents[2]

pytestmark = [apiserver.AT_HAND, pytest.mark.slow]


def queue(
    name: str, flavor: str = "h100", resources: tuple[str, ...] = ("cpu", "memory", "nvidia.com/gpu"), **spec: Any
) -> Json:
    quota = [{"name": r, "nominalQuota": "8Ti" if r == "memory" else 8} for r in resources]
    group = {"coveredResources": list(resources), "flavors": [{"name": flavor, "resources": quota}]}
    return {
        "apiVersion": KUEUE, "kind": "ClusterQueue",
        "metadata": {"name": name, "labels": {"myriad.dev/pool": "h100", "myriad.dev/team": "vision"}},
        "spec": {"namespaceSelector": {}, "resourceGroups": [group], **spec},
    }  # fmt: skip


def local(name: str, to: str, **spec: Any) -> Json:
    metadata = {"name": name, "namespace": "vision"}
    return {"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": metadata, "spec": {"clusterQueue": to, **spec}}


def member_rights() -> list[Json]:
    """What a user of one namespace has: the `view` of Kubernetes' own roles, and Kueue's objects of the namespace."""
    rules = [
        {"apiGroups": [""], "resources": ["pods", "events", "persistentvolumeclaims"], "verbs": ["get", "list"]},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list"]},
        {"apiGroups": ["kueue.x-k8s.io"], "resources": ["workloads", "localqueues"], "verbs": ["get", "list"]},
    ]
    rbac = "rbac.authorization.k8s.io"
    where = {"name": "member", "namespace": "vision"}
    return [
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": where, "rules": rules},
        {
            "apiVersion": f"{rbac}/v1", "kind": "RoleBinding", "metadata": where,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "member"},
            "subjects": [{"kind": "User", "name": MEMBER, "apiGroup": rbac}],
        },
    ]  # fmt: skip


def jobs() -> list[Json]:
    found = []
    for name, to in (
        ("nolabel", ""), ("unknown", "h1000"), ("nocq", "nocq"), ("noflavor", "noflavor"), ("held", "held"),
        ("selector", "selector"), ("gpuonly", "gpuonly"), ("nocheck", "nocheck"), ("gate", "h100"), ("pvc", "h100"),
        ("toobig", "h100"), ("notopology", "h100"), ("noclass", "h100"),
    ):  # fmt: skip
        more: Json = {}
        if name == "gate":
            more = {"schedulingGates": [{"name": "example.com/licence"}]}
        if name == "pvc":
            more = {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]}
        if name == "notopology":
            more = {"metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": "example.com/zone"}}}
        body = gang_job(name, pods=8 if name == "toobig" else 1, gpus=8 if name == "toobig" else 1, **more)
        body["metadata"]["labels"] = {LABEL: to} if to else {}
        if name == "noclass":
            body["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "nope"
        found.append(body)
    return found


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with apiserver.control_plane(tmp_path_factory.mktemp("why") / "plane", users=[MEMBER]) as running:
        nodes = [fake_node(f"g{r}{i}", ("hall1", "b0", f"r{r}")) for r in range(2) for i in range(2)]
        queues = [
            queue("noflavor", "missing"), local("noflavor", "noflavor"), local("nocq", "not-there"),
            local("held", "vision-h100", stopPolicy="Hold"),
            queue("selector", namespaceSelector={"matchLabels": {"a": "b"}}), local("selector", "selector"),
            queue("gpuonly", resources=("nvidia.com/gpu",)), local("gpuonly", "gpuonly"),
            queue("nocheck", admissionChecksStrategy={"admissionChecks": [{"name": "nobody"}]}),
            local("nocheck", "nocheck"),
        ]  # fmt: skip
        running.apply([*nodes, *queue_objects(gpus=24), *queues, *member_rights()])
        running.apply(jobs())
        yield running


@pytest.fixture(scope="module")
def cache(plane: ControlPlane) -> Iterator[Cache]:
    stop = threading.Event()
    watcher = connect(plane.kubeconfig)
    found = Cache(check_name="myriad")
    found.follow(watcher, stop)
    until(lambda: not found.out_of_step(lost_limit_s=30))
    yield found
    stop.set()
    plane.stop("kube-apiserver", kill=True)  # ends the watches at once; nothing comes after
    for watch in found._watches:
        watch.join(timeout=10)
    watcher.close()


def myriad(plane: ControlPlane, *arguments: str) -> tuple[int, str]:
    """The program, as a user of the namespace alone runs it."""
    done = subprocess.run(
        [sys.executable, "-c", "from myriad.cli import main; main()", *arguments],
        env={**os.environ, "KUBECONFIG": str(plane.kubeconfig_for(MEMBER)), "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def ask(api: Api, cache: Cache, name: str) -> Answer:
    found = why_job(cache, "vision", name, evidence=gather(api, "vision", name))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "state", "said"),
    [
        ("nolabel", "held", "the job names no queue"),
        (
            "unknown",
            "held",
            "namespace vision has no queue h1000 (label kueue.x-k8s.io/queue-name); did you mean h100?",
        ),
        ("nocq", "held", "LocalQueue nocq leads to ClusterQueue not-there, which does not exist"),
        ("noflavor", "held", "ClusterQueue noflavor is not active: references missing ResourceFlavor(s): missing"),
        ("held", "held", "LocalQueue held is stopped (Hold by kubectl)"),
        ("selector", "held", "takes no jobs from namespace vision: its labels do not match a=b"),
        ("gpuonly", "never", "(it covers nvidia.com/gpu), and the job asks for it"),
        ("nocheck", "held", "references missing AdmissionCheck(s): nobody"),
        ("gate", "gated", "its pods still carry the scheduling gate example.com/licence"),
        ("pvc", "external", "PersistentVolumeClaim data not found"),
        ("toobig", "never", "needs 8 x 8 = 64 H100; pool h100 can hold 32"),
        ("notopology", "never", "asks for the topology level example.com/zone"),
        ("noclass", "held", "there is no WorkloadPriorityClass nope"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_the_first_cause_on_real_objects(api: Api, cache: Cache, name: str, state: str, said: str) -> None:
    def told() -> bool:
        answer = ask(api, cache, name)
        return answer.state == state and said in answer.first_cause

    try:
        until(told)
    except AssertionError:
        pytest.fail(ask(api, cache, name).text())


def condition(api: Api, name: str) -> Json | None:
    conditions = api.get(JOBS, name, namespace="vision").get("status", {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == WAITING), None)


def test_kubectl_describe_alone_answers_and_the_controllers_keep_their_own(
    plane: ControlPlane, api: Api, cache: Cache
) -> None:
    plane.apply([gang_job("fills", pods=2, gpus=8)])
    until(lambda: (v := cache.view_of_job("vision", "fills")) and v.admitted)
    plane.apply([gang_job("waits", pods=2, gpus=8)])
    events = EventSink(api, interval_s=60)
    observer = telling(api, cache, events, CollectorRegistry(), Settings(identity="test"))

    def written() -> Json | None:
        observer.step()
        found = condition(api, "waits")
        return found if found and "waits for quota: needs 16" in found["message"] else None

    found = until(written)
    assert found["status"] == "True" and found["reason"] == "WaitingForQuota"
    types = {c["type"]: c["status"] for c in api.get(JOBS, "waits", namespace="vision")["status"]["conditions"]}
    assert types["Suspended"] == "True"
    described = plane.kubectl("-n", "vision", "describe", "job", "waits")
    assert "myriad.dev/Waiting" in described or "MyriadWaiting" in described
    until(lambda: (v := cache.view_of_job("vision", "waits")) and any(
        c["type"] == WAITING for c in (cache.object(WORKLOADS, v.key) or {})["status"]["conditions"]
    ))  # fmt: skip
    told = api.list(EVENTS, namespace="vision", fields="reason=MyriadWaiting,involvedObject.name=waits")[0]
    assert len(told) == 1 and "needs 16" in told[0]["message"]

    # A user of the namespace alone learns what the extension knows of the whole cluster.
    code, text = myriad(plane, "why", "waits", "-n", "vision")
    assert code == 0 and "waits for quota: needs 16" in text and "these credentials may not" in text, text
    code, text = myriad(plane, "why", "waits", "-n", "vision", "--watch", "--timeout", "1")
    assert code == 4 and "still waiting after 1 s" in text, text

    api.delete(JOBS, "fills", namespace="vision")

    def taken_back() -> bool:
        observer.step()
        found = condition(api, "waits")
        return found is not None and found["status"] == "False"

    until(taken_back)
    code, text = myriad(plane, "why", "job/waits", "-n", "vision", "-w", "--timeout", "20")
    assert code == 0 and "running" in text, text
