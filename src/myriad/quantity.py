"""Kubernetes quantities (`500m`, `16Gi`, `8`, `1e3`) as exact numbers: the one reader that every part uses. Pure.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache

DECIMAL_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
}
BINARY_SUFFIXES = {
    suffix: Decimal(1024**power) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)
}
_SUFFIXES = DECIMAL_SUFFIXES | BINARY_SUFFIXES
# An exponent needs digits, so that "2E" is two exa and "2E3" two thousand.
_FORM = re.compile(r"(?P<number>[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?)(?P<suffix>[numkMGTPE]|[KMGTPE]i|)")


@lru_cache(maxsize=4096)
def parse(text: str) -> Decimal:
    """Value in the base unit (cores, bytes, devices).

    A cluster repeats few quantities on many pods, so what was read is remembered.

    Raises:
        ValueError: `text` is no quantity.
    """
    found = _FORM.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is not a quantity")
    try:
        return Decimal(found["number"]) * _SUFFIXES[found["suffix"]]
    except ArithmeticError as error:  # An exponent beyond what a Decimal holds.
        raise ValueError(f"{text[:40]!r} is beyond any quantity") from error
