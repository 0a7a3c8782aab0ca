"""`myriad driver plan`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from myriad.cli import build_app
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
