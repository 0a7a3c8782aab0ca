"""The dead-man on the lab: its CronJob runs with its own rights and detaches the check of an extension that is gone;
jobs go on, and the extension comes back by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))
sys.path.insert(0, str(Path(__file__).parent))
from gangs import Size
from test_gangs import apply, sleeping_job

from myriad.kube.client import Api, connect
from myriad.kube.kinds import ADMISSION_CHECKS, CLUSTER_QUEUES, WORKLOADS
from myriad.scheduler import deadman
from myriad.scheduler.attach import entry_of, is_attached, is_ours
from myriad.scheduler.objects import WorkloadView, workload_view

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
KUBECONFIG = ROOT / ".lab" / "kubeconfig"
LATEST_S = 150.0
"""A minute until cron's next, the start of a pod, nineteen seconds of watching; and a busy machine."""
GANG = Size("unsteered", "vision", 2, 8)

pytestmark = [pytest.mark.lab, pytest.mark.slow]


@pytest.fixture
def api() -> Iterator[Api]:
    client = connect(KUBECONFIG)
    yield client
    client.close()


def until(check: Callable[[], Any], what: str, timeout_s: float = LATEST_S) -> float:
    """Wait until it holds; how long that took."""
    began = time.monotonic()
    while not check():
        assert time.monotonic() - began < timeout_s, f"not within {timeout_s} s: {what}"
        time.sleep(1)
    return time.monotonic() - began


def status() -> str:
    """What `myriad status` prints."""
    program = str(Path(sys.executable).with_name("myriad"))
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(
        [program, "status", "--kubeconfig", str(KUBECONFIG)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode in (0, 4), done.stderr
    return done.stdout


def queues(api: Api) -> list[Json]:
    return [queue for queue in api.list(CLUSTER_QUEUES)[0] if is_ours(queue)]


def view_of(api: Api, size: Size) -> WorkloadView | None:
    views = [workload_view(w, check_name="myriad") for w in api.list(WORKLOADS, namespace=size.namespace)[0]]
    return next((view for view in views if view.gang.name == size.name), None)


def test_an_extension_that_is_gone_holds_nobody_up(lab: Any, api: Api) -> None:
    def scale(count: int) -> None:
        lab.kubectl("-n", "myriad-system", "scale", "deployment", "myriad-scheduler", f"--replicas={count}")

    def set_env(value: str) -> None:
        name = ("-n", "myriad-system", "deployment/myriad-scheduler")
        lab.kubectl("set", "env", *name, f"MYRIAD_SCHEDULER_ATTACH{value}")
        lab.kubectl("rollout", "status", *name, "--timeout=180s")

    # By default a queue asks while a gang waits in it; here all do, as on a site where one always waits.
    set_env("=always")
    assert queues(api)
    until(lambda: all(is_attached(queue, "myriad") for queue in queues(api)), "every queue asks the check")
    deployment = lab.kubectl("-n", "myriad-system", "get", "deployment", "myriad-scheduler", "-o=json")
    replicas = json.loads(deployment)["spec"]["replicas"]
    scale(0)
    try:
        took_s = until(lambda: not any(entry_of(queue, "myriad") for queue in queues(api)), "the check is detached")
        print(f"detached {took_s:.0f} s after the extension was told to end")
        said = status()
        assert deadman.detached(api.get(ADMISSION_CHECKS, "myriad")) in said and "not steered" in said, said
        assert "dead-man      does not look" not in said
        apply(lab, [sleeping_job(GANG, 90)])
        until(lambda: (v := view_of(api, GANG)) and v.admitted and v.check is None, "the gang runs unsteered")
    finally:
        scale(replicas)
    took_s = until(lambda: all(is_attached(queue, "myriad") for queue in queues(api)), "the check is attached again")
    print(f"attached {took_s:.0f} s after the extension was told to start")
    until(lambda: not deadman.detached(api.get(ADMISSION_CHECKS, "myriad")), "the mark is gone")
    view = view_of(api, GANG)
    assert view is not None and view.admitted and not view.evicted
    assert "not steered" not in status()
    lab.kubectl("-n", GANG.namespace, "delete", "job", GANG.name, "--wait=false")
    set_env("-")
