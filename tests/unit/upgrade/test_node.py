"""The end of one node's upgrade while the API server comes and goes."""

from __future__ import annotations

import pytest

from myriad.errors import MyriadError
from myriad.kube.client import ApiError, ClusterUnreachableError, KubeconfigError
from myriad.kube.patience import patient
from myriad.upgrade.node import Waits, _steady


class Clock:
    """Time that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def __call__(self) -> float:
        return self.now


def away(times: int, error: MyriadError) -> list[MyriadError]:
    return [error] * times


@pytest.mark.parametrize(
    "error",
    [
        ClusterUnreachableError("no answer"),
        ApiError(503, "ServiceUnavailable", "later", where="x"),
        ApiError(403, "Forbidden", "one that has just started knows nobody", where="x"),
    ],
)
def test_a_node_is_given_back_when_the_api_server_restarts_in_that_moment(error: MyriadError) -> None:
    """Seen on the lab: the only API server restarted between the kubelet's Ready and the node's release."""
    faults, clock = away(3, error), Clock()

    def release() -> str:
        if faults:
            raise faults.pop()
        return "given back"

    assert patient(release, 300.0, sleep=clock.sleep, clock=clock) == "given back"
    assert clock.now == 6.0


def test_one_that_stays_away_is_an_error_after_its_time() -> None:
    clock = Clock()

    def release() -> str:
        raise ClusterUnreachableError("no answer")

    with pytest.raises(ClusterUnreachableError):
        patient(release, 10.0, sleep=clock.sleep, clock=clock)
    assert clock.now == 10.0


@pytest.mark.parametrize("error", [ApiError(422, "Invalid", "is wrong", where="x"), KubeconfigError("is not there")])
def test_what_is_refused_is_not_asked_again(error: MyriadError) -> None:
    clock = Clock()

    def release() -> str:
        raise error

    with pytest.raises(type(error)):
        patient(release, 300.0, sleep=clock.sleep, clock=clock)
    assert clock.now == 0.0


def test_a_control_plane_is_done_when_its_api_server_has_answered_for_a_while_without_a_break() -> None:
    clock = Clock()
    away_at = {4.0, 5.0, 11.0}

    class Coming:
        def find(self, _kind: object, name: str) -> dict[str, object]:
            if clock.now in away_at:
                raise ClusterUnreachableError("no answer")
            return {"metadata": {"name": name, "labels": {"node-role.kubernetes.io/control-plane": ""}}}

    _steady(Coming(), "cp1", Waits(steady_s=20.0), clock.sleep, clock)  # type: ignore[arg-type]
    assert clock.now == 31.0


def test_a_worker_waits_for_no_api_server() -> None:
    clock = Clock()

    class Worker:
        def find(self, _kind: object, name: str) -> dict[str, object]:
            return {"metadata": {"name": name, "labels": {}}}

    _steady(Worker(), "gpu1", Waits(), clock.sleep, clock)  # type: ignore[arg-type]
    assert clock.now == 0.0
