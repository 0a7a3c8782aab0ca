"""The gate against a real API server: what it writes is accepted, and many agents that want to close at once are held.

Needs the programs of `apiserver.py`, no lab, no containers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from myriad.agent.brake import CONFIG_MAPS, NAMESPACE, SIZES, Brake, Decision, Place, State, sizes
from myriad.agent.keeper import Keeper, KeeperSettings
from myriad.agent.report import UNHEALTHY_TAINT, Record
from myriad.cli.gate import summary
from myriad.fleet.labels import GATE_TAINT
from myriad.fleet.portrait import Bus, Ecc, Expected, Gpu, Observation, PciDevice, Portrait
from myriad.fleet.portrait import Driver as DriverFacts
from myriad.kube.client import EVENTS, NODES, PODS, Api, connect

sys.path.insert(0, str(Path(__file__).parent))
import apiserver
from apiserver import ControlPlane

Json = dict[str, Any]

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(
        bool(apiserver.missing()),
        reason=f"the control plane of plain processes needs {', '.join(apiserver.missing())}",
    ),
]

MODEL = "H100-SXM5-80GB"
EXPECTED = Expected(gpus=8, model=MODEL, location=("hall1", "b1", "r1"))
IMAGE = "registry.example/myriad/extension@sha256:" + "0" * 64


def portrait(node: str, *, errors: int = 0) -> Portrait:
    """A PCIe node with eight GPUs, the first with this many memory errors."""
    looked = {key: Observation(source=key, at="2026-11-29T21:00:00Z") for key in ("pci", "gpus", "module")}
    return Portrait(
        node=node,
        boot_id="boot-1",
        observations=looked,
        pci=Bus(gpus=tuple(PciDevice(address=f"0000:{n:02x}:00.0", vendor="10de", device="2330") for n in range(8))),
        gpus=tuple(
            Gpu(
                index=n, uuid=f"GPU-{n}", vendor="nvidia", model=MODEL,
                ecc=Ecc(enabled=True, volatile_uncorrected=errors if n == 0 else 0),
            )
            for n in range(8)
        ),
        drivers=(DriverFacts(vendor="nvidia", loaded="580.126.20", userspace="580.126.20"),),
    )  # fmt: skip


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd and an API server."""
    plane = ControlPlane(tmp_path_factory.mktemp("plane"))
    (plane.work / "logs").mkdir()
    try:
        apiserver._start_api(plane, [])
        plane.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}])
        yield plane
    finally:
        for name in reversed(list(plane.processes)):
            plane.stop(name)


@pytest.fixture(scope="module")
def api(plane: ControlPlane) -> Iterator[Api]:
    """A client; the sizes of a pool of 1,250 nodes in racks of four are there."""
    found = connect(plane.kubeconfig)
    nodes = [apiserver.fake_node(f"g{n:04}", path(n)) for n in range(1250)]
    body = {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": SIZES, "namespace": NAMESPACE},
        "data": {"sizes": json.dumps(sizes(nodes))},
    }  # fmt: skip
    found.create(CONFIG_MAPS, body, namespace=NAMESPACE)
    yield found
    found.close()


def path(number: int) -> tuple[str, str, str]:
    rack = number // 4
    return ("hall1", f"b{rack // 16}", f"r{rack}")


def test_the_whole_way_of_a_node_is_accepted_by_the_api_server(api: Api) -> None:
    body = apiserver.fake_node("gpu1", ("hall1", "b1", "r1"))
    body["spec"] = {"taints": [{"key": GATE_TAINT, "effect": "NoSchedule"}]}
    api.create(NODES, body)
    api.patch(NODES, "gpu1", {"status": body["status"]}, subresource="status")
    keeper = Keeper(api, KeeperSettings("gpu1", IMAGE))

    def look(errors: int = 0) -> Record:
        keeper.keep(api.get(NODES, "gpu1"), EXPECTED, portrait("gpu1", errors=errors))
        return Record.of(api.get(NODES, "gpu1"))

    assert look().verdict.failing == ("devices",)
    pod = api.get(PODS, "myriad-gate-probe-gpu1", namespace=NAMESPACE)
    assert pod["spec"]["nodeName"] == "gpu1"
    message = json.dumps({"wanted": 8, "opened": 8, "cuda": ""})
    ended = {"exitCode": 0, "message": message}
    status = {
        "phase": "Succeeded",
        "containerStatuses": [
            {"name": "probe", "image": IMAGE, "imageID": "", "ready": False, "restartCount": 0,
             "state": {"terminated": ended}}
        ],
    }  # fmt: skip
    api.patch(PODS, "myriad-gate-probe-gpu1", {"status": status}, namespace=NAMESPACE, subresource="status")
    record = look()
    assert record.open and record.probe is not None and record.probe.opened == 8
    node = api.get(NODES, "gpu1")
    assert not [t for t in node["spec"].get("taints") or [] if t["key"] == GATE_TAINT]

    api.patch(NODES, "gpu1", {"spec": {"unschedulable": True}})
    assert not look(errors=2).open
    taints = api.get(NODES, "gpu1")["spec"]["taints"]
    assert {"key": UNHEALTHY_TAINT, "value": "agent", "effect": "NoSchedule"} in taints
    report = summary([api.get(NODES, "gpu1")], [])
    assert report["nodes"][0]["cause"] == "GPU 0: 2 uncorrected memory errors since the driver was loaded"
    assert api.get(NODES, "gpu1")["spec"]["unschedulable"] is True


def test_63_of_1250_agents_that_want_to_close_in_the_same_moment(api: Api) -> None:
    """Five percent at once, each from a thread of its own: exactly a fiftieth closes, and the event is written once."""
    names = [n * 19 for n in range(63)]

    def ask(number: int) -> Decision:
        place = Place.of("h100", path(number))
        answer = Brake(api).ask(f"g{number:04}", place, "Xid 119")
        # An agent that lost six races asks again at its next look.
        return answer if "could not be asked" not in answer.held else Brake(api).ask(f"g{number:04}", place, "Xid 119")

    with ThreadPoolExecutor(max_workers=63) as pool:
        answers = list(pool.map(ask, names))
    state = State.parse(api.get(CONFIG_MAPS, "myriad-brake-h100", namespace=NAMESPACE)["data"]["state"])
    granted = {f"g{n:04}" for n, answer in zip(names, answers, strict=True) if answer.granted}
    assert granted <= set(state.claims)
    assert len(state.claims) == 25, sorted(state.claims)
    assert sum(answer.tripped for answer in answers) == 1
    assert {a.held.partition(",")[0] for a in answers if "brake is on" in a.held} == {
        "the brake is on: 25 of 1250 nodes of pool h100 closed within 10 minutes"
    }


def test_a_node_that_is_held_says_so_in_an_event_of_its_own(api: Api) -> None:
    body = apiserver.fake_node("gpu2", ("hall1", "b1", "r1"), pool="small")
    api.create(NODES, body)
    api.patch(NODES, "gpu2", {"status": body["status"]}, subresource="status")
    keeper = Keeper(api, KeeperSettings("gpu2"))
    keeper.keep(api.get(NODES, "gpu2"), EXPECTED, portrait("gpu2"))
    assert Record.of(api.get(NODES, "gpu2")).open
    Brake(api).ask("other", Place.of("small", ("hall1", "b1", "r1")), "x")
    keeper.keep(api.get(NODES, "gpu2"), EXPECTED, portrait("gpu2", errors=1))
    record = Record.of(api.get(NODES, "gpu2"))
    assert record.open and record.held.startswith("the brake is on: 1 node of pool small closed")
    events = [e for e in api.list(EVENTS, namespace="default")[0] if e["reason"] == "GateBrake"]
    assert [(e["involvedObject"]["name"], e["type"]) for e in events] == [("gpu2", "Warning")]
