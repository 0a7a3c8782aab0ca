"""`myriad adopt`: what a cluster shows becomes a description, what has no word is named, nothing is written there."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from myriad.fleet import Fleet, check, objects_for_cluster_policy
from myriad.fleet.labels import node_labels
from myriad.inventory import read_inventory
from myriad.kube.client import Api
from myriad.onboard.live import READ, adopt, read_live
from myriad.onboard.write import write

ROOT = Path(__file__).parents[3]
KUEUE = "kueue.x-k8s.io/v1beta2"
Json = dict[str, Any]


class Cluster:
    """An API server that answers lists, in pages, and notes every request."""

    def __init__(self) -> None:
        self.objects: dict[str, list[Json]] = {}
        self.requests: list[tuple[str, str]] = []
        self.page = 100
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                url = urlsplit(self.path)
                cluster.requests.append((self.command, url.path))
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, body = cluster.listing(url.path, parse_qs(url.query))
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def listing(self, path: str, query: dict[str, list[str]]) -> tuple[int, Json]:
        if path not in self.objects:
            return 404, {"kind": "Status", "code": 404, "reason": "NotFound", "message": path}
        begin = int(query.get("continue", ["0"])[0])
        items = self.objects[path][begin : begin + self.page]
        rest = begin + self.page < len(self.objects[path])
        return 200, {"metadata": {"resourceVersion": "7", **({"continue": str(begin + self.page)} if rest else {})},
                     "items": items}  # fmt: skip

    def holds(self, *bodies: Json, version: str = "") -> None:
        """Put objects where their kind is listed."""
        for kind in READ:
            path = kind.path().replace("v1beta2", version) if version else kind.path()
            self.objects.setdefault(path, [])
        for body in bodies:
            kind = next(k for k in READ if k.kind == body["kind"])
            path = kind.path().replace("v1beta2", version) if version else kind.path()
            self.objects[path].append(body)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.close()


def kubeconfig_of(cluster: Cluster, folder: Path) -> Path:
    path = folder / "prod.conf"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1", "kind": "Config", "current-context": "prod",
                "clusters": [{"name": "prod", "cluster": {"server": cluster.url}}],
                "contexts": [{"name": "prod", "context": {"cluster": "prod", "user": "reader"}}],
                "users": [{"name": "reader", "user": {"token": "t"}}],
            }
        )
    )  # fmt: skip
    return path


def node(name: str, *, gpus: int = 8, address: str = "", taints: tuple[str, ...] = (), **labels: str) -> Json:
    """A node; its labels are given by name."""
    amounts = {"cpu": "96", "memory": "1Ti", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "addresses": [{"type": "Hostname", "address": name}]
            + ([{"type": "InternalIP", "address": address}] if address else []),
        },
    }


GFD = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}
CONTROL = {"node-role.kubernetes.io/control-plane": ""}


def flavor(name: str, *, topology: str = "default", **labels: str) -> Json:
    spec = {"nodeLabels": labels, **({"topologyName": topology} if topology else {})}
    return {"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": spec}


def queue(name: str, flavors: dict[str, Json], **spec: Any) -> Json:
    """A ClusterQueue; `flavors` gives resources by flavor, each a quota or a mapping."""
    made = [
        {
            "name": each,
            "resources": [
                {"name": resource, **(given if isinstance(given, dict) else {"nominalQuota": str(given)})}
                for resource, given in resources.items()
            ],
        }
        for each, resources in flavors.items()
    ]
    body = {"resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": made}], **spec}
    return {"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": body}


def local(namespace: str, name: str, of: str) -> Json:
    return {
        "apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterQueue": of},
    }  # fmt: skip


def simple(kind: str, name: str, api: str = KUEUE, **fields: Any) -> Json:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, **fields}


def described(path: Path) -> Fleet:
    checked = check(read_inventory(path))
    assert checked.errors == []
    return checked.fleet


def adopted(cluster: Cluster, tmp_path: Path) -> tuple[Fleet, dict[str, list[str]]]:
    with contextlib.closing(Api(cluster.url)) as api:
        made = adopt(read_live(api), name="prod", kubeconfig="/k")
    write(made.description, tmp_path / "out")
    gaps: dict[str, list[str]] = {}
    for gap in made.gaps:
        gaps.setdefault(gap.subject, []).append(gap.what)
    return described(tmp_path / "out"), gaps


def foreign() -> list[Json]:
    """A cluster as another team built it: one queue a team over two flavors, Kueue's topology, GFD's labels."""
    place = {"cloud.example.com/topology-block": "b1"}
    a100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.count": "8"}
    return [
        node("cp1", gpus=0, address="10.0.0.1", **CONTROL),
        node("cpu1", gpus=0, address="10.0.0.2"),
        *(node(f"h{i}", address=f"10.0.1.{i}", **GFD, **place, **{"cloud.example.com/topology-rack": f"r{i % 2}"})
          for i in range(4)),
        *(node(f"a{i}", address=f"10.0.2.{i}", taints=("dedicated",), **a100, **place) for i in range(2)),
        simple("Topology", "default", spec={"levels": [
            {"nodeLabel": "cloud.example.com/topology-block"}, {"nodeLabel": "cloud.example.com/topology-rack"},
            {"nodeLabel": "kubernetes.io/hostname"}]}),
        flavor("hopper", **{"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}),
        flavor("ampere", topology="", **{"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}),
        flavor("spot-cpu", kind="cpu"),
        queue("vision-cq", {
            "hopper": {"nvidia.com/gpu": {"nominalQuota": "16", "borrowingLimit": "8", "lendingLimit": "4"},
                       "cpu": "192", "memory": "4000Gi"},
            "ampere": {"nvidia.com/gpu": "8"}}, cohort="research", fairSharing={"weight": "2"},
            preemption={"reclaimWithinCohort": "LowerPriority", "withinClusterQueue": "Never"}),
        queue("speech-hopper", {"hopper": {"nvidia.com/gpu": "16", "cpu": "192", "memory": "4000Gi"}},
              cohortName="research", queueingStrategy="StrictFIFO", admissionChecks=["provisioning"]),
        queue("etl", {"spot-cpu": {"cpu": "64"}}),
        local("vision", "gpu", "vision-cq"), local("vision-eval", "gpu", "vision-cq"),
        local("speech", "hopper", "speech-hopper"), local("default", "gpu", "vision-cq"),
        local("speech", "gpu", "vision-cq"), local("old", "gone", "gone-cq"),
        simple("Cohort", "research", spec={"parentName": "company", "fairSharing": {"weight": "1500m"}}),
        simple("WorkloadPriorityClass", "high", value=900), simple("WorkloadPriorityClass", "low", value=-5),
        simple("PriorityClass", "system-node-critical", "scheduling.k8s.io/v1", value=2000001000),
        simple("PriorityClass", "batch", "scheduling.k8s.io/v1", value=10),
    ]  # fmt: skip


def test_a_cluster_that_others_built(cluster: Cluster, tmp_path: Path) -> None:
    cluster.holds(*foreign())
    fleet, gaps = adopted(cluster, tmp_path)
    assert fleet.cluster.topology_levels == ("block", "rack")
    assert [host.name for host in fleet.control_plane] == ["cp1"]
    assert fleet.hosts["h1"].location == ("b1", "r1") and fleet.hosts["h1"].address == "10.0.1.1"
    assert dict(fleet.capacity) == {"ampere": 16, "hopper": 32}
    assert (fleet.pools["hopper"].model, fleet.pools["ampere"].model) == ("H100-SXM5-80GB", "A100-SXM4-80GB")
    assert (fleet.pools["hopper"].cpu_per_gpu, fleet.pools["hopper"].memory_per_gpu) == (12, "250Gi")
    vision, speech = fleet.teams["vision-cq"], fleet.teams["speech"]
    assert vision.quota == {"hopper": 16, "ampere": 8} and vision.weight == 2 and vision.cohort == "research"
    assert vision.borrow == {"hopper": 8} and vision.lend == {"hopper": 4}
    assert vision.namespaces == ("vision", "vision-eval") and speech.namespaces == ("speech",)
    assert speech.quota == {"hopper": 16}
    assert fleet.cohorts["research"].parent == "company" and float(fleet.cohorts["research"].weight) == 1.5
    assert fleet.priorities == {"high": 900}
    assert cluster.url and gaps


def test_what_has_no_word_is_named(cluster: Cluster, tmp_path: Path) -> None:
    cluster.holds(*foreign())
    _, gaps = adopted(cluster, tmp_path)

    def said(subject: str) -> str:
        return " | ".join(gaps[subject])

    assert "cpu1" in said("1 Node")
    assert '"unknown"' in said("2 Nodes") and "a0, a1" in said("2 Nodes")
    assert "dedicated" in next(subject for subject in gaps if subject.startswith("taint"))
    vision = said("ClusterQueue vision-cq")
    assert "reclaimWithinCohort is LowerPriority" in vision and "withinClusterQueue is Never" in vision
    speech = said("ClusterQueue speech-hopper")
    assert "queueingStrategy is StrictFIFO" in speech and "admission check provisioning" in speech
    assert "flavor spot-cpu (cpu 64)" in said("ClusterQueue etl")
    assert "names no topology" in said("ResourceFlavor ampere")
    assert "belongs to the system" in said("LocalQueue default/gpu")
    assert "one team" in said("LocalQueue speech/gpu")
    assert "gone-cq does not exist" in said("LocalQueue old/gone")
    assert "named like its pool" in said("2 LocalQueues gpu")
    assert "is not from 0" in said("WorkloadPriorityClass low")
    assert "batch 10" in said("PriorityClasses of pods") and "system-node" not in said("PriorityClasses of pods")
    assert "label cloud.example.com/topology-rack" in gaps
    # Every queue of the cluster is in the description or named here.
    assert "no LocalQueue leads to it" in said("team etl")


def test_only_lists_are_asked_and_few_of_them(cluster: Cluster, tmp_path: Path, myriad: Any) -> None:
    """A server that notes every request: the whole verb, with a kubeconfig, over the network."""
    cluster.holds(*foreign())
    out = tmp_path / "prod"
    done = myriad("adopt", "--kubeconfig", str(kubeconfig_of(cluster, tmp_path)), "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert {method for method, _ in cluster.requests} == {"GET"}
    assert sorted(path for _, path in cluster.requests) == sorted(kind.path() for kind in READ)
    assert "not described, or described otherwise" in done.stdout and f"myriad policy diff -i {out}" in done.stdout
    site = yaml.safe_load((out / "group_vars/all/site.yml").read_text())
    assert site["site_kubeconfig"] == str(tmp_path / "prod.conf")
    assert "Nothing was changed in the cluster." in done.stdout


def test_the_recorder_would_see_a_write(cluster: Cluster) -> None:
    """The assertion before is worth something: this client's writes do reach that server."""
    from myriad.kube.client import ApiError
    from myriad.kube.kinds import NODES

    with contextlib.closing(Api(cluster.url)) as api, pytest.raises(ApiError):
        api.patch(NODES, "h1", {"metadata": {"labels": {"a": "b"}}})
    assert cluster.requests == [("PATCH", "/api/v1/nodes/h1")]


@pytest.mark.parametrize("inventory", ["lab", "example", "small"])
def test_what_myriad_made_comes_back_as_it_was(cluster: Cluster, tmp_path: Path, inventory: str) -> None:
    """A description rendered to objects, and those described again: the same hosts, pools, teams and shares."""
    wanted = check(read_inventory(ROOT / "inventories" / inventory)).fleet
    nodes = [
        node(host.name, gpus=host.gpus, address=host.address, **node_labels(wanted, host.name),
             **(CONTROL if host.is_control_plane else {}))
        for host in wanted.hosts.values() if host.pool or host.is_control_plane
    ]  # fmt: skip
    kinds = {kind.kind for kind in READ}
    cluster.holds(*nodes, *(o for o in objects_for_cluster_policy(wanted) if o["kind"] in kinds))
    fleet, gaps = adopted(cluster, tmp_path)
    assert fleet.cluster.topology_levels == wanted.cluster.topology_levels
    assert dict(fleet.hosts) == {
        name: host for name, host in wanted.hosts.items() if host.pool or host.is_control_plane
    }
    assert fleet.pools == wanted.pools and fleet.priorities == wanted.priorities and fleet.cohorts == wanted.cohorts
    for name, team in wanted.teams.items():
        for part in ("namespaces", "quota", "weight", "cohort", "borrow", "lend"):
            got, had = getattr(fleet.teams[name], part), getattr(team, part)
            assert (sorted(got) if part == "namespaces" else got) == (sorted(had) if part == "namespaces" else had)
    # Budgets stand elsewhere; inference queues are preempted otherwise; nobody has said where `small` stands.
    assert [
        s for s in gaps if not (s == "Myriad's own policy" or "Never" in str(gaps[s]) or "unknown" in str(gaps[s]))
    ] == []


def test_an_address_that_two_nodes_give_is_no_reason_to_stop(cluster: Cluster, tmp_path: Path) -> None:
    cluster.holds(node("h1", address="10.0.0.5", **GFD), node("h2", address="10.0.0.5", **GFD))
    fleet, gaps = adopted(cluster, tmp_path)
    assert fleet.hosts["h2"].address == "h2" and "another node's too" in gaps["Node h2"][0]


def test_names_that_a_description_refuses_are_written_otherwise(cluster: Cluster, tmp_path: Path) -> None:
    hopper = flavor("Hopper.x", **{"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"})
    quotas = {"Hopper.x": {"nvidia.com/gpu": "8"}}
    cluster.holds(
        node("h1", **GFD), node(f"h{'1' * 70}", **GFD), hopper, queue("vision.prod", quotas, cohortName="all"),
        queue("serve", quotas, cohortName="all-inference"), queue("default", quotas),
        local("vision", "gpu", "vision.prod"), local("serve", "gpu", "serve"),
    )  # fmt: skip
    fleet, gaps = adopted(cluster, tmp_path)
    assert [host.name for host in fleet.hosts.values() if host.pool] == ["h1"] and sorted(fleet.pools) == ["hopper-x"]
    assert fleet.teams["vision-prod"].cohort == "all" and fleet.teams["serve"].cohort == "all-inf"
    assert fleet.teams["default"].namespaces == ("default-team",)
    assert "all-inf" in gaps["Cohort all-inference"][0] and "has 71 characters" in str(gaps)


def test_one_machine_whose_api_answers_at_its_own_address_is_the_control_plane(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.holds(node("h1", address="127.0.0.1", **GFD))
    fleet, gaps = adopted(cluster, tmp_path)
    assert fleet.hosts["h1"].is_control_plane and fleet.hosts["h1"].gpus == 8
    assert "at its address" in gaps["Node h1"][0]


def test_older_versions_of_kueue_are_read(cluster: Cluster, tmp_path: Path) -> None:
    bodies = [
        node("cp1", gpus=0, **CONTROL), node("h1", **GFD),
        flavor("hopper", **{"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}),
        queue("vision", {"hopper": {"nvidia.com/gpu": "8"}}, cohort="all"), local("vision", "hopper", "vision"),
    ]  # fmt: skip
    cluster.holds(*bodies, version="v1beta1")
    fleet, _ = adopted(cluster, tmp_path)
    assert fleet.teams["vision"].quota == {"hopper": 8} and fleet.teams["vision"].cohort == "all"
    assert {method for method, _ in cluster.requests} == {"GET"}


def test_a_cluster_without_kueue_is_described_with_what_it_lacks(cluster: Cluster, tmp_path: Path) -> None:
    cluster.objects["/api/v1/nodes"] = [node("h1", **GFD), node("h2", gpus=4, **{**GFD, "nvidia.com/gpu.count": "4"})]
    fleet, gaps = adopted(cluster, tmp_path)
    assert fleet.teams == {} and dict(fleet.capacity) == {"h100": 12}
    assert fleet.hosts["h2"].gpus == 4 and fleet.hosts["h2"].location == ("unknown",)
    assert "could not be listed" in gaps["kind clusterqueues"][0]
    # Somebody else runs the control plane: it is known by its address.
    assert fleet.control_plane[0].name == "control-plane" and fleet.control_plane[0].address == "127.0.0.1"
    assert "it is run elsewhere" in gaps["control plane"][0]


def test_nodes_whose_model_nobody_names_are_named(cluster: Cluster, tmp_path: Path) -> None:
    cluster.holds(
        node("h1", **GFD), node("x1"), node("x2", **{"nvidia.com/gpu.product": "NVIDIA-Future-9000"}),
        node("s1", **{**GFD, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED", "nvidia.com/gpu.replicas": "4"}),
        node("m1", **{**GFD, "nvidia.com/mig.strategy": "mixed"}),
    )  # fmt: skip
    fleet, gaps = adopted(cluster, tmp_path)
    assert {host.name for host in fleet.hosts.values() if host.pool} == {"h1", "s1", "m1"}
    told = " ".join(what for subject, whats in gaps.items() if "with GPUs" in subject for what in whats)
    assert "x1" in told and "NVIDIA-Future-9000" in told
    assert "s1" in gaps["GPUs that are shared"][0] and "m1" in gaps["GPUs that are cut by MIG"][0]
    assert fleet.hosts["s1"].gpus == 8, "cards, not the pods that share them"


def test_a_flavor_over_two_models_becomes_two_pools(cluster: Cluster, tmp_path: Path) -> None:
    a100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    cluster.holds(
        *(node(f"h{i}", **GFD, tier="gpu") for i in range(2)), node("a1", **a100, tier="gpu"),
        flavor("gpu", tier="gpu"), queue("vision", {"gpu": {"nvidia.com/gpu": "16"}}), local("vision", "gpu", "vision"),
    )  # fmt: skip
    fleet, gaps = adopted(cluster, tmp_path)
    assert dict(fleet.capacity) == {"gpu": 16, "gpu-a100-sxm4-80gb": 8}
    assert fleet.teams["vision"].quota == {"gpu": 16} and "2 kinds" in gaps["pool gpu"][0]


def test_a_cluster_without_gpus_is_refused(cluster: Cluster, tmp_path: Path, myriad: Any) -> None:
    cluster.holds(node("cp1", gpus=0, **CONTROL), node("x1"))
    out = tmp_path / "prod"
    done = myriad("adopt", "--kubeconfig", str(kubeconfig_of(cluster, tmp_path)), "--out", str(out))
    assert done.returncode == 1 and "no node with GPUs can be described" in done.stderr and "x1" in done.stderr
    assert not out.exists()


def test_nothing_is_written_over_what_is_there(cluster: Cluster, tmp_path: Path, myriad: Any) -> None:
    out = tmp_path / "prod"
    out.mkdir()
    (out / "hosts.yml").write_text("mine\n")
    done = myriad("adopt", "--kubeconfig", str(kubeconfig_of(cluster, tmp_path)), "--out", str(out))
    assert done.returncode == 1 and "exists already" in done.stderr
    assert cluster.requests == [] and (out / "hosts.yml").read_text() == "mine\n"


def test_it_says_the_same_to_programs(cluster: Cluster, tmp_path: Path, myriad: Any) -> None:
    cluster.holds(*foreign())
    arguments = ["--kubeconfig", str(kubeconfig_of(cluster, tmp_path)), "--out", str(tmp_path / "prod"), "--json"]
    document = json.loads(myriad("adopt", *arguments).stdout)
    assert document["gpus"] == 48 and document["teams"] == ["etl", "speech", "vision-cq"]
    assert any(gap["subject"] == "ResourceFlavor ampere" for gap in document["not_described"])
