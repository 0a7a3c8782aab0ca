"""The rules of `myriad lint` and what is written about them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from myriad.lint import RULES, Rule
from myriad.lint.report import DOCUMENT, document

ROOT = Path(__file__).parents[2]


def test_the_document_is_current() -> None:
    assert (ROOT / DOCUMENT).read_text() == document(), "run `python -m myriad.lint`"


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_rule_says_what_it_finds_and_what_happens_otherwise(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.id)
    assert rule.title == rule.title.strip() and len(rule.title) > 10
    assert not rule.title.endswith(".") and rule.why.endswith(".") and rule.looks_at
