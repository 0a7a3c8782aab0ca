"""Which operating systems a node may run: the one table for `myriad init`, which looks first, and for role node_base,
which asserts it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

SUPPORTED: Mapping[str, str] = {"Debian": "12", "Ubuntu": "22.04"}
"""First version by distribution, as ansible names it; its ID in os-release(5) is the same in lower case."""


def system_fault(distribution: str, version: str) -> str:
    """Why a node cannot run this system, as what follows "Myriad takes"; "" where it can.

    Args:
        distribution: Debian, or the ID of os-release(5).
        version: 12.11, 24.04; "" where a system has none.
    """
    first = {name.lower(): since for name, since in SUPPORTED.items()}.get(distribution.lower())
    if first is not None and _numbers(version) >= _numbers(first):
        return ""
    return f"{' or '.join(f'{name} {since}' for name, since in SUPPORTED.items())} and newer"


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(".") if word.isdigit())
