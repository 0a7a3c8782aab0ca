#!/usr/bin/env python3
"""Dynamic half of molecule's inventory: the lab's own script, reading the record of molecule's nodes."""

import os
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

os.environ["MYRIAD_LAB_STATE"] = str(ROOT / ".lab-molecule" / ".lab" / "state.json")
runpy.run_path(str(ROOT / "inventories" / "lab" / "lab_nodes.py"), run_name="__main__")
