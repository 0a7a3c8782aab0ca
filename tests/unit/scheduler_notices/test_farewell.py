"""What a drain says to the jobs on its nodes, and how long it waits."""

from __future__ import annotations

from typing import Any

import pytest

from myriad.kube.client import ApiError
from myriad.kube.drain import DrainError, DrainOptions, PodView, drain
from myriad.kube.kinds import JOBS, NODES, PODS
from myriad.scheduler.notices.announce import MAY_LEAVE, JobChangedError, planned_of
from myriad.scheduler.notices.farewell import Farewell

Json = dict[str, Any]


class Cluster:
    """The world's API with what a drain asks it, and a clock that moves by waiting."""

    def __init__(self, world: Any) -> None:
        self.world, self.api = world, world.api
        self.told: list[str] = []
        self.lines: list[str] = []
        self.evicted: list[str] = []
        self.waited = 0.0
        self.during: Any = None
        self.api.create_event = lambda about, *, reason, message, type_: self.told.append(message)
        self.api.evict = self._evict

    def _evict(self, name: str, *, namespace: str, dry_run: bool = False, uid: str = "") -> None:
        if not dry_run:
            self.evicted.append(name)
            self.api.objects["pods"].pop(f"{namespace}/{name}", None)

    def sleep(self, seconds: float) -> None:
        self.waited += seconds
        self.world.wait(seconds)
        if self.during:
            self.during()

    def farewell(self, notice_s: float = 0.0) -> Farewell:
        return Farewell(
            self.api, by="reboot", reason="the kernel is old", notice_s=notice_s, now=lambda: self.world.now,
            sleep=self.sleep, say=self.lines.append,
        )  # fmt: skip

    def job(self, name: str = "clip") -> Json:
        return dict(self.api.get(JOBS, name, namespace="vision"))


@pytest.fixture
def cluster(world: Any) -> Cluster:
    made = Cluster(world)
    for name in ("g1", "g2"):
        conditions = [{"type": "Ready", "status": "True"}]
        made.api.put(NODES, {"metadata": {"name": name}, "spec": {}, "status": {"conditions": conditions}})
    container = {"resources": {"limits": {"nvidia.com/gpu": "8"}}}
    made.api.put(
        JOBS,
        {
            "metadata": {
                "name": "clip", "namespace": "vision", "uid": "u1", "labels": {"kueue.x-k8s.io/queue-name": "h100"},
            },
            "spec": {"parallelism": 2, "template": {"spec": {"containers": [container]}}},
            "status": {"startTime": "2026-11-30T13:59:31Z"},
        },
    )  # fmt: skip
    return made


def pods(job: str = "clip") -> list[PodView]:
    labels = {"batch.kubernetes.io/job-name": job}
    return [PodView("vision", f"{job}-{i}", f"u{i}", f"g{i + 1}", grace_s=300, labels=labels) for i in range(2)]


def test_owners_are_told_once_with_the_cost_and_the_plan_is_taken_away_at_the_end(cluster: Cluster) -> None:
    farewell = cluster.farewell()
    farewell.tell(pods())
    (message,) = cluster.told
    assert "reboot of g1, g2, because the kernel is old" in message and "16 GPU-hours" in message
    assert "It has 300 s to save from then on" in message and cluster.waited == 0
    assert planned_of(cluster.job()) is not None
    farewell.end()
    assert planned_of(cluster.job()) is None


def test_a_job_that_changes_in_the_same_moment_is_told_all_the_same(cluster: Cluster) -> None:
    """Its controller counts pods; a drain of hundreds of jobs must not end because one of them was counted."""
    conflict = ApiError(409, "Conflict", "the object has been modified", where="jobs")
    cluster.api.fail["jobs"] = [conflict, conflict]
    cluster.farewell().tell(pods())
    assert len(cluster.told) == 1 and planned_of(cluster.job()) is not None and cluster.waited == 0
    cluster.api.put(JOBS, cluster.job() | {"metadata": {**cluster.job()["metadata"], "annotations": {}}})
    cluster.api.fail["jobs"] = [conflict] * 9
    with pytest.raises(JobChangedError, match="changed while its eviction was announced"):
        cluster.farewell().tell(pods())


def test_it_waits_as_long_as_was_promised(cluster: Cluster) -> None:
    cluster.farewell(notice_s=60).tell(pods())
    assert 60 <= cluster.waited <= 62 and len(cluster.told) == 1
    assert "1 job was told and may take 1 min" in cluster.lines


def test_an_owner_who_lets_it_go_is_not_waited_for(cluster: Cluster) -> None:
    def owner() -> None:
        if cluster.waited >= 10:
            cluster.api.patch(JOBS, "clip", {"metadata": {"annotations": {MAY_LEAVE: "now"}}}, namespace="vision")

    cluster.during = owner
    cluster.farewell(notice_s=600).tell(pods())
    assert cluster.waited == 10


def test_jobs_outside_every_queue_and_ended_ones_are_not_told(cluster: Cluster) -> None:
    cluster.api.put(JOBS, {"metadata": {"name": "own", "namespace": "vision", "uid": "u2"}, "spec": {}})
    ended = cluster.job() | {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    cluster.api.put(JOBS, ended)
    cluster.farewell(notice_s=60).tell([*pods(), *pods("own"), *pods("gone")])
    assert not cluster.told and cluster.waited == 0


def test_nothing_is_drained_while_nodes_fell_silent_together(cluster: Cluster) -> None:
    for i in range(3):
        condition = {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-11-30T14:58:00Z"}
        body = {"metadata": {"name": f"lost{i}"}, "spec": {}, "status": {"conditions": [condition]}}
        cluster.api.put(NODES, body)
    with pytest.raises(DrainError, match=r"3 of 5 nodes of the cluster are not ready .* suspect the control plane"):
        cluster.farewell().ask()
    # Whoever has looked says so by cordoning them.
    for i in range(3):
        body = cluster.api.get(NODES, f"lost{i}") | {"spec": {"unschedulable": True}}
        cluster.api.put(NODES, body)
    cluster.farewell().ask()


def test_a_drain_closes_tells_waits_and_only_then_evicts(cluster: Cluster, make: Any) -> None:
    labels = {"batch.kubernetes.io/job-name": "clip"}
    cluster.api.put(PODS, make.pod("clip-0", "clip", node="g1", labels=labels))
    seen: list[tuple[bool, list[str]]] = []

    def look() -> None:
        closed = bool(cluster.api.get(NODES, "g1")["spec"].get("unschedulable"))
        seen.append((closed, list(cluster.evicted)))

    cluster.during = look
    drain(
        cluster.api, ["g1"], DrainOptions(by="reboot", reason="the kernel is old", poll_s=1), sleep=cluster.sleep,
        farewell=cluster.farewell(notice_s=10),
    )  # fmt: skip
    assert seen[0] == (True, []) and cluster.evicted == ["clip-0"]
    assert cluster.waited >= 10 and planned_of(cluster.job()) is None


def test_a_job_that_came_while_the_drain_was_prepared_is_told_too(cluster: Cluster, make: Any) -> None:
    evict, labels = cluster.api.evict, {"batch.kubernetes.io/job-name": "clip"}
    other = {**labels, "batch.kubernetes.io/job-name": "old"}
    cluster.api.put(PODS, make.pod("old-0", "old", node="g1", labels=other))

    def asked(name: str, **options: Any) -> None:
        if options.get("dry_run"):
            # The scheduler was quicker than the cordon.
            cluster.api.put(PODS, make.pod("clip-0", "clip", node="g1", labels=labels))
        evict(name, **options)

    cluster.api.evict = asked
    drain(cluster.api, ["g1"], DrainOptions(by="reboot"), sleep=cluster.sleep, farewell=cluster.farewell())
    assert sorted(cluster.evicted) == ["clip-0", "old-0"]
    assert len(cluster.told) == 1 and "reboot of g1" in cluster.told[0]


def test_a_drain_that_is_refused_touches_nothing(cluster: Cluster) -> None:
    class Suspect(Farewell):
        def ask(self) -> None:
            raise DrainError("nothing was touched: suspect", where="the cluster", hint="look")

    with pytest.raises(DrainError):
        drain(cluster.api, ["g1"], DrainOptions(by="reboot"), farewell=Suspect(cluster.api, by="reboot"))
    assert not cluster.api.get(NODES, "g1")["spec"].get("unschedulable") and not cluster.told
