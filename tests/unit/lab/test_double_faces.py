"""The faces of a GPU double beyond nvidia-smi's lists: XML, sysfs, procfs, kernel log, device nodes, fabric, versions.

One document says what is so; the tests hold the faces against each other and against what others read from them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from myriad.fleet import hardware
from myriad.fleet.catalog import CATALOG
from myriad.lab.double import mig, node, nvidia_smi
from myriad.lab.double.document import FAULTS, PROC_DIR, SYS_DIR, set_fault
from myriad.lab.double.files import document_files, node_files, program_files
from myriad.lab.double.trees import device_nodes, tree_files
from myriad.lab.gpus import gpu_document

H100 = gpu_document("gpu1", "H100-SXM5-80GB", 8)
A100 = gpu_document("gpu1", "A100-SXM4-80GB", 2)


def log(document: dict[str, Any]) -> ET.Element:
    text, _ = nvidia_smi.run(["-q", "-x"], document)
    return ET.fromstring(text)  # noqa: S314 (made by this test)


def smi(document: dict[str, Any], *arguments: str, busy: bool = False) -> tuple[int, str, dict[str, Any]]:
    try:
        text, changed = nvidia_smi.run(list(arguments), document, busy=busy)
    except nvidia_smi.Failure as failure:
        return failure.code, failure.text, failure.document or document
    return 0, text, changed


@pytest.mark.parametrize("model", [name for name, card in CATALOG.items() if card.vendor == "nvidia" and card.pci])
def test_every_model_of_the_catalog_shows_as_itself_on_the_bus_and_in_the_driver(model: str) -> None:
    count = 4 if CATALOG[model].form == "superchip" else 8
    document = gpu_document("n", model, count)
    rows: dict[str, dict[str, str]] = {}
    for path, text in tree_files(document).items():
        head, _, name = path.rpartition("/")
        if "/bus/pci/devices/" in path:
            rows.setdefault(head.rsplit("/", 1)[1], {})[name] = text.strip()
    bus = hardware.read_bus([{"address": address, **row} for address, row in rows.items()])
    assert [found.name if found else None for _, found in bus.gpus] == [model] * count
    assert bool(bus.nvswitches) == (count in CATALOG[model].switched and CATALOG[model].architecture != "blackwell")
    found = hardware.by_product(str(log(document).findtext("gpu/product_name")))
    assert found is not None and found.name == model


def test_the_xml_tells_what_the_trees_tell() -> None:
    document = set_fault(H100, "row_remap", gpu=2)
    root = log(document)
    files = tree_files(document)
    assert root.findtext("driver_version") == files[f"{SYS_DIR}/module/nvidia/version"].strip() == "580.126.20"
    assert f"x86_64  {root.findtext('driver_version')}  Release" in files[f"{PROC_DIR}/driver/nvidia/version"]
    for gpu in root.findall("gpu"):
        address = str(gpu.get("id"))[4:].lower()
        information = files[f"{PROC_DIR}/driver/nvidia/gpus/{address}/information"]
        assert f"GPU UUID: \t {gpu.findtext('uuid')}\n" in information
        assert f"Device Minor: \t {gpu.findtext('minor_number')}\n" in information
        device = files[f"{SYS_DIR}/bus/pci/devices/{address}/device"].strip()
        assert gpu.findtext("pci/pci_device_id") == f"{device[2:].upper()}10DE"
    pending = [gpu.findtext("remapped_rows/remapped_row_pending") for gpu in root.findall("gpu")]
    assert pending == ["No", "No", "Yes", "No", "No", "No", "No", "No"]


@pytest.mark.parametrize(
    ("value", "seen", "code"),
    [
        ("library=580.142.09", "NVML library version: 580.142", 18),
        ("module=580.95.05", "NVML library version: 580.126", 18),
        ("fabric_manager=570.86.15", "GPU 0:", 0),
    ],
)
def test_parts_of_the_driver_may_differ(value: str, seen: str, code: int) -> None:
    document = set_fault(H100, "versions", value=value)
    found, text, _ = smi(document, "-L")
    assert (found, seen in text) == (code, True), text
    if value.startswith("module"):
        assert tree_files(document)[f"{SYS_DIR}/module/nvidia/version"] == "580.95.05\n"
    if code:
        assert "API mismatch" in tree_files(document)[f"{PROC_DIR}/kmsg"]


def test_three_parts_may_differ_at_once_and_one_is_set_anew() -> None:
    document = set_fault(H100, "versions", value="library=580.1")
    document = set_fault(document, "versions", value="fabric_manager=570.1")
    document = set_fault(document, "versions", value="library=580.2")
    assert [entry["value"] for entry in document["faults"]] == ["fabric_manager=570.1", "library=580.2"]


def test_t11_the_fabric_may_be_incomplete_while_nvidia_smi_looks_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    states = {
        "healthy": H100,
        "in_progress": set_fault(H100, "fabric"),
        "failed": set_fault(H100, "fabric", value="failed"),
        "other version": set_fault(H100, "versions", value="fabric_manager=570.86.15"),
    }
    found = {name: log(document).find("gpu/fabric") for name, document in states.items()}
    assert {name: (f.findtext("state"), f.findtext("status")) for name, f in found.items() if f is not None} == {
        "healthy": ("Completed", "Success"),
        "in_progress": ("In Progress", "N/A"),
        "failed": ("Completed", "Failure"),
        "other version": ("In Progress", "N/A"),
    }
    assert node.fabric_manager(["--version"], H100) == 0
    assert capsys.readouterr().out == "Fabric Manager version is : 580.126.20\n"
    assert node.fabric_manager([], states["other version"]) == 1
    assert "interface version 570.86.15 don't match with driver version 580.126.20" in capsys.readouterr().out
    assert node.fabric_manager([], A100) == 1 and "NV_WARN_NOTHING_TO_DO" in capsys.readouterr().out
    assert log(A100).findtext("gpu/fabric/state") == "N/A", "two cards of a board have no NVSwitch"


def test_xids_stand_in_the_kernels_log_with_code_and_time() -> None:
    document = set_fault(H100, "xid", gpu=1, value="48", uptime_s=812.5)
    document = set_fault(document, "xid", gpu=1, value="63", uptime_s=900.0)
    lines = [line for line in tree_files(document)[f"{PROC_DIR}/kmsg"].splitlines() if "Xid" in line]
    assert lines[0].startswith(
        "<4>[  812.500000] NVRM: Xid (PCI:0000:43:00): 48, pid='<unknown>', name=<unknown>, An unc"
    )
    assert "Xid (PCI:0000:43:00): 63," in lines[1]
    assert smi(document, "-L")[0] == 0, "only 79 takes the GPU off the bus"
    assert smi(set_fault(H100, "xid", gpu=1), "-L")[0] == 15


def test_a_refused_module_leaves_nothing_of_the_driver_but_the_reason() -> None:
    document = set_fault(H100, "module_refused")
    files = tree_files(document)
    assert "Key was rejected by service" in files[f"{PROC_DIR}/kmsg"]
    assert not [path for path in files if "driver/nvidia" in path or "module/nvidia" in path]
    assert len([path for path in files if path.endswith("/vendor")]) == 12, "the bus is as it was"
    assert smi(document, "-L")[0] == 9 and device_nodes(document) == {}


def test_counts_and_wrong_ids_differ_between_bus_and_driver() -> None:
    fewer = set_fault(H100, "counts", value="6")
    assert log(fewer).findtext("attached_gpus") == "6"
    assert len([path for path, text in tree_files(fewer).items() if text == "0x030200\n"]) == 8
    assert "/dev/nvidia7" not in device_nodes(fewer) and "/dev/nvidia5" in device_nodes(fewer)
    wrong = tree_files(set_fault(H100, "wrong_pci", gpu=3, value="0x2331"))
    assert wrong[f"{SYS_DIR}/bus/pci/devices/0000:61:00.0/device"] == "0x2331\n"


@pytest.mark.parametrize(
    ("kind", "gpu", "value", "words"),
    [
        ("xid", 1, "many", '"many" is no value of xid; write the number of an Xid'),
        ("versions", None, "kernel=1", "write PART=VERSION, for example module=580.95.05"),
        ("counts", None, "9", "the driver cannot bring up 9 of 8 GPUs"),
        ("hang", None, "1", '"hang" takes no value; leave out "1"'),
        ("fabric", None, "maybe", "write in_progress or failed"),
    ],
)
def test_a_wrong_value_is_a_sentence(kind: str, gpu: int | None, value: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        set_fault(H100, kind, gpu=gpu, value=value)


@pytest.mark.parametrize("kind", FAULTS)
def test_every_fault_shows_on_some_face_and_goes_without_a_trace(kind: str) -> None:
    gpu = 1 if FAULTS[kind].per_gpu else None
    faulty = set_fault(H100, kind, gpu=gpu)
    assert set_fault(faulty, kind, gpu=gpu, clear=True) == H100

    def faces(document: dict[str, Any]) -> list[Any]:
        enabled, _ = mig.set_mode(document, H100["gpus"][1], on=True, busy=False)
        made = smi(enabled, "mig", "-i", "1", "-cgi", "19,19", "-C")[:2]
        xml = smi(document, "-q", "-x")[:2]
        stripped = (xml[0], [line for line in xml[1].splitlines() if "timestamp" not in line])
        hangs = any(entry["kind"] == "hang" for entry in document["faults"])  # the program itself sleeps
        return [tree_files(document), device_nodes(document), stripped, made, enabled["mig"], hangs]

    assert faces(faulty) != faces(H100)


# MIG


def test_mig_devices_stand_in_every_face() -> None:
    code, text, document = smi(A100, "-i", "0", "-mig", "1")
    assert (code, text) == (0, "Enabled MIG Mode for GPU 00000000:1B:00.0\nAll done.\n")
    code, text, document = smi(document, "mig", "-i", "0", "-cgi", "9,2g.20gb,MIG 1g.10gb", "-C")
    assert code == 0
    assert text.splitlines()[:2] == [
        "Successfully created GPU instance ID  2 on GPU  0 using profile MIG 3g.40gb (ID  9)",
        "Successfully created compute instance ID  0 on GPU  0 GPU instance ID  2 using profile MIG 3g.40gb (ID  2)",
    ]
    listing = smi(document, "-L")[1].splitlines()
    assert [line.split("(")[0] for line in listing[1:4]] == [
        "  MIG 3g.40gb     Device  0: ", "  MIG 2g.20gb     Device  1: ", "  MIG 1g.10gb     Device  2: ",
    ]  # fmt: skip
    assert len({line for line in listing if "UUID: MIG-" in line}) == 3
    devices = log(document).findall("gpu/mig_devices/mig_device")
    assert [device.findtext("gpu_instance_id") for device in devices] == ["2", "3", "9"]
    caps = {path for path in device_nodes(document) if "nvidia-caps" in path}
    assert "/dev/nvidia-caps/nvidia-cap21" in caps, "GPU 0, instance 2: minor 3 + 2 x 9, as mig-minors numbers them"
    assert f"{PROC_DIR}/driver/nvidia/capabilities/gpu0/mig/gi2/ci0/access" in tree_files(document)
    table = smi(document, "mig", "-lgi")[1]
    assert "|   0  MIG 3g.40gb         9        2          4:4     |" in table
    assert "Placements: {0,4}:4" in smi(document, "mig", "-lgipp")[1]
    assert " 1/7 " in next(line for line in smi(document, "mig", "-lgip")[1].splitlines() if "MIG 1g.10gb  " in line)


@pytest.mark.parametrize(("model", "kept"), [("A100-SXM4-80GB", "Enabled"), ("H100-SXM5-80GB", "Disabled")])
def test_i3_no_slice_outlives_a_reboot_and_from_hopper_on_not_even_the_mode(model: str, kept: str) -> None:
    document = gpu_document("n", model, 1)
    document = smi(smi(document, "-mig", "1")[2], "mig", "-cgi", "19,19", "-C")[2]
    assert len(mig.devices(document, document["gpus"][0])) == 2
    after = mig.reboot(document)
    assert mig.devices(after, after["gpus"][0]) == []
    assert mig.mode(after, 0) == (kept, kept)


def test_i2_a_pending_mode_ends_well_without_a_device() -> None:
    document = set_fault(A100, "mig_pending")
    code, text, document = smi(document, "-i", "0", "-mig", "1")
    assert code == 0 and "Warning: MIG mode is in pending enable state for GPU 00000000:1B:00.0:Not Supported" in text
    assert mig.mode(document, 0) == ("Disabled", "Enabled")
    assert smi(document, "--gpu-reset", "-i", "0")[:2] == (3, "Resetting GPU 00000000:1B:00.0 is not supported.\n")
    assert mig.mode(mig.reboot(document), 0) == ("Enabled", "Enabled")


def test_a_client_is_in_the_way_of_modes_and_slices() -> None:
    assert "In use by another client" in smi(A100, "-i", "0", "-mig", "1", busy=True)[1]
    cut = smi(smi(A100, "-i", "0", "-mig", "1")[2], "mig", "-i", "0", "-cgi", "0", "-C")[2]
    code, text, _ = smi(cut, "mig", "-i", "0", "-dci", busy=True)
    assert code == 19 and "Unable to destroy compute instance ID  0 from GPU  0 GPU instance ID  0" in text
    assert smi(cut, "mig", "-i", "0", "-dgi")[0] == 19, "a GPU instance with a compute instance is in use"


def test_what_does_not_fit_stops_on_the_way_as_with_the_real_driver() -> None:
    document = smi(A100, "-i", "0", "-mig", "1")[2]
    code, text, document = smi(document, "mig", "-i", "0", "-cgi", "19,19,14,9", "-C")
    assert code != 0 and "Unable to create a GPU instance on GPU  0 using profile 9: Insufficient Resources" in text
    assert len(mig.devices(document, document["gpus"][0])) == 3


# On a node


def test_trees_follow_the_document_and_leave_nothing_behind(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("device nodes are made by root")
    (tmp_path / "dev").mkdir()
    node.apply(set_fault(H100, "device_node", gpu=2), tmp_path)
    assert open_answer(tmp_path / "dev" / "nvidia0") == "opens"
    assert open_answer(tmp_path / "dev" / "nvidia2") == "No such device or address"
    node.apply(set_fault(H100, "module_refused"), tmp_path)
    assert not list((tmp_path / "dev").glob("nvidia*"))
    assert not (tmp_path / SYS_DIR.lstrip("/") / "module").exists()
    node.apply(H100, tmp_path)
    for path, text in tree_files(H100).items():
        assert (tmp_path / path.lstrip("/")).read_text() == text


def open_answer(path: Path) -> str:
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return str(error.strerror)
    return "opens"


def test_a_start_of_the_node_is_another_boot(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("device nodes are made by root")
    (tmp_path / "dev").mkdir()
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps(smi(smi(A100, "-mig", "1")[2], "mig", "-cgi", "0", "-C")[2]))
    ids = set()
    for _ in range(2):
        document = node.boot(path, tmp_path)
        ids.add((tmp_path / PROC_DIR.lstrip("/") / "sys/kernel/random/boot_id").read_text())
        assert mig.devices(document, document["gpus"][0]) == [] and document == node.read(path)
    assert len(ids) == 2


def test_the_programs_of_a_node_need_nothing_but_the_standard_library(tmp_path: Path) -> None:
    for path, (content, _) in {**program_files(), **document_files(H100)}.items():
        target = tmp_path / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    stub = (tmp_path / "usr/bin/nvidia-smi").read_text()
    script = tmp_path / "smi.py"
    script.write_text(stub.replace("/usr/local/lib", str(tmp_path / "usr/local/lib")))
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(script), "-L"],
        env={"MYRIAD_LAB_GPU_JSON": str(tmp_path / "etc/myriad-lab/gpu.json")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 8, done.stderr
    assert node_files(gpu_document("n", "H100-SXM5-80GB", 0)) == {}
    assert "/usr/lib/systemd/system/nvidia-fabricmanager.service" not in node_files(A100)
