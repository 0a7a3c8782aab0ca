"""`myriad image node`: what the verbs print and how they end."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from myriad.cli import main
from myriad.errors import InputError
from myriad.nodeimage import tools
from myriad.nodeimage.build import PROGRAMS
from myriad.nodeimage.manifest import Entry, Module, NodeManifest, Stored, save

SHA = "ab" * 32


def manifest(folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    values: dict[str, Any] = {
        "name": "node-debian12",
        "kernel": "6.1.0-57-amd64",
        "epoch": 7,
        "inputs": {"bundle": "b"},
        "packages": {"curl": "7.88"},
        "programs": {"/usr/local/bin/runc": SHA},
        "modules": [Module(path="/lib/nvidia-current.ko", sha256=SHA, version="535.309.01", vermagic="6.1.0-57-amd64")],
        "images": [Stored(ref="pause:3.10.1", digest=f"sha256:{SHA}")],
        "blobs": [],
        "left_out": {"nvidia-container-toolkit": "no packages of it"},
        "files": {"/etc/hosts": Entry(kind="file", mode="0644", owner="0:0", size=1, sha256=SHA)},
    }
    save(NodeManifest(**{**values, **changes}), folder / "manifest.json")
    return folder


def files(**entries: str) -> dict[str, Entry]:
    return {
        f"/etc/{name}": Entry(kind="file", mode="0644", owner="0:0", size=1, sha256=digest)
        for name, digest in entries.items()
    }


def verb(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    sys.argv, before = ["myriad", "image", "node", *map(str, words)], sys.argv
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = before
    said = capsys.readouterr()
    code = ended.value.code
    return (code if isinstance(code, int) else int(bool(code))), said.out, said.err


def test_a_manifest_is_told_in_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = verb(capsys, "manifest", manifest(tmp_path / "a"))
    assert code == 0
    assert "node-debian12: kernel 6.1.0-57-amd64, 1 packages, 1 file entries" in out
    assert f"module   nvidia-current.ko 535.309.01 for 6.1.0-57-amd64  sha256:{SHA}" in out
    assert f"image    pause:3.10.1  sha256:{SHA}" in out
    assert "without  nvidia-container-toolkit: no packages of it" in out


def test_an_image_with_a_host_key_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = manifest(tmp_path / "a", files={"/etc/ssh/ssh_host_rsa_key": Entry(kind="file", mode="0600", owner="0:0")})
    code, _, err = verb(capsys, "manifest", bad)
    assert code == 2
    assert "must not be there: /etc/ssh/ssh_host_rsa_key: ssh host key" in err
    code, out, _ = verb(capsys, "manifest", bad, "--json")
    assert (code, len(json.loads(out)["findings"])) == (2, 1)


def test_equal_images_end_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = verb(capsys, "diff", manifest(tmp_path / "a"), manifest(tmp_path / "b"))
    assert code == 0
    assert out == "1 and 1 paths: 0 differ, 0 of them without an explanation\n"


def test_a_difference_is_listed_and_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = manifest(tmp_path / "a", files=files(hosts=SHA, gone=SHA))
    b = manifest(tmp_path / "b", files=files(hosts="cd" * 32), packages={"curl": "7.89"})
    code, out, _ = verb(capsys, "diff", a, b)
    assert code == 2
    assert "package   curl: 7.88 -> 7.89" in out
    assert "FILE      /etc/gone: only in A" in out
    assert "FILE      /etc/hosts: content" in out
    assert out.endswith("2 and 1 paths: 2 differ, 2 of them without an explanation\n")


def test_wrong_names_are_input_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = verb(capsys, "manifest", tmp_path)
    assert code == 1
    assert "there is no manifest of a node image" in err
    code, _, err = verb(capsys, "build", "node-debian", "--out", tmp_path / "o")
    assert code == 1
    assert 'there is no node image "node-debian"; did you mean "node-debian12"?' in err
    code, _, err = verb(capsys, "build", "images/gang-check", "--out", tmp_path / "o")
    assert code == 1
    assert "the image of a container, not of a node" in err
    assert not (tmp_path / "o").exists(), "nothing was made"


def test_a_machine_without_the_tools_is_told_all_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "_SYSTEM_PATH", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError) as caught:
        tools.need(PROGRAMS)
    assert "packer" in str(caught.value)
    assert "apt-get install --no-install-recommends" in str(caught.value.hint)
