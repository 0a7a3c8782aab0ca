"""A filter over `myriad.roles`: names of variables that a role does not take."""

from __future__ import annotations

DOCUMENTATION = r"""
name: role_variables
short_description: Names of variables that no role takes
description:
  - C(unknown_role_variables) takes names of variables and gives a sentence for each that stands in a role's own space
    (it begins with the role's name) and is not in the role's argument spec.
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from myriad.roles import declared_variables, unknown_variables


@cache
def _declared() -> dict[str, frozenset[str]]:
    return declared_variables(Path(__file__).parents[2] / "roles")


def unknown_role_variables(names: Iterable[str]) -> list[str]:
    """A sentence for every name that its role does not take."""
    return unknown_variables((str(name) for name in names), _declared())


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        """Filters by name."""
        return {"unknown_role_variables": unknown_role_variables}
