"""A host that asks the bundle's repository alone looks at a driver's packages there, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.myriad.gpu.plugins.module_utils import packages

FILES = {
    "/etc/apt/sources.list.d/driver.sources": "Types: deb\nURIs: http://archive.example.org\n",
    "/etc/apt/preferences.d/driver": "Package: a\nPin: version 1\nPin-Priority: 1001\n",
}


@pytest.mark.parametrize("alone", [True, False])
def test_sources_beside_the_bundles_own_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    mark = tmp_path / "53myriad-repository"
    if alone:
        mark.write_text("")
    monkeypatch.setattr(packages, "ALONE", str(mark))
    with packages.Apt(FILES) as apt:
        folder = Path(apt.folder)
        sources = {path.name for path in (folder / "sources.list.d").iterdir()}
        assert ("driver.sources" in sources) is not alone
        assert not alone or sources == set()
        assert (folder / "preferences.d" / "driver").is_file()
