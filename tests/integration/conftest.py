"""Tests that need an engine run on a machine that has none yet: it is installed or started as `make lab` does."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from myriad.lab.display import Display
from myriad.lab.preflight import lab_name
from myriad.lab.state import LabPaths, LabState
from myriad.lab.up import Bringup
from myriad.stack.settings import read_settings

CLONE = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session", autouse=True)
def engine_and_node_image(request: pytest.FixtureRequest) -> None:
    """The engine answers and the node image is there, once for all tests; nothing where no test needs an engine."""
    if any(item.get_closest_marker("engine") for item in request.session.items):
        display = Display(Console(stderr=True, highlight=False, soft_wrap=True))
        # A folder of its own: the record of a lab that is up stays as it is.
        work = Bringup(CLONE, display, paths=LabPaths(CLONE, folder=".lab-engine"))
        work.paths.make()
        work.bare(LabState(name=lab_name(str(CLONE))), read_settings())
