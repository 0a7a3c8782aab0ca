"""A leader that dies or stands still in the middle of a hundred admissions, and a database that is away for a minute:
nothing is given twice, nothing is lost, and the ledger equals what the Workloads themselves say, to the second.

Two replicas on the real Kueue, each with a disk of its own, and one PostgreSQL (a SQLite file where there is none).
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import apiserver
import httpx
import pytest
from apiserver import ControlPlane, check_object, fake_node, gang_job, queue_objects, until
from bookings import Bookings, moment_of, watched
from extension import ACCOUNT, ALWAYS, SYSTEM, Replica, attached, lease, rights

from myriad.kube.client import Api, connect
from myriad.kube.kinds import JOBS, WORKLOADS
from myriad.scheduler.ledger.store import Store

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "scheduler_ledger"))

import databases

Json = dict[str, Any]

JOBS_TOTAL = 100
NODES_TOTAL = 24
OUTAGE_S = 60.0
LEASE_S = lease(8, 6, 1)

pytestmark = [apiserver.AT_HAND, pytest.mark.slow]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    work = tmp_path_factory.mktemp("failover") / "plane"
    with apiserver.control_plane(work, users=[ACCOUNT], run_s=3.0) as running:
        nodes = [fake_node(f"g{i:02}", ("hall1", f"b{i // 12}", f"r{i // 6}")) for i in range(NODES_TOTAL)]
        running.apply([SYSTEM, *nodes, *queue_objects(gpus=NODES_TOTAL * 8), check_object(), *rights()])
        running.wait_for_nodes()
        yield running


@pytest.fixture
def database(tmp_path: Path) -> Iterator[databases.Server | None]:
    if databases.missing():
        yield None
    else:
        with databases.server() as running:
            yield running


@pytest.fixture
def url(database: databases.Server | None, tmp_path: Path) -> str:
    return database.database() if database else f"sqlite:///{tmp_path}/ledger.db"


class Pair:
    """Two replicas. Each has a disk of its own; what they share is the cluster and the ledger's database."""

    def __init__(self, plane: ControlPlane, url: str) -> None:
        self._plane = plane
        self._url = url
        self._run = time.monotonic_ns()
        self.alive: dict[str, Replica] = {}
        for name in ("one", "two"):
            self.start(name)

    def start(self, name: str) -> Replica:
        folder = self._plane.work / f"{name}-{self._run}"
        folder.mkdir(exist_ok=True)
        settings = {
            **LEASE_S,
            **ALWAYS,
            "MYRIAD_SCHEDULER_LEDGER_URL": self._url,
            "MYRIAD_SCHEDULER_DECISIONS": str(folder / "decisions.jsonl"),
        }
        self.alive[name] = Replica(self._plane, f"{name}-{self._run}", settings)
        return self.alive[name]

    def leader(self) -> str:
        """The short name of the replica that leads; empty where none says so."""
        for name, replica in self.alive.items():
            try:
                if replica.leads():
                    return name
            except httpx.HTTPError:
                continue
        return ""

    def kill(self, name: str) -> None:
        self.alive.pop(name).stop(kill=True)

    def signal(self, name: str, number: int) -> None:
        self._plane.processes[self.alive[name].name].send_signal(number)

    def stop(self) -> None:
        for name in list(self.alive):
            self.signal(name, signal.SIGCONT)
            self.alive.pop(name).stop()


@pytest.fixture
def pair(plane: ControlPlane, api: Api, url: str) -> Iterator[Pair]:
    made = Pair(plane, url)
    try:
        until(made.leader, timeout_s=90, what="one replica leads")
        until(lambda: attached(api), what="the check is attached")
        for replica in made.alive.values():
            until(
                lambda r=replica: httpx.get(f"http://127.0.0.1:{r.port}/readyz").status_code == 200,
                timeout_s=90,
                what="both are warm",
            )
        yield made
    finally:
        made.stop()
        for job in api.list(JOBS, namespace="vision")[0]:
            api.delete(JOBS, job["metadata"]["name"], namespace="vision")
        until(lambda: not api.list(WORKLOADS, namespace="vision")[0], timeout_s=90, what="everything is gone")


def gangs(seed: int, count: int) -> list[Json]:
    """Gangs of 1 to 4 pods with 1 to 8 GPUs each: five to seven of them fill the pool four times over and more."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    return [
        gang_job(f"job-{seed}-{i:03}", pods=rng.randint(1, 4), gpus=rng.choice((1, 2, 4, 8, 8))) for i in range(count)
    ]


def submit(plane: ControlPlane, jobs: list[Json]) -> None:
    for start in range(0, len(jobs), 25):
        plane.apply(jobs[start : start + 25])


def all_complete(api: Api, count: int) -> bool:
    done = 0
    for job in api.list(JOBS, namespace="vision")[0]:
        status = job.get("status") or {}
        if any(c["type"] == "Complete" and c["status"] == "True" for c in status.get("conditions") or []):
            assert status["succeeded"] == job["spec"]["completions"]
            done += 1
    return done == count


def expected(api: Api) -> dict[tuple[str, int], tuple[int, int]]:
    """By uid and time of admission: time of the end and GPUs, from the Workloads' own conditions."""
    result = {}
    for body in api.list(WORKLOADS, namespace="vision")[0]:
        (podset,) = body["spec"]["podSets"]
        gpus = podset["count"] * int(
            podset["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
        )
        key = body["metadata"]["uid"], seconds(moment_of(body, "Admitted"))
        result[key] = seconds(moment_of(body, "Finished")), gpus
    return result


def seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


def charged(store: Store) -> dict[tuple[str, int], tuple[int, int]]:
    found = {}
    for charge in store.charges(since=0, until=int(time.time()) + 60):
        key = charge.uid, charge.admitted_at
        assert key not in found, f"charged twice: {charge}"
        assert charge.basis in ("", "condition"), f"estimated: {charge}"
        assert charge.started_at == charge.admitted_at and charge.team == "vision"
        found[key] = charge.ended_at or 0, int(charge.gpus)
    return found


def judge(api: Api, bookings: Bookings, url: str) -> None:
    """Every job ran once and to its end, no GPU was given twice, and the ledger says exactly what the Workloads say."""
    assert not bookings.faults, bookings.faults[:5]
    truth = expected(api)
    assert len(truth) == JOBS_TOTAL
    assert {uid: len(times) for uid, times in bookings.admissions.items()} == {uid: 1 for uid, _ in truth}
    assert not [body for body in bookings.bodies.values() if moment_of(body, "Evicted")]
    store = Store(url)
    try:
        until(lambda: charged(store) == truth, timeout_s=120, what="the ledger says what the Workloads say")
        assert store.open_charges() == []
        gpu_seconds = sum((end - began) * gpus for (_, began), (end, gpus) in truth.items())
        now = int(time.time())
        assert sum(store.spent(since=0, until=now + 60, now=now).values()) == gpu_seconds
        counts = store.counts()
        print(f"{store.where}: {gpu_seconds} GPU-seconds of {len(truth)} jobs, rows {counts}")
    finally:
        store.close()


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_leader_lost_in_the_middle_of_a_hundred_admissions(
    plane: ControlPlane, api: Api, pair: Pair, url: str, how: str
) -> None:
    """Frozen, it wakes when another leads since long, with a pass half done."""
    watcher = connect(plane.kubeconfig)
    with watched(watcher) as bookings:
        submit(plane, gangs(len(how), JOBS_TOTAL))
        until(lambda: bookings.admitted() >= JOBS_TOTAL // 2 - 10, timeout_s=180, what="half of them are admitted")
        first = pair.leader()
        before = bookings.admitted()
        assert 0 < before < JOBS_TOTAL, "in the middle"
        lost = time.monotonic()
        if how == "killed":
            pair.kill(first)
        else:
            pair.signal(first, signal.SIGSTOP)
        other = "two" if first == "one" else "one"
        until(lambda: pair.alive[other].leads(), timeout_s=60, what="the other leads")
        print(f"{how} at {before} admissions; the other led {time.monotonic() - lost:.1f} s later")
        if how == "frozen":
            pair.signal(first, signal.SIGCONT)
        until(lambda: bookings.admitted() > before, timeout_s=60, what="admissions go on")
        until(lambda: all_complete(api, JOBS_TOTAL), timeout_s=300, what="all jobs are complete")
        if how == "frozen":
            assert pair.leader() == other, "whoever was frozen follows"
        judge(api, bookings, url)
    watcher.close()


def test_a_database_that_is_away_for_a_minute_holds_nobody_up(
    plane: ControlPlane, api: Api, pair: Pair, url: str, database: databases.Server | None
) -> None:
    """It is switched off while jobs come and go; half a minute later the leader is killed too."""
    if database is None:
        pytest.skip(databases.missing())
    watcher = connect(plane.kubeconfig)
    with watched(watcher) as bookings:
        jobs = gangs(7, JOBS_TOTAL)
        submit(plane, jobs[:10])
        until(lambda: bookings.admitted() >= 5, timeout_s=120, what="the first are admitted")
        leader = pair.alive[pair.leader()]
        until(lambda: rows(leader) > 0, what="the ledger fills")

        database.stop()
        away = time.monotonic()
        killed = False
        left = jobs[10:]
        admitted_before = bookings.admitted()
        while time.monotonic() - away < OUTAGE_S:
            submit(plane, left[:3])
            left = left[3:]
            time.sleep(1.5)
            if not killed and time.monotonic() - away > OUTAGE_S / 2:
                assert metric(leader, "myriad_ledger_queued") > 0, "facts wait"
                pair.kill(pair.leader())
                killed = True
        admitted_meanwhile = bookings.admitted() - admitted_before
        assert admitted_meanwhile > 10, "scheduling goes on"
        database.start()
        print(
            f"{admitted_meanwhile} jobs were admitted while the database was away for {time.monotonic() - away:.0f} s"
        )

        submit(plane, left)
        until(pair.leader, timeout_s=60, what="one leads")
        back = pair.start("one" if "one" not in pair.alive else "two")
        until(lambda: all_complete(api, JOBS_TOTAL), timeout_s=300, what="all jobs are complete")
        until(lambda: back.get("/v1/status"), timeout_s=90, what="the one that was killed is back")
        judge(api, bookings, url)
    watcher.close()


def rows(replica: Replica) -> float:
    return metric(replica, "myriad_ledger_rows_total")


def metric(replica: Replica, name: str) -> float:
    """The sum over a metric's labels."""
    text = httpx.get(f"http://127.0.0.1:{replica.port}/metrics", timeout=10).text
    lines = [line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    assert lines, f"there is no metric {name}"
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)
