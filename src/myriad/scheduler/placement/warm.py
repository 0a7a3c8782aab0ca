"""Nodes that have a gang's images already: a tie-break between places that fit equally well. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from myriad.fleet.labels import warm_label
from myriad.scheduler.model import Gang
from myriad.scheduler.placement.packing import FloatArray
from myriad.scheduler.snapshot import Snapshot

COLD = 0.2
"""What a node costs that lacks all images of a gang: a preference, far below a doubt (1)."""


def cold_penalty(snapshot: Snapshot, gang: Gang) -> FloatArray | None:
    """(N,) from 0 (has all images of the gang) to `COLD` (has none); None where no node has any.

    Only images by digest count: what a tag names tomorrow, no label can tell today.
    """
    digests = sorted({digest for podset in gang.podsets for digest in podset.images})
    has = [snapshot.carries(warm_label(digest)) for digest in digests]
    if not any(mask.any() for mask in has):
        return None
    warm: FloatArray = np.add.reduce(has, axis=0, dtype=np.float64)
    return np.asarray(COLD * (1.0 - warm / len(digests)), dtype=np.float64)


def warm_counts(snapshot: Snapshot, gang: Gang, nodes: Iterable[str]) -> tuple[int, int] | None:
    """Of the nodes of a placement, how many have all of the gang's images, and how many there are.

    None where the gang names no image by digest, and where no node of the cluster has one: nobody prewarms there.
    """
    digests = sorted({digest for podset in gang.podsets for digest in podset.images})
    has = [snapshot.carries(warm_label(digest)) for digest in digests]
    if not any(mask.any() for mask in has):
        return None
    whole = np.logical_and.reduce(has)
    chosen = sorted({snapshot.index[name] for name in nodes})
    return int(whole[chosen].sum()), len(chosen)
