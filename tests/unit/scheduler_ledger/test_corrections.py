"""Corrections as they are asked for: read whole, refused in a sentence, written once."""

from __future__ import annotations

from typing import Any

import pytest

from myriad.errors import InputError
from myriad.scheduler.ledger import corrections
from myriad.scheduler.ledger.store import Correction
from myriad.scheduler.policy import SitePolicy

POLICY = SitePolicy.read({"teams": {"vision": {"namespaces": ["vision"]}}, "pools": {"h100": {}}})
GOOD = Correction("uid-1", 1000, "vision", "h100", "", -5400, "ann", "node g3 was broken")


def asked(**changed: str) -> dict[str, Any]:
    body = corrections.document(GOOD, name="ledger-correction-1", namespace="myriad-system")
    body["metadata"]["uid"] = "uid-1"
    body["data"] |= changed
    return body


def test_what_is_asked_for_is_what_is_read() -> None:
    assert corrections.read(asked(), POLICY, now=2000) == GOOD
    assert asked()["immutable"] is True and asked()["metadata"]["labels"] == {corrections.LABEL: "new"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"team": "vison"}, 'no team is called "vison"'),
        ({"pool": "h200"}, 'no pool is called "h200"'),
        ({"why": " "}, "needs a reason"),
        ({"why": "a\nb"}, "needs a reason"),
        ({"gpu_seconds": "0"}, "its amount is 0"),
        ({"gpu_seconds": "much"}, "its amount or its time is none"),
        ({"at": "yesterday"}, "its amount or its time is none"),
        ({"at": "2200-01-01T00:00:00+00:00"}, "still to come"),
        ({"project": "x y"}, "is no project"),
    ],
)
def test_what_is_wrong_is_said(changed: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        corrections.read(asked(**changed), POLICY, now=2000)


@pytest.mark.parametrize(("text", "seconds"), [("-96", -345_600), ("12.5", 45_000), ("+0.001", 4)])
def test_hours_as_people_write_them(text: str, seconds: int) -> None:
    assert corrections.gpu_seconds(text) == seconds


@pytest.mark.parametrize("text", ["0", "nan", "1e30", "six", "", "0.00001"])
def test_hours_that_are_none(text: str) -> None:
    with pytest.raises(InputError):
        corrections.gpu_seconds(text)
