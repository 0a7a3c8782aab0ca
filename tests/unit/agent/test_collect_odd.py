"""Machines that answer oddly: a recorded one whose answer is changed in one respect, up to labels and the gate."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from myriad.agent.collect.assemble import portrait_of
from myriad.agent.collect.kernel import Xids
from myriad.agent.collect.pci import UNREAD
from myriad.agent.collect.source import Recorded
from myriad.agent.gate import Kubelet, Verdict, judge
from myriad.agent.probe import ProbeResult
from myriad.errors import InputError
from myriad.fleet.derived_labels import derive_labels
from myriad.fleet.portrait import GPUS, Expected, Labelling, Portrait, Spec

MACHINES = Path(__file__).parents[2] / "fixtures" / "machines"
AT = "2026-11-29T10:00:00Z"
Change = Callable[[str], str]


def changed(tmp_path: Path, change: Change, *, only: int | None = None) -> Portrait:
    """Four L40S of which nvidia-smi's answer is changed, as a whole or for the GPU `only`."""
    folder = tmp_path / "machine"
    shutil.copytree(MACHINES / "l40s-x4", folder)
    answer = folder / "nvidia-smi-q-x.xml"
    parts = re.split(r"(?=\t<gpu id)", answer.read_text())
    if only is None:
        parts = [change("".join(parts))]
    else:
        parts[only + 1] = change(parts[only + 1])
    answer.write_text("".join(parts))
    return portrait_of("gpu3", Recorded(folder), AT)[0]


class Told(Recorded):
    """A machine of a few files."""

    def __init__(self, files: dict[str, str]) -> None:
        self._files, self._links, self._folders, self._commands = dict(files), {}, {}, {}


def verdict(found: Portrait, *, resource: str = "nvidia.com/gpu") -> Verdict:
    count = {resource: len(found.pci.gpus)}
    expected = Expected(gpus=len(found.pci.gpus), resource=resource)
    return judge(expected, found, Kubelet(count, count), ProbeResult(expected.gpus, expected.gpus))


def everywhere(word: str, *but: str) -> Change:
    """Every field says `word`, except these."""
    kept = "|".join(("pci_bus_id", *but))
    return lambda text: re.sub(rf">([^<>\n]+)</(?!{kept})", f">{word}</", text)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (everywhere("[GPU requires reset]", "uuid", "product_name"), "GPU requires reset"),
        (lambda text: text.replace("46068 MiB", "[GPU requires reset]"), "GPU requires reset"),
        (everywhere("ERR!", "uuid", "product_name"), "fb_memory_usage: ERR!"),
        (everywhere("[Unknown Error]", "uuid", "product_name"), "fb_memory_usage: [Unknown Error]"),
        (everywhere("ERR!"), "product_name: ERR!"),
        (everywhere("N/A"), "it tells neither its name nor its UUID"),
        (
            lambda text: text.replace("<uuid>", "<gpu_recovery_action>GPU Reset</gpu_recovery_action><uuid>"),
            "the driver asks for a recovery: GPU Reset",
        ),
    ],
)
def test_a_gpu_that_is_listed_and_useless_keeps_the_gate_closed(tmp_path: Path, change: Change, why: str) -> None:
    found = changed(tmp_path, change, only=2)
    assert [gpu.fault for gpu in found.gpus] == ["", "", why, ""]
    assert verdict(found).failing == ("lost",)
    labels = derive_labels(found, Spec(), Labelling())
    assert labels["myriad.dev/gpu-count"] == "3"
    assert "mixed" not in labels.values()


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("71.27 W", "[Unknown Error]"),
        lambda text: text.replace("<uuid>", "<fan_speed>ERR!</fan_speed><uuid>"),
        lambda text: text.replace("<uuid>", "<gpu_recovery_action>None</gpu_recovery_action><uuid>"),
        lambda text: text.replace("<uuid>", "<gpu_recovery_action>Drain and Reset</gpu_recovery_action><uuid>"),
        # A driver that does not tell the architecture yet: the same GPU, not another.
        lambda text: text.replace("<product_architecture>Ada Lovelace</product_architecture>", ""),
        # What this reader does not know, with names that it knows inside.
        lambda text: text.replace("<uuid>", "<quantum><uuid>X</uuid><gpu id='9'/></quantum><uuid>"),
        lambda text: text.replace("<serial>", "<serial>\x01\x1b"),
        lambda text: text.replace("<serial>", "<serial>R&D "),
    ],
)
def test_one_sensor_and_strange_text_condemn_no_gpu(tmp_path: Path, change: Change) -> None:
    found = changed(tmp_path, change, only=1)
    assert [gpu.fault for gpu in found.gpus] == [""] * 4
    assert verdict(found).open
    assert derive_labels(found, Spec(), Labelling())["myriad.dev/gpu-architecture"] == "ada-lovelace"


@pytest.mark.parametrize(
    ("change", "left", "said"),
    [
        (lambda text: text[: int(len(text) * 0.6)], 2, "broke off in the middle"),
        (lambda text: text[:150], 0, "broke off in the middle"),
        (lambda text: text[: int(len(text) * 0.6)].replace("<serial>", "<serial><", 1), 1, "broke off in the middle"),
        (lambda text: text.replace("<serial>", "<serial><", 1), 3, "no well-formed XML"),
    ],
)
def test_an_answer_that_is_not_whole_gives_what_can_be_read(
    tmp_path: Path, change: Change, left: int, said: str
) -> None:
    found = changed(tmp_path, change)
    assert len(found.gpus) == left
    assert said in found.fault(GPUS)
    assert verdict(found).failing == ("answers",)
    assert not derive_labels(found, Spec(), Labelling())


@pytest.mark.parametrize("domain", ["9", "ffff", "10000", "1ffff"])
def test_a_gpu_is_the_same_on_the_bus_in_the_driver_and_in_the_log(tmp_path: Path, domain: str) -> None:
    folder = tmp_path / "machine"
    shutil.copytree(MACHINES / "l40s-x4", folder)
    answer, files = folder / "nvidia-smi-q-x.xml", folder / "files.yml"
    answer.write_text(re.sub(r"00000000:1B:", f"{domain.rjust(8, '0').upper()}:1B:", answer.read_text()))
    plain = yaml.safe_load(files.read_text().replace("0000:1b:", f"{domain.rjust(4, '0')}:1b:"))
    plain["/dev/kmsg"] = f"NVRM: Xid (PCI:{domain.rjust(4, '0')}:1b:00): 79, pid=1, GPU has fallen off the bus.\n"
    files.write_text(yaml.safe_dump(plain))
    found, _ = portrait_of("gpu3", Recorded(folder), AT)
    moved = found.gpus[-1]
    assert moved.pci_address == f"{domain.rjust(4, '0')}:1b:00.0"
    assert moved.numa_node is not None
    assert [xid.code for xid in moved.xids or ()] == [79]
    assert verdict(found).failing == ("xid",)


def test_domains_are_counted_as_numbers(tmp_path: Path) -> None:
    def move(text: str) -> str:
        return text.replace("00000000:1B:", "00010000:1B:").replace("00000000:43:", "0000FFFF:43:")

    assert [gpu.pci_address[:-8] for gpu in changed(tmp_path, move).gpus] == ["0000", "0000", "ffff", "10000"]


def test_gpus_that_no_collector_can_ask_are_not_no_gpus(tmp_path: Path) -> None:
    files: dict[str, str] = {}
    for index in range(8):
        folder = f"/sys/bus/pci/devices/0000:{0x10 + index:02x}:00.0"
        files |= {f"{folder}/vendor": "0x1002", f"{folder}/device": "0x74a1", f"{folder}/class": "0x120000"}
    # A board's own graphics are none to compute with.
    files |= {f"/sys/bus/pci/devices/0000:03:00.0/{name}": text
              for name, text in (("vendor", "0x1002"), ("class", "0x030000"))}  # fmt: skip
    (tmp_path / "files.yml").write_text(yaml.safe_dump(files))
    found, _ = portrait_of("gpu3", Recorded(tmp_path), AT)
    assert len(found.pci.gpus) == 8
    assert found.fault(GPUS) == UNREAD
    judged = verdict(found, resource="amd.com/gpu")
    assert judged.cause == UNREAD
    assert "modprobe nvidia" not in judged.next
    assert not derive_labels(found, Spec(), Labelling())


def test_an_ascend_without_driver_is_not_told_to_load_nvidias(tmp_path: Path) -> None:
    folder = "/sys/bus/pci/devices/0000:02:00.0"
    files = {f"{folder}/vendor": "0x19e5", f"{folder}/device": "0xd500", f"{folder}/class": "0x120000"}
    (tmp_path / "files.yml").write_text(yaml.safe_dump(files))
    found, _ = portrait_of("gpu3", Recorded(tmp_path), AT)
    judged = verdict(found, resource="huawei.com/Ascend310P")
    assert not judged.open
    assert not any("modprobe nvidia" in check.next for check in judged.checks)


def test_times_that_no_calendar_holds_are_not_known() -> None:
    xids = (
        "4,1,99999999999999999999999,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=1\n"
        "<4>[99999999999999999.5] NVRM: Xid (PCI:0000:1c:00): 79"
    )
    for start in ("1795939200", "9" * 30, "9" * 12):
        found = Xids().collect(Told({"/dev/kmsg": xids, "/proc/stat": f"btime {start}"}), AT)
        assert [seen.first_at for codes in (found.xids or {}).values() for seen in codes] == ["", ""]


def test_tables_of_npu_smi_with_gaps_are_read_as_far_as_they_go() -> None:
    from myriad.agent.collect.ascend import table

    chips = table(
        "| 2     310P3   | OK  | NA     52      0 / 0 |\n|       | 0000:02:00.0 | 0  1701 / 21527 |\n"
        "| 3     310P3   | OK  | 1.2.3  52      0 / 0 |\n| 0   1 | 0000:03:00.0 | \u00b2  1701 / 21527 |\n"
    )
    assert [(chip.npu, chip.memory_mib) for chip in chips] == [(3, 21527)]
    assert "power_watts" not in chips[0].gauges and "utilization_percent" not in chips[0].gauges


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("commands.yml", "a: [b\n", "is no YAML"),
        ("commands.yml", "- foo: 1\n", "is no list of commands"),
        ("commands.yml", "just a word\n", "is no list of commands"),
        ("commands.yml", "- {argv: [nvidia-smi], stdout_file: gone}\n", "cannot be read"),
        ("files.yml", "[1, 2]\n", "is no table of files"),
        ("files.yml", "/dev/x: {target: /y}\n", "is no table of files"),
    ],
)
def test_a_recording_that_is_none_is_refused_with_its_file(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=said) as caught:
        Recorded(tmp_path)
    assert str(tmp_path) in str(caught.value)
