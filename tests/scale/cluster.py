"""Clusters of simulated nodes for benchmarks: plain processes on loopback, kwok for nodes, the extension on request."""

from __future__ import annotations

import copy
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "api"))

import apiserver  # noqa: E402
import extension  # noqa: E402

from myriad.bench.scheduling import kwok  # noqa: E402
from myriad.bench.scheduling.judge import Site, percentile  # noqa: E402
from myriad.errors import MyriadError  # noqa: E402
from myriad.kube.client import Api, ApiError, connect  # noqa: E402
from myriad.kube.kinds import ADMISSION_CHECKS, CLUSTER_QUEUES, NODES, Resource  # noqa: E402
from myriad.scheduler.attach import is_active, is_attached, is_ours  # noqa: E402

Json = dict[str, Any]

POOL = "h100"
FLAT = "flat"
"""The pool's queues on a flavor with a topology, and on one without."""
CREATORS = 4
"""Threads that create objects."""
ATTEMPTS = 5
_LOOK_S = 3.0
_REST = 0.25
"""Of a processor that all processes of a cluster take together at rest."""


def say(text: str) -> None:
    """Progress, apart from the figures."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def end_when_told() -> None:
    """SIGTERM ends the program as Ctrl-C does: nothing that it started stays."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@contextmanager
def cluster(site: Site, program: Path, *, qps: int, bodies: Sequence[Json]) -> Iterator[tuple[Any, Api]]:
    """A control plane with its nodes, all Ready, and these objects.

    Args:
        site: the nodes.
        program: kwok.
        qps: requests a second of every client of the API.
        bodies: queues and what else is to be there.
    """
    with (
        tempfile.TemporaryDirectory(prefix="myriad-bench-") as folder,
        apiserver.control_plane(Path(folder) / "plane", users=[extension.ACCOUNT], kubelets=False, qps=qps) as plane,
    ):
        api = connect(plane.kubeconfig)
        try:
            plane.start("kwok", kwok.command(program, plane.kubeconfig, plane.work))
            make_nodes(api, site)
            plane.apply(bodies)
            yield plane, api
        finally:
            api.close()


def make_nodes(api: Api, site: Site) -> None:
    """All nodes, and wait until they are Ready."""

    def make(pair: tuple[str, tuple[str, str, str]]) -> None:
        name, path = pair
        body = apiserver.fake_node(name, path)
        body["metadata"]["annotations"] = dict(kwok.MANAGED)
        create(api, NODES, body)

    in_parallel(make, list(zip(site.names, site.paths, strict=True)))
    wait_for(lambda: not not_ready(api), 300 + len(site.names) / 5, "all nodes are Ready", pause_s=2.0)


def not_ready(api: Api) -> list[str]:
    """Names of the nodes that are not Ready."""
    return [
        n["metadata"]["name"]
        for n in api.list(NODES)[0]
        if not any(c["type"] == "Ready" and c["status"] == "True" for c in n["status"].get("conditions") or [])
    ]


def in_parallel(do: Callable[[Any], object], items: Sequence[Any]) -> None:
    """For all items, by `CREATORS` threads; the first error is raised."""
    with ThreadPoolExecutor(CREATORS) as pool:
        list(pool.map(do, items))


def create(api: Api, kind: Resource, body: Json, namespace: str | None = None) -> None:
    """Create an object as a patient client does: an API server or a webhook that had no time is asked again."""
    for left in reversed(range(ATTEMPTS)):
        try:
            api.create(kind, body, namespace=namespace)
        except ApiError as error:
            if error.is_conflict:
                return  # it was created, and only the answer came too late
            if error.status not in (429, 500, 503, 504) or not left:
                raise
        else:
            return


def queues(teams: Sequence[str], quota: int) -> list[Json]:
    """A namespace, a ClusterQueue and a LocalQueue for each team, on the pool's flavor and topology.

    Args:
        teams: whose.
        quota: GPUs of each team.
    """
    found: dict[tuple[str, str], Json] = {}
    for team in teams:
        for body in apiserver.queue_objects(gpus=quota, team=team, pool=POOL):
            if body["kind"] == "ClusterQueue":
                enough = {"cpu": 1_000_000, "memory": "10000Ti"}
                for resource in body["spec"]["resourceGroups"][0]["flavors"][0]["resources"]:
                    resource["nominalQuota"] = enough.get(resource["name"], resource["nominalQuota"])
            found[body["kind"], f"{body['metadata'].get('namespace')}/{body['metadata']['name']}"] = body
    return list(found.values())


def without_topology(bodies: Sequence[Json]) -> list[Json]:
    """The same queues once more, on a flavor without topology: Kueue counts only, and kube-scheduler places. They are
    no pool of Myriad's."""
    found = []
    for body in copy.deepcopy(list(bodies)):
        metadata, spec = body["metadata"], body.get("spec")
        if body["kind"] not in ("ResourceFlavor", "ClusterQueue", "LocalQueue"):
            continue
        metadata["name"] = metadata["name"].replace(POOL, FLAT)
        if body["kind"] == "ResourceFlavor":
            del spec["topologyName"]
        elif body["kind"] == "ClusterQueue":
            del metadata["labels"]
            spec["resourceGroups"][0]["flavors"][0]["name"] = FLAT
        else:
            spec["clusterQueue"] = spec["clusterQueue"].replace(POOL, FLAT)
        found.append(body)
    return found


def extension_objects() -> list[Json]:
    """What the extension needs to be there: its namespace, rights and check."""
    system = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "myriad-system"}}
    return [system, apiserver.check_object(), *extension.rights()]


def start_extension(
    plane: Any, api: Api, *, timeout_s: float = 600.0, settings: Mapping[str, str] | None = None
) -> str:
    """One replica with the rights of its service account and, but for these, the defaults of its settings; wait until
    it leads and its check is active, and asked by all queues where these say so. Returns the address of its page."""
    port = apiserver._free_port()
    records = Path(tempfile.mkdtemp(prefix="records-", dir=plane.work))
    environment = {
        "PYTHONPATH": str(ROOT / "src"),
        "KUBECONFIG": str(plane.kubeconfig_for(extension.ACCOUNT)),
        "POD_NAME": "bench",
        "MYRIAD_SCHEDULER_PORT": str(port),
        "MYRIAD_SCHEDULER_AUTH": "off",
        "MYRIAD_SCHEDULER_DECISIONS": str(records / "decisions.jsonl"),
        **(settings or {}),
    }
    plane.start("extension", [sys.executable, "-m", "myriad.scheduler"], environment)

    page = f"http://127.0.0.1:{port}"

    def leads() -> bool:
        try:
            said = httpx.get(f"{page}/v1/status", timeout=5).json()["extension"]
        except (httpx.HTTPError, ValueError, KeyError):
            return False
        return bool(said["this_replica_leads"]) and is_active(api.get(ADMISSION_CHECKS, "myriad")) and asked()

    def asked() -> bool:
        ours = [q for q in api.list(CLUSTER_QUEUES)[0] if is_ours(q)]
        return (settings or {}).get("MYRIAD_SCHEDULER_ATTACH") != "always" or all(
            is_attached(q, "myriad") for q in ours
        )

    try:
        wait_for(leads, timeout_s, "the extension leads")
    except MyriadError as error:
        last = (plane.work / "logs" / "extension.log").read_text().splitlines()[-5:]
        raise MyriadError("\n  ".join([error.message, *last]), where="the extension") from error
    return page


def processor_s(plane: Any) -> dict[str, float]:
    """Processor time of every process so far, in seconds."""
    tick = os.sysconf("SC_CLK_TCK")
    found = {}
    for name, process in plane.processes.items():
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        found[name] = (int(fields[11]) + int(fields[12])) / tick
    return found


def at_rest(plane: Any, timeout_s: float = 60.0) -> None:
    """Wait until nothing has much to do: what has just been made or started is not part of what is measured."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        before = sum(processor_s(plane).values())
        time.sleep(_LOOK_S)
        if sum(processor_s(plane).values()) - before < _LOOK_S * _REST:
            return


def memory_mb(plane: Any) -> dict[str, int]:
    """Resident memory of every process now."""
    page = os.sysconf("SC_PAGE_SIZE")
    return {
        name: int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * page // 1_000_000
        for name, process in plane.processes.items()
    }


def wait_for(check: Callable[[], bool], timeout_s: float, what: str, *, pause_s: float = 0.5) -> None:
    """Wait until it is so. Raises MyriadError."""
    end = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() > end:
            raise MyriadError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(pause_s)


def quantiles(values: Iterable[float], shares: Sequence[float] = (0.5, 0.99)) -> Json:
    """p50, p99 and how many, to the millisecond."""
    known = list(values)
    found = {f"p{round(share * 100)}": percentile(known, share) for share in shares}
    return {**{k: None if v is None else round(v, 3) for k, v in found.items()}, "n": len(known)}
