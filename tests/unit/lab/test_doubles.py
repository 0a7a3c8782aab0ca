"""The GPU document, its faults, the PCI tree and nvidia-smi: the texts and exit codes of the real program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from myriad.lab.double import nvidia_smi
from myriad.lab.double.document import FAULTS, set_fault
from myriad.lab.double.trees import pci_files
from myriad.lab.gpus import gpu_document

H100 = gpu_document("gpu1", "H100-SXM5-80GB", 8)


def smi(folder: Path, document: dict[str, Any] | None, *arguments: str) -> tuple[int, str]:
    """Run the double as a node does. Returns exit code and output."""
    path = folder / "gpu.json"
    if document is not None:
        path.write_text(json.dumps(document))
    done = subprocess.run(
        [sys.executable, "-I", nvidia_smi.__file__, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "MYRIAD_LAB_GPU_JSON": str(path)},
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_the_same_node_always_has_the_same_gpus_and_no_two_nodes_share_one() -> None:
    assert gpu_document("gpu1", "H100-SXM5-80GB", 8) == H100
    other = gpu_document("gpu2", "H100-SXM5-80GB", 8)
    uuids = {gpu["uuid"] for document in (H100, other) for gpu in document["gpus"]}
    assert len(uuids) == 16
    assert len({gpu["bus_id"] for gpu in gpu_document("big", "B200", 16)["gpus"]}) == 16
    with pytest.raises(ValueError, match="0 to 16"):
        gpu_document("gpu1", "H100-SXM5-80GB", 17)


def test_the_pci_tree_follows_the_document() -> None:
    files = pci_files(set_fault(H100, "missing", gpu=0))
    assert len([path for path, text in files.items() if path.endswith("/class") and text == "0x030200\n"]) == 7
    assert "/var/lib/myriad-lab/sys/bus/pci/devices/0000:1b:00.0/vendor" not in files
    assert files["/var/lib/myriad-lab/sys/bus/pci/devices/0000:df:00.0/device"] == "0x2330\n"
    assert files["/var/lib/myriad-lab/sys/bus/pci/devices/0000:df:00.0/numa_node"] == "1\n"


@pytest.mark.parametrize(
    ("kind", "gpu", "clear", "words"),
    [
        ("melted", 0, False, '"melted" is not a fault; there are counts, device_node, ecc'),
        ("ecc", 8, False, "there is no GPU 8; this node has 0 to 7"),
        ("ecc", None, False, "say which, 0 to 7"),
        ("hang", 1, False, "leave out the GPU number"),
    ],
)
def test_a_wrong_fault_is_a_sentence(kind: str, gpu: int | None, clear: bool, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        set_fault(H100, kind, gpu=gpu, clear=clear)


def test_faults_are_switched_on_once_and_off() -> None:
    twice = set_fault(set_fault(H100, "ecc", gpu=1), "ecc", gpu=1)
    assert twice["faults"] == [{"kind": "ecc", "gpu": 1}]
    both = set_fault(twice, "ecc", gpu=2)
    assert set_fault(both, "ecc", gpu=1, clear=True)["faults"] == [{"kind": "ecc", "gpu": 2}]
    assert set_fault(both, "ecc", clear=True)["faults"] == []
    assert H100["faults"] == []


def test_the_list(tmp_path: Path) -> None:
    code, text = smi(tmp_path, H100, "-L")
    assert code == 0
    assert text.splitlines()[0] == f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {H100['gpus'][0]['uuid']})"
    assert len(text.splitlines()) == 8


def test_queries(tmp_path: Path) -> None:
    fields = "--query-gpu=index,name,memory.total,pci.bus_id,driver_version"
    code, text = smi(tmp_path, H100, fields, "--format=csv")
    assert code == 0
    assert text.splitlines()[:2] == [
        "index, name, memory.total [MiB], pci.bus_id, driver_version",
        "0, NVIDIA H100 80GB HBM3, 81559 MiB, 00000000:1B:00.0, 580.126.20",
    ]
    _, bare = smi(tmp_path, H100, "--query-gpu=memory.total", "--format=csv,noheader,nounits", "-i", "3")
    assert bare == "81559\n"
    sick = set_fault(H100, "ecc", gpu=3)
    _, errors = smi(
        tmp_path, sick, "--query-gpu=ecc.errors.uncorrected.volatile.total", "--format=csv,noheader,nounits"
    )
    assert errors.split() == ["0", "0", "0", "2", "0", "0", "0", "0"]


def test_the_table_and_the_xml(tmp_path: Path) -> None:
    code, text = smi(tmp_path, H100)
    assert code == 0
    assert "Driver Version: 580.126.20" in text
    assert text.count("NVIDIA H100 80GB HBM3") == 8
    code, text = smi(tmp_path, H100, "-q", "-x")
    root = ET.fromstring(text)  # noqa: S314 (made by this test)
    assert code == 0
    assert root.findtext("attached_gpus") == "8"
    assert [gpu.findtext("uuid") for gpu in root.findall("gpu")] == [gpu["uuid"] for gpu in H100["gpus"]]


@pytest.mark.parametrize(
    ("kind", "gpu", "code", "words"),
    [
        ("no_driver", None, 9, "couldn't communicate with the NVIDIA driver"),
        ("nvml_mismatch", None, 18, "Driver/library version mismatch\nNVML library version: 580.142"),
        ("xid", 1, 15, "Unable to determine the device handle for GPU0000:43:00.0: GPU is lost.  Reboot the system"),
    ],
)
@pytest.mark.parametrize("arguments", [(), ("-L",), ("-q", "-x"), ("--query-gpu=uuid", "--format=csv,noheader")])
def test_faults_have_the_real_texts_and_exit_codes(
    tmp_path: Path, kind: str, gpu: int | None, code: int, words: str, arguments: tuple[str, ...]
) -> None:
    found, text = smi(tmp_path, set_fault(H100, kind, gpu=gpu), *arguments)
    assert found == code
    assert words in text


def test_a_missing_gpu_is_not_listed(tmp_path: Path) -> None:
    code, text = smi(tmp_path, set_fault(H100, "missing", gpu=7), "-L")
    assert (code, len(text.splitlines())) == (0, 7)
    empty = gpu_document("n", "H100-SXM5-80GB", 0)
    assert smi(tmp_path, empty, "-L") == (0, "No devices were found\n")


def test_a_hanging_driver_never_answers(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps(set_fault(H100, "hang")))
    environment = {**os.environ, "MYRIAD_LAB_GPU_JSON": str(path)}
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, nvidia_smi.__file__, "-L"], env=environment, timeout=1.0, check=False)


def test_a_node_without_the_file_has_no_driver(tmp_path: Path) -> None:
    assert smi(tmp_path, None)[0] == 9


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--query-gpu=colour", "--format=csv"), 2),
        (("--query-gpu=uuid",), 2),
        (("--reset",), 2),
        (("-i", "9", "-L"), 6),
    ],
)
def test_wrong_arguments(tmp_path: Path, arguments: tuple[str, ...], code: int) -> None:
    assert smi(tmp_path, H100, *arguments)[0] == code


def test_every_fault_is_described() -> None:
    assert all(kind.text and not kind.text.endswith(".") for kind in FAULTS.values())
