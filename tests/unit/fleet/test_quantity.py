"""Kubernetes quantities in canonical form."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myriad.fleet.quantity import canonical, parse


@pytest.mark.parametrize(
    ("written", "returned"),
    [
        # What the API server returns for what is sent (k8s.io/apimachinery, resource.Quantity).
        ("0", "0"),
        ("16", "16"),
        ("1000", "1k"),
        ("2400", "2400"),
        ("10000000", "10M"),
        ("0.5", "500m"),
        ("12.5", "12500m"),
        ("1024Gi", "1Ti"),
        ("1536Gi", "1536Gi"),
        ("240Gi", "240Gi"),
        ("1.5Gi", "1536Mi"),
        ("0Gi", "0"),
        ("512G", "512G"),
    ],
)
def test_canonical_form_is_that_of_the_api_server(written: str, returned: str) -> None:
    value, binary = parse(written)
    assert canonical(value, binary=binary) == returned


@given(st.integers(0, 10**15), st.booleans())
def test_reading_gives_back_what_was_written(number: int, binary: bool) -> None:
    text = canonical(number, binary=binary)
    assert parse(text)[0] == number


@given(st.fractions(min_value=0, max_value=1000))
def test_fractions_are_rounded_up_at_a_billionth(value: Fraction) -> None:
    read = parse(canonical(value))[0]
    assert 0 <= read - value < Fraction(1, 10**9)


@pytest.mark.parametrize("text", ["", "lots", "-1", "1e3", "1 Gi", "1gi", "Gi"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse(text)
