"""The agent against an API server in memory: what it writes, when, and what it leaves alone."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from myriad.agent.asserted import ASSERTED_ANNOTATION
from myriad.agent.collect.assemble import collectors
from myriad.agent.collect.source import Host, Recorded
from myriad.agent.keeper import Keeper, KeeperSettings
from myriad.agent.loop import Agent, Looking, published
from myriad.agent.publish import Publisher
from myriad.agent.report import Record
from myriad.agent.settings import Settings
from myriad.errors import InputError
from myriad.fleet.portrait import LEASE_PREFIX, Expected, Labelling, Portrait, Spec, Taint, fresh
from myriad.kube.client import ApiError
from myriad.kube.kinds import LEASES, NODE_PORTRAITS, NODES
from tests.unit.agent.fake_cluster import FakeCluster

MACHINES = Path(__file__).parents[2] / "fixtures" / "machines"
START = datetime(2026, 11, 29, 10, 0, tzinfo=UTC)
GATE = "myriad.dev/gpu-not-ready"


@lru_cache
def recorded(name: str) -> Recorded:
    return Recorded(MACHINES / name)


class Changing:
    """A recorded machine that can be swapped for another."""

    def __init__(self, name: str) -> None:
        self.machine = recorded(name)

    def become(self, name: str) -> None:
        self.machine = recorded(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.machine, name)


class World:
    """One node, its agent, and a clock."""

    def __init__(self, machine: str = "h100-sxm5-x8", *, gpus: int = 8, spec: Spec | None = None) -> None:
        self.cluster = FakeCluster()
        self.source = Changing(machine)
        self.seconds = 0.0
        self.spec = spec or Spec(
            labels={"myriad.dev/pool": "h100", "myriad.dev/gpu-expected": str(gpus)},
            expected=Expected(gpus=gpus, model="H100-SXM5-80GB", location=("hall1", "b1", "r1")),
        )
        self.join(gpus)
        self.cluster.put(NODE_PORTRAITS, {"metadata": {"name": "n1"}, "spec": self.spec.document()})
        self.agent = self.started()
        self.step()

    def join(self, gpus: int = 8, **labels: str) -> None:
        """The kubelet registers its Node, tainted as it comes."""
        amounts = {"nvidia.com/gpu": str(gpus)}
        self.cluster.put(
            NODES,
            {
                "metadata": {"name": "n1", "labels": labels},
                "spec": {"taints": [{"key": GATE, "effect": "NoSchedule"}]},
                "status": {
                    "capacity": amounts,
                    "allocatable": amounts,
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            },
        )

    def started(self) -> Agent:
        api: Any = self.cluster
        return Agent(
            api,
            Settings("n1"),
            looking=Looking(
                "n1", self.source, collectors(), now=lambda: START + timedelta(seconds=self.seconds),
                monotonic=lambda: self.seconds,
            ),
            keeper=Keeper(
                api, KeeperSettings("n1"), now=lambda: START + timedelta(seconds=self.seconds),
                monotonic=lambda: self.seconds,
            ),
            publisher=Publisher(
                api, "n1", now=lambda: START + timedelta(seconds=self.seconds), monotonic=lambda: self.seconds
            ),
        )  # fmt: skip

    def sync(self) -> None:
        """What the watches would bring."""
        self.agent.node.take(self.cluster.read(NODES, "n1"))
        self.agent.object.take(self.cluster.read(NODE_PORTRAITS, "n1"))

    def step(self, *, after_s: float = 15.0) -> list[tuple[str, str, str]]:
        """One look; returns the requests that it cost."""
        self.seconds += after_s
        self.sync()
        before = len(self.cluster.requests)
        self.agent.look()
        self.agent.act()
        return self.cluster.requests[before:]

    @property
    def node(self) -> Any:
        return self.cluster.read(NODES, "n1")

    @property
    def status(self) -> Any:
        obj = self.cluster.read(NODE_PORTRAITS, "n1")
        assert obj is not None
        return obj["status"]


def settled(world: World) -> World:
    for _ in range(4):
        world.step()
    return world


def test_a_described_node_gets_portrait_labels_gate_and_lease() -> None:
    world = settled(World())
    portrait = Portrait.model_validate(world.status)
    assert len(portrait.gpus) == 8 and portrait.summary.gate == "open" and portrait.summary.model == "H100-SXM5-80GB"
    labels = world.node["metadata"]["labels"]
    assert labels["myriad.dev/gpu-count"] == "8" and labels["myriad.dev/pool"] == "h100"
    assert world.node["spec"]["taints"] == []
    lease = world.cluster.read(LEASES, f"{LEASE_PREFIX}n1")
    assert fresh(world.status, lease, START + timedelta(seconds=world.seconds)) == ""
    assert lease is not None and lease["metadata"]["ownerReferences"][0]["kind"] == "NodePortrait"


def test_an_hour_in_which_nothing_happens_costs_eighty_lease_renewals_and_nothing_else() -> None:
    world = settled(World())
    spent: list[tuple[str, str, str]] = []
    for _ in range(240):
        spent += world.step()
    assert {(verb, kind) for verb, kind, _ in spent} == {("patch", "leases")}
    # Due every 40 s, looked every 15 s: renewed every 45 s. 5,000 nodes: 111 renewals a second, and no other write.
    assert len(spent) == 80


def test_only_what_changed_is_written_and_the_times_of_the_rest_stay() -> None:
    world = settled(World())
    before = {key: look["at"] for key, look in world.status["observations"].items()}
    world.source.become("h100-one-lost")
    assert ("patch", "nodeportraits", "n1/status") in world.step()
    after = {key: look["at"] for key, look in world.status["observations"].items()}
    changed = {key for key in after if after[key] != before.get(key)}
    assert "gpus/3" in changed and "kernel" not in changed and "gpus/5" not in changed
    assert world.node["metadata"]["labels"]["myriad.dev/gpu-count"] == "7"


def test_a_portrait_that_changes_all_the_time_is_not_written_all_the_time() -> None:
    world = settled(World())
    written = 0
    for turn in range(240):
        world.source.become("h100-one-lost" if turn % 2 else "h100-sxm5-x8")
        written += ("patch", "nodeportraits", "n1/status") in world.step()
    # Ten at once, then one a minute.
    assert 60 <= written <= 75


def test_an_agent_that_starts_again_takes_over_times_and_xids_and_writes_nothing() -> None:
    world = settled(World("h100-one-lost", gpus=8))
    before = world.status
    world.agent = world.started()
    assert [r for r in world.step() if r[1] == "nodeportraits"] == []
    # The kernel's log has forgotten, the portrait has not.
    world.source.become("h100-sxm5-x8")
    world.step()
    xids = published(world.cluster.read(NODE_PORTRAITS, "n1"))
    assert xids is not None and [xid.code for xid in xids.gpus[3].xids or ()] == [79]
    assert xids.observations["kernel"].at == before["observations"]["kernel"]["at"]


def test_a_node_deleted_and_joined_again_gets_labels_taints_and_gate_back_without_a_run() -> None:
    taint = Taint(key="example.com/gpus", value="only")
    world = settled(World(spec=Spec(
        labels={"myriad.dev/pool": "h100", "myriad.dev/rack": "hall1.b1.r1"},
        taints=(taint,),
        expected=Expected(gpus=8, model="H100-SXM5-80GB"),
    )))  # fmt: skip
    before = world.node
    world.cluster.remove(NODES, "n1")
    assert [r for r in world.step() if r[1] == "nodes"] == []
    world.join()
    assert "myriad.dev/pool" not in world.node["metadata"]["labels"]
    settled(world)
    assert world.node["metadata"]["labels"] == before["metadata"]["labels"]
    assert world.node["spec"]["taints"] == [{"key": "example.com/gpus", "effect": "NoSchedule", "value": "only"}]
    assert Portrait.model_validate(world.status).summary.gate == "open"


def test_what_somebody_else_set_stays() -> None:
    world = World()
    node = world.node
    node["metadata"]["labels"] |= {"team": "a", "nvidia.com/gpu.product": "theirs"}
    node["spec"]["taints"] += [{"key": "maintenance", "effect": "NoExecute"}]
    world.cluster.put(NODES, node)
    settled(world)
    assert {"team", "nvidia.com/gpu.product"} <= world.node["metadata"]["labels"].keys()
    assert {"key": "maintenance", "effect": "NoExecute"} in world.node["spec"]["taints"]


def test_f7_labels_that_are_no_longer_wanted_go_but_only_its_own() -> None:
    world = settled(World())
    world.cluster.put(NODE_PORTRAITS, {
        "metadata": {"name": "n1"}, "status": world.status,
        "spec": world.spec.model_copy(update={"labelling": Labelling(sets=("gfd",))}).document(),
    })  # fmt: skip
    settled(world)
    labels = world.node["metadata"]["labels"]
    assert "nvidia.com/gpu.product" in labels and "myriad.dev/gpu-count" not in labels
    world.cluster.put(NODE_PORTRAITS, {
        "metadata": {"name": "n1"}, "status": world.status, "spec": world.spec.document(),
    })  # fmt: skip
    settled(world)
    labels = world.node["metadata"]["labels"]
    assert "nvidia.com/gpu.product" not in labels and labels["myriad.dev/gpu-count"] == "8"


def test_b1_a_driver_that_stops_answering_keeps_its_labels_and_is_believed_at_the_second_look() -> None:
    world = settled(World())
    labels = world.node["metadata"]["labels"]
    world.source.become("nvml-mismatch")
    world.step()
    assert len(Portrait.model_validate(world.status).gpus) == 8
    world.step()
    portrait = Portrait.model_validate(world.status)
    assert portrait.gpus == () and "mismatch" in portrait.fault("gpus")
    assert world.node["metadata"]["labels"] == labels
    assert "gpu-count" in world.node["metadata"]["annotations"][ASSERTED_ANNOTATION]


def test_a_node_that_moved_on_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    stale = world.node
    world.cluster.put(NODES, world.node)
    world.agent.node.take(stale)
    world.agent.act()  # 422: its resourceVersion is another by now
    settled(world)
    assert world.node["metadata"]["labels"]["myriad.dev/gpu-count"] == "8"


def test_a_node_that_nobody_described_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    world = settled(World())
    world.cluster.remove(NODE_PORTRAITS, "n1")
    assert world.step() == [] and world.step() == []
    assert caplog.text.count("is not described") == 1


def test_a_spec_that_cannot_be_read_is_said_and_touches_nothing(caplog: pytest.LogCaptureFixture) -> None:
    world = settled(World())
    obj = world.cluster.read(NODE_PORTRAITS, "n1")
    assert obj is not None
    obj["spec"]["expected"]["gpus"] = "eight"
    world.cluster.put(NODE_PORTRAITS, obj)
    assert world.step() == []
    assert "cannot be read" in caplog.text


def test_the_lease_ends_its_node_is_unknown() -> None:
    world = settled(World())
    lease = world.cluster.read(LEASES, f"{LEASE_PREFIX}n1")
    later = START + timedelta(seconds=world.seconds + 121)
    assert "has not been heard of" in fresh(world.status, lease, later)


def test_a_refusal_is_told_and_not_swallowed() -> None:
    world = settled(World())
    world.cluster.error = ApiError(403, "Forbidden", "no", where="nodes")
    world.source.become("h100-one-lost")
    with pytest.raises(ApiError):
        world.step()


def test_metrics_move_and_the_portrait_does_not() -> None:
    world = settled(World())
    text = "\n".join(
        f"{sample.name} {sample.labels} {sample.value}"
        for family in world.agent.metrics.collect()
        for sample in family.samples
    )
    assert "myriad_gpu_temperature_celsius {'gpu': '0'" in text and "myriad_gpu_gate_open {} 1.0" in text
    assert "temperature_celsius" not in str(world.status) and "utilization" not in str(world.status)
    world.source.become("h100-one-lost")
    world.step()
    text = str([s for f in world.agent.metrics.collect() for s in f.samples if s.name == "myriad_gpu_xid_total"])
    assert "'code': '79'" in text and "0000:61:00.0" in text


def watched(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Watches that bring what stands there now, and nothing after it."""

    class NoWatch:
        def __init__(self, api: Any, resource: Any, handler: Any, **more: Any) -> None:
            self.synced = threading.Event()
            self._handler, self._resource = handler, resource

        def start(self) -> None:
            self._handler.replace([o for o in [world.cluster.read(self._resource, "n1")] if o])
            self.synced.set()

    monkeypatch.setattr("myriad.agent.loop.Watch", NoWatch)


def test_it_runs_and_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    watched(world, monkeypatch)
    stop = threading.Event()
    thread = threading.Thread(target=world.agent.run, args=(stop,))
    thread.start()
    deadline = threading.Event()
    for _ in range(100):
        if world.status:
            break
        deadline.wait(0.05)
    stop.set()
    world.agent.changed.set()
    thread.join(5)
    assert not thread.is_alive() and world.status["gpus"]


def test_settings_come_from_the_environment() -> None:
    found = Settings.from_env(
        {"NODE_NAME": "n1", "HOST_ROOT": "/host", "SYSFS": "/s", "PROCFS": "/p", "NVIDIA_SMI": "/opt/nvidia-smi",
         "INTERVAL_S": "2", "METRICS_PORT": "9408", "IMAGE": "i@sha256:1", "KERNEL_LOG": "/p/kmsg"}
    )  # fmt: skip
    assert found.host.root == Path("/host") and (found.host.sysfs, found.host.procfs) == ("/s", "/p")
    assert found.host.programs == {"nvidia-smi": "/opt/nvidia-smi"} and found.interval_s == 2.0
    assert (found.metrics_port, found.image, found.kernel_log) == (9408, "i@sha256:1", "/p/kmsg")
    assert Settings.from_env({"NODE_NAME": "n1"}).host == Host()
    with pytest.raises(InputError, match="no node"):
        Settings.from_env({})
    with pytest.raises(InputError, match="no number"):
        Settings.from_env({"NODE_NAME": "n1", "INTERVAL_S": "soon"})


def restarted(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """The node starts anew: its Node is the one from before, and so is what stands on it."""
    monkeypatch.setattr("myriad.agent.loop.boot_of", lambda source: "another-boot")
    world.agent = world.started()
    world.sync()
    return world


def test_a_node_that_has_started_anew_is_closed_before_anything_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubelet registers with its taints once; a device plugin may be faster than the first look."""
    world = settled(World())
    assert world.node["spec"]["taints"] == []
    judged = Record.of(world.node)
    restarted(world, monkeypatch).agent.begin()
    assert world.node["spec"]["taints"] == [{"key": GATE, "effect": "NoSchedule"}]
    record = Record.of(world.node)
    assert (record.open, record.boot, record.verdict.cause) == (
        False, judged.boot, "the node has started since it was judged"
    )  # fmt: skip
    before = len(world.cluster.requests)
    world.sync()
    world.agent.begin()
    assert world.cluster.requests[before:] == [], "once is enough"


def test_a_node_that_moves_on_meanwhile_is_closed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    world = restarted(settled(World()), monkeypatch)
    world.cluster.put(NODES, world.node)
    world.agent.begin()
    assert world.node["spec"]["taints"] == [{"key": GATE, "effect": "NoSchedule"}]


def test_an_agent_that_starts_again_on_the_same_boot_closes_nothing() -> None:
    world = settled(World())
    world.agent = world.started()
    world.sync()
    before = len(world.cluster.requests)
    world.agent.begin()
    assert world.cluster.requests[before:] == [] and world.node["spec"]["taints"] == []


def test_a_node_that_is_described_no_more_is_not_closed_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would open it again."""
    world = settled(World())
    world.cluster.remove(NODE_PORTRAITS, "n1")
    restarted(world, monkeypatch).agent.begin()
    assert world.node["spec"]["taints"] == []


def test_its_first_act_is_to_close_and_its_first_look_comes_after(monkeypatch: pytest.MonkeyPatch) -> None:
    world = restarted(settled(World()), monkeypatch)
    watched(world, monkeypatch)
    stop, found, look = threading.Event(), list[Any](), world.agent.look

    def looks() -> Portrait:
        found.append(world.node["spec"]["taints"])
        stop.set()
        return look()

    monkeypatch.setattr(world.agent, "look", looks)
    world.agent.run(stop)
    assert found == [[{"key": GATE, "effect": "NoSchedule"}]]
