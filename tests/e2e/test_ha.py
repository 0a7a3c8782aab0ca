"""Three control planes on bare nodes: one is killed under load, all data of etcd is deleted, two of three are lost."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from myriad.kube.client import Api, connect
from myriad.kube.kinds import JOBS, PODS
from myriad.lab.state import LabPaths, load_state

from .bare import bare_nodes
from .conftest import CLONE, environment, playbook_command

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.timeout(3600)]

CONTROL_PLANES = ("cp1", "cp2", "cp3")
#: Sleeps, and goes at once when it is asked to.
SLEEPER = "import signal, sys, time; signal.signal(15, lambda *a: sys.exit(143)); time.sleep({seconds})"


@dataclass
class Site:
    """The lab's nodes, from outside."""

    paths: LabPaths
    name: str
    address: dict[str, str]

    def play(self, playbook: str, *arguments: str, code: int = 0) -> str:
        """Run a playbook of the project on them."""
        command = [word if word != "inventories/lab" else "inventories/lab-ha" for word in playbook_command(playbook)]
        done = subprocess.run(
            [*command, *arguments], cwd=CLONE, env=environment(MYRIAD_LAB_STATE=str(self.paths.state)),
            capture_output=True, text=True, timeout=1500, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout[-4000:] + done.stderr[-2000:]
        return done.stdout

    def ssh_command(self, host: str, script: str) -> list[str]:
        return [
            "ssh", "-i", str(self.paths.ssh_key), "-o", f"UserKnownHostsFile={self.paths.known_hosts}",
            "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", f"root@{self.address[host]}", script,
        ]  # fmt: skip

    def ssh(self, host: str, script: str) -> str:
        done = subprocess.run(self.ssh_command(host, script), capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, f"{host}: {script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def docker(self, verb: str, *hosts: str) -> None:
        names = [f"{self.name}-{host}" for host in hosts]
        subprocess.run(["docker", verb, *names], check=True, capture_output=True)

    @contextmanager
    def api(self) -> Iterator[Api]:
        api = connect(self.paths.kubeconfig)
        try:
            yield api
        finally:
            api.close()

    def in_step(self, host: str) -> None:
        """Wait until every member and every API server is."""
        self.ssh(host, "/usr/local/lib/myriad/control-plane gate 300")

    def submit(self, name: str, seconds: int) -> None:
        """A job of one GPU."""
        example = CLONE / "docs" / "examples" / "gang.yml"
        job = next(item for item in yaml.safe_load_all(example.read_text()) if item["kind"] == "Job")
        job["metadata"]["name"] = name
        job["spec"] |= {"completions": 1, "parallelism": 1, "backoffLimit": 0}
        pod = job["spec"]["template"]
        pod.get("metadata", {}).pop("annotations", None)
        container = pod["spec"]["containers"][0]
        container["command"] = ["python3", "-c", SLEEPER.format(seconds=seconds)]
        container["env"] = []
        container["resources"] = {
            "requests": {"cpu": "10m", "memory": "16Mi", "nvidia.com/gpu": 1},
            "limits": {"memory": "64Mi", "nvidia.com/gpu": 1},
        }
        with self.api() as api:
            api.create(JOBS, job, namespace="vision")

    def jobs(self, prefix: str) -> dict[str, dict[str, Any]]:
        """Status of each job whose name begins so."""
        with self.api() as api:
            jobs = api.list(JOBS, namespace="vision")[0]
        return {
            job["metadata"]["name"]: job.get("status", {}) for job in jobs if job["metadata"]["name"].startswith(prefix)
        }

    def starts(self) -> dict[str, str]:
        """When the container of each running pod was started."""
        with self.api() as api:
            pods = api.list(PODS, namespace="vision")[0]
        return {
            pod["metadata"]["name"]: state["startedAt"]
            for pod in pods
            for status in pod.get("status", {}).get("containerStatuses", [])
            if (state := status.get("state", {}).get("running"))
        }


def until(check: Callable[[], Any], what: str, *, seconds: float = 300) -> Any:
    """Wait until something holds; what goes wrong meanwhile counts as not yet."""
    end = time.monotonic() + seconds
    said: object = None
    while time.monotonic() < end:
        try:
            said = check()
            if said:
                return said
        except Exception as error:
            said = error
        time.sleep(1.0)
    raise AssertionError(f"{what}: {said}")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Three control planes and two workers, brought up by site.yml."""
    with bare_nodes(CLONE, "ha", "ha") as paths:
        state = load_state(paths)
        assert state is not None
        found = Site(paths, state.name, {name: host.address for name, host in state.hosts.items()})
        started = time.monotonic()
        found.play("site")
        print(f"site.yml: {time.monotonic() - started:.0f} s")
        yield found


@dataclass
class Watch:
    """Asks through a worker's own load balancer ten times a second, as its kubelet would."""

    site: Site
    rows: list[tuple[float, str]] = field(default_factory=list)

    def __enter__(self) -> Watch:
        script = (
            "while :; do echo $(date +%s.%N) "
            "$(curl -sk -m 1 -o /dev/null -w '%{http_code}' https://127.0.0.1:7443/readyz); sleep 0.1; done"
        )
        self._process = subprocess.Popen(self.site.ssh_command("gpu1", script), stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def _read(self) -> None:
        for line in self._process.stdout or ():
            at, status = line.split()
            self.rows.append((float(at), status))

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join(timeout=5)
        if self._process.stdout:
            self._process.stdout.close()

    def outage_s(self) -> float:
        """From the first request that failed to the last."""
        failed = [at for at, status in self.rows if status != "200"]
        return failed[-1] - failed[0] if failed else 0.0


def test_a_second_run_changes_nothing(site: Site) -> None:
    done = site.play("site", "-e", "site_full=true")
    changed = re.findall(r"^\w+ +ok \d+ +changed (\d+)", done, re.MULTILINE)
    assert len(changed) > len(CONTROL_PLANES) and set(changed) == {"0"}, done[-1500:]


def test_no_node_holds_all_replicas_of_what_the_cluster_needs(site: Site) -> None:
    """The first control plane came alone, and what started then would have stayed there."""

    def nodes_of() -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        with site.api() as api:
            for pod in api.list(PODS)[0]:
                owner = pod["metadata"].get("ownerReferences", [{}])[0]
                if owner.get("kind") == "ReplicaSet" and "deletionTimestamp" not in pod["metadata"]:
                    found.setdefault(owner["name"].rsplit("-", 1)[0], set()).add(pod["spec"].get("nodeName", ""))
        return found

    wanted = {"coredns", "kueue-controller-manager", "myriad-scheduler"}
    # A rollout that goes on has pods of two generations.
    until(
        lambda: all(len(nodes_of().get(name, set()) - {""}) > 1 for name in wanted),
        f"each of {', '.join(sorted(wanted))} on two nodes",
        seconds=60,
    )


def test_one_control_plane_is_killed_and_no_job_is_lost(site: Site) -> None:
    """The first one: the one that brought the cluster up, with a registry, and first in the kubeconfig."""
    for number in range(100):
        site.submit(f"kill-{number}", 10)
    until(lambda: sum(status.get("active", 0) for status in site.jobs("kill-").values()) >= 8, "jobs run")
    with Watch(site) as watch:
        time.sleep(3)
        at = time.monotonic()
        site.docker("kill", "cp1")
        until(lambda: site.submit(f"after-{int(time.monotonic())}", 1) is None, "a job is taken", seconds=90)
        print(f"cp1 killed: the next job was taken {time.monotonic() - at:.1f} s later")
        time.sleep(20)
    print(f"a worker's own way to the API was away for {watch.outage_s():.1f} s")
    assert watch.rows[-1][1] == "200"
    done = until(
        lambda: (found := site.jobs("kill-")) and all(s.get("succeeded") == 1 for s in found.values()) and found,
        "every job ends well",
        seconds=900,
    )
    assert len(done) == 100
    assert not [name for name, status in done.items() if status.get("failed")]
    site.docker("start", "cp1")
    until(lambda: site.in_step("cp2") is None, "cp1 is a member again")


def test_the_data_of_every_member_is_deleted_under_load_and_comes_back(site: Site) -> None:
    """What was lost is what was written after the archive, and it is said; running pods are not touched."""
    for number in range(6):
        site.submit(f"stay-{number}", 3000)
    until(lambda: all(s.get("ready") == 1 for s in site.jobs("stay-").values()), "six run")
    site.play("backup")
    site.submit("late", 3000)
    until(lambda: site.jobs("late")["late"].get("ready") == 1, "one more runs")
    before = site.starts()
    for host in CONTROL_PLANES:
        site.ssh(host, "rm -rf /var/lib/etcd/member && crictl stop -t 0 $(crictl ps -q --name '^etcd$')")
    refused = site.play("restore", code=2)
    assert "restore_confirm=lab-ha" in refused
    at = time.monotonic()
    said = site.play("restore", "-e", "restore_confirm=lab-ha")
    print(f"restored in {time.monotonic() - at:.0f} s")
    print("\n".join(line for line in said.splitlines() if "lost" in line or "unknown" in line or "run on" in line))
    assert "vision/late-" in said
    until(lambda: site.in_step("cp1") is None, "all are in step")
    assert sorted(site.jobs("stay-")) == [f"stay-{number}" for number in range(6)]
    assert site.jobs("late") == {}
    until(
        lambda: not [name for name in site.starts() if name.startswith("late-")], "its kubelet ends what nobody knows"
    )
    stayed = {name: at_ for name, at_ in before.items() if name.startswith("stay-")}
    assert {name: at_ for name, at_ in site.starts().items() if name.startswith("stay-")} == stayed
    # Kueue's replicas end when the API is away for longer than their lease, and start again.
    until(lambda: site.submit("again", 1) is None, "a job is taken", seconds=120)
    until(lambda: site.jobs("again")["again"].get("succeeded") == 1, "the next job runs")


def test_two_of_three_are_lost_and_come_back_as_strays(site: Site) -> None:
    """The one that is left loses nothing; those that come back with the cluster from before lead nobody."""
    before, jobs = site.starts(), sorted(site.jobs("stay-"))
    site.docker("kill", "cp1", "cp2")
    at = time.monotonic()
    # Code 4 says that hosts were away, and nothing of what became of the others.
    said = site.play("restore", "-e", "restore_archive=survivor", "-e", "restore_confirm=lab-ha", code=4)
    assert "the cluster is back from what a member that was left held" in said
    print(f"restored from the member that was left in {time.monotonic() - at:.0f} s")
    assert sorted(site.jobs("stay-")) == jobs
    assert site.starts() == before
    site.docker("start", "cp1", "cp2")
    until(lambda: site.ssh("cp1", "curl -sk https://127.0.0.1:6443/readyz") == "ok", "the cluster from before is up")
    servers = site.ssh("gpu1", "grep -c '^  server' /etc/myriad/api-load-balancer.cfg").strip()
    assert servers == "1", "a worker is led to a stray"
    wrong = site.play("site", "-e", "site_full=true", code=2)
    assert "from before a restore" in wrong
    site.play("site", "-e", "site_full=true", "-e", "site_api_from=cp3")
    site.in_step("cp3")
    members = json.loads(
        site.ssh(
            "cp3",
            "etcdctl --cacert /etc/kubernetes/pki/etcd/ca.crt --cert /etc/kubernetes/pki/etcd/healthcheck-client.crt "
            "--key /etc/kubernetes/pki/etcd/healthcheck-client.key member list -w json",
        )
    )["members"]
    assert sorted(member["name"] for member in members) == list(CONTROL_PLANES)
    assert sorted(site.jobs("stay-")) == jobs
    assert {n: s for n, s in site.starts().items() if n.startswith("stay-")} == {
        n: s for n, s in before.items() if n.startswith("stay-")
    }


def test_an_archive_on_the_controller_is_for_its_owner_alone(site: Site) -> None:
    folder = site.paths.kubeconfig.parent / "backups"
    assert [path for path in folder.iterdir() if path.suffix == ".tar"]
    assert folder.stat().st_mode & 0o077 == 0
