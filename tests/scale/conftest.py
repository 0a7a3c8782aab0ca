"""Benchmarks are programs of their own (`python -m tests.scale.NAME`); tests import them under that name."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
