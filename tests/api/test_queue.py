"""Queue and estimates on real Kueue objects: limits as Kueue enforces them, the annotation that it lets stand, and what
a member of a team sees. Needs the programs of `apiserver.py`, no lab."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apiserver
import pytest
from apiserver import ControlPlane, fake_node, gang_job, queue_objects, until
from prometheus_client import CollectorRegistry

from myriad.cli._cluster import read_cluster
from myriad.kube.client import Api
from myriad.kube.kinds import JOBS, WORKLOADS
from myriad.scheduler.cache import Cache
from myriad.scheduler.eta.observer import Estimating
from myriad.scheduler.eta.store import Store
from myriad.scheduler.objects import seconds_since
from myriad.scheduler.queue_view import queue_report

Json = dict[str, Any]
MEMBER = "ann"
LIMIT_S = 5400

pytestmark = [apiserver.AT_HAND]


def member_rights() -> list[Json]:
    """Read everything of the namespace, nothing else."""
    group = "rbac.authorization.k8s.io"
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]}]
    meta = {"name": "member", "namespace": "vision"}
    return [
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": meta, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "member"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": MEMBER}],
        },
    ]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with apiserver.control_plane(tmp_path_factory.mktemp("queue") / "plane", users=[MEMBER]) as running:
        nodes = [fake_node(f"n{i}", ("hall1", "b1", f"r{i // 2}")) for i in range(4)]
        running.apply([*nodes, *queue_objects(gpus=32), *member_rights()])
        yield running


def myriad(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-c", "from myriad.cli import main; main()", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout or done.stderr


def state(cache: Cache, job: str) -> Any:
    return cache.view_of_job("vision", job)


def test_c9_c10_c14_a_waiting_job_has_place_time_and_evaluation_and_its_estimate_is_judged(
    plane: ControlPlane, api: Api, tmp_path: Path
) -> None:
    holder = gang_job("holder", pods=4, gpus=8)
    holder["metadata"]["labels"]["kueue.x-k8s.io/max-exec-time-seconds"] = str(LIMIT_S)
    plane.apply([holder])
    until(lambda: (v := state(read_cluster(api)[0], "holder")) and v.admitted, what="the holder is admitted")
    plane.apply([gang_job("second", pods=2, gpus=8)])
    # Times of creation are whole seconds: who comes within the same one has no place before or behind.
    until(
        lambda: (v := state(read_cluster(api)[0], "second")) and seconds_since(v.created, datetime.now(UTC)) >= 1,
        what="the second is a second old",
    )
    plane.apply([gang_job("third", pods=1, gpus=8)])
    until(
        lambda: all((v := state(read_cluster(api)[0], j)) and v.quota_message for j in ("second", "third")),
        what="Kueue has refused both",
    )

    cache, _ = read_cluster(api)
    observer = Estimating(api, cache, Store(f"sqlite:///{tmp_path}/ledger.db"), CollectorRegistry())
    observer.step()
    eta = observer.etas[state(cache, "second").gang.uid]
    assert eta.low_s is not None and eta.high_s is not None
    assert 0 < eta.low_s <= eta.high_s <= LIMIT_S * 1.5, "the holder's limit bounds it"
    assert "1 running jobs, 1 with a time limit" in eta.basis

    (entry,) = queue_report(read_cluster(api)[0], "vision", now=datetime.now(UTC))
    second, third = entry["waiting"]
    assert (second["job"], third["job"]) == ("second", "third") and third["ahead"]["gpus"] == 16
    assert second["evaluation"]["kind"] == "refused" and "insufficient unused quota" in second["evaluation"]["sentence"]

    # A member of the team, who sees nothing of the cluster, reads the same estimate.
    code, text = myriad("queue", "--json", "-n", "vision", "--kubeconfig", str(plane.kubeconfig_for(MEMBER)))
    assert code == 0, text
    rows = {row["job"]: row for row in json.loads(text)[0]["waiting"]}
    assert rows["second"]["eta"]["mid_s"] == pytest.approx(eta.mid_s, abs=60) and rows["second"]["position"] is None

    code, text = myriad("quota", "--kubeconfig", str(plane.kubeconfig))
    assert code == 0 and "32 GPUs on 4 nodes" in text, text
    code, text = myriad("fit", "--nodes", "1", "--gpus", "8", "--kubeconfig", str(plane.kubeconfig))
    assert code == 4 and "if vision/holder (32 GPUs) left" in text, text

    # Kueue admits the second although the Workload was annotated meanwhile, and the estimate is judged: it was wrong.
    api.delete(JOBS, "holder", namespace="vision")
    fresh = until(
        lambda: (c := read_cluster(api)[0]) and (v := state(c, "second")) and v.admitted and c,
        what="second is admitted",
    )
    cache.replace(WORKLOADS.plural, fresh.listing(WORKLOADS))
    observer.step()
    share, judged = observer.calibration.held_of_all()
    assert judged >= 1 and share == 0.0
