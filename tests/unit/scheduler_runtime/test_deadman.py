"""The dead-man judges by whether the Lease moves, and only while the API server answers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from myriad.kube.kinds import LEASES
from myriad.scheduler import deadman
from myriad.scheduler.settings import Settings

Json = dict[str, Any]

SETTINGS = Settings(lease_duration_s=15, renew_deadline_s=10, retry_period_s=2)
PATIENCE_S = 19


class Lease:
    """An API server that shows one Lease, and a clock that its answers and the dead-man's sleep move on."""

    def __init__(self, *, holder: str = "a", renews_every_s: float = 0.0, slow: Callable[[float], float] | None = None):
        self.now = 0.0
        self.looks = 0
        self._holder = holder
        self._every_s = renews_every_s
        self._slow = slow or (lambda _now: 0.0)

    def find(self, resource: object, name: str, namespace: str) -> Json | None:
        assert (resource, name, namespace) == (LEASES, "myriad-scheduler", "myriad-system")
        self.looks += 1
        self.now += self._slow(self.now)
        if self._holder == "gone":
            return None
        version = int(self.now / self._every_s) if self._every_s else 7
        return {"metadata": {"resourceVersion": str(version)}, "spec": {"holderIdentity": self._holder}}

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def watch(self) -> deadman.Watch:
        return deadman.watch(self, SETTINGS, clock=lambda: self.now, sleep=self.sleep)  # type: ignore[arg-type]


def test_a_lease_that_moves_is_a_leader_that_lives() -> None:
    lease = Lease(renews_every_s=2)
    assert lease.watch() == deadman.Watch(True, "the extension lives: a leads")
    assert lease.now <= 3


@pytest.mark.parametrize(
    ("holder", "says"), [("a", "a has not renewed it"), ("", "nobody holds it"), ("gone", "there is no Lease")]
)
def test_one_that_stands_still_is_waited_for_as_long_as_a_live_leader_could_take(holder: str, says: str) -> None:
    lease = Lease(holder=holder)
    found = lease.watch()
    assert not found.alive and says in found.says
    assert PATIENCE_S <= lease.now <= PATIENCE_S + 1


def test_a_lease_that_nobody_holds_and_that_moves_is_no_leader() -> None:
    """The last one gave it back while it was watched."""
    assert not Lease(holder="", renews_every_s=2).watch().alive


def test_time_in_which_the_api_server_stood_still_hardly_counts() -> None:
    """It hangs for 30 s; a leader could not renew meanwhile, and does so a few seconds after."""

    def stall(now: float) -> float:
        return 30.0 if 4 <= now < 30 else 0.0

    lease = Lease(slow=stall)
    find = lease.find

    def renewed(*args: Any, **kwargs: Any) -> Json | None:
        body = find(*args, **kwargs)
        if body and lease.now > 36:
            body["metadata"]["resourceVersion"] = "8"
        return body

    lease.find = renewed  # type: ignore[method-assign]
    assert lease.watch().alive
    still = Lease(slow=stall)
    assert not still.watch().alive and still.now >= 30 + PATIENCE_S - 4


def test_an_api_server_that_is_slow_for_long_is_no_excuse() -> None:
    lease = Lease(slow=lambda _now: 6.0)
    assert not lease.watch().alive and lease.looks <= PATIENCE_S


def test_whether_the_dead_man_itself_looks() -> None:
    now = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)

    def cron_job(*, suspend: bool = False, made_s: float = 9000, ended_s: float | None = None) -> Json:
        def ago(seconds: float) -> str:
            return (now - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")

        status = {} if ended_s is None else {"lastSuccessfulTime": ago(ended_s)}
        return {"metadata": {"creationTimestamp": ago(made_s)}, "spec": {"suspend": suspend}, "status": status}

    assert deadman.asleep(cron_job(ended_s=100), now) == ""
    assert deadman.asleep(cron_job(made_s=30), now) == "", "it has not run yet"
    assert deadman.asleep(None, now) == "there is no CronJob myriad-dead-man"
    assert "is suspended" in deadman.asleep(cron_job(suspend=True, ended_s=10), now)
    assert "has ended well since 2026-11-30T11:50:00Z" in deadman.asleep(cron_job(ended_s=600), now)
    assert "has ended well since 2026-11-30T09:30:00Z" in deadman.asleep(cron_job(), now)
