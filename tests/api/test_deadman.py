"""The dead-man against the real API server and the real Kueue: what the role's CronJob runs, with the CronJob's own
rights and environment.

The extension is killed and a gang hangs on its check; the dead-man detaches, jobs go on unsteered, `myriad status` and
the page say so; the extension comes back by itself and nobody is evicted. A leader that lives, and an API server that
stands still, are left alone.
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
from apiserver import PATIENCE, ControlPlane, check_object, fake_node, queue_objects, until
from extension import (
    ACCOUNT,
    ALWAYS,
    ROOT,
    SYSTEM,
    Replica,
    admitted,
    attached,
    delete_job,
    lease,
    look,
    rendered,
    rights,
    submit,
)

from myriad.kube.client import Api, connect
from myriad.kube.kinds import ADMISSION_CHECKS, JOBS, LEASES, PODS, WORKLOADS
from myriad.scheduler import deadman

Json = dict[str, Any]

DEAD_MAN = "system:serviceaccount:myriad-system:myriad-dead-man"
LEASE_S = lease(10, 8, 1)
PATIENCE_S = 12 * PATIENCE

pytestmark = [apiserver.AT_HAND, pytest.mark.slow]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with apiserver.control_plane(tmp_path_factory.mktemp("deadman") / "plane", users=[ACCOUNT, DEAD_MAN]) as running:
        nodes = [fake_node(f"g{r}{i}", ("hall1", "b1", f"r{r}")) for r in range(2) for i in range(4)]
        running.apply([SYSTEM, *nodes, *queue_objects(gpus=64), check_object(), *rights()])
        running.wait_for_nodes()
        yield running


@pytest.fixture
def replica(plane: ControlPlane, api: Api) -> Iterator[Replica]:
    started = start(plane, api)
    yield started
    if started.name in plane.processes:
        started.stop()


@pytest.fixture(autouse=True)
def empty(api: Api) -> Iterator[None]:
    yield
    for job in api.list(JOBS, namespace="vision")[0]:
        delete_job(api, job["metadata"]["name"])
    until(lambda: not api.list(WORKLOADS, namespace="vision")[0] and not api.list(PODS)[0], what="everything is gone")


def start(plane: ControlPlane, api: Api) -> Replica:
    started = Replica(plane, f"ext-{time.monotonic_ns()}", {**LEASE_S, **ALWAYS})
    until(started.leads, timeout_s=90, what="the replica leads")
    until(lambda: attached(api), what="the check is attached")
    return started


def container() -> Json:
    """The dead-man's container, as the role renders it for an extension with these settings."""
    (job,) = (o for o in rendered(env={**LEASE_S, "MYRIAD_SCHEDULER_LEDGER_URL": "secret"}) if o["kind"] == "CronJob")
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == DEAD_MAN.rpartition(":")[2]
    (found,) = pod["containers"]
    return dict(found)


def look_once(plane: ControlPlane) -> subprocess.Popen[str]:
    """One run of the CronJob, as a process on loopback."""
    spec = container()
    python, *rest = spec["command"]
    assert python == "python3"
    environment = {e["name"]: e.get("value", "myriad-system") for e in spec["env"]}
    assert set(environment) == {"POD_NAMESPACE", *LEASE_S}, "what the dead-man need not know is not told to it"
    return subprocess.Popen(
        [sys.executable, *rest],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT / "src"),
            "KUBECONFIG": str(plane.kubeconfig_for(DEAD_MAN)),
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def dead_man(plane: ControlPlane) -> str:
    """A run that must end well; what it said."""
    process = look_once(plane)
    said, complaints = process.communicate(timeout=90 * PATIENCE)
    assert process.returncode == 0, said + complaints
    return said


def status(plane: ControlPlane) -> str:
    """What `myriad status` prints."""
    script = "import sys; from myriad.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", script, "status", "--kubeconfig", str(plane.kubeconfig)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 4), done.stderr
    return done.stdout


def mark(api: Api) -> str:
    return deadman.detached(api.get(ADMISSION_CHECKS, "myriad"))


def test_the_api_server_takes_the_cronjob(plane: ControlPlane) -> None:
    found = [o for o in rendered() if o["kind"] == "CronJob"]
    assert [o["metadata"]["name"] for o in found] == ["myriad-dead-man"]
    assert "dead-man      does not look: there is no CronJob myriad-dead-man" in status(plane)
    plane.apply(found)
    assert "dead-man" not in status(plane)
    plane.kubectl("-n", "myriad-system", "patch", "cronjob", "myriad-dead-man", "-p", '{"spec": {"suspend": true}}')
    assert "dead-man      does not look: the CronJob myriad-dead-man is suspended" in status(plane)
    plane.kubectl("-n", "myriad-system", "delete", "cronjob", "myriad-dead-man")
    assert not [o for o in rendered(dead_man_enabled=False) if "dead-man" in o["metadata"]["name"]]


def test_it_may_look_and_detach_and_nothing_else(plane: ControlPlane) -> None:
    def may(*question: str) -> bool:
        return plane.kubectl("auth", "can-i", *question, f"--as={DEAD_MAN}", check=False).strip() == "yes"

    assert may("patch", "clusterqueues.kueue.x-k8s.io")
    assert may("patch", "admissionchecks.kueue.x-k8s.io/myriad")
    assert may("get", "leases.coordination.k8s.io/myriad-scheduler", "-n", "myriad-system")
    for question in (
        ("patch", "admissionchecks.kueue.x-k8s.io/other"),
        ("delete", "clusterqueues.kueue.x-k8s.io"),
        ("update", "leases.coordination.k8s.io/myriad-scheduler", "-n", "myriad-system"),
        ("get", "leases.coordination.k8s.io/other", "-n", "myriad-system"),
        ("list", "pods", "-A"),
        ("get", "secrets", "-n", "myriad-system"),
        ("list", "workloads.kueue.x-k8s.io", "-A"),
    ):
        assert not may(*question), question


def test_a_leader_that_lives_is_left_alone(plane: ControlPlane, api: Api, replica: Replica) -> None:
    assert dead_man(plane) == f"the extension lives: {replica.name} leads\n"
    assert attached(api) and not mark(api)


def test_without_the_extension_jobs_go_on_unsteered_and_it_comes_back_by_itself(
    plane: ControlPlane, api: Api, replica: Replica
) -> None:
    submit(plane, "before")
    admitted(api, "before")
    replica.stop(kill=True)
    submit(plane, "held", pods=2)
    until(lambda: (v := look(api, "held")) and v.quota_reserved, what="it has quota")
    time.sleep(2)
    assert not look(api, "held").admitted, "nobody answers the check"  # type: ignore[union-attr]

    began = time.monotonic()
    said = dead_man(plane)
    assert f"{replica.name} has not renewed it" in said and "detaching the check from vision-h100" in said, said
    assert time.monotonic() - began >= PATIENCE_S - 1, "it gave a leader its time"
    assert not attached(api)
    admitted(api, "held")
    submit(plane, "after", pods=1)
    assert admitted(api, "after").check is None
    assert dead_man(plane) == "no ClusterQueue asks the check: nothing to detach\n"
    assert not look(api, "before").evicted  # type: ignore[union-attr]

    shown = status(plane)
    since = mark(api)
    assert since.startswith("unsteered since 2") and since.endswith("detached by the dead-man")
    assert f"not steered   vision-h100   {since}" in shown, shown
    assert "extension     does not answer" in shown, shown

    again = start(plane, api)
    try:
        until(lambda: not mark(api), what="the mark is taken away")
        for job in ("before", "held", "after"):
            view = look(api, job)
            assert view is not None and view.admitted and not view.evicted, job
        assert "not steered" not in status(plane)
        submit(plane, "steered-again", pods=1)
        view = admitted(api, "steered-again")
        assert view.check is not None and view.check.state == "Ready"
    finally:
        again.stop()


def test_without_the_extension_people_are_told_though_it_held_nobody_up(plane: ControlPlane, api: Api) -> None:
    """By default no queue asks the check while no gang waits: there is nothing to detach then, and no job is held."""
    gone = Replica(plane, "ext-calm", {**LEASE_S, "MYRIAD_SCHEDULER_DETACH_AFTER_S": "2"})
    try:
        until(gone.leads, timeout_s=90, what="the replica leads")
        until(lambda: not attached(api) and not mark(api), timeout_s=60, what="no queue asks")
        submit(plane, "before", pods=1)
        assert admitted(api, "before").check is None
    finally:
        gone.stop(kill=True)
    said = dead_man(plane)
    assert "no ClusterQueue asks the check, nothing to detach; gangs go on unsteered" in said, said
    since = mark(api)
    assert since and f"not steered   vision-h100   {since}" in status(plane)
    assert dead_man(plane) == "no ClusterQueue asks the check: nothing to detach\n"
    assert mark(api) == since
    again = Replica(plane, "ext-calm-again", LEASE_S)
    try:
        until(lambda: not mark(api), timeout_s=90, what="the mark is taken away")
        until(lambda: "not steered" not in status(plane), timeout_s=30, what="it says nothing of it any more")
        submit(plane, "holder", pods=7)
        admitted(api, "holder")
        submit(plane, "waits", pods=4)
        view = until(
            lambda: (v := look(api, "waits")) and v.check and v, timeout_s=30, what="a gang waits: it is asked"
        )
        assert attached(api) and not view.quota_reserved and not look(api, "before").evicted  # type: ignore[union-attr]
    finally:
        again.stop()


def test_the_page_says_since_when_nothing_is_steered(plane: ControlPlane, api: Api, replica: Replica) -> None:
    """Replicas live and show their page, and none of them can lead: their right to the Lease is gone."""
    roles = [o for o in rights() if o["kind"] == "Role" and o["metadata"]["name"] == "myriad-scheduler"]
    without = [r for r in roles[0]["rules"] if r["resources"] != ["leases"]]
    page = f"http://127.0.0.1:{replica.port}/"
    plane.apply([{**roles[0], "rules": without}])
    try:
        until(lambda: not replica.leads(), what="it leads no more")
        submit(plane, "held")
        dead_man(plane)
        admitted(api, "held")
        text = until(lambda: (t := httpx.get(page).text) and "unsteered since" in t and t, what="the page says so")
        assert f"Not steered: vision-h100 ({mark(api)})." in text
        assert replica.get("/v1/status")["unsteered"] == mark(api)
    finally:
        plane.apply(roles)
    until(replica.leads, what="it leads again")
    until(lambda: attached(api) and not mark(api), what="it attaches the check again")
    until(lambda: "Not steered" not in httpx.get(page).text, what="the page says nothing of it")
    view = look(api, "held")
    assert view is not None and view.admitted and not view.evicted


def test_an_api_server_that_stands_still_is_no_dead_extension(plane: ControlPlane, api: Api, replica: Replica) -> None:
    """It is frozen for longer than a leader may be silent, while the dead-man looks."""
    process = plane.processes["kube-apiserver"]
    process.send_signal(signal.SIGSTOP)
    try:
        run = look_once(plane)
        time.sleep(PATIENCE_S + 4)
        assert run.poll() is None, "nothing can be judged"
    finally:
        process.send_signal(signal.SIGCONT)
    said, complaints = run.communicate(timeout=60 * PATIENCE)
    assert run.returncode == 0 and "lives" in said, said + complaints
    assert attached(api) and not mark(api)
    until(replica.leads, what="the replica leads again")


def test_an_api_server_that_is_away_is_judged_by_nobody(plane: ControlPlane, api: Api, replica: Replica) -> None:
    nowhere = plane.work / "nowhere.conf"
    nowhere.write_text(plane.kubeconfig.read_text().replace(plane.url, f"https://127.0.0.1:{apiserver._free_port()}"))
    done = subprocess.run(
        [sys.executable, "-m", "myriad.scheduler.deadman", f"--kubeconfig={nowhere}"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0 and "detach" not in done.stdout and done.stderr.strip(), done
    assert attached(api)


def test_what_is_detached_under_a_live_leader_is_attached_again(
    plane: ControlPlane, api: Api, replica: Replica
) -> None:
    """The extension came back in the moment in which the dead-man had judged: neither wins, it ends attached."""
    submit(plane, "runs")
    admitted(api, "runs")
    client = connect(plane.kubeconfig_for(DEAD_MAN))
    try:
        deadman.mark(client, "myriad")
        assert deadman.detach_all(client, "myriad") == (["vision-h100"], [])
    finally:
        client.close()
    until(lambda: attached(api) and not mark(api), what="attached again, the mark gone")
    view = look(api, "runs")
    assert view is not None and view.admitted and not view.evicted
    assert api.get(LEASES, "myriad-scheduler", namespace="myriad-system")["spec"]["holderIdentity"] == replica.name
