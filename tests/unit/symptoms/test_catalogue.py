"""The catalogue: every symptom is found in what programs really say, and in nothing else."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from myriad.cli import build_app
from myriad.symptoms import Catalogue, Symptom, catalogue, diagnose, diagnose_all
from myriad.symptoms.catalogue import PLACEHOLDERS

EXAMPLES: dict[str, list[dict[str, str]]] = yaml.safe_load(
    (Path(__file__).parent / "examples.yml").read_text(encoding="utf-8")
)
CASES = [(name, example["text"]) for name, examples in EXAMPLES.items() for example in examples]


def test_every_symptom_has_an_example_with_its_provenance() -> None:
    assert set(EXAMPLES) == set(catalogue().symptoms)
    for name, examples in EXAMPLES.items():
        assert examples, name
        assert all(example["from"] and example["text"] for example in examples), name


@pytest.mark.parametrize(("name", "text"), CASES, ids=[f"{name}-{k}" for k, (name, _) in enumerate(CASES)])
def test_an_example_is_its_symptom_and_no_other(name: str, text: str) -> None:
    found = diagnose_all(text)
    assert [item.id for item in found] == [name]


@pytest.mark.parametrize(("name", "text"), CASES, ids=[f"{name}-{k}" for k, (name, _) in enumerate(CASES)])
def test_the_symptom_is_also_found_inside_a_log(name: str, text: str) -> None:
    prefix = "Nov 29 20:00:01 gpu1 systemd[1]: Started OpenBSD Secure Shell server.\n"
    suffix = "\nNov 29 20:00:02 gpu1 systemd[1]: Reached target Multi-User System.\n"
    found = diagnose(prefix + text + suffix)
    assert found is not None and found.id == name
    assert found.line and "Secure Shell" not in found.line


@pytest.mark.parametrize(("name", "text"), CASES, ids=[f"{name}-{k}" for k, (name, _) in enumerate(CASES)])
def test_sentences_are_filled_and_read_as_one(name: str, text: str) -> None:
    found = diagnose(text, {"node": "gpu7", "inventory": "inventories/prod", "pod": "p", "namespace": "n"})
    assert found is not None
    for sentence in (found.cause, *found.next):
        assert "\n" not in sentence
        for word in ("NODE", "INVENTORY", "POD", "NAMESPACE", "{node}", "{inventory}"):
            assert word not in sentence.split(), (word, sentence)
    assert not found.cause.endswith(".")
    assert found.sentence().startswith(found.cause)


def test_the_next_commands_are_verbs_and_flags_that_myriad_has() -> None:
    for symptom in catalogue().symptoms.values():
        for step in symptom.next:
            if step.startswith("myriad "):
                words = shlex.split(step.partition("    #")[0].partition(";")[0].format(**PLACEHOLDERS), comments=False)
                _parse(words[1:], symptom.id)


def _parse(words: list[str], where: str) -> None:
    command: Any = typer.main.get_command(build_app(words[0]))
    context = None
    while hasattr(command, "commands"):
        assert words[0] in command.commands, f"{where}: {words[0]} is no verb"
        context = command.make_context("myriad", words, resilient_parsing=True)
        command, words = command.commands[words[0]], words[1:]
    command.make_context(where, list(words), parent=context)


def test_the_numbers_of_the_message_stand_in_the_cause() -> None:
    found = diagnose(EXAMPLES["fabric-manager-version"][0]["text"])
    assert found is not None
    assert "530.30.02" in found.cause and "530.41.03" in found.cause
    found = diagnose(EXAMPLES["version-vanished"][0]["text"])
    assert found is not None
    assert "nvidia-driver-580 580.126.20-1" in found.cause


def test_a_name_that_a_pattern_does_not_give_is_said_in_capitals_until_the_caller_says_it() -> None:
    assert "myriad gate NODE" in " ".join((diagnose("Error 802: system not yet initialized") or pytest.fail()).next)
    found = diagnose("Error 802: system not yet initialized", {"node": "gpu7"})
    assert found is not None and "myriad gate gpu7" in found.next


def test_the_cause_beats_what_follows_from_it() -> None:
    """A journal says first that the module was refused, and nvidia-smi then that there is no driver."""
    log = (
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
        "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service\n"
    )
    found = diagnose(log)
    assert found is not None and found.id == "module-key-rejected"


def test_k2_a_failed_kubeadm_is_explained_by_the_kubelets_last_words() -> None:
    output = (
        "[kubelet-check] The kubelet is not healthy after 4m0.000838s\n"
        "kubeadm init failed. The last words of containerd and of the kubelet:\n"
        'E1129 run.go:72] "command failed" err="failed to run Kubelet: running with swap on is not supported, '
        'please disable swap or set --fail-swap-on flag to false"\n'
    )
    found = diagnose(output)
    assert found is not None and found.id == "swap-on"


def test_the_callers_place_breaks_a_tie() -> None:
    text = "E: dpkg was interrupted, you must manually run 'dpkg --configure -a'\nno space left on device"
    assert (diagnose(text) or pytest.fail()).id == "dpkg-interrupted"
    assert (diagnose(text, {"where": "host"}) or pytest.fail()).id == "disk-full"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVIDIA-SMI 580.126.20   Driver Version: 580.126.20   CUDA Version: 13.0",
        "        State                             : Completed\n        Status                            : Success",
        "Setting up nvidia-smi (535.309.01-1~deb12u1) ...",
        "processed 802 files in 803 ms, 804 skipped, 999 left",
        "MIG Mode\n        Current               : Disabled\n        Pending               : Disabled",
        "Xid is a message of the kernel module; line 79 of the manual",
        "[init] Using Kubernetes version: v1.35.4",
        # The kernel says so of every module that is not its own, and loads it.
        "nvidia: module verification failed: signature and/or required key missing - tainting kernel\n"
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.126.20",
        "leader election: there is no leader yet, trying to acquire lease",
        "election won, new leader node-1; lost leader lease for namespace kube-system/cert-manager",
        "NVRM: Xid (PCI:0000:4e:00): 31, pid=9, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS",
        "trainer exited with error code 803042",
        "Error 802.1X authentication failed on eth0; exit code: 804, HTTP status 999",
        "pip: unmet dependencies of requirements.txt: torch",
        "Module build for kernel 6.1.0-57-amd64 was skipped since\nthe module nvidia is already built",
        "NCCL INFO Using network Socket\nnode-3:802:950 [0] NCCL INFO comm 0x55 rank 3 nranks 8 - Init COMPLETE",
        "Error 404: page not found; exit status 35",
    ],
)
def test_what_is_no_symptom_is_not_diagnosed(text: str) -> None:
    assert diagnose(text) is None


def test_a_long_log_is_searched_from_its_end() -> None:
    found = diagnose(
        "No devices were found\n" + "x" * 300_000 + "\nE: Unable to locate package nvidia-smi\n" + "y" * 100
    )
    assert found is not None and found.id == "package-unknown"


def test_a_diagnosis_is_plain_data_for_json() -> None:
    found = diagnose("Failed to initialize NVML: Unknown Error", {"where": "container"})
    assert found is not None
    document: dict[str, Any] = found.as_dict()
    assert document["id"] == "nvml-unknown-in-container"
    assert document["source"].startswith("https://")
    assert isinstance(document["next"], list)


def _symptom(**changes: Any) -> Symptom:
    return Symptom.model_validate(
        {"id": "a", "patterns": ["boom"], "cause": "it broke", "next": ["look"], "where": ["host"],
         "source": "https://example.org"} | changes
    )  # fmt: skip


def test_an_entry_cannot_use_a_name_that_one_of_its_patterns_does_not_give() -> None:
    with pytest.raises(ValueError, match="does not give kernel"):
        _symptom(patterns=["kernel (?P<kernel>.+)", "boom"], cause="kernel {kernel} broke")


def test_an_entry_with_a_broken_pattern_or_a_rival_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no regular expression"):
        _symptom(patterns=["("])
    with pytest.raises(ValueError, match="over b, which does not exist"):
        Catalogue([_symptom(over=["b"])])
    with pytest.raises(ValueError, match="twice"):
        Catalogue([_symptom(), _symptom()])


@pytest.mark.parametrize(
    "case",
    ["A1", "A6", "A8", "A10", "A11", "B1", "B2", "B3", "B7", "B8", "B9", "C1", "C2", "C3", "C4", "C6", "D3", "D5", "D8",
     "G2", "H3", "I2", "K2", "T05", "T06", "T08", "T09", "T10", "T11", "T14", "T26"],
)  # fmt: skip
def test_the_reported_cases_are_covered(case: str) -> None:
    assert any(case in symptom.case for symptom in catalogue().symptoms.values())
