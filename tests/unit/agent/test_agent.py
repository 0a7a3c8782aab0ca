"""Measuring a node, and the loop that keeps its gate true."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from myriad.agent import measure as measuring
from myriad.agent.__main__ import Agent, Settings
from myriad.agent.counts import GATE_TAINT, Measurement
from myriad.agent.measure import Source, measure, parse
from myriad.errors import InputError
from myriad.kube.client import ApiError
from myriad.lab.double.document import PCI_DIR, set_fault
from myriad.lab.double.files import document_files
from myriad.lab.gpus import gpu_document


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Source, Any]:
    """A node's files with eight GPU doubles, and a way to switch faults."""
    program = Path(measuring.__file__).parents[1] / "lab" / "double" / "nvidia_smi.py"
    monkeypatch.setenv("MYRIAD_LAB_GPU_JSON", str(tmp_path / "etc/myriad-lab/gpu.json"))

    def install(*faults: Any) -> None:
        document = gpu_document("gpu1", "H100-SXM5-80GB", 8)
        for kind, gpu in faults:
            document = set_fault(document, kind, gpu=gpu)
        for folder in sorted((tmp_path / PCI_DIR.lstrip("/")).glob("*")):
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
        for path, (content, _) in document_files(document).items():
            target = tmp_path / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)

    install()

    class Direct(Source):
        def command(self) -> list[str]:
            return [sys.executable, str(program), *measuring.QUERY]

    return Direct(root=tmp_path, pci_devices=PCI_DIR, timeout_s=5), install


def test_a_healthy_node_is_measured(machine: Any) -> None:
    source, _ = machine
    found = measure(source)
    assert found.pci == 8 and found.gpus is not None and len(found.gpus) == 8
    assert found.driver == "580.126.20" and found.gpus[0].uuid.startswith("GPU-")


@pytest.mark.parametrize(
    ("fault", "pci", "seen", "text"),
    [
        (("missing", 3), 7, 7, ""),
        (("nvml_mismatch", None), 8, None, "Driver/library version mismatch"),
        (("no_driver", None), 8, None, "couldn't communicate with the NVIDIA driver"),
        (("xid", 3), 8, None, "nvidia-smi ended with"),
    ],
)
def test_faults_are_seen_for_what_they_are(machine: Any, fault: Any, pci: int, seen: int | None, text: str) -> None:
    source, install = machine
    install(fault)
    found = measure(source)
    assert found.pci == pci and text in found.gpus_fault
    assert (None if found.gpus is None else len(found.gpus)) == seen


def test_a_driver_that_hangs_is_given_up(machine: Any) -> None:
    source, install = machine
    install(("hang", None))
    quick = type(source)(root=source.root, pci_devices=PCI_DIR, timeout_s=0.5)
    assert "the driver hangs" in measure(quick).gpus_fault


def test_what_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    found = measure(Source(nvidia_smi=str(tmp_path / "no-smi"), pci_devices=str(tmp_path / "no-pci")))
    assert found.gpus is None and "cannot be started" in found.gpus_fault
    assert found.pci is None and "cannot be read" in found.pci_fault


def test_other_devices_are_no_gpus(tmp_path: Path) -> None:
    devices = {
        "gpu": ("0x10de", "0x030200"),
        "audio": ("0x10de", "0x040300"),
        "switch": ("0x10de", "0x068000"),
        "vga": ("0x1a03", "0x030000"),
    }
    for name, (vendor, kind) in devices.items():
        folder = tmp_path / "pci" / name
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "class").write_text(kind + "\n")
    (tmp_path / "pci" / "going").mkdir()
    assert measure(Source(nvidia_smi="/nonexistent", pci_devices=str(tmp_path / "pci"))).pci == 1


def test_the_program_runs_in_the_nodes_own_root() -> None:
    assert Source(root=Path("/host")).command()[:3] == ["chroot", "/host", "/usr/bin/nvidia-smi"]
    assert Source().command()[0] == "/usr/bin/nvidia-smi"


def test_an_unexpected_answer_is_no_gpu_list() -> None:
    assert parse("No devices were found\n")[0] is None
    assert parse("") == ((), "")


class FakeNodes:
    """One Node that takes JSON patches."""

    def __init__(self) -> None:
        amounts = {"nvidia.com/gpu": "8"}
        self.node: Any = {
            "metadata": {"name": "n0", "resourceVersion": "1", "labels": {"myriad.dev/gpu-expected": "8"}},
            "spec": {"taints": [{"key": GATE_TAINT, "effect": "NoSchedule"}]},
            "status": {"capacity": amounts, "allocatable": dict(amounts)},
        }
        self.patches: list[Any] = []
        self.error: ApiError | None = None

    def patch(self, resource: Any, name: str, operations: Any, **more: Any) -> Any:
        if self.error:
            raise self.error
        assert more["kind"] == "json" and more["field_manager"] == "myriad-agent"
        self.patches.append(operations)
        for op in operations[1:]:
            if op["path"] == "/spec/taints":
                self.node["spec"]["taints"] = op["value"]
            elif op["path"] == "/metadata/annotations":
                self.node["metadata"]["annotations"] = op["value"]
            else:
                _, _, field, key = op["path"].split("/")
                self.node["metadata"][field][key.replace("~1", "/")] = op["value"]
        self.node["metadata"]["resourceVersion"] += "1"
        return self.node


@pytest.fixture
def nodes() -> FakeNodes:
    return FakeNodes()


def agent_of(nodes: FakeNodes, measured: Measurement) -> Agent:
    settings = Settings("n0", Source(), interval_s=0.01)
    return Agent(nodes, settings, measure=lambda _: measured)  # type: ignore[arg-type]


def test_the_gate_opens_and_closes_with_what_is_measured(nodes: FakeNodes, machine: Any) -> None:
    source, install = machine
    agent = Agent(nodes, Settings("n0", source))  # type: ignore[arg-type]
    assert not agent.look(), "no node is known yet"
    agent.replace([nodes.node])
    assert agent.look() and nodes.node["spec"]["taints"] == []
    assert not agent.look(), "nothing changed, nothing is written"
    install(("missing", 0))
    assert agent.look() and nodes.node["spec"]["taints"] == [{"key": GATE_TAINT, "effect": "NoSchedule"}]
    assert nodes.node["metadata"]["labels"]["myriad.dev/gpu-count"] == "7"
    install()
    assert agent.look() and nodes.node["spec"]["taints"] == []


@pytest.mark.parametrize("code", [409, 422, 404])
def test_a_node_that_moved_on_is_looked_at_again(nodes: FakeNodes, machine: Any, code: int) -> None:
    agent = Agent(nodes, Settings("n0", machine[0]))  # type: ignore[arg-type]
    agent.upsert(nodes.node)
    nodes.error = ApiError(code, "x", "x", where="test")
    assert not agent.look()
    nodes.error = None
    assert agent.look()


def test_a_node_that_is_gone_is_left_alone(nodes: FakeNodes, machine: Any) -> None:
    agent = Agent(nodes, Settings("n0", machine[0]))  # type: ignore[arg-type]
    agent.upsert(nodes.node)
    agent.remove(nodes.node)
    assert not agent.look() and nodes.patches == []


def test_it_looks_at_once_when_the_node_changes_and_outlives_a_refused_write(
    nodes: FakeNodes, machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("myriad.agent.__main__.Watch.start", lambda self: None)
    agent = Agent(nodes, Settings("n0", machine[0], interval_s=30))  # type: ignore[arg-type]
    stop = threading.Event()
    worker = threading.Thread(target=agent.run, args=(stop,))
    nodes.error = ApiError(500, "InternalError", "x", where="test")
    agent.upsert(nodes.node)
    worker.start()
    time.sleep(0.2)
    nodes.error = None
    end = time.monotonic() + 20
    while nodes.node["spec"]["taints"] and time.monotonic() < end:
        time.sleep(0.05)
        agent.upsert(nodes.node)
    stop.set()
    agent.changed.set()
    worker.join(timeout=10)
    assert nodes.node["spec"]["taints"] == [] and not worker.is_alive()


@pytest.mark.parametrize("env", [{}, {"NODE_NAME": "n0", "INTERVAL_S": "soon"}])
def test_wrong_settings_name_the_variable(env: dict[str, str]) -> None:
    with pytest.raises(InputError) as caught:
        Settings.from_env(env)
    assert caught.value.where in ("NODE_NAME", "INTERVAL_S")


def test_settings_come_from_the_environment() -> None:
    found = Settings.from_env(
        {"NODE_NAME": "n0", "HOST_ROOT": "/host", "PCI_DEVICES": "/p", "GPU_RESOURCE": "amd.com/gpu"}
    )
    assert found.source.root == Path("/host") and found.source.pci_devices == "/p" and found.resource == "amd.com/gpu"
