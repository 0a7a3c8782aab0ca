"""Bare nodes beside the lab: a control plane and three workers that no run has touched, with a network of their own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from myriad.bench.bringup import fresh_state
from myriad.lab import nodes
from myriad.lab.display import Display
from myriad.lab.preflight import lab_name
from myriad.lab.state import LabPaths, LabState
from myriad.lab.topology import read_nodes
from myriad.lab.up import Bringup
from myriad.stack.settings import read_settings


@contextmanager
def bare_nodes(clone: Path, label: str = "bare", profile: str = "") -> Iterator[LabPaths]:
    """Fresh nodes, removed at the end; `MYRIAD_LAB_STATE` of a run must name the `state` of what this gives.

    Nodes of another label may stand beside them. A profile takes `inventories/lab-<profile>`.
    """
    display = Display(Console(stderr=True, highlight=False, soft_wrap=True))
    paths = LabPaths(clone, folder=f".lab-{label}", profile=profile)
    name = f"{lab_name(str(clone))}-{label}"
    base = LabState(name=lab_name(str(clone)))
    client, image, _bundle = Bringup(clone, display, paths=paths).ready(base, read_settings())
    nodes.remove_lab(client, name)
    state = fresh_state(paths, name, base)
    try:
        wanted = read_nodes(paths.inventory, state.subnet)
        nodes.ensure_nodes(client, state, paths, wanted, image=image)
        yield paths
    finally:
        nodes.remove_lab(client, name)
        shutil.rmtree(paths.dir, ignore_errors=True)
