"""Systems that a node may run."""

from __future__ import annotations

import pytest

from myriad.fleet.systems import system_fault

WANTED = "Debian 12 or Ubuntu 22.04 and newer"


@pytest.mark.parametrize(
    ("distribution", "version", "wanted"),
    [
        ("Debian", "12.11", ""), ("Debian", "13", ""), ("Debian", "11.9", WANTED), ("debian", "12", ""),
        ("Ubuntu", "22.04", ""), ("Ubuntu", "24.04", ""), ("Ubuntu", "20.04", WANTED), ("ubuntu", "22.10", ""),
        ("Debian", "", WANTED), ("Rocky", "9.4", WANTED), ("", "", WANTED),
    ],
)  # fmt: skip
def test_debian_and_ubuntu_from_their_first_version_on(distribution: str, version: str, wanted: str) -> None:
    assert system_fault(distribution, version) == wanted
