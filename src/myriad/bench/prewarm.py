"""`make bench-prewarm`: a 10 GB image to 1,250 and 5,000 nodes over 160 racks, as JSON lines.

Each line is one strategy in one setting: registries (one a block, or one for all), share of bad nodes, and an image
that starts nowhere. The last number says how long playing it through took.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from myriad.bench.lines import emit
from myriad.prewarm.limits import Limits
from myriad.prewarm.simulate import STRATEGIES, Scene, bad_nodes, grid, simulate

RACKS = 160
SIZES = (1250, 5000)
IMAGE_GB = 10.0


def lines(sizes: tuple[int, ...] = SIZES) -> Iterator[dict[str, Any]]:
    """One document for each strategy and setting."""
    limits = Limits()
    for nodes in sizes:
        for blocks in (10, 1):
            site = grid(nodes, racks=RACKS, blocks=blocks)
            for name, bad in (
                ("all nodes good", {}),
                ("3 % bad nodes", bad_nodes(site, 0.03)),
                ("an image that starts nowhere", {node.name: "broken" for node in site}),
            ):
                for strategy in STRATEGIES:
                    began = time.perf_counter()
                    found = simulate(site, limits, Scene(image_gb=IMAGE_GB, bad=bad), strategy)
                    yield {
                        "bench": "prewarm", "nodes": nodes, "racks": RACKS, "registries": blocks, "image_gb": IMAGE_GB,
                        "setting": name, "rack_cap_gbit": limits.rack_gbit, "registry_cap_gbit": limits.registry_gbit,
                        **found.document(), "simulated_in_s": round(time.perf_counter() - began, 3),
                    }  # fmt: skip


def main() -> None:
    """Print them as they come."""
    for line in lines():
        emit(**line)


if __name__ == "__main__":
    main()
