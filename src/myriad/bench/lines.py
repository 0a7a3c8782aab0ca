"""What every bench prints: one JSON document a line, so that a run that is ended early has said what it found."""

from __future__ import annotations

import json
from typing import Any


def emit(**figures: Any) -> None:
    """One line on standard output, at once."""
    print(json.dumps(figures), flush=True)
