"""These tests need a real API server and no lab: see `apiserver.py` beside them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
