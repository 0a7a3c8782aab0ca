"""Burn-in: who is slow, the jobs that find out, and the program in their pods."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from myriad.burnin import run as running
from myriad.burnin.job import LABEL, NAMESPACE, Settings, deadline_s, link_result, nccl_bandwidth, objects
from myriad.burnin.judge import Pair, judge, pairs_of, tournament
from myriad.cli import _cluster, build_app
from myriad.errors import InputError, MyriadError

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "images" / "gang-check"


def all_pairs(speeds: dict[str, float], rail: str = "pods") -> list[Pair]:
    """Every pair runs as fast as its slower node."""
    names = sorted(speeds)
    return [
        Pair(one, other, rail, min(speeds[one], speeds[other]))
        for place, one in enumerate(names)
        for other in names[place + 1 :]
    ]


# Who is slow


def test_a_pair_counts_by_its_slower_direction() -> None:
    results = [
        {"node": "gpu1", "rails": {"pods": {"gpu2": 1.5, "gpu3": 2.0}}},
        {"node": "gpu2", "rails": {"pods": {"gpu1": 1.0}}},
    ]
    assert set(pairs_of(results)) == {Pair("gpu1", "gpu2", "pods", 1.0), Pair("gpu1", "gpu3", "pods", 2.0)}


def test_the_slow_node_is_named_and_its_partners_are_not() -> None:
    speeds = {"gpu1": 40.0, "gpu2": 41.0, "gpu3": 12.0, "gpu4": 40.5}
    verdicts = judge(speeds, all_pairs(speeds))
    assert {verdict.node: verdict.word for verdict in verdicts} == {
        "gpu1": "ok", "gpu2": "ok", "gpu3": "slow", "gpu4": "ok",
    }  # fmt: skip
    assert verdicts[2].cause == (
        "gpu3 reaches 12 GB/s on pods, 30 % of the median 40: the others are faster with each other than with it"
    )


def test_one_slow_cable_between_two_nodes_blames_neither() -> None:
    pairs = [pair for pair in all_pairs(dict.fromkeys(["gpu1", "gpu2", "gpu3", "gpu4"], 40.0)) if pair.other != "gpu2"]
    verdicts = judge(["gpu1", "gpu2", "gpu3", "gpu4"], [*pairs, Pair("gpu1", "gpu2", "pods", 5.0)])
    assert {verdict.word for verdict in verdicts} == {"ok"}
    assert verdicts[0].slowest == "gpu2"


def test_below_the_threshold_says_whether_it_is_the_node_or_all() -> None:
    one = judge(["a1", "a2", "a3"], all_pairs({"a1": 40, "a2": 40, "a3": 10, "a4": 40}), threshold=30, reference=["a4"])
    assert [verdict.word for verdict in one] == ["ok", "ok", "below"] and one[2].cause.endswith("it is this node")
    every = judge(["a1", "a2", "a3"], all_pairs({"a1": 20, "a2": 20, "a3": 20}), threshold=30)
    assert {verdict.word for verdict in every} == {"below"}
    assert "the others are no faster (20 median): switch, settings or threshold" in every[0].cause


def test_of_two_nodes_only_the_threshold_can_tell() -> None:
    pairs = [Pair("gpu1", "gpu2", "pods", 3.0)]
    assert {verdict.word for verdict in judge(["gpu1", "gpu2"], pairs)} == {"ok"}
    assert {verdict.word for verdict in judge(["gpu1", "gpu2"], pairs, threshold=5)} == {"below"}


def test_a_partner_from_elsewhere_gets_no_verdict_and_a_silent_node_does() -> None:
    verdicts = judge(["gpu3", "gpu9"], [Pair("gpu1", "gpu3", "pods", 3.0)], reference=["gpu1"])
    assert [(verdict.node, verdict.word) for verdict in verdicts] == [("gpu3", "ok"), ("gpu9", "not measured")]


def test_each_rail_is_judged_by_itself() -> None:
    pairs = all_pairs({"a": 40, "b": 40, "c": 40}, "ens1") + all_pairs({"a": 40, "b": 8, "c": 40}, "ens2")
    assert [(v.node, v.rail) for v in judge("abc", pairs) if v.word != "ok"] == [("b", "ens2")]


@pytest.mark.parametrize("count", [2, 3, 8, 9])
def test_in_a_tournament_everybody_meets_everybody_once_and_no_one_twice_at_a_time(count: int) -> None:
    names = [f"gpu{n}" for n in range(count)]
    rounds = tournament(names, 99)
    met = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert len(met) == len(set(met)) == count * (count - 1) // 2
    for pairs in rounds:
        players = [node for pair in pairs for node in pair]
        assert len(players) == len(set(players))
    assert len(tournament(names, 1)) == 1


# The jobs


def test_the_job_stands_beside_kueue_with_one_pod_on_each_node() -> None:
    service, job = objects("burn-in-1", ["gpu1", "gpu2"], Settings(image="r/gang-check:1", seconds=3))
    assert job["metadata"]["namespace"] == NAMESPACE and "kueue.x-k8s.io/queue-name" not in job["metadata"]["labels"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2 and job["spec"]["backoffLimit"] == 0
    pod = job["spec"]["template"]["spec"]
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["gpu1", "gpu2"]
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["labelSelector"]["matchLabels"] == service["spec"]["selector"] == {LABEL: "burn-in-1"}
    assert pod["tolerations"] == [{"operator": "Exists"}] and "hostNetwork" not in pod
    env = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    assert (env["MASTER_ADDR"], env["WORLD_SIZE"], env["LINK_SECONDS"]) == ("burn-in-1-0.burn-in-1", "2", "3")
    assert pod["subdomain"] == service["metadata"]["name"]
    assert not any("gpu" in name for name in pod["containers"][0]["resources"]["limits"])


def test_rails_are_measured_in_the_nodes_network() -> None:
    rails = {"ens1": {"gpu1": "10.200.0.1", "gpu2": "10.200.0.2", "gpu9": "10.200.0.9"}}
    _, job = objects("b", ["gpu1", "gpu2"], Settings(image="i", rails=rails))
    pod = job["spec"]["template"]["spec"]
    assert pod["hostNetwork"] is True and pod["dnsPolicy"] == "ClusterFirstWithHostNet"
    env = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    assert json.loads(env["LINK_RAILS"]) == {"ens1": {"gpu1": "10.200.0.1", "gpu2": "10.200.0.2"}}


def test_nccl_asks_for_the_gpus_and_leaves_its_last_lines_in_the_pods_status() -> None:
    settings = Settings(image="i@sha256:1", gpus=8, command="all_reduce_perf -b 1G -e 8G -f 2 -g 8")
    _, job = objects("b", ["gpu1", "gpu2"], settings)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert "all_reduce_perf -b 1G" in container["command"][2] and "/dev/termination-log" in container["command"][2]
    assert deadline_s(2, settings) == 900


# The last lines of all_reduce_perf, composed from the output that the README of nccl-tests shows.
NCCL = """#                                                              out-of-place                       in-place
  8589934592    2147483648     float     sum      -1    40921  209.91  367.35      0    40903  210.01  367.51      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 367.43
#
"""


def test_what_pods_leave_behind_is_read() -> None:
    assert nccl_bandwidth(NCCL) == 367.43
    assert nccl_bandwidth("NCCL WARN Cuda failure") is None
    result = {"node": "gpu1", "rails": {"pods": {"gpu2": 1.2}}}
    assert link_result("3 nodes met\n" + json.dumps(result)) == result
    assert link_result("failed: gpu2 went away\n{}") is None


class FakeApi:
    """An API server on which jobs end at once."""

    base_url = "https://fake"

    def __init__(
        self, messages: Callable[[str], str], *, failed: str = "", running: list[dict[str, Any]] | None = None
    ):
        self.messages, self.failed = messages, failed
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.other_pods = running or []
        self.nodes: dict[str, str] = {}
        self.created: list[str] = []

    def create(self, resource: Any, body: dict[str, Any], *, namespace: str) -> dict[str, Any]:
        self.objects[resource.kind, body["metadata"]["name"]] = body
        self.created.append(resource.kind)
        return body

    def delete(self, resource: Any, name: str, *, namespace: str) -> None:
        self.objects.pop((resource.kind, name), None)

    def find(self, resource: Any, name: str, *, namespace: str) -> dict[str, Any]:
        kind = "Failed" if self.failed else "Complete"
        return {"status": {"conditions": [{"type": kind, "status": "True", "message": self.failed}]}}

    def list(self, resource: Any, **query: Any) -> tuple[list[dict[str, Any]], str]:
        if resource.kind == "Node":
            return [
                {"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}
                for name, ready in self.nodes.items()
            ], ""
        if "labels" not in query:
            return self.other_pods, ""
        name = query["labels"].partition("=")[2]
        spec = self.objects["Job", name]["spec"]["template"]["spec"]
        terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        state = {"exitCode": 1 if self.failed else 0}
        return [
            {
                "spec": {"nodeName": node},
                "status": {
                    "phase": "Failed" if self.failed else "Succeeded",
                    "containerStatuses": [{"state": {"terminated": {**state, "message": self.messages(node)}}}],
                },
            }
            for node in terms[0]["matchExpressions"][0]["values"]
        ], ""


def received(speeds: dict[str, float]) -> Callable[[str], str]:
    def message(node: str) -> str:
        partners = {other: min(speeds[node], speeds[other]) for other in speeds if other != node}
        return json.dumps({"node": node, "rails": {"pods": partners}})

    return message


def test_a_run_collects_the_pairs_and_leaves_nothing_behind() -> None:
    api = FakeApi(received({"gpu1": 2.0, "gpu2": 1.0}))
    assert running.measure(api, ["gpu1", "gpu2"], Settings(image="i"), lambda text: None) == [  # type: ignore[arg-type]
        Pair("gpu1", "gpu2", "pods", 1.0)
    ]
    assert api.created == ["Service", "Job"] and api.objects == {}


def test_nccl_measures_disjoint_pairs_in_rounds() -> None:
    api = FakeApi(lambda node: NCCL)
    pairs = running.measure(api, ["a", "b", "c", "d"], Settings(image="i", command="x", gpus=8), lambda text: None)  # type: ignore[arg-type]
    assert len(pairs) == 6 and {pair.gb_s for pair in pairs} == {367.43} and api.objects == {}


def test_a_failed_run_says_what_its_pods_said_and_cleans_up() -> None:
    api = FakeApi(lambda node: "failed: cannot reach 10.0.0.2:29400", failed="backoff limit reached")
    with pytest.raises(MyriadError) as failed:
        running.measure(api, ["gpu1", "gpu2"], Settings(image="i"), lambda text: None)  # type: ignore[arg-type]
    assert "gpu1: exit 1: failed: cannot reach 10.0.0.2:29400" in str(failed.value) and api.objects == {}


# The verb

LAB = str(ROOT / "inventories" / "lab")


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def call(*arguments: str, api: FakeApi | None = None) -> Any:
        api = api or FakeApi(received({"gpu1": 2.0, "gpu2": 2.0, "gpu3": 0.5}))
        api.nodes = api.nodes or dict.fromkeys(["gpu1", "gpu2", "gpu3"], "True")
        monkeypatch.setattr(_cluster, "reach", lambda kubeconfig: api)
        return CliRunner().invoke(build_app("burnin"), ["burnin", "run", "-i", LAB, *arguments])

    return call


def test_a_rack_that_is_fast_enough_ends_with_0(verb: Callable[..., Any]) -> None:
    done = verb("--rack", "hall1/b1/r1", "--gb-s", "1.5")
    assert done.exit_code == 0, done.output
    assert "all links carry what they should" in done.output


def test_the_slow_node_of_a_block_is_named_and_ends_with_4(verb: Callable[..., Any]) -> None:
    done = verb("--rack", "hall1/b1", "--json")
    assert done.exit_code == 4
    document = json.loads(done.stdout)
    assert [(row["node"], row["verdict"]) for row in document["nodes"]] == [
        ("gpu1", "ok"),
        ("gpu2", "ok"),
        ("gpu3", "slow"),
    ]
    done = verb("--rack", "hall1/b1")
    assert "gpu3 must not be opened: look at cable, transceiver" in done.output


def test_a_node_alone_is_measured_with_one_from_elsewhere(verb: Callable[..., Any]) -> None:
    alone = verb("--rack", "hall1/b1/r2")
    assert isinstance(alone.exception, InputError) and "gpu3 is alone there" in str(alone.exception)
    done = verb("--rack", "hall1/b1/r2", "--with", "gpu1", "--gb-s", "1", "--json")
    assert [row["node"] for row in json.loads(done.stdout)["nodes"]] == ["gpu3"] and done.exit_code == 4


def test_a_node_at_work_is_left_alone_unless_told(verb: Callable[..., Any]) -> None:
    pod = {
        "metadata": {"namespace": "vision", "name": "gang-0"},
        "spec": {"nodeName": "gpu2", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
        "status": {"phase": "Running"},
    }
    speeds = received({"gpu1": 2.0, "gpu2": 2.0})
    done = verb("--rack", "hall1/b1/r1", api=FakeApi(speeds, running=[pod]))
    assert isinstance(done.exception, InputError) and "1 of 2 nodes run jobs: gpu2 (vision/gang-0)" in str(
        done.exception
    )
    assert verb("--rack", "hall1/b1/r1", "--among-jobs", api=FakeApi(speeds, running=[pod])).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "say which nodes"),
        (("--rack", "hall1/b1/r7"), 'no node stands in "hall1/b1/r7"'),
        (("--nodes", "gpu1,gpu7"), '"gpu7" is not a host of the inventory'),
        (("--pool", "h10"), '"h10" is not a pool; did you mean "h100"?'),
        (("--rack", "hall1", "--nccl", "all_reduce_perf"), "--nccl needs --image"),
    ],
)
def test_wrong_wishes_are_refused(verb: Callable[..., Any], arguments: tuple[str, ...], sentence: str) -> None:
    done = verb(*arguments)
    assert isinstance(done.exception, InputError) and sentence in str(done.exception)


def test_a_node_that_is_not_ready_is_named(verb: Callable[..., Any]) -> None:
    api = FakeApi(received({"gpu1": 1, "gpu2": 1}))
    api.nodes = {"gpu1": "True", "gpu2": "False"}
    done = verb("--nodes", "gpu1,gpu2,gpu3", api=api)
    assert "gpu2 is not Ready; gpu3 is not in the cluster" in str(done.exception)


# The program in the pods


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def link_check() -> Iterator[ModuleType]:
    sys.path.insert(0, str(FOLDER))
    spec = importlib.util.spec_from_file_location("link_check", FOLDER / "link_check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(FOLDER))


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_pairings_are_mutual_and_complete(link_check: ModuleType, count: int) -> None:
    rounds = link_check.pairings(count)
    met = set()
    for partners in rounds:
        for rank, partner in enumerate(partners):
            if partner >= 0:
                assert partners[partner] == rank
                met.add(frozenset((rank, partner)))
    assert len(met) == count * (count - 1) // 2
    assert len(link_check.pairings(count, 1)) == 1


def start(port: int, rank: int, world: int, tmp: Path, **env: str) -> subprocess.Popen[str]:
    common = {
        "PATH": os.environ["PATH"], "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world),
        "RANK": str(rank), "NODE_NAME": f"gpu{rank}", "LINK_SECONDS": "0.2", "GANG_JOIN_SECONDS": "20",
        "GANG_PEER_SECONDS": "20", "LINK_RESULT": str(tmp / f"result-{rank}"),
    }  # fmt: skip
    command = [sys.executable, str(FOLDER / "link_check.py")]
    return subprocess.Popen(command, env=common | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_four_processes_measure_all_six_pairs(port: int, tmp_path: Path) -> None:
    pods = [start(port, rank, 4, tmp_path) for rank in range(4)]
    told = [pod.communicate(timeout=60)[0] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0, 0, 0], told
    results = [json.loads((tmp_path / f"result-{rank}").read_text()) for rank in range(4)]
    pairs = pairs_of(results)
    assert len(pairs) == 6 and all(pair.gb_s > 0 for pair in pairs)
    assert link_result(told[2]) == results[2]


def test_rails_go_over_their_own_addresses(port: int, tmp_path: Path) -> None:
    rails = {"r0": {"gpu0": "127.0.1.1", "gpu1": "127.0.1.2"}, "r1": {"gpu0": "127.0.2.1", "gpu1": "127.0.2.2"}}
    pods = [start(port, rank, 2, tmp_path, LINK_RAILS=json.dumps(rails)) for rank in range(2)]
    told = [pod.communicate(timeout=60)[0] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], told
    assert set(json.loads((tmp_path / "result-0").read_text())["rails"]) == {"r0", "r1"}


def test_a_partner_that_goes_away_is_named(port: int, tmp_path: Path) -> None:
    pods = [start(port, rank, 2, tmp_path, LINK_SECONDS="2", GANG_PEER_SECONDS="3") for rank in range(2)]
    assert pods[1].stdout is not None
    assert "met" in pods[1].stdout.readline()
    pods[1].kill()
    told = pods[0].communicate(timeout=60)[0]
    pods[1].communicate(timeout=10)
    assert pods[0].returncode == 1 and "gpu1" in told, told


def test_a_wrong_number_is_refused(port: int, tmp_path: Path) -> None:
    pod = start(port, 0, 2, tmp_path, LINK_SECONDS="soon")
    told, _ = pod.communicate(timeout=30)
    assert pod.returncode == 2 and "LINK_SECONDS is 'soon'" in told
