"""`myriad driver plan`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from myriad.cli import build_app
from myriad.cli.driver import read
from myriad.errors import InputError

HOSTS = Path(__file__).parents[2] / "fixtures/driver/hosts"


def test_a_refused_host_is_exit_1_and_everything_is_said() -> None:
    answer = CliRunner().invoke(
        build_app("driver"), ["driver", "plan", "--facts", str(HOSTS / "everything-at-once.yml")]
    )
    assert answer.exit_code == 1
    assert answer.stdout.count("  refused  ") == 5
    assert "nothing was touched" in answer.stdout


def test_a_host_that_can_be_installed_is_exit_0_with_the_transaction_as_json() -> None:
    answer = CliRunner().invoke(
        build_app("driver"), ["driver", "plan", "--facts", str(HOSTS / "c4-h100x8-nvswitch.yml"), "--json"]
    )
    assert answer.exit_code == 0
    told = json.loads(answer.stdout)["plan"]
    assert told["action"] == "install"
    assert told["packages"]["nvidia-fabricmanager"] == "580.126.20-1"
    assert len(told["gpus"]) == 8


def test_without_a_wish_the_lock_speaks(tmp_path: Path) -> None:
    facts = {
        "kernel": {
            "release": "6.1.0-57-amd64",
            "headers": True,
            "headers_package": "linux-headers-6.1.0-57-amd64",
            "distribution": {"id": "debian", "version": "12"},
        },
        "pci": [{"address": "0000:1b:00.0", "vendor": "0x10de", "device": "0x26b9", "class": "0x030200"}],
    }
    path = tmp_path / "host.json"
    path.write_text(json.dumps(facts), encoding="utf-8")
    answer = CliRunner().invoke(build_app("driver"), ["driver", "plan", "--facts", str(path), "--json"])
    document = json.loads(answer.stdout)
    assert document["want"]["channel"] == "distribution"
    assert document["plan"]["packages"] == {
        name: version
        for name, version in document["want"]["packages"].items()
        if name not in ("nvidia-open-kernel-dkms", "nvidia-fabricmanager")
    }


@pytest.mark.parametrize(
    ("text", "sentence"), [("[]", "holds no facts"), ("{", "cannot be read"), ('{"kernel": {}}', "has no pci")]
)
def test_a_file_that_holds_no_facts_is_wrong_input(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "host.json"
    path.write_text(text, encoding="utf-8")
    answer = CliRunner().invoke(build_app("driver"), ["driver", "plan", "--facts", str(path)])
    assert isinstance(answer.exception, InputError)
    assert sentence in str(answer.exception)


L40S = {"address": "0000:1b:00.0", "vendor": "0x10de", "device": "0x26b9", "class": "0x030200"}
KERNEL = {"release": "6.1.0-57-amd64", "headers": True, "distribution": {"id": "debian", "version": "12"}}


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        ({"pci": None}, "pci: is no list of devices; `pci: []` is a host without any"),
        ({"pci": "0000:1b:00.0"}, "pci: is no list of devices"),
        ({"pci": ["1b:00.0 10de:26b9"]}, "pci[0]: is '1b:00.0 10de:26b9', not a device with address"),
        ({"pci": [{"vendor": "0x10de", "device": "0x26b9"}]}, "pci[0].class: is missing"),
        ({"pci": [{**L40S, "vendor": "NVIDIA"}]}, "pci[0].vendor: is 'NVIDIA', not up to 4 hex digits"),
        ({"pci": [L40S, {**L40S, "address": "0000:1B:00.0"}]}, "pci[1].address: 0000:1b:00.0 is that of pci[0] too"),
        ({"kernel": None}, "kernel.release: is missing"),
        ({"kernel": "6.1.0-57-amd64"}, "kernel: is '6.1.0-57-amd64', not a mapping with release"),
        ({"kernel": {**KERNEL, "distribution": "debian 12"}}, "kernel.distribution: is 'debian 12', not a mapping"),
        ({"kernel": {"release": "6.1.0-57-amd64"}}, "kernel.distribution: is missing"),
        ({"secure_boot": "false"}, "secure_boot: is 'false', not true or false"),
        ({"installed": ["nvidia-smi"]}, "installed: is ['nvidia-smi'], not a mapping from packages"),
        ({"installed": {"nvidia-smi": 535.1}}, "installed: nvidia-smi is 535.1, not text; write it in quotes"),
        ({"module": "535.309.01"}, "module: is '535.309.01', not a mapping with loaded"),
        ({"module": {"built": "535.309.01"}}, "module.built: is '535.309.01', not a mapping with version, vermagic"),
        ({"foreign": True}, "foreign: is True, not a mapping"),
        ({"reboot_required": "linux-image"}, "reboot_required: is 'linux-image', not a list"),
        ({"candidates": {"nvidia-smi": "535.309.01-1"}}, "candidates: nvidia-smi is '535.309.01-1', not a list"),
        ({"simulation": {"error": {"a": 1}}}, "simulation.error: is {'a': 1}, not text"),
        ({"simulation": {"remove": ["x", 1]}}, "simulation.remove: is 1, not text"),
        ({"simulation": {"upgrade": {"x": "2"}}}, "simulation.upgrade: x is '2', not the two versions [from, to]"),
    ],
)
def test_facts_of_another_form_are_named_and_not_guessed_around(
    tmp_path: Path, facts: dict[str, Any], fault: str
) -> None:
    path = tmp_path / "host.json"
    path.write_text(json.dumps({"kernel": KERNEL, "pci": [L40S], **facts}), encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(f"  {fault}")):
        read(path)


@pytest.mark.parametrize(
    ("want", "fault"),
    [
        (["vendor"], "want is no mapping"),
        ({"versions": "580.126.20"}, "want.versions: is '580.126.20', not a mapping with driver"),
        ({"versions": {"driver": 580.1}}, "want.versions.driver: is 580.1, not text; write it in quotes"),
        ({"packages": ["nvidia-smi=1"]}, "want.packages: is ['nvidia-smi=1'], not a mapping from packages"),
        ({"kernels_accepted": [6.1]}, "want.kernels_accepted: is 6.1, not text; write it in quotes"),
        ({"fabric_manager": "yes"}, "want.fabric_manager: is 'yes', not true, false or auto"),
    ],
)
def test_a_wish_of_another_form_is_named(tmp_path: Path, want: Any, fault: str) -> None:
    path = tmp_path / "host.json"
    path.write_text(json.dumps({"facts": {"kernel": KERNEL, "pci": [L40S]}, "want": want}), encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(fault)):
        read(path)


def test_ids_without_quotes_are_numbers_to_yaml_and_no_host_without_gpus(tmp_path: Path) -> None:
    path = tmp_path / "host.yml"
    path.write_text(
        "pci:\n- {address: 0000:1b:00.0, vendor: 0x10de, device: 0x26b9, class: 0x030200}\n", encoding="utf-8"
    )
    with pytest.raises(InputError) as found:
        read(path)
    for key, number in (("vendor", 4318), ("device", 9913), ("class", 197120)):
        assert f"pci[0].{key}: is {number}, not text; write it in quotes" in str(found.value)


@pytest.mark.parametrize("path", sorted(HOSTS.glob("*.yml")), ids=lambda path: path.stem)
def test_every_recorded_host_has_the_form(path: Path) -> None:
    assert read(path)["facts"]


@pytest.mark.parametrize(
    "text", ["", "\0", "pci: !!python/object:os.system [ls]", "pci: []\n---\npci: []\n", "[" * 5000]
)
def test_what_cannot_be_read_is_a_sentence(tmp_path: Path, text: str) -> None:
    for name in ("host.yml", "host.json"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError):
            read(path)
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path)


def test_a_distribution_that_the_lock_has_no_set_for_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    kernel = {**KERNEL, "release": "6.8.0-60-generic", "distribution": {"id": "ubuntu", "version": "24.04"}}
    path.write_text(json.dumps({"kernel": kernel, "pci": [L40S]}), encoding="utf-8")
    answer = CliRunner().invoke(build_app("driver"), ["driver", "plan", "--facts", str(path), "--json"])
    (refusal,) = json.loads(answer.stdout)["plan"]["refusals"]
    assert refusal["what"] == "there are none for ubuntu and the channel distribution"
    assert "nvidia-dkms-580-server-open, nvidia-utils-580-server, libnvidia-compute-580-server" in refusal["todo"]
