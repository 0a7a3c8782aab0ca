"""`myriad image verify|sbom|sign|scan`: what is printed, exit codes, and wrong input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from myriad.cli import build_app
from myriad.cli._image_verify import lines
from myriad.errors import InputError, MyriadError
from myriad.images.compat import require_cuda
from myriad.images.proof import declared_of, look, prove
from tests.unit.images import proof_images as small

APP = build_app("image")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with images/pytorch and the layout of its image."""
    folder = small.definition(tmp_path)
    declared, _, _ = declared_of(folder)
    assert declared.facts is not None
    small.layout(tmp_path, small.system(), small.pytorch(), env={"NVIDIA_REQUIRE_CUDA": require_cuda(declared.facts)})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(APP, ["image", *arguments], catch_exceptions=True)


def test_a_proven_image_is_exit_0(site: Path) -> None:
    done = run("verify", "layout", "--no-run")
    assert done.exit_code == 0, done.output
    assert "16 checks, 0 findings" in done.stdout
    assert "ok    pins" in done.stdout and "FAIL" not in done.stdout
    assert "held against images/pytorch/image.yml" in done.output


def test_findings_are_exit_2_with_what_to_do(site: Path) -> None:
    (site / "images/pytorch/requirements.lock").write_text(small.lock({**small.HASHES, "numpy": "f" * 64}))
    done = run("verify", "layout", "--no-run")
    assert done.exit_code == 2
    assert "FAIL  wheels" in done.stdout and "-> somebody changed the lock or the file" in done.stdout
    assert done.stdout.rstrip().endswith("16 checks, 1 finding")


def test_json_has_checks_sizes_and_packages(site: Path) -> None:
    done = run("verify", "layout", "--no-run", "--json", "--definition", "pytorch")
    told = json.loads(done.stdout)
    assert done.exit_code == 0 and told["ok"] is True
    assert [one["check"] for one in told["checks"]][:4] == ["integrity", "base", "budget", "wheels"]
    assert sum(one["size_bytes"] for one in told["layers"]) < told["size_bytes"]
    assert told["packages"][0]["name"] == "torch"


def test_sizes_of_layers_and_packages(site: Path) -> None:
    done = run("verify", "layout", "--no-run", "--sizes")
    assert "files of no package" in done.stdout and "torch 2.12.1+cu130" in done.stdout


def test_without_a_definition_what_holds_for_every_image_is_checked(site: Path) -> None:
    done = run("verify", "layout", "--no-run", "--images", "none")
    assert done.exit_code == 0, done.output
    assert "no image.yml" in done.stdout and "could not look" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("verify", "nothing"), "there is no such folder"),
        (("verify", "./nothing/here"), "there is no such folder"),
        (("verify", "images"), "is no OCI image layout"),
        (("verify", "layout", "--ref", "other"), 'has no image "other" (it has: pytorch:2.12.1)'),
        (("verify", "layout", "--definition", "pytroch"), 'there is no image "pytroch"; did you mean "pytorch"'),
        (("verify", "layout", "--gpu", "yes"), "this machine has no GPU of NVIDIA"),
        (("scan", "layout"), "nothing to look in"),
        (("sign", "layout"), "say one of --key, --check and --new-key"),
        (("sign", "--key", "k"), "say which image"),
        (("sign", "layout", "--key", "k"), "cannot be read: No such file"),
        (("sign", "registry.site/x:1", "--key", "k"), "a layout on disk is signed"),
    ],
)
def test_wrong_input_is_exit_1(site: Path, arguments: tuple[str, ...], words: str) -> None:
    done = run(*arguments)
    assert isinstance(done.exception, InputError) and done.exception.exit_code == 1, done.output
    assert words in str(done.exception)


def test_wrong_choices_are_refused_by_their_option(site: Path) -> None:
    assert run("verify", "layout", "--gpu", "maybe").exit_code == 2
    assert run("sbom", "layout", "--format", "xml").exit_code == 2


def test_a_damaged_manifest_is_told(site: Path) -> None:
    index = json.loads((site / "layout/index.json").read_text())
    path = site / "layout/blobs/sha256" / index["manifests"][0]["digest"].removeprefix("sha256:")
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data.replace(b"schemaVersion", b"schemaversion"))
    done = run("verify", "layout", "--no-run")
    assert isinstance(done.exception, MyriadError) and "was changed" in str(done.exception)


def test_the_way_from_documents_to_a_checked_signature(site: Path) -> None:
    done = run("sbom", "layout", "--attach")
    assert done.exit_code == 0, done.output
    assert [line.split()[1] for line in done.stdout.splitlines()] == [
        "application/vnd.cyclonedx+json", "application/spdx+json", "application/vnd.in-toto+json"
    ]  # fmt: skip
    assert run("sign", "--new-key", "keys").exit_code == 0
    assert run("sign", "layout", "--key", "keys/cosign.key", "-a", "commit=abc").exit_code == 0
    done = run("sign", "layout", "--check", "keys/cosign.pub", "--json")
    assert json.loads(done.stdout)["annotations"] == {"commit": "abc"}
    assert run("verify", "layout", "--no-run").exit_code == 0, "documents beside an image are no second image"
    done = run("sign", "layout", "--check", "keys/cosign.pub", "--reference", "other")
    assert isinstance(done.exception, MyriadError) and done.exception.exit_code == 2


@pytest.mark.parametrize("kind", ["cyclonedx", "spdx"])
def test_a_list_of_packages_is_printed_or_written(site: Path, kind: str) -> None:
    done = run("sbom", "layout", "--format", kind)
    assert done.exit_code == 0
    assert run("sbom", "layout", "--format", kind, "--out", "bom.json").exit_code == 0
    assert json.loads((site / "bom.json").read_text()) == json.loads(done.stdout.splitlines()[0])


def test_a_vulnerability_is_exit_2_until_it_is_accepted(site: Path) -> None:
    record = {
        "id": "GHSA-1", "aliases": ["CVE-2026-1"], "summary": "it breaks",
        "affected": [{
            "package": {"ecosystem": "PyPI", "name": "torch"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.13"}]}],
        }],
    }  # fmt: skip
    (site / "osv.json").write_text(json.dumps(record))
    done = run("scan", "layout", "--database", "osv.json")
    assert done.exit_code == 2
    assert "FAIL      torch 2.12.1+cu130: GHSA-1, CVE-2026-1: it breaks; fixed in 2.13" in done.stdout
    rule = "{id: CVE-2026-1, package: torch, reason: the function is never called, until: 2999-01-01}"
    (site / "images/pytorch/proof.yml").write_text(f"vulnerabilities:\n  - {rule}\n")
    done = run("scan", "layout", "--database", "osv.json", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["accepted"][0]["reason"] == "the function is never called"
    (site / "images/pytorch/proof.yml").write_text(f"vulnerabilities:\n  - {rule.replace('2999', '2020')}\n")
    done = run("scan", "layout", "--database", "osv.json")
    assert done.exit_code == 2 and "that has ended" in done.stdout


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_fit_a_terminal(site: Path, width: int) -> None:
    from datetime import date

    from myriad.images.proof_layout import open_image

    (site / "images/pytorch/requirements.lock").write_text(small.lock({**small.HASHES, "numpy": "f" * 64}))
    declared, rules, _ = declared_of(site / "images/pytorch")
    report = prove(look(open_image(site / "layout"), declared), rules, today=date(2026, 11, 30))
    told = lines(report, width)
    long = [line for line in told if len(line) > width]
    # A path or a condition that is made to be copied is never broken.
    assert all(len(max(line.split(), key=len)) > width - 24 for line in long), long
