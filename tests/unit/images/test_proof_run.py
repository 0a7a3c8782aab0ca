"""The part of the proof that runs the image: what it asks, and how the answers are judged. The probe itself is real."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from myriad.errors import InputError
from myriad.images import proof_run
from myriad.images.definition import Smoke
from myriad.images.proof import declared_of, look, prove
from myriad.images.proof_run import computed, loaded, loaded_code, loaded_once, run_image
from myriad.images.proof_sandbox import Done, Sandbox
from myriad.images.proof_types import Outcome, Subject
from tests.unit.images import proof_images as small

FAKE_TORCH = """
__version__ = "2.12.1+cu130"
class version: cuda = "13.0"
class _C: _cuda_getArchFlags = staticmethod(lambda: "sm_80 sm_90 sm_120 compute_120")
class backends:
    class cudnn: version = staticmethod(lambda: 92000)
class cuda:
    class nccl: version = staticmethod(lambda: (2, 29, 7))
class _Matrix:
    def __mul__(self, _other): return self
    def matmul(self, _other): return self
    def sum(self): return 24.0
eye = ones = lambda *_a: _Matrix()
"""


class Here(Sandbox):
    """Runs the image's commands with this machine's Python: the probe is the real one, the image is not there."""

    name = "this machine"

    def __init__(self, path: Path | None = None, gpus: bool = False) -> None:
        super().__init__()
        self.path, self.gpus = path, gpus
        self.commands: list[list[str]] = []

    def run(self, command: Sequence[str], *, timeout_s: float) -> Done:
        self.commands.append(list(command))
        words = [sys.executable if command[0].endswith("python3") else command[0], *command[1:]]
        env = {"PYTHONPATH": str(self.path)} if self.path else {}
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=timeout_s, env=env)
        except subprocess.TimeoutExpired:
            return Done(-1, timed_out=True)
        return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    declared, _, _ = declared_of(small.definition(tmp_path))
    return look(small.layout(tmp_path, small.system(), small.pytorch()), declared)


def by_rule(outcomes: Sequence[Outcome]) -> dict[str, Outcome]:
    return {one.rule: one for one in outcomes}


def test_the_probe_asks_torch_and_the_process(subject: Subject, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/torch.py").write_text(FAKE_TORCH)
    here = Here(tmp_path / "site")
    told = by_rule(run_image(subject, choose=lambda *_: here, gpu="no"))
    assert here.commands[0][0] == "/usr/bin/python3", "the image's own Python, by its PATH"
    assert "torch 2.12.1+cu130, cudnn 9.20.0, nccl 2.29.7" in told["loaded"].detail
    # The double is not the image's Python: that is found, as it would be in an image.
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert told["loaded"].failed is (version != "3.11" or sys.version_info[2] != 2)
    assert told["loaded-archs"].detail == "sm_80, sm_90, sm_120, sm_120+PTX" and not told["loaded-archs"].failed
    assert told["gpu"].skipped.startswith("no GPU was used")


def test_torch_that_cannot_be_imported_is_a_finding(subject: Subject, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/torch.py").write_text("raise ImportError('libcudnn.so.9: cannot open shared object file')")
    told = by_rule(run_image(subject, choose=lambda *_: Here(tmp_path / "site"), gpu="no"))
    (finding,) = told["loaded"].findings
    assert finding.what == (
        "torch is installed and cannot be imported: ImportError: libcudnn.so.9: cannot open shared object file"
    )


def test_a_python_that_does_not_start(subject: Subject) -> None:
    class Broken(Here):
        def run(self, command: Sequence[str], *, timeout_s: float) -> Done:
            return Done(127, "", "error while loading shared libraries: libz.so.1")

    (told,) = run_image(subject, choose=lambda *_: Broken(), gpu="no")
    assert told.failed and "ended with 127 and said: error while loading shared libraries" in told.findings[0].what


def test_where_nothing_can_run_it_that_is_said_and_nothing_fails(subject: Subject) -> None:
    (told,) = run_image(subject, choose=lambda *_: Sandbox("no container engine answers, and unshare is not there"))
    assert told.skipped.startswith("no container engine answers") and not told.failed
    assert prove(subject, today=date(2026, 11, 30), more=[told]).outcomes[-1].rule == "run"


def test_an_image_without_python_is_not_asked(tmp_path: Path) -> None:
    bare = look(small.layout(tmp_path, {"usr/bin/app": b"x"}, entrypoint=["/usr/bin/app"]))
    (told,) = run_image(bare, choose=lambda *_: Here())
    assert told.skipped == "the image has no Python to be asked"


@pytest.mark.parametrize(
    ("run", "expect", "words"),
    [
        (("true",), "", ""),
        (("sh", "-c", "echo hello"), "^hello$", ""),
        (("sh", "-c", "echo hello"), "bye", "did not say 'bye' but: hello"),
        (("sh", "-c", "echo broken >&2; exit 3"), "", "ended with 3 and said: broken"),
        (("sleep", "5"), "", "did not end within 1 s"),
    ],
)
def test_smoke_commands(subject: Subject, run: tuple[str, ...], expect: str, words: str) -> None:
    smoke = Smoke(run=run, expect=expect, timeout_s=1)
    told = run_image(subject, smoke=[smoke], choose=lambda *_: Here(), gpu="no")[-1]
    assert told.rule == "smoke" and told.failed is bool(words)
    if words:
        assert words in told.findings[0].what


def test_gpus_are_used_where_there_are_some_and_insisting_without_is_wrong_input(
    subject: Subject, tmp_path: Path
) -> None:
    assert not proof_run.gpus_here(tmp_path)
    with pytest.raises(InputError, match="this machine has no GPU of NVIDIA"):
        run_image(subject, gpu="yes", choose=lambda *_: Here(), dev=tmp_path)
    (tmp_path / "nvidiactl").write_bytes(b"")
    assert not proof_run.gpus_here(tmp_path)
    (tmp_path / "nvidia0").write_bytes(b"")
    asked: list[bool] = []

    def choose(_subject: Subject, gpu: bool) -> Sandbox:
        asked.append(gpu)
        return Here(gpus=False)

    told = by_rule(run_image(subject, choose=choose, dev=tmp_path))
    assert asked == [True] and "gives no GPU to the image" in told["gpu"].skipped


# Judging


def answer(**more: Any) -> dict[str, Any]:
    torch = {
        "version": "2.12.1+cu130",
        "cuda": "13.0",
        "cudnn": 92000,
        "nccl": [2, 29, 7],
        "arch_flags": "sm_80 sm_90 sm_120",
    }
    return {"python": "3.11.2", "runtime": "13.0", "torch": {**torch, **more}}


def test_what_is_loaded_equals_what_is_pinned(subject: Subject) -> None:
    assert not loaded(subject, answer(), "x").findings


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"nccl": [2, 27, 3]}, "nccl 2.27.3 is loaded, image.yml pins 2.29.7"),
        ({"cudnn": 91900}, "cudnn 9.19.0 is loaded, image.yml pins 9.20.0.48"),
        ({"version": "2.12.0+cu130"}, "torch 2.12.0+cu130 is loaded, image.yml pins 2.12.1"),
    ],
)
def test_another_version_is_loaded(subject: Subject, changed: dict[str, Any], words: str) -> None:
    (finding,) = loaded(subject, answer(**changed), "x").findings
    assert finding.what == words


def test_another_runtime_is_loaded(subject: Subject) -> None:
    (finding,) = loaded(subject, {**answer(), "runtime": "12.6"}, "x").findings
    assert finding.what == "cuda 12.6 is loaded, image.yml pins 13.0"


def test_a_library_that_is_loaded_twice() -> None:
    paths = [
        "/site/nvidia/nccl/lib/libnccl.so.2",
        "/usr/lib/libnccl.so.2.27.3",
        "/site/torch/lib/libtorch_cuda.so",
        "/lib/libc.so.6",
    ]
    (finding,) = loaded_once({"libraries": paths}).findings
    assert finding.what == f"libnccl is loaded 2 times: {paths[0]} and {paths[1]}"


def test_torchs_own_word_on_its_code(subject: Subject) -> None:
    assert not loaded_code(subject, answer()).findings
    (finding,) = loaded_code(subject, answer(arch_flags="sm_75 sm_80 sm_90a")).findings
    assert finding.what == "torch has no code for sm_120; it has sm_75, sm_80, sm_90"
    assert not loaded_code(subject, answer(arch_flags="sm_80 compute_80")).findings
    assert loaded_code(subject, answer(arch_flags="")).failed


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": "torch.cuda.is_available() is False"}, "is_available() is False"),
        (
            {"count": 2, "products": [{"gpu": 1, "dtype": "bfloat16", "wrong": 3}], "all_reduce": ["3.0", "3.0"]},
            "3 wrong",
        ),
        ({"count": 2, "products": [], "all_reduce": ["3.0", "error: NCCL error"]}, "gave error: NCCL error, not 3.0"),
        ({"count": 2, "products": [], "all_reduce": ["3.0", "unequal"]}, "gave unequal"),
    ],
)
def test_what_gpus_computed(body: dict[str, Any], words: str) -> None:
    (finding,) = computed(body).findings
    assert words in finding.what


def test_right_results_are_told() -> None:
    body = {
        "count": 2,
        "names": ["H200", "H200"],
        "products": [{"gpu": 0, "dtype": "float32", "wrong": 0}],
        "all_reduce": ["3.0", "3.0"],
    }
    assert computed(body).detail == "2 x H200: products and all-reduce are right"


def test_the_probe_is_one_file_of_the_standard_library() -> None:
    source = resources.files("myriad.images").joinpath("data/proof_probe.py").read_text(encoding="utf-8")
    done = subprocess.run([sys.executable, "-I", "-c", source, "{}"], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout.removeprefix("myriad-proof:"))
    assert told["python"].startswith("3.") and any("libc.so.6" in one for one in told["libraries"])
