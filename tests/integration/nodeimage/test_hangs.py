"""Builds that are broken on purpose, by packer and QEMU as they are: each is stopped in time and its cause is named.

With MYRIAD_RECORD=DIR what the machine and packer said is kept there: that is how tests/fixtures/nodeimage came about.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from myriad.errors import MyriadError
from myriad.nodeimage import hygiene, packer, seed
from myriad.nodeimage.build import qemu_arguments
from myriad.nodeimage.guest import accelerator
from myriad.nodeimage.template import Inputs, QemuFiles, render

from .conftest import Golden

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(7200)]

_SSH_S = int(os.environ.get("MYRIAD_HANG_S", "300"))


class Broken:
    """A build of the golden disk in which one thing is wrong."""

    def __init__(self, golden: Golden, folder: Path) -> None:
        self.folder = folder
        self.key = seed.make_key(folder / "key")
        seed.write_seed(folder / "seed.img", name="broken", public=self.key.public)
        arguments = qemu_arguments(golden.image.name, folder / "out", folder / "seed.img", folder / "console.log")
        self.golden = golden
        self.files = QemuFiles(
            disk=golden.disk,
            output=folder / "out",
            key=self.key.private,
            accelerator=accelerator(),
            packer_manifest=folder / "packer.json",
            arguments=arguments,
        )
        deadlines = {**golden.image.deadlines_s.model_dump(), "ssh": _SSH_S, "shutdown": 60}
        self.deadlines = type(golden.image.deadlines_s).model_validate(deadlines)
        self.change: dict[str, str] = {}

    def without_argument(self, word: str) -> None:
        self.files = replace(self.files, arguments=[one for one in self.files.arguments if word not in one[1]])

    def said(self, name: str) -> str:
        """Build it, and give the sentence; everything that was evidence is kept where MYRIAD_RECORD says."""
        inputs = Inputs(
            ["qemu"], packer.version(), epoch=7, stamp=name, check=self.golden.folder / "check.sh",
            hygiene=Path(hygiene.__file__), qemu=self.files,
        )  # fmt: skip
        text = render(self.golden.folder, self.golden.image, inputs)
        for old, new in self.change.items():
            assert old in text
            text = text.replace(old, new)
        template = self.folder / "node.pkr.hcl"
        template.write_text(text)
        with pytest.raises(MyriadError) as caught:
            packer.build(
                template,
                target="qemu.node",
                deadlines=self.deadlines,
                on_event=lambda stage, event: None,
                log=self.folder / "packer.log",
                console=self.folder / "console.log",
                env={"PACKER_CACHE_DIR": str(self.folder / "cache")},
            )
        record = os.environ.get("MYRIAD_RECORD")
        if record:
            shutil.copy(self.folder / "evidence.json", Path(record) / f"{name}.json")
        return str(caught.value)


@pytest.fixture
def broken(golden: Golden, tmp_path: Path) -> Broken:
    return Broken(golden, tmp_path)


def test_a_machine_without_a_seed(broken: Broken) -> None:
    broken.without_argument("seed.img")
    assert "found no seed" in broken.said("no-seed")


def test_a_machine_without_an_address(broken: Broken) -> None:
    # The card is there, and leads to a hub with nobody on it.
    broken.files = replace(broken.files, arguments=[*broken.files.arguments, ("-netdev", "hubport,id=user.0,hubid=7")])
    assert "got no address" in broken.said("no-dhcp")


def test_a_key_that_does_not_open(broken: Broken) -> None:
    other = seed.make_key(broken.folder / "other")
    broken.files = replace(broken.files, key=other.private)
    assert "does not accept the key" in broken.said("ssh-key")


def test_a_lock_that_another_program_holds(broken: Broken) -> None:
    program = "import fcntl,time;f=open('/var/lib/dpkg/lock-frontend','w');fcntl.lockf(f,fcntl.LOCK_EX);time.sleep(99)"
    hold = f'python3 -c \\"{program}\\" &'
    broken.change = {'"sh /tmp/check.sh': f'"{hold} sleep 5; apt-get -y install hello", "sh /tmp/check.sh'}
    assert "holds the lock of dpkg" in broken.said("dpkg-lock")


def test_a_machine_that_does_not_turn_itself_off(broken: Broken) -> None:
    broken.change = {'"sync; systemctl poweroff --force"': '"true"', "--root / --epoch 7": "--help"}
    assert "does not turn itself off" in broken.said("shutdown")


def test_an_image_that_is_not_what_it_should_be(broken: Broken) -> None:
    broken.change = {f"check.sh {broken.golden.image.kernel}": "check.sh 6.6.6-other"}
    said = broken.said("check")
    assert "the kernel is" in said
    assert "the module was built for 6.6.6-other" in said
