"""The keeper: what is written to the Node, when a container is tried, and when an open gate may close."""

from __future__ import annotations

import json
from typing import Any

import pytest

from myriad.agent import keeper as keeper_module
from myriad.agent.brake import CONFIG_MAPS, NAMESPACE, SIZES
from myriad.agent.keeper import Keeper, KeeperSettings
from myriad.agent.report import GATE_ANNOTATION, RUN_ANNOTATION, Record
from myriad.fleet.portrait import GPUS, Ecc, Expected, Fabric, Portrait, Xid
from myriad.kube.client import ApiError
from myriad.kube.kinds import NODES, PODS

from .gate_cases import EXPECTED, GATE, NODE, UNHEALTHY, Clock, FakeApi, gpu, node, portrait

Json = dict[str, Any]
IMAGE = "registry/myriad/extension@sha256:" + "a" * 64
POD = f"myriad-gate-probe-{NODE}"


class World:
    """One node, its agent and an API server; time passes when the test says so."""

    def __init__(self, *, image: str = IMAGE, nodes: int = 100, **more: Any) -> None:
        self.api = FakeApi()
        self.clock = Clock()
        self.image = image
        self.api.put(NODES, node(**more))
        sizes = {"h100": {"nodes": nodes, "blocks": {"hall1.b1": 40}, "racks": {"hall1.b1.r2": 4}}}
        self.api.put(
            CONFIG_MAPS,
            {"metadata": {"name": SIZES, "namespace": NAMESPACE}, "data": {"sizes": json.dumps(sizes)}},
        )
        self.registry_fault = ""
        self.start()

    def start(self) -> None:
        """A new agent: all that it knows is on the Node."""
        self.keeper = Keeper(
            self.api, KeeperSettings(NODE, self.image), now=self.clock.now, monotonic=self.clock.monotonic,
            reach=lambda url: self.registry_fault,
        )  # type: ignore[arg-type]  # fmt: skip

    @property
    def node(self) -> Json:
        return self.api.objects["nodes", NODE]

    @property
    def taints(self) -> list[Json]:
        return list(self.node["spec"].get("taints") or [])

    @property
    def record(self) -> Record:
        return Record.of(self.node)

    @property
    def pod(self) -> Json | None:
        return self.api.objects.get(("pods", POD))

    def look(self, found: Portrait | None = None, *, s: float = 5.0, expected: Expected = EXPECTED) -> Json | None:
        self.clock.s += s
        return self.keeper.keep(self.api.objects["nodes", NODE], expected, found or portrait())

    def answer(self, **result: Any) -> None:
        """The probe's container ends with this answer."""
        body = self.pod
        assert body is not None, "no probe runs"
        text = json.dumps({"wanted": 8, "opened": 8, "cuda": "", **result})
        status = {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {"message": text}}}]}
        self.api.put(PODS, {**body, "status": status})

    def opened(self) -> World:
        """The gate as it is after the node was proven."""
        self.look()
        self.answer()
        self.look()
        assert self.record.open and self.taints == []
        self.api.calls.clear()
        return self


@pytest.fixture
def world() -> World:
    return World()


def test_d7_it_opens_after_a_container_has_opened_every_gpu(world: World) -> None:
    world.look()
    assert world.taints == [GATE] and world.record.checks[-1].found == "probing"
    assert world.pod is not None
    spec = world.pod["spec"]
    assert (spec["nodeName"], spec["containers"][0]["image"]) == (NODE, IMAGE)
    assert spec["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert spec["tolerations"] == [{"operator": "Exists"}]
    security = spec["containers"][0]["securityContext"]
    assert security["privileged"] is False and security["capabilities"] == {"drop": ["ALL"]}
    world.answer()
    assert world.look() is not None
    assert world.taints == [] and world.pod is None
    record = world.record
    assert (record.open, record.was_open, record.boot) == (True, True, "boot-1")
    assert record.probe is not None and record.probe.opened == 8
    world.api.calls.clear()
    assert world.look() is None
    assert world.api.calls == [], "an open gate costs no call"


def test_no_container_is_tried_before_all_else_agrees(world: World) -> None:
    world.look(portrait(fabric=Fabric(state="in-progress", status="success")))
    assert world.pod is None and world.taints == [GATE]
    assert world.record.verdict.failing == ("fabric",)


def test_a_gpu_that_does_not_open_keeps_it_closed_and_is_tried_again_later(world: World) -> None:
    world.look()
    world.answer(opened=7, failures={"nvidia3": "ENXIO: No such device or address"})
    world.look()
    assert world.taints == [GATE]
    assert world.record.verdict.cause == "a container opened 7 of 8 GPUs; nvidia3: ENXIO: No such device or address"
    world.look()
    assert world.pod is None, "not at once"
    world.look(s=30)
    assert world.pod is not None
    assert "nvidia3" in json.dumps(world.record.probe.as_json() if world.record.probe else {})
    world.answer()
    world.look()
    assert world.record.open and world.taints == []


def test_gpus_in_use_are_left_alone_and_the_gate_says_so(world: World) -> None:
    user = {
        "metadata": {"name": "train-0", "namespace": "vision"}, "status": {"phase": "Running"},
        "spec": {"nodeName": NODE, "containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
    }  # fmt: skip
    world.api.put(PODS, user)
    world.look()
    assert world.pod is None and world.record.open
    assert world.record.checks[-1].found == "not probed: GPUs in use by 1 pod"
    assert ("list", "pods", f"spec.nodeName={NODE}") in world.api.calls


def test_t13_d7_after_a_reboot_the_node_is_proven_anew(world: World) -> None:
    world.opened()
    world.start()
    again = portrait(boot_id="boot-2")
    world.look(again)
    assert world.taints == [GATE], "no permission is needed for what was not proven in this boot"
    assert ("get", "configmaps", "myriad-brake-h100") not in world.api.calls
    world.answer()
    world.look(again)
    assert world.record.open and world.record.boot == "boot-2" and world.taints == []


def test_an_agent_that_starts_again_neither_closes_nor_probes(world: World) -> None:
    world.opened()
    world.start()
    assert world.look() is None
    assert world.api.calls == []


def test_a_node_that_was_deleted_and_joined_again_is_proven_anew(world: World) -> None:
    world.opened()
    world.api.put(NODES, node())
    world.look()
    assert world.taints == [GATE] and world.pod is not None
    world.answer()
    world.look()
    assert world.record.open and world.taints == []


@pytest.mark.parametrize(
    ("found", "taint", "check"),
    [
        (portrait(gpus=[gpu(n, ecc=Ecc(enabled=True, volatile_uncorrected=2 * (n == 5))) for n in range(8)]),
         UNHEALTHY, "ecc"),
        (portrait(fabric=Fabric(state="in-progress", status="success")), UNHEALTHY, "fabric"),
        (portrait(gpus=(), faults={GPUS: "nvidia-smi does not answer within 20 s: the driver hangs"}),
         UNHEALTHY, "answers"),
        (portrait(pci=7, gpus=[gpu(n) for n in range(7)]), GATE, "pci"),
    ],
)  # fmt: skip
def test_an_open_gate_closes_by_the_kind_of_fault_and_opens_when_it_is_gone(
    world: World, found: Portrait, taint: Json, check: str
) -> None:
    world.opened()
    world.look(found)
    assert world.taints == [taint]
    record = world.record
    assert (record.open, record.claimed, record.verdict.failing) == (False, True, (check,))
    state = json.loads(world.api.objects["configmaps", "myriad-brake-h100"]["data"]["state"])
    assert list(state["claims"]) == [NODE]
    world.look()
    assert world.taints == [GATE] and world.pod is not None, "healed: tried from a container before it takes work"
    world.answer()
    world.look()
    assert world.taints == [] and world.record.open and not world.record.claimed
    assert json.loads(world.api.objects["configmaps", "myriad-brake-h100"]["data"]["state"])["claims"] == {}


def test_a_device_plugin_that_restarts_closes_nothing(world: World) -> None:
    world.opened()
    world.node["status"]["allocatable"] = {"nvidia.com/gpu": "0"}
    world.look()
    world.look()
    assert world.taints == [] and world.record.open
    world.look(s=20)
    assert world.taints == [GATE]
    assert world.record.verdict.cause == "0 of 8 GPUs are allocatable"


def test_many_at_once_are_held_with_an_event_and_closed_after_the_brake_was_let_go(world: World) -> None:
    world.opened()
    others = {f"g{n}": [world.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"), "hall1.b9", "r"] for n in range(4)}
    brake = {"metadata": {"name": "myriad-brake-h100"}, "data": {"state": json.dumps({"claims": others})}}
    world.api.put(CONFIG_MAPS, brake)
    sick = portrait(gpus=[gpu(n, ecc=Ecc(enabled=True, volatile_uncorrected=1)) for n in range(8)])
    world.look(sick)
    record = world.record
    assert world.taints == [] and record.open and not record.claimed
    assert record.held.startswith(
        "the brake is on: 4 of 100 nodes of pool h100 closed within 10 minutes, and gpu3 would be one more "
        "(GPU 0: 1 uncorrected memory errors"
    )
    assert record.held.endswith("let go with: myriad gate --release h100")
    assert [(e["about"], e["reason"], e["type_"]) for e in world.api.events] == [(NODE, "GateBrake", "Warning")]
    world.api.calls.clear()
    assert world.look(sick, s=1) is None
    assert world.api.calls == [], "a node that is held asks seldom"
    world.keeper._brake.release("h100")
    world.look(sick, s=60)
    assert world.taints == [] and world.record.held == ""
    world.look(sick)
    assert world.taints == [UNHEALTHY] and world.record.held == ""
    assert len(world.api.events) == 1


def test_l2_reports_from_before_the_brake_was_let_go_are_not_replayed(world: World) -> None:
    """NVSentinel #450: after its breaker was reset, old events closed healthy nodes."""
    world.opened()
    others = {f"g{n}": [world.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"), "hall1.b9", "r"] for n in range(4)}
    brake = {"metadata": {"name": "myriad-brake-h100"}, "data": {"state": json.dumps({"claims": others})}}
    world.api.put(CONFIG_MAPS, brake)
    reported = portrait(gpus=[gpu(n, xids=(Xid(code=74),)) for n in range(8)])
    world.look(reported)
    assert world.record.held and world.taints == []
    world.keeper._brake.release("h100")
    world.look(reported, s=60)
    world.look(reported)
    assert world.taints == [] and world.record.held == "" and world.record.verdict.open
    worse = portrait(gpus=[gpu(n, xids=(Xid(code=74, at_least=2 if n == 0 else 1),)) for n in range(8)])
    world.look(worse)
    assert world.taints == [UNHEALTHY], "what is reported afterwards counts"


def test_without_an_answer_from_the_brake_nothing_closes(world: World) -> None:
    world.opened()

    class Broken:
        def ask(self, *_: Any, **__: Any) -> Any:
            raise ApiError(500, "InternalError", "etcd", where="test")

    world.keeper._brake = Broken()  # type: ignore[assignment]
    world.look(portrait(pci=7, gpus=[gpu(n) for n in range(7)]))
    assert world.taints == [] and world.record.held.startswith("the brake cannot be asked: the API server answered 500")


# On demand


def request(world: World, value: str) -> None:
    world.node["metadata"]["annotations"][RUN_ANNOTATION] = value


def test_on_demand_it_is_proven_anew_and_the_request_is_done_once(world: World) -> None:
    world.opened()
    request(world, "2026-11-29T21:05:00Z")
    world.look()
    assert world.taints == [GATE] and world.pod is not None, "no work meanwhile: the probe needs all GPUs"
    assert world.record.run == "2026-11-29T21:05:00Z"
    world.answer()
    world.look()
    assert world.taints == [] and world.record.open
    world.api.calls.clear()
    assert world.look() is None and world.api.calls == []
    assert ("get", "configmaps", "myriad-brake-h100") not in world.api.calls


def test_on_demand_a_probe_that_failed_is_tried_at_once(world: World) -> None:
    world.look()
    world.answer(opened=7, failures={"nvidia3": "ENXIO: No such device or address"})
    world.look()
    assert world.pod is None
    request(world, "mended")
    world.look(s=1)
    assert world.pod is not None
    world.answer()
    world.look(s=1)
    assert world.record.open


def test_on_demand_with_gpus_in_use_nothing_closes(world: World) -> None:
    world.opened()
    user = {
        "metadata": {"name": "train-0", "namespace": "vision"}, "status": {"phase": "Running"},
        "spec": {"nodeName": NODE, "containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    }  # fmt: skip
    world.api.put(PODS, user)
    request(world, "again")
    world.look()
    assert world.taints == [] and world.record.run == "again"
    assert world.record.checks[-1].found == "not probed: GPUs in use by 1 pod"


def test_on_demand_old_error_reports_are_taken_as_dealt_with(world: World) -> None:
    reported = portrait(gpus=[gpu(n, xids=(Xid(code=48),)) if n == 5 else gpu(n) for n in range(8)])
    world.look(reported)
    assert world.record.verdict.failing == ("xid",)
    request(world, "after the reset")
    world.look(reported)
    world.answer()
    world.look(reported)
    assert world.record.open and world.record.baseline == {"GPU-5/48": 1}


def test_what_was_dealt_with_is_remembered_over_a_deleted_node_and_not_over_a_boot(world: World) -> None:
    reported = portrait(gpus=[gpu(n, xids=(Xid(code=48),)) if n == 5 else gpu(n) for n in range(8)])
    request(world, "after the reset")
    world.look(reported)
    world.look(reported)
    world.api.put(NODES, node())
    world.look(reported)
    assert world.record.verdict.failing == ("devices",)
    world.look(reported.model_copy(update={"boot_id": "boot-2"}))
    assert "xid" in world.record.verdict.failing


def test_the_registry_is_asked_before_the_gate_opens_and_not_afterwards(world: World) -> None:
    wanted = EXPECTED.model_copy(update={"registry": "10.0.0.1:5000"})
    world.registry_fault = "refused"
    world.look(expected=wanted)
    assert world.record.verdict.failing == ("registry",)
    world.registry_fault = ""
    world.look(expected=wanted)
    world.answer()
    world.look(expected=wanted)
    assert world.record.open
    world.registry_fault = "refused"
    world.look(expected=wanted)
    assert world.record.open and world.taints == []


# What belongs to others


def test_d1_foreign_taints_and_a_cordon_are_left_alone() -> None:
    foreign = [
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
        {"key": "example.com/burn-in", "value": "alice", "effect": "NoExecute"},
        {"key": "myriad.dev/gpu-unhealthy", "value": "alice", "effect": "NoSchedule"},
        {"key": "myriad.dev/gpu-not-ready", "value": "held-by-bob", "effect": "NoSchedule"},
    ]
    world = World(taints=[*foreign, dict(GATE, effect="NoExecute")], unschedulable=True)
    world.look()
    world.answer()
    world.look()
    assert world.record.open
    assert world.taints == [*foreign, dict(GATE, effect="NoExecute")]
    assert world.node["spec"]["unschedulable"] is True
    world.look(portrait(pci=7, gpus=[gpu(n) for n in range(7)]))
    assert world.taints == [*foreign, dict(GATE, effect="NoExecute")], "a key and effect stand once on a Node"
    assert not world.record.open


def test_a_taint_that_was_taken_off_by_hand_is_put_back_without_asking_the_brake(world: World) -> None:
    world.opened()
    sick = portrait(pci=7, gpus=[gpu(n) for n in range(7)])
    world.look(sick)
    assert world.taints == [GATE]
    world.node["spec"]["taints"] = []
    world.api.calls.clear()
    world.look(sick)
    assert world.taints == [GATE]
    assert {plural for _, plural, _ in world.api.calls} == {"nodes"}


def test_somebody_elses_change_in_between_is_not_undone(world: World) -> None:
    stale = json.loads(json.dumps(world.node))
    world.api.put(NODES, {**world.node, "spec": {"taints": [GATE, {"key": "x", "effect": "NoSchedule"}]}})
    world.clock.s += 5
    assert world.keeper.keep(stale, EXPECTED, portrait(pci=7)) is None
    assert world.taints == [GATE, {"key": "x", "effect": "NoSchedule"}]


def test_a_node_that_is_gone_is_no_error_and_a_refusal_is_one(world: World) -> None:
    gone = world.api.objects.pop(("nodes", NODE))
    assert world.keeper.keep(gone, EXPECTED, portrait(pci=7)) is None
    world.api.put(NODES, gone)
    world.api.broken = ApiError(403, "Forbidden", "x", where="test")
    with pytest.raises(ApiError):
        world.look(portrait(pci=7))


def test_an_annotation_of_another_hand_is_no_memory(world: World) -> None:
    for text in ("", "{", "[]", '{"open": true, "checks": [{"x": 1}]}', '{"checks": [], "probe": {"opened": "many"}}'):
        assert Record.parse(text) == Record(), text
    old = '{"open":true,"checks":[{"check":"pci","ok":true,"expected":8,"found":8}]}'
    assert Record.parse(old).open and Record.parse(old).boot == ""
    world.look()
    record = world.record
    assert Record.parse(record.text()) == record
    assert world.node["metadata"]["annotations"][GATE_ANNOTATION] == record.text()


def test_a_registry_that_wants_a_login_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx

    answers: dict[str, Any] = {"http://a/v2/": httpx.Response(401), "http://b/v2/": httpx.Response(503)}

    def get(url: str, timeout: float) -> Any:
        if url not in answers:
            raise httpx.ConnectError("refused")
        return answers[url]

    monkeypatch.setattr(httpx, "get", get)
    assert keeper_module.reach_registry("http://a/v2/") == ""
    assert keeper_module.reach_registry("http://b/v2/") == "http://b/v2/ answers 503"
    assert keeper_module.reach_registry("http://c/v2/") == "http://c/v2/: ConnectError: refused"
