"""GPU-hours on the real Kueue: jobs run, the budget is used up, the queue is held with reason and date, a killed leader
changes nothing, the next period lets the queue go, corrections are made in nobody else's name, and people are told."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apiserver
import pytest
from apiserver import ControlPlane, check_object, fake_node, gang_job, queue_objects, until
from extension import ACCOUNT, SYSTEM, Replica, rendered, rights
from test_jobs import IMAGE, MIRROR, NORMAL, myriad
from test_jobs import rights as member_rights

from myriad.kube.client import Api, ApiError, connect
from myriad.kube.kinds import CONFIG_MAPS, JOBS, LOCAL_QUEUES, PODS, WORKLOADS
from myriad.scheduler.ledger import corrections
from myriad.scheduler.ledger.store import Correction
from myriad.scheduler.objects import WorkloadView, workload_view

Json = dict[str, Any]

MEMBER = "alice"
GPUS = 128
DAY_S = 86_400

pytestmark = [apiserver.AT_HAND, pytest.mark.slow]


def own_address() -> str:
    """An address of this machine that is not loopback: the API server's proxy goes to no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


def zone_with_midnight_in(folder: Path, name: str, seconds: int) -> int:
    """A time zone (RFC 9636, version 1) in which the next day begins in so many seconds; its offset in seconds."""
    offset = (DAY_S - seconds - int(time.time()) % DAY_S + 43_200) % DAY_S - 43_200
    body = b"TZif" + b"\0" * 16 + struct.pack(">6l", 0, 0, 0, 0, 1, 4) + struct.pack(">lbb", offset, 0, 0) + b"TST\0"
    (folder / name).write_bytes(body)
    return offset


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with apiserver.control_plane(tmp_path_factory.mktemp("budgets") / "plane", users=[ACCOUNT, MEMBER]) as running:
        nodes = [fake_node(f"g{i}", ("hall1", "b1", f"r{i // 2}"), gpus=GPUS) for i in range(8)]
        teams = {
            "vision": {"gpu_hours": {"h100": {"budget": 1, "period": "day"}}},
            "speech": {"gpu_hours": {"h100": {"budget": 1, "period": "day", "used_up": "leave"}}},
        }
        policy = {
            "teams": {name: {"namespaces": [name], "quota": {"h100": 512}, **rules} for name, rules in teams.items()},
            "pools": {"h100": {"gpus_per_node": GPUS, "max_hours": 48, "default_hours": 24, "unlimited": "default"}},
        }
        rules = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "myriad-policy", "namespace": "myriad-system"},
            "data": {"policy.json": json.dumps(policy)},
        }
        queues = [o for team in teams for o in queue_objects(gpus=4 * GPUS, team=team)]
        guard = [o for o in rendered() if o["kind"].startswith("ValidatingAdmission")]
        assert [o["kind"] for o in guard] == ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"]
        running.apply([SYSTEM, *nodes, *queues, NORMAL, MIRROR, check_object(), *rights(), *guard, rules])
        running.apply([*member_rights(), *may_make_config_maps()])
        running.wait_for_nodes()
        yield running


def may_make_config_maps() -> list[Json]:
    """What somebody who keeps the accounts is given."""
    group = "rbac.authorization.k8s.io"
    metadata = {"name": "accountants", "namespace": "myriad-system"}
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create", "update"]}
    return [
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]},
        {"apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": metadata,
         "roleRef": {"apiGroup": group, "kind": "Role", "name": "accountants"},
         "subjects": [{"apiGroup": group, "kind": "User", "name": MEMBER}]},
    ]  # fmt: skip


def leads_to(plane: ControlPlane, api: Api, replica: Replica) -> None:
    """The Service of the extension, with this replica behind it: the API server's proxy goes to addresses of pods."""
    metadata = {"name": "myriad-scheduler", "namespace": "myriad-system"}
    address, pod = own_address(), {"name": replica.name, "namespace": "myriad-system"}
    container = {"name": "scheduler", "image": "registry.invalid/x:1"}
    plane.apply(
        [
            {"apiVersion": "v1", "kind": "Pod", "metadata": pod,
             "spec": {"schedulerName": "nobody", "containers": [container]}},
            {"apiVersion": "v1", "kind": "Service", "metadata": metadata,
             "spec": {"ports": [{"name": "http", "port": 8088}]}},
            {"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata,
             "subsets": [{"addresses": [{"ip": address, "targetRef": {"kind": "Pod", **pod}}],
                          "ports": [{"name": "http", "port": replica.port, "protocol": "TCP"}]}]},
        ]
    )  # fmt: skip
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    api.patch(PODS, replica.name, {"status": status}, namespace="myriad-system", subresource="status")


def queue(api: Api, team: str) -> Json:
    return api.get(LOCAL_QUEUES, "h100", namespace=team)


def stopped(api: Api, team: str) -> Json | None:
    """The annotations of the team's queue while it is stopped."""
    found = queue(api, team)
    held = found["spec"].get("stopPolicy") not in (None, "None")
    return {**found["metadata"].get("annotations", {}), "stopPolicy": found["spec"]["stopPolicy"]} if held else None


def view(api: Api, team: str, job: str) -> WorkloadView | None:
    found = [workload_view(w, check_name="myriad") for w in api.list(WORKLOADS, namespace=team)[0]]
    return next((v for v in found if v.gang.name == job), None)


def admitted(api: Api, team: str, job: str) -> WorkloadView | None:
    found = view(api, team, job)
    return found if found is not None and found.admitted else None


def body_of(api: Api, team: str, job: str) -> Json:
    (found,) = [w for w in api.list(WORKLOADS, namespace=team)[0] if w["metadata"]["ownerReferences"][0]["name"] == job]
    return found


def condition_s(body: Json, kind: str) -> int:
    (found,) = [c for c in body["status"]["conditions"] if c["type"] == kind]
    return int(datetime.fromisoformat(found["lastTransitionTime"]).timestamp())


def test_a_used_up_budget_holds_the_queue_until_the_next_period(
    plane: ControlPlane, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONTZPATH", str(tmp_path))
    zone_with_midnight_in(tmp_path, "Noon", 43_200)
    ledger = f"sqlite:///{tmp_path}/ledger.db"
    settings = {"MYRIAD_SCHEDULER_LEDGER_URL": ledger, "MYRIAD_SCHEDULER_AUTH": "token",
                "MYRIAD_SCHEDULER_TIMEZONE": "Noon"}  # fmt: skip
    first = Replica(plane, "ext-one", settings)
    leads_to(plane, api, first)

    # Both budgets are an hour, and these two spend 512 GPU-seconds each second.
    for team in ("vision", "speech"):
        plane.apply([gang_job("spender", pods=4, gpus=GPUS, namespace=team)])
    for team in ("vision", "speech"):
        until(lambda t=team: admitted(api, t, "spender"), what=f"{team} runs")
    begun = condition_s(body_of(api, "speech", "spender"), "Admitted")
    notes = until(lambda: stopped(api, "vision"), timeout_s=60, what="vision's queue is held")
    midnight = datetime.fromisoformat(notes["myriad.dev/hold-until"])
    assert notes["stopPolicy"] == "Hold" and notes["myriad.dev/held-by"] == "budget"
    assert 40_000 < midnight.timestamp() - time.time() <= 43_200
    assert notes["myriad.dev/hold-reason"].startswith("vision has used up its 1 GPU-hours of 20")
    assert notes["myriad.dev/hold-reason"].endswith(f"new jobs start again on {midnight.isoformat()}")
    # What runs goes on in the one team and is asked to leave in the other, as their budgets say.
    leaving = until(lambda: stopped(api, "speech"), timeout_s=30, what="speech's queue is drained")
    assert leaving["stopPolicy"] == "HoldAndDrain"
    until(lambda: (v := view(api, "speech", "spender")) and not v.admitted, what="speech's job has left")
    ended = condition_s(body_of(api, "speech", "spender"), "Evicted")
    assert admitted(api, "vision", "spender")

    plane.apply([gang_job("late", pods=1, gpus=8)])
    until(lambda: view(api, "vision", "late"), what="late stands in the queue")

    # What people are told: the budget, the quota, at submit, in an Event on the queue.
    code, text = myriad(plane, "budget", "show")
    assert code == 0 and "holds vision/h100" in text and "used up, holds speech/h100" in text, text
    code, text = myriad(plane, "budget", "show", "--json", user=MEMBER)
    told = json.loads(text)
    assert code == 0 and [b["team"] for b in told["budgets"]] == ["vision"] and told["others"] == 1
    code, text = myriad(plane, "quota", "vision")
    assert code == 0 and "of 1 until" in text, text
    arguments = ["job", "new", "batch", "--name", "bert", "--namespace", "vision", "--image", IMAGE, "--nodes", "1"]
    code, job = myriad(plane, *arguments, "--gpus", "8", "--pool", "h100")
    assert code == 0, job
    code, text = myriad(plane, "job", "submit", "-", "--dry-run", stdin=job, user=MEMBER)
    assert f"the GPU-hours of vision in h100 for this day are used up: it is held until {midnight.date()}" in text, text
    assert "it has no time limit and will be ended after 24 h, the default of pool h100" in text
    events = json.loads(plane.kubectl("-n", "vision", "get", "events", "-o", "json"))["items"]
    assert any(e["reason"] == "MyriadBudgetUsedUp" and e["involvedObject"]["kind"] == "LocalQueue" for e in events)

    # A correction: in nobody else's name, and only with a reason; a team's member may not by its own rights.
    lie = Correction("", int(time.time()), "vision", "h100", "", -7200, "admin", "a lie")
    person = connect(plane.kubeconfig_for(MEMBER))
    with pytest.raises(ApiError, match=f"who must be {MEMBER}"):
        body = corrections.document(lie, name="ledger-correction-lie", namespace="myriad-system")
        person.create(CONFIG_MAPS, body, namespace="myriad-system")
    person.close()
    # Less than has been used beyond the budget since, or the queue would rightly be let go at once.
    code, text = myriad(
        plane, "budget", "correct", "vision", "h100", "-0.1", "--why", "node g3 was broken", user=MEMBER
    )
    assert code == 0 and f"-0.1 GPU-hours of vision in pool h100 recorded for {MEMBER}" in text, text
    code, text = myriad(plane, "budget", "correct", "vision", "h200", "-1", "--why", "x")
    assert code == 1 and 'no pool is called "h200"' in text

    # The leader is killed, jobs go while nobody looks, the next one knows from the ledger; its day ends soon.
    os.kill(plane.processes["ext-one"].pid, signal.SIGKILL)
    plane.processes.pop("ext-one").wait()
    plane.kubectl("-n", "myriad-system", "delete", "lease", "myriad-scheduler")
    for team in ("vision", "speech"):
        api.delete(JOBS, "spender", namespace=team)
    offset_s = zone_with_midnight_in(tmp_path, "Soon", 45)
    end = time.time() + 45
    second = Replica(plane, "ext-two", {**settings, "MYRIAD_SCHEDULER_TIMEZONE": "Soon"})
    leads_to(plane, api, second)
    assert stopped(api, "vision"), "still held while nobody leads"
    until(lambda: not stopped(api, "vision"), timeout_s=120, what="vision's queue takes jobs again")
    assert time.time() >= end, "not before the period is over"
    until(lambda: admitted(api, "vision", "late"), timeout_s=30, what="the job that waited starts")
    assert not {k for k in queue(api, "vision")["metadata"].get("annotations", {}) if "hold" in k or "held" in k}

    # The day that has just ended there: on the last day of a month "this month" would be the next one by now.
    day = f"{datetime.fromtimestamp(end - 10 + offset_s, UTC):%Y-%m-%d}"
    code, text = myriad(plane, "report", "--json", "--period", day)
    assert code == 0, text
    report = json.loads(text)
    (row,) = [r for r in report["rows"] if r["team"] == "vision"]
    assert row["corrected_h"] == -0.1 and row["used_h"] > 1 and row["charged_h"] == pytest.approx(row["used_h"] - 0.1)
    assert [(c["who"], c["why"]) for c in report["corrections"]] == [(MEMBER, "node g3 was broken")]
    # Charged once by two leaders, by Kueue's own times.
    (theirs,) = [r for r in report["rows"] if r["team"] == "speech"]
    assert theirs["runs"] == 1 and theirs["used_h"] == pytest.approx((ended - begun) * 4 * GPUS / 3600, abs=1e-3)
    code, text = myriad(plane, "report", "--by", "job", "--team", "vision", "--period", day, user=MEMBER)
    assert code == 0 and "spender" in text and "(1 other teams used" in text, text
    second.stop()
