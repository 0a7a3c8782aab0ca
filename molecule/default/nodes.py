"""The nodes of molecule's scenarios: made and removed by the lab's own code, under a name and a subnet of their own.

python molecule/default/nodes.py up|down
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from rich.console import Console

from myriad.errors import MyriadError
from myriad.lab import engine, nodes
from myriad.lab.display import Display
from myriad.lab.state import LabPaths
from myriad.lab.up import Bringup

CLONE = Path(__file__).resolve().parents[2]
#: State and keys; inventories/molecule/lab_nodes.py reads it. The lab of `make lab` keeps its own beside it.
HOME = CLONE / ".lab-molecule"


class Nodes(Bringup):
    """The lab's phases up to nodes that answer, for another inventory and under another name."""

    def __init__(self, display: Display) -> None:
        super().__init__(CLONE, display)
        self.paths = LabPaths(HOME)
        self.inventory = CLONE / "inventories" / "molecule"
        self.name = f"{self.name}-molecule"


def up(work: Nodes) -> None:
    """Make the nodes; those that are there are kept."""
    _, wanted = work.nodes_up(after_make=False)
    print("made " + " ".join(node.name for node in wanted))


def down(work: Nodes) -> None:
    """Remove everything that `up` made. The engine stays as it is."""
    removed = nodes.remove_lab(engine.connect(), work.name)
    shutil.rmtree(HOME, ignore_errors=True)
    names = [name for kind in removed.values() for name in kind]
    print(f"removed {' '.join(names)}" if names else "nothing was there")


def main(arguments: list[str]) -> int:
    """Do what the one argument says."""
    work = Nodes(Display(Console(highlight=False, soft_wrap=True)))
    try:
        {"up": up, "down": down}[arguments[0]](work)
    except MyriadError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
