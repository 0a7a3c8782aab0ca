"""What goes into an image verdict and what comes out: the image, the group of nodes, the verdict. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from myriad.images.compat_facts import dotted, minor

Level = Literal["native", "minor-version", "forward-compat", "refused", "unknown"]
"""`unknown`: the facts do not reach, and nothing is guessed. Only the first three run."""

Kind = Literal["data_center", "workstation", "consumer", "unknown"]
"""What forward compatibility asks of a product."""

_VERSION = re.compile(r"\d+(\.\d+){1,3}")
_ARCH = re.compile(r"\d+\.\d(\+PTX)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """What a verdict needs to know of an image.

    Attributes:
        name: as people say it.
        cuda: CUDA toolkit in it, `13.0` or `13.0.2`; empty where it has none.
        torch: torch in it; empty where it has none.
        python: Python in it; empty leaves the wheels' Python versions alone.
        archs: compute capabilities that it must cover; empty asks for none beyond the cards it meets.
        compiled: capabilities that its code was found to be compiled for (`9.0`, `12.0+PTX`); empty takes those of the
            official wheel or of the toolkit's libraries.
        cuda_compat: NVIDIA's package cuda-compat is in it.
        cpu: processor architecture, as OCI writes it.
    """

    name: str
    cuda: str = ""
    torch: str = ""
    python: str = ""
    archs: tuple[str, ...] = ()
    compiled: tuple[str, ...] = ()
    cuda_compat: bool = False
    cpu: str = "amd64"

    def __post_init__(self) -> None:
        """Raises ValueError for what is no version, before a rule compares it."""
        for key, value in (("cuda", self.cuda), ("torch", self.torch), ("python", self.python)):
            if value and (not _VERSION.fullmatch(value) or dotted(value)[0] > 99):
                raise ValueError(f'{key}: "{value}" is no version such as 13.0')
        for arch in (*self.archs, *self.compiled):
            if not _ARCH.fullmatch(arch):
                raise ValueError(f'archs: "{arch}" is no compute capability such as 9.0 or 12.0+PTX')
        if self.torch and not self.cuda and self.compiled:
            raise ValueError("cuda: compiled code needs the CUDA that it was compiled with")

    @property
    def needs_gpu(self) -> bool:
        """Whether there is CUDA in it."""
        return bool(self.cuda)

    @property
    def what(self) -> str:
        """`torch 2.12 with CUDA 13.0`, as sentences name it."""
        return f"torch {minor(self.torch)} with CUDA {minor(self.cuda)}" if self.torch else f"CUDA {self.cuda}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Nodes that are equal for a verdict.

    Attributes:
        pool: the pool that they belong to.
        model: GPU model by its name in the catalog; empty for nodes without GPUs.
        driver: full driver version; empty where nobody knows.
        source: who says so (`--driver`, `portrait`, `inventory`, `lock`).
        nodes: how many.
        mig: their cards are cut by MIG.
        capability: compute capability of a card that the catalog does not have.
    """

    pool: str
    model: str = ""
    driver: str = ""
    source: str = ""
    nodes: int = 1
    mig: bool = False
    capability: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether an image runs on a group of nodes.

    Attributes:
        level: how it runs, if it does.
        rule: id of the rule that decided (the table in docs/adr/0020-image-verdicts.md).
        reason: the rule applied, as a sentence without a full stop.
        source: where the rule stands.
        fix: the smallest change after which it runs; empty where it runs, or where none is known.
        needs: first driver with which it is native on this card; empty where not known.
        warnings: what is true although it runs, such as a driver branch without fixes.
    """

    image: ImageFacts
    group: NodeGroup
    level: Level
    rule: str
    reason: str
    source: str
    fix: str = ""
    needs: str = ""
    warnings: tuple[str, ...] = field(default=())

    @property
    def runs(self) -> bool:
        """Whether the image may be started there."""
        return self.level in ("native", "minor-version", "forward-compat")

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "pool": self.group.pool,
            "nodes": self.group.nodes,
            "model": self.group.model,
            "driver": self.group.driver,
            "driver_source": self.group.source,
            "mig": self.group.mig,
            "verdict": self.level,
            "runs": self.runs,
            "rule": self.rule,
            "reason": self.reason,
            "fix": self.fix,
            "needs_driver": self.needs,
            "source": self.source,
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True, slots=True)
class Card:
    """The GPU of a group. `first_driver` and `mig_driver` are empty where not known, `last_branch` None without end."""

    name: str
    capability: str
    cpu: str = "amd64"
    kind: Kind = "unknown"
    first_driver: str = ""
    last_branch: int | None = None
    mig_driver: str = ""
    era: str = ""
