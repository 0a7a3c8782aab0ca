"""These tests need a real API server and no lab: see `apiserver.py` beside them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from myriad.kube.client import Api, connect

sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from apiserver import ControlPlane


@pytest.fixture(scope="module")
def api(plane: ControlPlane) -> Iterator[Api]:
    """The administrator's client of the module's control plane."""
    client = connect(plane.kubeconfig)
    yield client
    client.close()
