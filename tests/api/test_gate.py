"""The gate against a real API server: what it writes is accepted, and many agents that want to close at once are held.

Needs the programs of `apiserver.py`, no lab, no containers.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apiserver
import pytest
import yaml
from apiserver import ControlPlane

from myriad.agent.brake import CONFIG_MAPS, NAMESPACE, SIZES, Brake, Decision, Place, State, sizes
from myriad.agent.keeper import Keeper, KeeperSettings
from myriad.agent.report import RUN_ANNOTATION, UNHEALTHY_TAINT, Record, own_taints
from myriad.cli.gate import summary
from myriad.fleet.labels import GATE_TAINT
from myriad.fleet.portrait import Bus, Ecc, Expected, Gpu, Observation, PciDevice, Portrait, Spec
from myriad.fleet.portrait import Driver as DriverFacts
from myriad.kube.client import Api, connect
from myriad.kube.kinds import EVENTS, NODES, PODS
from myriad.lab.double.document import PATH, PCI_DIR, PROC_DIR, SYS_DIR, set_fault
from myriad.lab.double.files import document_files
from myriad.lab.gpus import gpu_document

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    apiserver.AT_HAND,
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
    with apiserver.api_server(tmp_path_factory.mktemp("api") / "plane", namespaces=[NAMESPACE]) as plane:
        yield plane


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


class Doubles:
    """A node's GPU doubles in a folder, and the real agent that looks at them."""

    def __init__(self, plane: ControlPlane, api: Api, folder: Path) -> None:
        self._plane, self.api, self.folder = plane, api, folder
        program = folder / "bin" / "nvidia-smi"
        program.parent.mkdir()
        program.write_text(
            f"#!{sys.executable}\nimport os, sys\nsys.path.insert(0, {str(ROOT / 'src')!r})\n"
            f"os.environ['MYRIAD_LAB_GPU_JSON'] = {str(folder) + PATH!r}\n"
            "from myriad.lab.double import nvidia_smi\nsys.exit(nvidia_smi.main())\n"
        )
        program.chmod(0o755)
        self.boot("boot-1")
        self.show()

    def show(self, *faults: tuple[str, int | None, str | None]) -> None:
        document = gpu_document("gpu7", MODEL, 8)
        for kind, gpu, value in faults:
            document = set_fault(document, kind, gpu=gpu, value=value)
        bus = self.folder / PCI_DIR.lstrip("/")
        shutil.rmtree(bus, ignore_errors=True)
        for path, (content, _) in document_files(document).items():
            target = self.folder / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)

    def boot(self, boot_id: str) -> None:
        target = self.folder / PROC_DIR.lstrip("/") / "sys/kernel/random/boot_id"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(boot_id + "\n")

    def start(self) -> None:
        root = str(self.folder)
        env = {
            "NODE_NAME": "gpu7", "KUBECONFIG": str(self._plane.kubeconfig), "INTERVAL_S": "0.5", "TOOL_TIMEOUT_S": "3",
            "SYSFS": root + SYS_DIR, "PROCFS": root + PROC_DIR, "KERNEL_LOG": f"{root}{PROC_DIR}/kmsg",
            "NVIDIA_SMI": f"{root}/bin/nvidia-smi", "PYTHONPATH": str(ROOT / "src"), "IMAGE": "",
        }  # fmt: skip
        self._plane.start("agent", [sys.executable, "-m", "myriad.agent"], env)

    def stop(self) -> None:
        self._plane.stop("agent")

    def until(self, true: Callable[[Record, set[str]], bool], timeout_s: float = 45) -> Record:
        """The record as soon as it is so."""
        end = time.monotonic() + timeout_s
        while True:
            node = self.api.get(NODES, "gpu7")
            record = Record.of(node)
            if true(record, own_taints(node)):
                return record
            assert time.monotonic() < end, f"{record}\n{(self._plane.work / 'logs' / 'agent.log').read_text()[-3000:]}"
            time.sleep(0.2)


@pytest.fixture(scope="module")
def doubles(plane: ControlPlane, api: Api, tmp_path_factory: pytest.TempPathFactory) -> Doubles:
    """Node gpu7 with its NodePortrait, as a site run leaves them, and its agent. No container tries the GPUs."""
    definition = yaml.safe_load_all((ROOT / "roles/node_portrait/files/nodeportraits.yaml").read_text())
    plane.apply([document for document in definition if document])
    plane.kubectl("wait", "--for=condition=Established", "crd/nodeportraits.myriad.dev", "--timeout=30s")
    labels = {"myriad.dev/pool": "doubles", "myriad.dev/rack": "hall1.b1.r1", "myriad.dev/gpu-expected": "8"}
    spec = Spec(labels=labels, expected=EXPECTED).document()
    plane.apply(
        [{"apiVersion": "myriad.dev/v1alpha1", "kind": "NodePortrait", "metadata": {"name": "gpu7"}, "spec": spec}]
    )
    join(api, "u")
    found = Doubles(plane, api, tmp_path_factory.mktemp("gpu7"))
    found.start()
    return found


def join(api: Api, mark: str) -> None:
    """The kubelet registers its Node: with its taint, without anybody's labels."""
    amounts = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
    api.create(
        NODES,
        {
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu7", "labels": {"joined": mark}},
            "spec": {"taints": [{"key": GATE_TAINT, "effect": "NoSchedule"}]},
        },
    )  # fmt: skip
    api.patch(NODES, "gpu7", {"status": {"capacity": amounts, "allocatable": amounts}}, subresource="status")


def test_the_agent_opens_the_gate_of_its_node(doubles: Doubles) -> None:
    record = doubles.until(lambda record, taints: record.open and not taints)
    assert record.verdict.open and [check.check for check in record.checks][:3] == ["pci", "module", "versions"]


@pytest.mark.parametrize(
    ("faults", "taint", "cause"),
    [
        ((("fabric", None, "in_progress"),), UNHEALTHY_TAINT, "the NVLink fabric is in-progress, although nvidia-smi"),
        ((("ecc", 5, None),), UNHEALTHY_TAINT, "GPU 5: 2 uncorrected memory errors since the driver was loaded"),
        ((("missing", 2, None),), GATE_TAINT, "7 of 8 GPUs are on the PCI bus"),
        ((("nvml_mismatch", None, None),), GATE_TAINT, "the running module is 580.126.20, the library is 580.142"),
        ((("hang", None, None),), UNHEALTHY_TAINT, "nvidia-smi -q -x does not answer within 3 s"),
        ((("xid", 4, "79"),), UNHEALTHY_TAINT, "GPU 4: "),
    ],
    ids=["t11-fabric", "ecc", "count", "t05-nvml-mismatch", "hang", "xid-79"],
)
def test_t05_t11_faults_of_the_doubles_close_it(doubles: Doubles, faults: Any, taint: str, cause: str) -> None:
    doubles.show(*faults)
    record = doubles.until(lambda record, taints: taint in taints and record.verdict.cause.startswith(cause))
    assert not record.open and record.verdict.next


def test_it_opens_again_when_all_is_gone_and_the_error_report_was_dealt_with(doubles: Doubles) -> None:
    doubles.show()
    doubles.until(lambda record, taints: record.verdict.failing == ("xid",))
    doubles.api.patch(NODES, "gpu7", {"metadata": {"annotations": {RUN_ANNOTATION: "after the reset"}}})
    record = doubles.until(lambda record, taints: record.open and not taints)
    assert record.run == "after the reset" and record.baseline


def test_a_node_that_was_deleted_and_joins_again_gets_labels_and_gate_back_from_the_agent(doubles: Doubles) -> None:
    doubles.api.delete(NODES, "gpu7")
    time.sleep(1.0)
    join(doubles.api, "again")
    doubles.until(lambda record, taints: record.open and not taints)
    labels = doubles.api.get(NODES, "gpu7")["metadata"]["labels"]
    wanted = {"joined": "again", "myriad.dev/rack": "hall1.b1.r1", "myriad.dev/gpu-count": "8"}
    assert labels.items() >= wanted.items()


def test_t13_d7_a_new_boot_is_judged_anew(doubles: Doubles) -> None:
    doubles.stop()
    doubles.show(("counts", None, "7"))
    doubles.boot("boot-2")
    doubles.start()
    record = doubles.until(lambda record, taints: record.boot.startswith("boot-2"))
    assert not record.open and not record.was_open
    doubles.show()
    assert doubles.until(lambda record, taints: record.open and not taints).boot.startswith("boot-2")


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
