"""One package at two versions, each for some Pythons, as uv writes it where a project supports several."""

from __future__ import annotations

import pytest

from myriad.images.wheels import parse_lock

LOCK = f"""\
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:{"a" * 64}
numpy==2.5.5 ; python_full_version >= '3.12' \\
    --hash=sha256:{"b" * 64}
httpx==0.28.1 \\
    --hash=sha256:{"c" * 64}
colorama==0.4.6 ; sys_platform == 'win32' --hash=sha256:{"d" * 64}
"""


@pytest.mark.parametrize(("python", "version"), [("3.11", "2.4.6"), ("3.12", "2.5.5"), ("3.13", "2.5.5")])
def test_the_marker_decides_between_two_versions(python: str, version: str) -> None:
    found = {item.name: item for item in parse_lock(LOCK, where="lock", python=python)}
    assert sorted(found) == ["httpx", "numpy"]
    assert found["numpy"].version == version and len(found["numpy"].hashes) == 1
