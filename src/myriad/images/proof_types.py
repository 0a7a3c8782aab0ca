"""What a proof is made of: findings, the outcome of a check, what was declared, and what is looked at. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from myriad.images.compat_types import ImageFacts
from myriad.images.proof_layout import LayoutImage
from myriad.images.proof_loader import Loading
from myriad.images.proof_packages import Packages
from myriad.images.proof_tree import ImageTree

Severity = Literal["error", "note"]
"""A note is told and does not fail the proof."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        rule: name of the check, for exceptions and programs.
        where: path in the image, key of image.yml, or part of the image.
        what: what is wrong, as a sentence without a full stop.
        hint: what to do.
        severity: whether it fails the proof.
    """

    rule: str
    where: str
    what: str
    hint: str = ""
    severity: Severity = "error"

    def as_dict(self) -> dict[str, str]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check said. `detail` is what it saw, in a few words; `skipped` says why it could not look."""

    rule: str
    detail: str
    findings: tuple[Finding, ...] = ()
    skipped: str = ""

    @property
    def failed(self) -> bool:
        """Whether it has a finding that fails the proof."""
        return any(one.severity == "error" for one in self.findings)


@dataclass(frozen=True, slots=True)
class Declared:
    """What image.yml and the lock say of an image; what is None or empty is not said.

    Attributes:
        where: the file, for messages.
        pins: versions that must be found, by `python`, `torch`, `cuda`, `cudnn`, `nccl` or a package's name.
        archs: compute capabilities to cover.
        cuda_compat: NVIDIA's cuda-compat is meant to be in the image.
        facts: for the condition that the container runtime checks; None without CUDA.
        budget_bytes: the most that a node may have to pull.
        package_budgets: most unpacked bytes by package.
        base: reference of an external base by digest.
        base_is_own: the base is the project's own file system or image.
        user, entrypoint, env, labels: of the configuration.
        locked: (name, version) -> sha256 of files that the lock allows.
        wanted: names that the lock installs without a condition.
        lock_where: the lock's file, for messages.
    """

    where: str
    pins: Mapping[str, str] = field(default_factory=dict)
    archs: tuple[str, ...] = ()
    cuda_compat: bool = False
    facts: ImageFacts | None = None
    budget_bytes: int | None = None
    package_budgets: Mapping[str, int] = field(default_factory=dict)
    base: str = ""
    user: str | None = None
    entrypoint: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    locked: Mapping[tuple[str, str], tuple[str, ...]] | None = None
    wanted: frozenset[str] = frozenset()
    lock_where: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """What the checks look at."""

    image: LayoutImage
    tree: ImageTree
    packages: Packages
    loading: Loading
    declared: Declared | None = None

    @property
    def has_cuda(self) -> bool:
        """Whether there is anything of CUDA in the image."""
        return bool(self.loading.copies)


def as_json(outcome: Outcome) -> dict[str, Any]:
    """An outcome for JSON."""
    return {
        "check": outcome.rule,
        "ok": not outcome.failed,
        "detail": outcome.detail,
        "skipped": outcome.skipped,
        "findings": [one.as_dict() for one in outcome.findings],
    }


def megabytes(size: int) -> str:
    """`206 MB`, as people say sizes of files (10**6 bytes)."""
    if size >= 10**9:
        return f"{size / 10**9:.1f} GB"
    if size >= 10**6:
        return f"{size / 10**6:.0f} MB" if size >= 10**7 else f"{size / 10**6:.1f} MB"
    return f"{size / 1000:.0f} kB" if size >= 1000 else f"{size} B"


def counted(number: int, one: str, many: str = "") -> str:
    """`1 file`, `3 files`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
