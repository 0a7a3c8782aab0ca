"""A protected domain against the real Kueue: it drains by attrition, strangers get no quota there, a job that ends in
time does, the gang starts on it, and a restart of the extension forgets nothing."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import apiserver
import httpx
import pytest
from apiserver import ControlPlane, check_object, fake_node, gang_job, queue_objects, until
from extension import ACCOUNT, SYSTEM, Replica, rights

from myriad.kube.client import Api, connect
from myriad.kube.kinds import NODES, WORKLOADS
from myriad.scheduler.objects import WorkloadView, workload_view
from myriad.scheduler.protect import standing

Json = dict[str, Any]

pytestmark = [apiserver.AT_HAND]

SETTINGS = {"MYRIAD_SCHEDULER_BRAKE_SETTLE_S": "1"}
LIMIT = "kueue.x-k8s.io/max-exec-time-seconds"


@pytest.fixture
def plane(tmp_path: Any) -> Iterator[ControlPlane]:
    with apiserver.control_plane(tmp_path / "plane", users=[ACCOUNT]) as running:
        nodes = [fake_node(f"n{b}{i}", ("hall1", f"b{b}", f"r{b}{i // 2}")) for b in range(2) for i in range(4)]
        policy = {
            "protection": {"after_s": 2, "max_domains": 1, "max_share": 0.5, "level": "block"},
            "preemption": {"grace_s": 1},
        }
        rules = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "myriad-policy", "namespace": "myriad-system"},
            "data": {"policy.json": json.dumps(policy)},
        }
        running.apply([SYSTEM, *nodes, *queue_objects(gpus=64), check_object(), *rights(), rules])
        running.wait_for_nodes()
        yield running


def job(name: str, *, pods: int = 1, limit_s: int | None = None, gpus: int = 8, **spec: Any) -> Json:
    body = gang_job(name, pods=pods, gpus=gpus, **spec)
    if limit_s is not None:
        body["metadata"]["labels"][LIMIT] = str(limit_s)
    return body


def views(api: Api) -> dict[str, WorkloadView]:
    found = (workload_view(body, check_name="myriad") for body in api.list(WORKLOADS, namespace="vision")[0])
    return {view.gang.name: view for view in found}


def test_c20_a_starving_gang_gets_a_domain_that_others_leave_alone(plane: ControlPlane) -> None:
    api = connect(plane.kubeconfig)
    first = Replica(plane, "ext-one", SETTINGS)
    until(first.leads, what="the first leads")
    # One block is held by jobs that end soon by their limit, the other by jobs without one; one node is free.
    pin = {f"soon{i}": {"kubernetes.io/hostname": f"n0{i}"} for i in range(4)}
    pin |= {f"long{i}": {"kubernetes.io/hostname": f"n1{i}"} for i in range(3)}
    plane.apply([job(n, limit_s=18 if n[0] == "s" else None, nodeSelector=s) for n, s in pin.items()])
    until(lambda: sum(v.admitted for v in views(api).values()) == 7, what="the nodes are held")
    gang = job("gang", pods=4)
    gang["spec"]["template"]["metadata"] = {
        "annotations": {"kueue.x-k8s.io/podset-preferred-topology": "myriad.dev/block"}
    }
    plane.apply([gang])
    until(lambda: "gang" in views(api), what="the gang waits")
    plane.apply([job("later")])
    until(lambda: "later" in views(api) and views(api)["later"].admitted, what="a later job overtakes it")

    def kept() -> set[str]:
        stands = standing(api.list(NODES)[0])
        return set(next(iter(stands.values())).nodes) if stands else set()

    until(lambda: kept() == {"n00", "n01", "n02", "n03"}, what="the block that is free first is protected")
    plane.kubectl("-n", "vision", "delete", "job", "soon0", "--wait=false")
    plane.apply([job("stranger"), job("slow", limit_s=600), job("backfill", limit_s=2)])
    until(lambda: views(api).get("backfill") and views(api)["backfill"].nodes == {"n00": 1}, what="backfill is let in")
    now = views(api)
    assert not now["stranger"].quota_reserved and not now["slow"].quota_reserved and not now["gang"].quota_reserved
    assert kept() == {"n00", "n01", "n02", "n03"}

    # Killed, not stopped: the next one knows from the nodes alone.
    os.kill(plane.processes["ext-one"].pid, signal.SIGKILL)
    plane.processes.pop("ext-one").wait()
    plane.kubectl("-n", "myriad-system", "delete", "lease", "myriad-scheduler")
    replica = Replica(plane, "ext-two", SETTINGS)
    until(replica.leads, what="the second leads")

    view = until(lambda: (v := views(api)["gang"]).admitted and v, timeout_s=60, what="the gang starts")
    assert set(view.nodes) == {"n00", "n01", "n02", "n03"}
    until(lambda: not kept(), what="the taints are gone")
    taints = [t["key"] for n in api.list(NODES)[0] for t in n["spec"].get("taints") or []]
    assert "myriad.dev/reserved" not in taints
    now = views(api)
    assert not now["stranger"].quota_reserved and not now["slow"].quota_reserved
    events = plane.kubectl("-n", "vision", "get", "events", "--field-selector=reason=MyriadProtected", "-o", "json")
    said = [e["message"] for e in json.loads(events)["items"] if e["involvedObject"]["name"] == "gang"]
    assert any(text.startswith("4 nodes in hall1/b0 are kept for it") for text in said), said
    replica.stop()
    api.close()


def test_without_the_brake_a_domain_is_kept_when_nobody_knows_yet_what_is_wrong(plane: ControlPlane) -> None:
    """With it a new leader taints nothing for a minute; without it it does, and everything says so."""
    api = connect(plane.kubeconfig)
    careful = Replica(plane, "ext-on")
    until(careful.leads, what="it leads")
    plane.apply([job(f"held{i}", limit_s=600, nodeSelector={"kubernetes.io/hostname": f"n0{i}"}) for i in range(4)])
    plane.apply([job(f"long{i}", nodeSelector={"kubernetes.io/hostname": f"n1{i}"}) for i in range(3)])
    until(lambda: sum(v.admitted for v in views(api).values()) == 7, what="the nodes are held")
    plane.apply([job("gang", pods=4)])
    until(lambda: "gang" in views(api), what="the gang waits")
    plane.apply([job("later")])
    until(lambda: "later" in views(api) and views(api)["later"].admitted, what="a later job overtakes it")

    def said() -> bool:
        events = plane.kubectl("-n", "vision", "get", "events", "--field-selector=reason=MyriadProtected", "-o", "json")
        return any("this replica has just become the leader" in e["message"] for e in json.loads(events)["items"])

    until(said, what="it is told why no domain is kept")
    assert careful.get("/v1/status")["extension"]["brake"] is True
    assert not standing(api.list(NODES)[0])
    careful.stop()

    hasty = Replica(plane, "ext-off", {"MYRIAD_SCHEDULER_BRAKE": "false"})

    def kept() -> set[str]:
        return {name for one in standing(api.list(NODES)[0]).values() for name in one.nodes}

    until(lambda: kept() == {"n00", "n01", "n02", "n03"}, what="a domain is kept at once", timeout_s=40)
    assert hasty.get("/v1/status")["extension"]["brake"] is False
    assert "brake is off (MYRIAD_SCHEDULER_BRAKE=false)" in hasty.log.read_text()
    metrics = httpx.get(f"http://127.0.0.1:{hasty.port}/metrics", timeout=10).text
    assert "myriad_scheduler_brake_on 0.0" in metrics
    hasty.stop()
    api.close()
