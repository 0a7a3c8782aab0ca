"""Small descriptions for tests, as dictionaries of variables."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from myriad.fleet import Checked, check, inventory_from_groups

VARIABLES: dict[str, Any] = {
    "myriad_cluster": {"name": "lab", "topology_levels": ["room", "block", "rack"]},
    "myriad_pools": {"h100": {"model": "H100-SXM5-80GB"}},
    "myriad_priorities": {"urgent": 1000, "normal": 500},
    "myriad_cohorts": {"research": {}},
    "myriad_teams": {
        "vision": {"namespaces": ["vision"], "quota": {"h100": 16}, "weight": 2, "cohort": "research"},
        "speech": {"namespaces": ["speech"], "quota": {"h100": 8}, "cohort": "research", "borrow": {"h100": 8}},
    },
}
GROUPS = {
    "all": ["cp1", "gpu1", "gpu2", "gpu3"],
    "control_plane": ["cp1"],
    "gpu_nodes": ["gpu1", "gpu2", "gpu3"],
    "pool_h100": ["gpu1", "gpu2", "gpu3"],
}
LOCATIONS = {"gpu1": "hall1/b1/r1", "gpu2": "hall1/b1/r1", "gpu3": "hall1/b1/r2"}


def check_site(
    variables: dict[str, Any] | None = None,
    *,
    groups: dict[str, list[str]] | None = None,
    locations: dict[str, Any] | None = None,
    **changes: Any,
) -> Checked:
    """The small site with changes: `myriad_...=value` replaces a variable."""
    described = copy.deepcopy(VARIABLES if variables is None else variables) | changes
    return check(
        inventory_from_groups(described, groups or GROUPS, locations=LOCATIONS if locations is None else locations)
    )


@pytest.fixture
def checked() -> Callable[..., Checked]:
    """Checks the small site: `checked(myriad_teams={...})`."""
    return check_site


@pytest.fixture
def said() -> Callable[..., list[str]]:
    """What is said about the small site, as `subject: message`."""

    def say(*args: Any, **kwargs: Any) -> list[str]:
        return [f"{problem.subject}: {problem.message}" for problem in check_site(*args, **kwargs).problems]

    return say
