"""The toolkit's program of the doubles: CDI specifications from the node's document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from myriad.lab import gpus
from myriad.lab.double import mig, nvidia_ctk
from myriad.lab.double.document import set_fault

H100 = "H100-SXM5-80GB"


@pytest.fixture
def document() -> dict[str, Any]:
    return dict(gpus.gpu_document("gpu1", H100, 2))


def nodes(spec: dict[str, Any]) -> dict[str, list[str]]:
    """Device nodes by the name of the CDI device."""
    return {
        device["name"]: [node["path"] for node in device["containerEdits"]["deviceNodes"]] for device in spec["devices"]
    }


def test_a_gpu_has_its_index_and_its_uuid_as_names_and_all_is_every_one(document: dict[str, Any]) -> None:
    found = nodes(nvidia_ctk.specification(document))
    uuids = [gpu["uuid"] for gpu in document["gpus"]]
    assert found == {
        "0": ["/dev/nvidia0"],
        uuids[0]: ["/dev/nvidia0"],
        "1": ["/dev/nvidia1"],
        uuids[1]: ["/dev/nvidia1"],
        "all": ["/dev/nvidia0", "/dev/nvidia1"],
    }


def test_every_container_gets_the_control_nodes(document: dict[str, Any]) -> None:
    edits = nvidia_ctk.specification(document)["containerEdits"]
    assert {"path": "/dev/nvidiactl"} in edits["deviceNodes"]
    assert edits["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


def test_a_gpu_that_is_gone_is_not_described(document: dict[str, Any]) -> None:
    gone = set_fault(document, "missing", gpu=1)
    assert nodes(nvidia_ctk.specification(gone)).keys() == {"0", document["gpus"][0]["uuid"], "all"}


def test_a_gpu_in_mig_mode_shows_its_slices_and_not_itself(document: dict[str, Any]) -> None:
    profile = document["mig_profiles"][0]["name"]
    slices = {"current": "Enabled", "pending": "Enabled", "instances": [{"gi": 7, "profile": profile, "start": 0}]}
    cut = {**document, "mig": {"0": slices}}
    (device,) = mig.devices(cut, cut["gpus"][0])
    found = nodes(nvidia_ctk.specification(cut))
    assert "0" not in found
    assert found["0:0"] == found[device["uuid"]]
    assert found["0:0"][0] == "/dev/nvidia0"
    assert all(path.startswith("/dev/nvidia-caps/nvidia-cap") for path in found["0:0"][1:])
    assert len(found["0:0"]) == 3


def test_the_yaml_is_what_a_reader_takes_it_for(document: dict[str, Any]) -> None:
    spec = nvidia_ctk.specification(document)
    assert yaml.safe_load(nvidia_ctk.as_yaml(spec)) == spec
    assert yaml.safe_load(nvidia_ctk.as_yaml({"a": [], "b": {}})) == {"a": [], "b": {}}


@pytest.fixture
def program(document: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The document as a file that the program reads."""
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps(document))
    monkeypatch.setenv("MYRIAD_LAB_GPU_JSON", str(path))
    return path


def test_a_file_is_written_in_the_format_of_its_name(program: Path, tmp_path: Path) -> None:
    for name, load in (("nvidia.yaml", yaml.safe_load), ("nvidia.json", json.loads)):
        output = tmp_path / "cdi" / name
        assert nvidia_ctk.main(["cdi", "generate", f"--output={output}"]) == 0
        assert load(output.read_text())["kind"] == "nvidia.com/gpu"
        assert output.stat().st_mode & 0o777 == 0o644
    assert sorted(path.name for path in (tmp_path / "cdi").iterdir()) == ["nvidia.json", "nvidia.yaml"]


def test_list_names_devices_as_a_pod_asks_for_them(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert nvidia_ctk.main(["cdi", "list"]) == 0
    assert "nvidia.com/gpu=0" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("fault", "words"), [("no_driver", "Driver Not Loaded"), ("nvml_mismatch", "Driver/library version mismatch")]
)
def test_without_a_driver_that_answers_nothing_is_written(
    fault: str, words: str, program: Path, document: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program.write_text(json.dumps(set_fault(document, fault)))
    output = tmp_path / "nvidia.yaml"
    assert nvidia_ctk.main(["cdi", "generate", f"--output={output}"]) == 1
    assert words in capsys.readouterr().err
    assert not output.exists()


def test_without_any_double_it_says_what_the_real_one_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MYRIAD_LAB_GPU_JSON", str(tmp_path / "none.json"))
    assert nvidia_ctk.main(["cdi", "generate"]) == 1
    assert "ERROR_LIBRARY_NOT_FOUND" in capsys.readouterr().err
