"""The trial of steering, by script: the extension against the real Kueue, its real webhooks and 64 fake nodes.

Needs the programs of `apiserver.py`, no lab. What is shown: a gang that fits is accepted where TAS put it; one that
waits is led to its domain in one step; a reserved domain keeps others out; nothing is stuck when a domain fills up
meanwhile; detaching sets everybody free and attaching again evicts nobody; a second replica goes on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import apiserver
import httpx
import pytest
from apiserver import ControlPlane, check_object, fake_node, queue_objects, until
from extension import ACCOUNT, ALWAYS, ROOT, SYSTEM, Replica, admitted, attached, delete_job, look, rights, submit

from myriad.kube.client import Api
from myriad.kube.kinds import JOBS, LEASES, NODES, PODS, WORKLOADS
from myriad.scheduler.objects import WorkloadView

Json = dict[str, Any]

RACK = "myriad.dev/rack"

pytestmark = [
    apiserver.AT_HAND,
]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with apiserver.control_plane(tmp_path_factory.mktemp("steering") / "plane", users=[ACCOUNT]) as running:
        nodes = [
            fake_node(f"g{b}{r}{i}", ("hall1", f"b{b}", f"r{r}")) for b in range(2) for r in range(4) for i in range(8)
        ]
        running.apply([SYSTEM, *nodes, *queue_objects(gpus=32), check_object(), *rights()])
        running.wait_for_nodes()
        yield running


@pytest.fixture
def replica(plane: ControlPlane, api: Api) -> Iterator[Replica]:
    """A fresh replica that leads and has attached the check."""
    started = Replica(plane, f"ext-{time.monotonic_ns()}", ALWAYS)
    until(started.leads, what="the replica leads")
    until(lambda: attached(api), what="the check is attached")
    yield started
    if started.name in plane.processes:
        started.stop()


@pytest.fixture(autouse=True)
def empty(api: Api) -> Iterator[None]:
    """Every test leaves the queue and the nodes empty."""
    yield
    for job in api.list(JOBS, namespace="vision")[0]:
        delete_job(api, job["metadata"]["name"])
    for pod in api.list(PODS, namespace="default")[0]:
        api.delete(PODS, pod["metadata"]["name"], namespace="default")
    until(lambda: not api.list(WORKLOADS, namespace="vision")[0] and not api.list(PODS)[0], what="everything is gone")


def steered(api: Api, job: str) -> WorkloadView:
    def check() -> WorkloadView | None:
        view = look(api, job)
        return view if view and view.check and view.check.state == "Ready" and view.check.updates else None

    return until(check, what=f"{job} is steered")  # type: ignore[no-any-return]


def real_nodes(api: Api, job: str, pods: int) -> dict[str, int]:
    """Where a job's pods run, once all run."""

    def check() -> dict[str, int] | None:
        found: dict[str, int] = {}
        for pod in api.list(PODS, namespace="vision", labels=f"job-name={job}")[0]:
            if pod["spec"].get("nodeName") and pod["status"].get("phase") == "Running":
                node = pod["spec"]["nodeName"]
                found[node] = found.get(node, 0) + 1
        return found if sum(found.values()) == pods else None

    return until(check, what=f"all pods of {job} run")  # type: ignore[no-any-return]


def intruder(plane: ControlPlane, node: str) -> None:
    """A bare pod outside every queue that takes a whole node."""
    amounts = {"nvidia.com/gpu": "8"}
    plane.apply(
        [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"intruder-{node}", "namespace": "default"},
                "spec": {
                    "nodeName": node,
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{"name": "x", "image": "registry.invalid/x", "resources": {"limits": amounts}}],
                },
            }
        ]
    )


def rack_of(api: Api, nodes: dict[str, int]) -> set[str]:
    return {f"hall1.b{name[1]}.r{name[2]}" for name in nodes}


def test_a_gang_that_fits_is_accepted_where_kueue_put_it(plane: ControlPlane, api: Api, replica: Replica) -> None:
    submit(plane, "fits")
    view = admitted(api, "fits")
    assert view.check is not None and view.check.updates == ()
    assert real_nodes(api, "fits", 4) == view.nodes
    (record,) = until(lambda: replica.records("fits", "assigned"), what="the assignment is recorded")
    assert record["assigned"] == view.nodes
    (outcome,) = until(lambda: replica.records("fits", "outcome"), what="the outcome is recorded")
    assert outcome["nodes"] == view.nodes and outcome["agree"] is True


def test_a_waiting_gang_is_led_to_its_domain_in_one_step(plane: ControlPlane, api: Api, replica: Replica) -> None:
    submit(plane, "first")
    admitted(api, "first")
    submit(plane, "second")
    view = steered(api, "second")
    assert not view.quota_reserved
    (update,) = view.check.updates if view.check else ()
    (target,) = update.node_selector.values()
    answer = replica.get("/v1/why/vision/second")
    assert answer["state"] == "quota" and "1st in the queue" in answer["first_cause"], answer

    delete_job(api, "first")
    view = admitted(api, "second")
    assert rack_of(api, view.nodes) == {target}
    assert real_nodes(api, "second", 4) == view.nodes
    (record,) = until(lambda: replica.records("second", "assigned"), what="the assignment is recorded")
    assert record["agree"] is True and record["assigned"] == view.nodes
    assert len(replica.records("second", "steered")) == 1
    conditions = {c["type"]: c for c in api.get(WORKLOADS, view.workload, namespace="vision")["status"]["conditions"]}
    # Quota and admission in one patch: the same second, and never evicted.
    assert conditions["QuotaReserved"]["lastTransitionTime"] == conditions["Admitted"]["lastTransitionTime"]
    assert "Evicted" not in conditions


def test_two_waiting_gangs_are_not_led_to_the_same_nodes(plane: ControlPlane, api: Api, replica: Replica) -> None:
    submit(plane, "holder")
    admitted(api, "holder")
    submit(plane, "one", pods=2)
    submit(plane, "two", pods=8, gpus=4)
    submit(plane, "three", pods=8, gpus=2)
    views = [steered(api, job) for job in ("one", "two", "three")]
    planned = [replica.records(view.gang.name, "steered")[-1]["nodes"] for view in views]
    used: dict[str, int] = {}
    for nodes, gpus in zip(planned, (8, 4, 2), strict=True):
        for node, pods in nodes.items():
            used[node] = used.get(node, 0) + pods * gpus
    assert max(used.values()) <= 8


def test_a_reserved_domain_takes_whoever_tolerates_it_and_nobody_else(
    plane: ControlPlane, api: Api, replica: Replica
) -> None:
    plane.kubectl("taint", "node", "-l", f"{RACK}=hall1.b1.r2", "myriad.dev/reserved=c:NoSchedule")
    try:
        tolerations = [{"key": "myriad.dev/reserved", "value": "c", "effect": "NoSchedule"}]
        submit(plane, "holder")
        admitted(api, "holder")
        submit(plane, "outsider", nodeSelector={RACK: "hall1.b1.r2"})
        submit(plane, "owner", nodeSelector={RACK: "hall1.b1.r2"}, tolerations=tolerations)
        delete_job(api, "holder")
        assert rack_of(api, admitted(api, "owner").nodes) == {"hall1.b1.r2"}
        delete_job(api, "owner")
        view = until(lambda: (v := look(api, "outsider")) and "taint" in v.quota_message and v, what="Kueue refuses it")
        assert not view.quota_reserved and view.check.state == "Pending" and view.check.updates == ()
        answer = replica.get("/v1/why/vision/outsider")
        assert "myriad.dev/reserved" in str(answer), answer
    finally:
        plane.kubectl("taint", "node", "-l", f"{RACK}=hall1.b1.r2", "myriad.dev/reserved-")
    # The domain is free for all again, and Kueue is made to look.
    assert rack_of(api, admitted(api, "outsider").nodes) == {"hall1.b1.r2"}


def test_a_gang_is_led_elsewhere_when_its_domain_fills_up(plane: ControlPlane, api: Api, replica: Replica) -> None:
    submit(plane, "holder")
    admitted(api, "holder")
    submit(plane, "waits", pods=8, gpus=4)
    first = steered(api, "waits").check
    assert first is not None
    (target,) = first.updates[0].node_selector.values()
    for node in api.list(NODES, labels=f"{RACK}={target}")[0][:6]:
        intruder(plane, node["metadata"]["name"])

    def moved() -> bool:
        view = look(api, "waits")
        return bool(view and view.check and view.check.updates and view.check.updates != first.updates)

    until(moved, what="it is steered elsewhere")
    delete_job(api, "holder")
    assert rack_of(api, admitted(api, "waits").nodes) != {target}


def test_a_gang_that_kueue_parked_with_an_old_selector_is_not_forgotten(
    plane: ControlPlane, api: Api, replica: Replica
) -> None:
    """While nobody steers, its domain is taken and quota comes free: Kueue parks it, and nothing else will happen."""
    submit(plane, "holder")
    admitted(api, "holder")
    submit(plane, "parked")
    check = steered(api, "parked").check
    assert check is not None
    (target,) = check.updates[0].node_selector.values()
    replica.stop()
    for node in api.list(NODES, labels=f"{RACK}={target}")[0][:6]:
        intruder(plane, node["metadata"]["name"])
    delete_job(api, "holder")
    until(lambda: (v := look(api, "parked")) and "topology" in v.quota_message, what="Kueue parks it")
    time.sleep(3)
    assert not look(api, "parked").quota_reserved  # type: ignore[union-attr]
    again = Replica(plane, "ext-again", ALWAYS)
    try:
        assert rack_of(api, admitted(api, "parked").nodes) != {target}
        log = again.log.read_text()
        assert "asked Kueue to look again" in log, log
    finally:
        again.stop()


def test_a_gang_that_waits_for_a_pod_outside_every_queue_goes_on_when_it_ends(
    plane: ControlPlane, api: Api, replica: Replica
) -> None:
    """Kueue does not look again when a bare pod ends; the extension sees that the gang fits and makes it look."""
    selector = {RACK: "hall1.b1.r3"}
    for node in api.list(NODES, labels=f"{RACK}=hall1.b1.r3")[0]:
        intruder(plane, node["metadata"]["name"])
    submit(plane, "behind", nodeSelector=selector)
    until(lambda: (v := look(api, "behind")) and "topology" in v.quota_message, what="Kueue refuses it")
    view = look(api, "behind")
    assert view and view.check and view.check.state == "Pending" and view.check.updates == ()
    answer = replica.get("/v1/why/vision/behind")
    assert answer["state"] == "placement" and "intruder" in str(answer), answer
    for pod in api.list(PODS, namespace="default")[0]:
        api.delete(PODS, pod["metadata"]["name"], namespace="default")
    admitted(api, "behind")


def test_a_gang_that_can_never_fit_is_told_at_once_and_left_to_its_owner(
    plane: ControlPlane, api: Api, replica: Replica
) -> None:
    submit(plane, "huge", pods=2, gpus=16)
    body = until(
        lambda: next(
            (
                w
                for w in api.list(WORKLOADS, namespace="vision")[0]
                if "myriad.dev/refused" in (w["metadata"].get("annotations") or {})
            ),
            None,
        ),
        what="the Workload is annotated",
    )
    assert "no node of pool h100 has 16 GPUs (8 at most)" in body["metadata"]["annotations"]["myriad.dev/refused"]
    assert body["spec"].get("active") is not False
    events = plane.kubectl("-n", "vision", "get", "events", "--field-selector=reason=MyriadRefused", "-o", "name")
    assert len(events.split()) == 2  # one on the Job, one on the Workload, each once
    assert replica.get("/v1/why/vision/huge")["state"] == "never"


def test_detaching_lets_everybody_go_and_attaching_again_evicts_nobody(
    plane: ControlPlane, api: Api, replica: Replica
) -> None:
    replica.stop()
    submit(plane, "held")
    # Kueue writes the state of a check after the quota.
    until(lambda: (v := look(api, "held")) and v.quota_reserved and v.check, what="it has quota, and a check")
    time.sleep(2)
    view = look(api, "held")
    assert view and not view.admitted and view.check and view.check.state == "Pending"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "KUBECONFIG": str(plane.kubeconfig_for(ACCOUNT))}
    done = subprocess.run(
        [sys.executable, "-m", "myriad.scheduler", "detach"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "vision-h100" in done.stdout, done.stderr
    assert not attached(api)
    assert admitted(api, "held").check is None
    again = Replica(plane, "ext-attach", ALWAYS)
    try:
        until(lambda: attached(api), what="the check is attached again")
        until(lambda: (v := look(api, "held")) and v.check and v.check.state == "Ready", what="its entry is answered")
        view = look(api, "held")
        assert view and view.admitted and not view.evicted
        assert real_nodes(api, "held", 4) == view.nodes
    finally:
        again.stop()


def test_another_replica_goes_on(plane: ControlPlane, api: Api, replica: Replica) -> None:
    other = Replica(plane, "ext-other", ALWAYS)
    try:
        until(lambda: httpx.get(f"http://127.0.0.1:{other.port}/readyz").status_code == 200, what="it is warm")
        assert not other.leads()
        # Asked to end, the leader gives the Lease back: nobody waits for a Lease's whole life.
        replica.stop()
        lease = api.get(LEASES, "myriad-scheduler", namespace="myriad-system")
        assert lease["spec"]["holderIdentity"] in ("", "ext-other"), lease
        until(other.leads, what="the other leads")
        submit(plane, "after-handover")
        admitted(api, "after-handover")
        third = Replica(plane, "ext-third", ALWAYS)
        try:
            until(lambda: httpx.get(f"http://127.0.0.1:{third.port}/readyz").status_code == 200, what="it is warm")
            os.kill(plane.processes["ext-other"].pid, signal.SIGKILL)
            until(third.leads, timeout_s=60, what="the third leads when the Lease has run out")
            delete_job(api, "after-handover")
            submit(plane, "after-crash")
            admitted(api, "after-crash")
        finally:
            third.stop()
    finally:
        other.stop()


def test_by_default_a_queue_asks_while_a_gang_waits_and_stops_when_none_has_for_a_while(
    plane: ControlPlane, api: Api
) -> None:
    """Attaching and detaching write no job off: neither one that runs, nor one that runs where it was steered to."""
    replica = Replica(plane, "ext-default", {"MYRIAD_SCHEDULER_DETACH_AFTER_S": "5"})
    try:
        until(replica.leads, what="it leads")
        until(lambda: not attached(api), timeout_s=60, what="no gang waits: no queue asks")
        submit(plane, "first")
        assert admitted(api, "first").check is None
        (record,) = until(lambda: replica.records("first", "assigned"), what="what TAS did is recorded")
        assert record["agree"] in (True, False), "and compared with the own plan"
        submit(plane, "second")
        view = steered(api, "second")
        assert attached(api) and not view.quota_reserved
        (update,) = view.check.updates if view.check else ()
        (target,) = update.node_selector.values()
        first = until(lambda: (v := look(api, "first")) and v.check and v, what="the running one has an entry now")
        assert first.admitted and not first.evicted
        delete_job(api, "first")
        view = admitted(api, "second")
        assert rack_of(api, view.nodes) == {target}
        pods = {p["metadata"]["uid"] for p in api.list(PODS, namespace="vision")[0] if p["spec"].get("nodeName")}
        until(lambda: not attached(api), timeout_s=30, what="none waits any more: the queue stops asking")
        view = until(lambda: (v := look(api, "second")) and v.check is None and v, what="Kueue drops the entry")
        assert view.admitted and not view.evicted
        time.sleep(3)
        now = {p["metadata"]["uid"] for p in api.list(PODS, namespace="vision")[0] if p["spec"].get("nodeName")}
        assert now >= pods, "its pods are the same"
        assert real_nodes(api, "second", 4) == view.nodes
    finally:
        replica.stop()
