"""What uv.lock says of a dependency group, and which version Myriad has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from myriad.errors import InputError, MyriadError
from myriad.images.context import BuildContext
from myriad.images.python import export_requirements, project_version


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


def test_the_version_is_pyprojects(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "3.4"\n')
    assert project_version(tmp_path) == "3.4"
