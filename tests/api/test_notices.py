"""Evictions against the real Kueue: two teams, borrowing, reclaim; who is told what, when, and what is kept.

The victim's pods get SIGTERM and take a few seconds to end, as played by `kubelets.py` with a grace; the preemptor's
pods start when these have ended, not before.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import apiserver
import pytest
from apiserver import ControlPlane, check_object, fake_node, gang_job, queue_objects
from test_steering import ACCOUNT, Replica, rights, until

from myriad.kube.client import EVENTS, PODS, WORKLOADS, Api, connect
from myriad.kube.watch import Watch
from myriad.scheduler.notices.facts import cause_of, moment

Json = dict[str, Any]

KEY = b"the key of the test"
GRACE_S = 4

pytestmark = [apiserver.AT_HAND]


class Receiver:
    """A webhook: keeps what comes, when it came, and answers what it is told to."""

    def __init__(self) -> None:
        self.got: list[tuple[float, dict[str, str], bytes]] = []
        self.answer = 204
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append((time.time(), dict(self.headers), body))
                self.send_response(receiver.answer)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def of(self, job: str) -> list[Json]:
        found = [json.loads(body) for _, _, body in self.got]
        return [b for b in found if b.get("eviction", {}).get("victim", {}).get("job") == job]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Evictions:
    """When the Evicted condition of each job was seen by a watch of our own."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}

    def replace(self, items: list[Json]) -> None:
        for item in items:
            self.upsert(item)

    def upsert(self, obj: Json) -> None:
        cause = cause_of(obj)
        if cause and not cause.past:
            self.at.setdefault(obj["metadata"]["ownerReferences"][0]["name"], time.time())

    def remove(self, obj: Json) -> None:
        pass


def team(name: str, *, gpus: int) -> list[Json]:
    objects = queue_objects(gpus=gpus, team=name, cohort="research")
    queue = next(o for o in objects if o["kind"] == "ClusterQueue")
    queue["spec"]["preemption"] = {
        "reclaimWithinCohort": "Any",
        "borrowWithinCohort": {"policy": "Never"},
        "withinClusterQueue": "LowerPriority",
    }
    return objects


def priorities() -> list[Json]:
    values = {"urgent": 1000, "normal": 500, "urgent-shielded": 2001, "normal-shielded": 1501}
    return [
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "WorkloadPriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
        for name, value in values.items()
    ]


def policy(targets: Json, **preemption: int) -> Json:
    document = {
        "version": 1,
        "cluster": "test",
        "priorities": {"urgent": 1000, "normal": 500},
        "preemption": {"grace_s": GRACE_S, "min_run_s": 0, "checkpoint_max_age_s": 3600, **preemption},
        "pools": {"h100": {"model": "H100-SXM5-80GB"}},
        "teams": {
            name: {"namespaces": [name], "quota": {"h100": 16}, "cohort": "research", "notify": list(targets)}
            for name in ("vision", "speech")
        },
        "notify_targets": targets,
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "myriad-policy", "namespace": "myriad-system"},
        "data": {"policy.json": json.dumps(document)},
    }


def secret(name: str, **data: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": "myriad-system"},
        "stringData": data,
    }


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[ControlPlane]:
    with apiserver.control_plane(tmp_path_factory.mktemp("notices") / "plane", users=[ACCOUNT]) as running:
        nodes = [fake_node(f"g{i}", ("hall1", "b1", f"r{i // 2}")) for i in range(4)]
        system = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "myriad-system"}}
        running.apply([system, *nodes, *team("vision", gpus=16), *team("speech", gpus=16), *priorities()])
        address = json.dumps({"url": receiver.url, "key": KEY.decode()})
        running.apply([check_object(), *rights(), secret("oncall", webhook=address)])
        running.apply(
            [
                policy(
                    {
                        "dead": {"kind": "webhook", "url": "http://127.0.0.1:9/gone"},
                        "oncall": {"kind": "webhook", "secret": "oncall/webhook"},
                    }
                )
            ]
        )
        running.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=60s")
        yield running


@pytest.fixture(scope="module")
def api(plane: ControlPlane) -> Iterator[Api]:
    client = connect(plane.kubeconfig)
    yield client
    client.close()


@pytest.fixture(scope="module")
def evictions(api: Api) -> Evictions:
    seen = Evictions()
    Watch(api, WORKLOADS, seen, stop=threading.Event()).start()
    return seen


@pytest.fixture(scope="module")
def replica(plane: ControlPlane) -> Iterator[Replica]:
    started = Replica(plane, "ext-notices")
    until(started.leads, what="the replica leads")
    yield started
    if started.name in plane.processes:
        started.stop()


def submit(plane: ControlPlane, name: str, namespace: str, *, pods: int, priority: str = "normal", **spec: Any) -> None:
    job = gang_job(name, pods=pods, gpus=8, namespace=namespace, terminationGracePeriodSeconds=GRACE_S, **spec)
    job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = priority
    plane.apply([job])


def running(api: Api, job: str, namespace: str, pods: int) -> list[Json]:
    def check() -> list[Json] | None:
        found = [
            pod
            for pod in api.list(PODS, namespace=namespace, labels=f"job-name={job}")[0]
            if pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
        ]
        return found if len(found) == pods else None

    return until(check, what=f"{pods} pods of {job} run")  # type: ignore[no-any-return]


def test_an_owner_is_told_within_a_second_for_whom_and_until_when(
    plane: ControlPlane, api: Api, replica: Replica, evictions: Evictions, receiver: Receiver
) -> None:
    submit(plane, "clip-ft", "vision", pods=4)
    running(api, "clip-ft", "vision", 4)
    saved = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    plane.kubectl("-n", "vision", "annotate", "job", "clip-ft", f"myriad.dev/last-checkpoint={saved}")
    submit(plane, "asr-prod", "speech", pods=2, priority="urgent")
    (told,) = until(lambda: receiver.of("clip-ft"), what="the webhook is called")

    # Within a second of the moment when a watch of our own saw the eviction, though another target is dead.
    arrived = next(at for at, _, body in receiver.got if b"clip-ft" in body)
    assert arrived - evictions.at["clip-ft"] < 1.0

    _, headers, body = next(entry for entry in receiver.got if b"clip-ft" in entry[2])
    signed = hmac.new(KEY, headers["Myriad-Timestamp"].encode() + b"." + body, hashlib.sha256).hexdigest()
    assert headers["Myriad-Signature"] == f"sha256={signed}" and headers["Myriad-Notice"] == told["id"]

    eviction = told["eviction"]
    assert told["kind"] == "preemption" and eviction["policy"] == "InCohortReclamation"
    assert eviction["preemptor"]["job"] == "asr-prod" and eviction["preemptor"]["priority_class"] == "urgent"
    assert eviction["borrowed"] == 16 and eviction["reclaimed"] == 16 and eviction["pods"] == 4
    assert eviction["exact"] and eviction["last_checkpoint"] == saved
    kill, term = moment(eviction["kill_at"]), moment(eviction["sigterm_at"])
    assert kill and term and (kill - term).total_seconds() == GRACE_S
    assert (
        "speech/asr-prod (priority urgent, reclaiming its own quota: 16 of the 16 H100 that vision borrowed)"
        in (told["text"])
    )
    assert f"It has {GRACE_S} s to save (SIGTERM was sent at {term:%H:%M:%S} UTC)" in told["text"]
    assert "It goes back to the queue (1st" in told["text"]

    # The same on the job and its Workload, each once, for whoever runs kubectl describe.
    events = until(
        lambda: (
            (e := [e for e in api.list(EVENTS, namespace="vision")[0] if e["reason"] == "MyriadPreempted"])
            and len(e) == 2
            and e
        ),
        what="both Events are there",
    )
    assert {e["involvedObject"]["kind"] for e in events} == {"Job", "Workload"}
    assert all("to make room for speech/asr-prod" in e["message"] for e in events)
