"""`make bench-scale`: the real playbooks over simulated hosts, and what the controller pays for them, as JSON lines.

For each size: a run that has nothing to do, one node added (by site.yml, which looks at every host, and by
add_node.yml, which looks at the new one), and a run in which 3 % of the hosts are dead. The hosts are files
(`myriad.lab.simulated`); all that runs on the controller is real. Their answers take the time of a node's
(`--answer`), so wall time holds what a site would wait for, and CPU time holds no node's. What is missing against a
real site: the ssh client's own CPU time.

Plays on the cluster's API are left out (`--limit gpu_nodes`). With `--cluster` what grows with the nodes there (labels
and NodePortraits) is applied to a real API server that has so many Nodes: at first, again, and with one node more.

A run that does not do what it should (a change where there is nothing to do, a host that is not found dead) is an
error: its figures would mean nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from myriad.bench.lines import emit
from myriad.errors import MyriadError
from myriad.lab.simulated import site as simulated
from myriad.runs import RunResult, parse, result_of

ROOT = Path(__file__).resolve().parents[2]
DEAD_SHARE = 0.03
SAMPLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run cost the controller.

    Attributes:
        seconds: wall time.
        cpu_s: processor time of ansible-playbook and everything that it started.
        main_mb: the largest resident set of one process.
        tree_mb: the largest sum of all processes, shared pages counted once; 0 where no sample was taken.
    """

    seconds: float
    cpu_s: float
    main_mb: float
    tree_mb: float


class WrongRunError(MyriadError):
    """A run did something else than what is measured."""


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _family(int(child))


def _proportional_kb(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)


def play(
    site: simulated.SimulatedSite, playbook: str, arguments: Sequence[str], settings: Mapping[str, str]
) -> tuple[int, RunResult, Cost]:
    """Run a playbook over a simulated site to its end."""
    events = site.folder / "events.jsonl"
    events.unlink(missing_ok=True)
    log = site.folder / f"{playbook}.log"
    command = [
        str(Path(sys.executable).with_name("ansible-playbook")),
        f"playbooks/{playbook}.yml",
        "-i",
        str(site.inventory),
        "-c",
        "simulated",
        *arguments,
    ]
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_CONNECTION_PLUGINS": str(Path(simulated.__file__).parent / "connection"),
        "ANSIBLE_NOCOLOR": "1",
        "MYRIAD_EVENTS": str(events),
        "MYRIAD_SIMULATED": str(site.hosts),
        **settings,
    }
    started = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        ended = threading.Event()
        samples: list[int] = []

        def sample() -> None:
            while not ended.wait(SAMPLE_S):
                samples.append(sum(_proportional_kb(pid) for pid in _family(process.pid)))

        watcher = threading.Thread(target=sample, daemon=True)
        watcher.start()
        _pid, status, usage = os.wait4(process.pid, 0)
        ended.set()
        watcher.join()
    seconds = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    cost = Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, max(samples, default=0) / 1024)
    return process.returncode, result_of(parse(events.read_text().splitlines())), cost


def judge(run: RunResult, code: int, *, dead: Sequence[str] = (), changing: Collection[str] = (), log: Path) -> None:
    """Whether a run did what is measured, and nothing else.

    Raises:
        WrongRunError: a host failed, changed, or was (not) reached against what was set up.
    """
    wrong = []
    if run.failed_hosts:
        wrong.append(f"failed on {', '.join(run.failed_hosts[:5])}")
    if run.unreachable_hosts != sorted(dead):
        wrong.append(f"{len(run.unreachable_hosts)} hosts were not reached, {len(dead)} are dead")
    changed = {name for name, host in run.hosts.items() if host.changed}
    if changed != set(changing):
        wrong.append(f"changed {', '.join(sorted(changed)[:5]) or 'nothing'}, and not {len(changing)} hosts")
    if not run.is_finished or code not in (0, 4) or (code == 4) != bool(dead):
        wrong.append(f"ansible-playbook ended with {code}")
    if wrong:
        tail = "\n  ".join(log.read_text(errors="replace").strip().splitlines()[-15:])
        raise WrongRunError("; ".join(wrong) + f":\n  {tail}", where=str(log))


def _line(name: str, hosts: int, run: RunResult, cost: Cost, **more: Any) -> dict[str, Any]:
    tasks = [host.tasks for host in run.hosts.values()]
    return {
        "run": name,
        "hosts": hosts,
        "seconds": round(cost.seconds, 1),
        "cpu_s": round(cost.cpu_s, 1),
        "cpu_ms_per_task": round(cost.cpu_s / max(1, sum(tasks)) * 1000, 1),
        "memory_mb": round(cost.main_mb),
        "memory_all_mb": round(cost.tree_mb),
        "tasks": sum(tasks),
        "tasks_per_host": round(sum(tasks) / max(1, len(tasks)), 2),
        "tasks_at_most": max(tasks, default=0),
        "changed": run.changed_count,
        "unreachable": len(run.unreachable_hosts),
        **more,
    }


def measure(
    count: int, folder: Path, *, network: str, settings: Mapping[str, str], runs: Sequence[str]
) -> dict[str, Cost]:
    """All runs of one size; each prints its line."""
    bundle = simulated.write_bundle(folder / "bundle")
    site = simulated.write_site(folder / "site", count, bundle=bundle, network=network)
    only = ["--limit", "gpu_nodes"]
    costs: dict[str, Cost] = {}

    def one(name: str, playbook: str, arguments: Sequence[str], **expected: Any) -> None:
        code, run, cost = play(site, playbook, arguments, settings)
        judge(run, code, log=site.folder / f"{playbook}.log", **expected)
        costs[name] = cost
        emit(**_line(name, count, run, cost, network=network))

    # Hosts that adopt take this run for their last one; all that follow compare with what it asked.
    one("no-op", "site", only)
    if "again" in runs:
        one("no-op again", "site", only)
    for name, playbook in (("add", "site"), ("add-alone", "add_node")):
        if name not in runs:
            continue
        site = simulated.add_nodes(site, 1, bundle=bundle, network=network)
        new = site.names[-1]
        # In a routed network all others get the route to the new one.
        changing = site.names if network == "routed" else [new]
        alone = ["--limit", "gpu_nodes,localhost", "-e", f"add_node={new}"]
        one(f"one added, by {playbook}.yml", playbook, only if name == "add" else alone, changing=changing)
    if "dead" in runs:
        step = max(1, round(1 / DEAD_SHARE))
        dead = site.names[step // 2 :: step] or site.names[-1:]
        simulated.set_dead(site, dead, True)
        one("3 % dead, one at least", "site", only, dead=dead)
    return costs


def measure_cluster(count: int, folder: Path) -> None:
    """Labels and NodePortraits of all nodes on a real API server, one line each time they are applied."""
    sys.path.insert(0, str(ROOT / "tests" / "api"))
    import apiserver
    import yaml

    from myriad.kube.client import connect
    from myriad.kube.kinds import NODES

    site = simulated.write_site(folder / "site", count + 1)
    manifests = list(yaml.safe_load_all((ROOT / "roles/node_portrait/files/nodeportraits.yaml").read_text()))
    with apiserver.api_server(folder / "plane") as plane:
        api = connect(plane.kubeconfig)
        for name in site.names:
            body = apiserver.fake_node(name, simulated.location_of(name).split("/"))
            body["metadata"]["labels"] = {"kubernetes.io/hostname": name}
            api.create(NODES, body)
        fewer = simulated.SimulatedSite(site.folder, site.names[:-1])
        simulated.write_description(fewer, bundle=site.folder / "bundle", network="fabric")
        for name in ("cluster, at first", "cluster, no-op"):
            emit(**_applied(name, count, plane, fewer, manifests))
        simulated.write_description(site, bundle=site.folder / "bundle", network="fabric")
        emit(**_applied("cluster, one node more", count, plane, site, manifests))
        api.close()


def _applied(
    name: str, count: int, plane: Any, site: simulated.SimulatedSite, manifests: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    from myriad.fleet import check, node_labels
    from myriad.fleet.portrait_spec import node_portraits, portrait_specs
    from myriad.inventory import read_inventory
    from myriad.kube.apply import Applier, Options
    from myriad.kube.client import connect

    cpu, started = time.process_time(), time.monotonic()
    fleet = check(read_inventory(site.inventory)).fleet
    described_s = time.monotonic() - started
    labels = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": dict(node_labels(fleet, node))}}
        for node in site.names
    ]
    portraits = [*manifests, *node_portraits(portrait_specs(fleet))]
    api = connect(plane.kubeconfig)
    requests: list[str] = []
    sent = api._client.request

    def counted(method: str, *arguments: Any, **options: Any) -> Any:
        requests.append(method)
        return sent(method, *arguments, **options)

    api._client.request = counted  # type: ignore[method-assign]
    written = 0
    for options, objects in (
        (Options("node-labels", existing_only=True, force_conflicts=True, timeout_s=600), labels),
        (Options("node-portrait", prune=True, timeout_s=600), portraits),
    ):
        done = Applier(api, options).apply(objects)
        written += len(done.created) + len(done.changed)
    api.close()
    return {
        "run": name,
        "hosts": count,
        "seconds": round(time.monotonic() - started, 1),
        "cpu_s": round(time.process_time() - cpu, 1),
        "description_s": round(described_s, 1),
        "requests": len(requests),
        "reads": requests.count("GET"),
        "written": written,
    }


def main(arguments: Sequence[str]) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="make bench-scale ARGS=", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--sizes", default="10,100,1000", help="numbers of GPU nodes")
    parser.add_argument("--answer", type=float, default=0.15, help="seconds until a node answers a task")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds until a dead host is given up")
    parser.add_argument("--forks", type=int, default=50, help="hosts at the same time")
    parser.add_argument("--network", choices=("fabric", "routed"), default="fabric", help="pod_network_mode")
    parser.add_argument("--runs", default="again,add,add-alone,dead", help="which runs, beside the first no-op")
    parser.add_argument("--cluster", action="store_true", help="the cluster's half, on a real API server, and no hosts")
    given = parser.parse_args(arguments)
    settings = {
        "MYRIAD_SIMULATED_ANSWER_S": str(given.answer),
        "MYRIAD_SIMULATED_TIMEOUT_S": str(given.timeout),
        "ANSIBLE_FORKS": str(given.forks),
    }
    emit(cores=os.cpu_count(), load=round(os.getloadavg()[0], 1), answer_s=given.answer, forks=given.forks)
    sizes = [int(word) for word in given.sizes.split(",")]
    if given.cluster:
        for count in sizes:
            with tempfile.TemporaryDirectory(prefix="myriad-scale-") as scratch:
                measure_cluster(count, Path(scratch))
        return 0
    found: dict[int, dict[str, Cost]] = {}
    for count in sizes:
        with tempfile.TemporaryDirectory(prefix="myriad-scale-") as scratch:
            found[count] = measure(
                count, Path(scratch), network=given.network, settings=settings, runs=given.runs.split(",")
            )
    for name in ("one added, by site.yml", "one added, by add_node.yml"):
        small, large = found[sizes[0]].get(name), found[sizes[-1]].get(name)
        if small and large and len(sizes) > 1:
            emit(
                ratio=name,
                sizes=[sizes[0], sizes[-1]],
                seconds=round(large.seconds / small.seconds, 2),
                cpu=round(large.cpu_s / small.cpu_s, 2),
            )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except MyriadError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
