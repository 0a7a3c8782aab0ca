"""The extension beside thousands of nodes and tens of thousands of pods, at rest and in storms. `make bench-storm`.

One control plane of plain processes (the real API server, Kueue, controllers and kube-scheduler; kwok plays the nodes),
nodes filled with pods by hand, and the extension with the defaults of its settings, but for its check, which every
queue asks as where a gang always waits. Prints JSON lines:

- `start`: from the start of the process until its check is on every queue, its memory and processor time then, and how
  many requests it sent;
- `decisions`: gangs that wait for quota, one by one, at rest: from submission until the extension has said where they
  are to go;
- `restart`: killed and started again: until its first answer about a waiting gang that is the same as before;
- `storm`, one line for each: 5 % of the nodes NotReady at once; a whole block gone; the API server killed and started
  again; pods deleted and made anew elsewhere. Each says how long until what the extension shows agrees with the cluster
  again, decisions meanwhile, its processor time, requests and memory, and how many nodes it tainted. In the middle of
  an outage a gang begins to starve, for which a domain would be kept on quiet days;
- the storms twice, by an extension with its brake and by one without (MYRIAD_SCHEDULER_BRAKE=false), and at the end
  `storm_table`, one line a storm with both columns.

Times are this machine's.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from myriad.bench.lines import emit
from myriad.bench.scheduling import kwok
from myriad.bench.scheduling.judge import Site, site_of
from myriad.errors import MyriadError
from myriad.kube.client import Api
from myriad.kube.kinds import JOBS, NODES, PODS, WORKLOADS
from myriad.scheduler.objects import workload_view
from tests.scale.cluster import (
    POOL,
    apiserver,
    cluster,
    create,
    end_when_told,
    extension_objects,
    in_parallel,
    memory_mb,
    not_ready,
    processor_s,
    quantiles,
    queues,
    say,
    start_extension,
    wait_for,
)

Json = dict[str, Any]

ASKED = {"MYRIAD_SCHEDULER_ATTACH": "always"}

TEAM = "vision"
FILLER = "filler"
STARVED = "starved"
HELD = slice(264, 280)
"""Two racks that jobs with a time limit hold whole: the only place that a large gang could wait for. Of these nodes
none is among the 5 % or in the block that fall."""
AFTER_S = 5
"""A gang starves that long after it came."""
COLUMNS = ("seconds", "agrees_s", "decisions_s", "tainted_meanwhile", "extension_cpu_s", "requests")


@dataclass
class Scene:
    """What the storms are played on."""

    options: argparse.Namespace
    site: Site
    plane: Any
    api: Api
    url: str = ""
    probes: int = 0
    brake: str = "on"
    seen: dict[str, dict[str, Json]] = field(default_factory=dict)

    @property
    def held(self) -> tuple[str, ...]:
        """Nodes that jobs with a limit hold; none on a cluster too small to have them."""
        found = self.site.names[HELD]
        return found if len(found) == HELD.stop - HELD.start else ()

    @property
    def open_nodes(self) -> tuple[str, ...]:
        """The others."""
        kept = set(self.held)
        return tuple(name for name in self.site.names if name not in kept)

    def page(self, path: str) -> Any:
        """An answer of the extension."""
        answer = httpx.get(f"{self.url}{path}", timeout=30)
        answer.raise_for_status()
        return answer.json()

    def series(self) -> dict[str, float]:
        """Its own counters: sums and counts over labels."""
        text = httpx.get(f"{self.url}/metrics", timeout=30).text
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.endswith(("_total", "_sum", "_count")):
                    found[sample.name] = found.get(sample.name, 0.0) + sample.value
        return found

    def nodes_shown_ready(self) -> int:
        """Nodes that it counts as able to take work."""
        return int(self.page("/v1/status")["nodes_taking_work"])


def fill(scene: Scene) -> None:
    """Bound pods of one GPU each, outside every queue, as evenly as they go; seven of eight GPUs at most."""
    pods = min(scene.options.pods, len(scene.open_nodes) * 7)
    nodes = scene.open_nodes
    in_parallel(lambda k: create(scene.api, PODS, filler(nodes, k), FILLER), range(pods))
    wait_for(lambda: running(scene.api) >= pods, 600 + pods / 20, "all pods run", pause_s=5.0)


def filler(nodes: Sequence[str], k: int, *, turn: int = 0) -> Json:
    """One of them; in another ``turn`` it stands on another node."""
    limits = {"nvidia.com/gpu": "1", "cpu": "1", "memory": "1Gi"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{k:06d}-{turn}", "namespace": FILLER, "labels": {"turn": str(turn)}},
        "spec": {
            "nodeName": nodes[(k + turn) % len(nodes)],
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "registry.invalid/x:1", "resources": {"limits": limits}}],
        },
    }


def running(api: Api) -> int:
    """Filling pods that run."""
    return len(api.list(PODS, namespace=FILLER, fields="status.phase=Running")[0])


# What is measured


def decisions(scene: Scene, count: int) -> list[float]:
    """Seconds from submission until the extension has answered, of gangs that wait for quota, one after the other."""
    took = []
    for _ in range(count):
        scene.probes += 1
        name = f"probe-{scene.probes:05d}"
        begun = time.monotonic()
        body = apiserver.gang_job(name, pods=2 + scene.probes % 7, gpus=1, namespace=TEAM, pool=POOL)
        with suppress(MyriadError):
            scene.api.create(JOBS, body, namespace=TEAM)
            if answered(scene, name, 60.0):
                took.append(time.monotonic() - begun)
            scene.api.delete(JOBS, name, namespace=TEAM)
    return took


def answered(scene: Scene, job: str, timeout_s: float) -> bool:
    """Wait until the extension has said of a waiting gang where it is to go."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        with suppress(MyriadError):
            for body in scene.api.list(WORKLOADS, namespace=TEAM)[0]:
                view = workload_view(body, check_name="myriad")
                if view.gang.name == job and view.check is not None and view.check.message:
                    return True
        time.sleep(0.02)
    return False


@contextmanager
def measured(scene: Scene, kind: str, **more: Any) -> Iterator[dict[str, Any]]:
    """Measure what the extension takes meanwhile, and print it with what the block adds."""
    line: dict[str, Any] = {}
    before, cpu = scene.series(), processor_s(scene.plane)["extension"]
    begun = time.monotonic()
    yield line
    after = scene.series()
    requests = "myriad_kube_request_seconds_count"
    found = {
        **more,
        **line,
        "seconds": round(time.monotonic() - begun, 1),
        "extension_cpu_s": round(processor_s(scene.plane)["extension"] - cpu, 1),
        "extension_memory_mb": memory_mb(scene.plane)["extension"],
        "requests": round(after.get(requests, 0.0) - before.get(requests, 0.0)),
        "mean_pass_s": mean_pass(before, after),
        "nodes_tainted": tainted(scene.api),
    }
    if kind == "storm":
        scene.seen.setdefault(str(more["what"]), {})[scene.brake] = found
        found = {"brake": scene.brake, **found}
    emit(kind=kind, **found)


def tainted(api: Api) -> int:
    """Nodes that are kept for a gang."""
    return sum(
        any(t["key"] == "myriad.dev/reserved" for t in n["spec"].get("taints") or []) for n in api.list(NODES)[0]
    )


def table(seen: Mapping[str, Mapping[str, Json]]) -> list[Json]:
    """Both columns of each storm, in the order in which they were played."""
    return [
        {
            "what": what,
            **{
                f"brake_{brake}": {name: columns[brake][name] for name in COLUMNS if name in columns[brake]}
                for brake in ("on", "off")
                if brake in columns
            },
        }
        for what, columns in seen.items()
    ]


def mean_pass(before: dict[str, float], after: dict[str, float]) -> float | None:
    """Mean seconds of a pass between two readings."""
    name = "myriad_scheduler_pass_seconds"
    passes = after.get(f"{name}_count", 0.0) - before.get(f"{name}_count", 0.0)
    return round((after[f"{name}_sum"] - before[f"{name}_sum"]) / passes, 4) if passes else None


def until_agrees(scene: Scene, timeout_s: float = 300.0) -> float:
    """Seconds until the extension shows as many nodes able to take work as the cluster has."""
    begun = time.monotonic()

    def agrees() -> bool:
        with suppress(MyriadError, httpx.HTTPError):
            wanted = len(scene.site.names) - len(not_ready(scene.api))
            return scene.nodes_shown_ready() == wanted
        return False

    wait_for(agrees, timeout_s, "the extension agrees with the cluster", pause_s=0.5)
    return round(time.monotonic() - begun, 2)


# Storms


def hold(scene: Scene) -> None:
    """Whole nodes, each held by a job whose time limit is an hour away."""

    def held(node: str) -> None:
        body = apiserver.gang_job(
            f"held-{node}", pods=1, gpus=8, namespace=STARVED, pool=POOL, nodeSelector={"kubernetes.io/hostname": node}
        )
        body["metadata"]["labels"]["kueue.x-k8s.io/max-exec-time-seconds"] = "3600"
        create(scene.api, JOBS, body, STARVED)

    in_parallel(held, scene.held)
    wait_for(lambda: admitted(scene.api, STARVED, "held-") == len(scene.held), 300, "the nodes are held")


def admitted(api: Api, namespace: str, prefix: str) -> int:
    """Jobs with such a name that have their quota and place."""
    views = [workload_view(body, check_name="myriad") for body in api.list(WORKLOADS, namespace=namespace)[0]]
    return sum(v.gang.name.startswith(prefix) and v.admitted for v in views)


@contextmanager
def starving(scene: Scene, line: dict[str, Any]) -> Iterator[None]:
    """A gang comes that finds no place, and a small job that overtakes it: the reasons to keep a domain. At the end of
    the block it is looked whether one is kept, and both go."""
    if not scene.held:
        yield
        return
    scene.probes += 1
    gang, small = f"starves-{scene.probes:05d}", f"passes-{scene.probes:05d}"
    begun = time.monotonic()
    create(scene.api, JOBS, apiserver.gang_job(gang, pods=16, gpus=8, namespace=STARVED, pool=POOL), STARVED)
    create(scene.api, JOBS, apiserver.gang_job(small, pods=1, gpus=1, namespace=STARVED, pool=POOL), STARVED)
    yield
    time.sleep(max(0.0, begun + AFTER_S + scene.options.watch_s - time.monotonic()))
    line["tainted_meanwhile"] = tainted(scene.api)
    for name in (gang, small):
        scene.api.delete(JOBS, name, namespace=STARVED)


def nodes_fall(scene: Scene, names: Sequence[str], what: str) -> None:
    """These nodes become NotReady at once, and later come back."""
    condition = {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "the bench says so"}

    def fell(name: str) -> None:
        scene.api.patch(NODES, name, {"metadata": {"labels": {kwok.DOWN: "yes"}}})
        scene.api.patch(NODES, name, {"status": {"conditions": [condition]}}, kind="strategic", subresource="status")

    with measured(scene, "storm", what=what, nodes=len(names)) as line:
        in_parallel(fell, names)
        with starving(scene, line):
            line["agrees_s"] = until_agrees(scene)
            line["decisions_s"] = quantiles(decisions(scene, scene.options.decisions // 4))
    with measured(scene, "storm", what=f"{what}: they come back", nodes=len(names)) as line:
        in_parallel(lambda n: scene.api.patch(NODES, n, {"metadata": {"labels": {kwok.DOWN: None}}}), names)
        wait_for(lambda: not not_ready(scene.api), 300, "all nodes are Ready", pause_s=1.0)
        line["agrees_s"] = until_agrees(scene)


def api_server_restarts(scene: Scene) -> None:
    """The API server is killed, and started again with what it was started with."""
    with measured(scene, "storm", what="API server restarted") as line:
        command = list(scene.plane.processes["kube-apiserver"].args)
        scene.plane.stop("kube-apiserver", kill=True)
        time.sleep(scene.options.away_s)
        begun = time.monotonic()
        scene.plane.start("kube-apiserver", command)
        wait_for(lambda: answers(scene.api), 120, "the API server answers")
        line["api_answers_s"] = round(time.monotonic() - begun, 2)
        with starving(scene, line):
            line["agrees_s"] = until_agrees(scene)
            line["first_decision_s"] = quantiles(decisions(scene, 1), (0.5,))["p50"]
            line["decisions_s"] = quantiles(decisions(scene, scene.options.decisions // 4))


def answers(api: Api) -> bool:
    """Whether the API server is there."""
    with suppress(MyriadError):
        api.list(NODES, labels="none=none")
        return True
    return False


def pods_move(scene: Scene, turn: int) -> None:
    """Many pods are deleted and made anew on other nodes; ``turn`` counts from 1."""
    nodes = scene.open_nodes
    moved = min(scene.options.moved, scene.options.pods, len(nodes) * 7)
    with measured(scene, "storm", what="pods rescheduled", pods=moved) as line:
        begun = time.monotonic()

        def move(k: int) -> None:
            scene.api.delete(PODS, f"pod-{k:06d}-{turn - 1}", namespace=FILLER)
            create(scene.api, PODS, filler(nodes, k, turn=turn), FILLER)

        in_parallel(move, range(moved))
        line["moving_s"] = round(time.monotonic() - begun, 1)
        line["decisions_s"] = quantiles(decisions(scene, scene.options.decisions // 4))


# The run


def restart(scene: Scene, job: str) -> None:
    """Kill the extension, start it again, and wait for the answer that it gave before."""
    before = scene.page(f"/v1/why/{TEAM}/{job}")["first_cause"]
    scene.plane.stop("extension", kill=True)
    begun = time.monotonic()
    scene.url = start_extension(scene.plane, scene.api, settings=ASKED)

    def same() -> bool:
        with suppress(httpx.HTTPError):
            return bool(scene.page(f"/v1/why/{TEAM}/{job}")["first_cause"] == before)
        return False

    wait_for(same, 600, "the extension says what it said before", pause_s=0.1)
    right_s = time.monotonic() - begun
    begun_decision = time.monotonic()
    first = decisions(scene, 1)
    emit(
        kind="restart", first_right_answer_s=round(right_s, 2),
        first_decision_s=round(begun_decision - begun + first[0], 2) if first else None,
        answer=before, memory_mb=memory_mb(scene.plane)["extension"],
    )  # fmt: skip


def run(options: argparse.Namespace) -> None:
    """All of it."""
    site = site_of(options.nodes)
    # One GPU less than the waiting gang asks for: it waits with numbers that are known.
    bodies = [
        *queues([TEAM], 7),
        *queues([STARVED], 10_000),
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": FILLER}},
        rules(),
    ]
    begun = time.monotonic()
    with cluster(site, kwok.program(say), qps=options.qps, bodies=extension_objects() + bodies) as (plane, api):
        scene = Scene(options, site, plane, api)
        say(f"{options.nodes} nodes after {time.monotonic() - begun:.0f} s")
        fill(scene)
        say(f"{running(api)} pods after {time.monotonic() - begun:.0f} s")
        # In the first rack: the nodes that jobs are to hold whole are the emptiest, and Kueue would take one of them.
        rack = {"myriad.dev/rack": ".".join(site.paths[0])}
        create(
            api, JOBS, apiserver.gang_job("holder", pods=7, gpus=1, namespace=TEAM, pool=POOL, nodeSelector=rack), TEAM
        )
        begun = time.monotonic()
        scene.url = start_extension(plane, api, settings=ASKED)
        until_agrees(scene)
        series = scene.series()
        emit(
            kind="start", nodes=options.nodes, pods=running(api), qps=options.qps,
            in_step_s=round(time.monotonic() - begun, 2), memory_mb=memory_mb(plane)["extension"],
            cpu_s=processor_s(plane)["extension"], requests=round(series.get("myriad_kube_request_seconds_count", 0.0)),
        )  # fmt: skip
        wait_for(lambda: holds(api, "holder"), 120, "the holder has its quota")
        create(api, JOBS, apiserver.gang_job("waits", pods=2, gpus=2, namespace=TEAM, pool=POOL), TEAM)
        wait_for(lambda: answered(scene, "waits", 1.0), 120, "the waiting gang is answered")
        with measured(scene, "decisions") as line:
            line["decisions_s"] = quantiles(decisions(scene, options.decisions))
        with measured(scene, "rest"):
            time.sleep(options.rest_s)
        restart(scene, "waits")
        hold(scene)
        storms(scene, 1)
        plane.stop("extension")
        scene.brake = "off"
        scene.url = start_extension(plane, api, settings={**ASKED, "MYRIAD_SCHEDULER_BRAKE": "false"})
        until_agrees(scene)
        storms(scene, 2)
        for line in table(scene.seen):
            emit(kind="storm_table", **line)


def storms(scene: Scene, turn: int) -> None:
    """All of them, once a new leader's minute of silence is over: that one is not what is compared."""
    say(f"storms, brake {scene.brake}")
    time.sleep(scene.options.settle_s)
    nodes_fall(scene, scene.site.names[:: max(1, round(1 / 0.05))], "5 % of the nodes NotReady")
    nodes_fall(scene, scene.site.names[128:256], "a whole block gone")
    api_server_restarts(scene)
    pods_move(scene, turn)


def rules() -> Json:
    """The site's policy: a gang starves soon, and a domain is kept for one at a time."""
    protection = {"after_s": AFTER_S, "max_domains": 1, "max_share": 0.5, "level": "block"}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "myriad-policy", "namespace": "myriad-system"},
        "data": {"policy.json": json.dumps({"protection": protection, "preemption": {"grace_s": 1}})},
    }


def holds(api: Api, job: str) -> bool:
    """Whether a job's Workload is admitted."""
    views = [workload_view(body, check_name="myriad") for body in api.list(WORKLOADS, namespace=TEAM)[0]]
    return any(v.gang.name == job and v.admitted for v in views)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="make bench-storm ARGS=", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--nodes", type=int, default=5000, help="of 8 GPUs each (5000)")
    parser.add_argument("--pods", type=int, default=35000, help="of one GPU, bound by hand (35000)")
    parser.add_argument("--moved", type=int, default=10000, help="pods deleted and made anew (10000)")
    parser.add_argument("--decisions", type=int, default=100, help="timed at rest; a quarter in each storm (100)")
    parser.add_argument("--qps", type=int, default=100, help="requests a second of every client of the API (100)")
    parser.add_argument("--away-s", type=float, default=5.0, help="how long the API server is away (5)")
    parser.add_argument("--settle-s", type=float, default=70.0, help="before the storms, for a new leader (70)")
    parser.add_argument("--watch-s", type=float, default=20.0, help="how long a starving gang is watched (20)")
    parser.add_argument("--rest-s", type=float, default=30.0, help="how long nothing happens (30)")
    options = parser.parse_args(arguments)
    end_when_told()
    if lacks := apiserver.missing():
        print(f"{', '.join(lacks)}: in no bundle of the cache; `make lab` or `make bundle` makes one", file=sys.stderr)
        return 1
    try:
        run(options)
    except MyriadError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
