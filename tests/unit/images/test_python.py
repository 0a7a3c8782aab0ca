"""What of installed wheels is kept, and what the lock says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from myriad.errors import InputError, MyriadError
from myriad.images.context import BuildContext
from myriad.images.python import _NOISE, _remove, export_requirements, project_version


def test_the_group_comes_from_the_lock_with_hashes(ctx: BuildContext) -> None:
    requirements = export_requirements(ctx, "lab-double")
    assert "grpcio==" in requirements
    pins = [line for line in requirements.splitlines() if "==" in line]
    assert requirements.count("--hash=sha256:") >= len(pins) > 1


def test_an_unknown_group_is_told(ctx: BuildContext) -> None:
    with pytest.raises(MyriadError, match="exporting the dependency group 'none'"):
        export_requirements(ctx, "none")


def test_without_a_lock_a_checkout_is_asked_for(ctx: BuildContext, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"uv\.lock is missing"):
        export_requirements(replace(ctx, repository=tmp_path), "extension")


def test_what_depends_on_the_building_machine_is_removed(tmp_path: Path) -> None:
    keep = ["pkg/__init__.py", "pkg/data.json", "pkg-1.dist-info/METADATA", "pkg-1.dist-info/licenses/LICENSE"]
    noise = [
        ".lock",
        "bin/pkg",
        "pkg/__pycache__/x.cpython-312.pyc",
        "pkg/types.pyi",
        "pkg-1.dist-info/RECORD",
        "pkg-1.dist-info/direct_url.json",
        "pkg-1.dist-info/uv_cache.json",
        "pkg/tests/test_pkg.py",
    ]
    for name in (*keep, *noise):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    _remove(tmp_path, (*_NOISE, "*/tests/*"))
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()) == sorted(
        keep
    )
    assert not (tmp_path / "bin").exists(), "folders that are empty then go too"


def test_the_version_is_pyprojects(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "3.4"\n')
    assert project_version(tmp_path) == "3.4"
