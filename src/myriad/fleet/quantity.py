"""Kubernetes quantities, read and written in their canonical form.

The API server gives a quantity back in canonical form (no fraction, largest suffix), so what is not written that way
looks changed at every comparison. https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from myriad.quantity import BINARY_SUFFIXES, DECIMAL_SUFFIXES

_DECIMAL = {suffix: Fraction(size) for suffix, size in DECIMAL_SUFFIXES.items()}
_BINARY = {suffix: Fraction(size) for suffix, size in BINARY_SUFFIXES.items()}
# What a person writes into the description: no sign, no exponent.
_FORM = re.compile(r"^(\d+(?:\.\d+)?)([numkMGTPE]|[KMGTPE]i)?\Z")


def parse(text: str | int | float) -> tuple[Fraction, bool]:
    """Value of a quantity in its base unit (bytes, cores), and whether it was written in powers of 1024.

    Raises:
        ValueError: `text` is not a non-negative quantity.
    """
    match = _FORM.match(str(text).strip())
    if not match:
        raise ValueError(f"{text!r} is not a quantity")
    suffix = match[2] or ""
    try:
        number = Fraction(Decimal(match[1]))
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is not a quantity") from error
    if suffix in _BINARY:
        return number * _BINARY[suffix], True
    return number * _DECIMAL[suffix], False


def canonical(value: Fraction | int, *, binary: bool = False) -> str:
    """Write `value` as the API server does: an integer with the largest suffix that loses nothing.

    Digits below 1e-9 are rounded up, as Kubernetes does.

    >>> canonical(1000), canonical(2400), canonical(Fraction(1, 2)), canonical(2 * 1024**3, binary=True)
    ('1k', '2400', '500m', '2Gi')
    """
    number = Fraction(value)
    if number == 0:
        return "0"
    if binary and number.denominator == 1 and number >= 1024:
        for suffix, size in reversed(_BINARY.items()):
            if (number / size).denominator == 1:
                return f"{int(number / size)}{suffix}"
        return str(int(number))
    for suffix, size in reversed(_DECIMAL.items()):
        if (number / size).denominator == 1:
            return f"{int(number / size)}{suffix}"
    nano = number / _DECIMAL["n"]
    return canonical(Fraction(-(-nano.numerator // nano.denominator)) * _DECIMAL["n"])
