"""`myriad image derive`: what is wrong with the question is said before a file is written or a wheel is fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from myriad.cli import build_app
from myriad.errors import InputError
from tests.unit.images import proof_images as small

APP = build_app("image")


def derive(tmp_path: Path, name: str, text: str, *more: str, base: str = "pytorch") -> Any:
    (tmp_path / "r.txt").write_text(text)
    words = ("derive", name, "--from", base, "--requirements", str(tmp_path / "r.txt"))
    return CliRunner().invoke(APP, ["image", *words, "--images", str(tmp_path / "images"), *more])


@pytest.mark.parametrize(
    ("name", "text", "more", "words"),
    [
        ("../evil", "six\n", (), '"../evil" cannot name an image'),
        ("My Image", "six\n", (), '"My Image" cannot name an image'),
        ("node-x", "six\n", (), '"node-x" cannot name an image'),
        ("a/b", "six\n", (), '"a/b" cannot name an image'),
        ("my", "-r other.txt\n", (), "line 1: '-r other.txt' leads to another file"),
        ("my", "git+https://a.site/b\n", (), "is no package of an index"),
        ("my", "# nothing\n", (), "the requirements name no package"),
        ("my", "six\n", ("--to", "nohost"), "--to nohost names no repository"),
        ("my", "six\n", ("--to", "team/my:1"), "--to team/my:1 names no registry"),
        ("my", "six\n", ("--to", "ftp://a.site/my"), "reached by http or https, not ftp"),
        ("my", "six\n", ("--to", f"a.site/my@sha256:{'a' * 64}"), "names a digest, which follows from the image"),
        ("pytorch", "six\n", (), "pytorch cannot stand on itself"),
    ],
)
def test_a_wrong_question_leaves_nothing_behind(
    tmp_path: Path, name: str, text: str, more: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    small.definition(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    done = derive(tmp_path, name, text, *more)
    assert isinstance(done.exception, InputError) and done.exception.exit_code == 1, done.output
    assert words in str(done.exception)
    left = [one for one in tmp_path.rglob("*") if one not in before and "cache" not in one.parts]
    assert left == [tmp_path / "r.txt"]
