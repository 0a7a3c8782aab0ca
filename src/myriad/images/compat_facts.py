"""The published facts that image verdicts rest on (`compat_facts.yml`), as typed rows with look-ups. Pure.

Versions are compared in full, part by part: driver 580.65.06 is not "580", and CUDA 12.10 is newer than 12.9.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property, lru_cache
from importlib import resources
from typing import Annotated

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Version = tuple[int, ...]

_DOTTED = re.compile(r"\d+(\.\d+)*")
_ARCH = re.compile(r"(\d+\.\d)(\+PTX)?")


def dotted(text: str) -> Version:
    """`535.309.01` as (535, 309, 1). Raises ValueError for anything but numbers and dots."""
    if not _DOTTED.fullmatch(text):
        raise ValueError(f'"{text}" is no version of numbers and dots')
    return tuple(int(part) for part in text.split("."))


def at_least(left: str, right: str) -> bool:
    """Is `left` the same version as `right` or newer? Missing parts count as 0."""
    one, other = dotted(left), dotted(right)
    size = max(len(one), len(other))
    return one + (0,) * (size - len(one)) >= other + (0,) * (size - len(other))


def newest(*drivers: str) -> str:
    """The newest of some driver versions; empty ones do not count."""
    return max((driver for driver in drivers if driver), key=dotted)


def minor(text: str) -> str:
    """`13.0.2` as `13.0`."""
    return ".".join(text.split(".")[:2])


def major(text: str) -> int:
    """`13.0.2` as 13; of a driver, its branch."""
    return dotted(text)[0]


def _version(text: str) -> str:
    dotted(text)
    return text


def _arch(text: str) -> str:
    if not _ARCH.fullmatch(text):
        raise ValueError(f'"{text}" is no compute capability; write for example 9.0 or 12.0+PTX')
    return text


Dotted = Annotated[str, AfterValidator(_version)]
Arch = Annotated[str, AfterValidator(_arch)]


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Toolkit(_Row):
    """Releases of the CUDA toolkit and the driver that they came with; None where its number was not read."""

    releases: list[Dotted] = Field(min_length=1)
    driver: Dotted | None
    secondary: bool = False


class Family(_Row):
    """A major release of CUDA and the driver from which on all of it runs (minor-version compatibility)."""

    major: int
    driver: Dotted


class Forward(_Row):
    """Driver branches on which cuda-compat of these CUDA releases works; a list that is not `complete` misses some."""

    cuda: list[Dotted]
    branches: list[int]
    complete: bool = True


class Products(_Row):
    """Models of the catalog by the kind of product that forward compatibility asks for."""

    data_center: list[str]
    workstation: list[str]
    consumer: list[str]


class Branch(_Row):
    """Life of a driver branch. `ends`: last month with fixes, YYYY-MM."""

    branch: int
    kind: str
    ends: Annotated[str, Field(pattern=r"^\d{4}-\d{2}$")]


class Architecture(_Row):
    """Which toolkits compile for a compute capability."""

    capability: Arch
    name: str
    first: Dotted
    last_major: int | None = None
    source: str = "architectures"


class Blackwell(_Row):
    """The two bounds of torch's first kernels for Blackwell."""

    torch: Dotted
    cuda: Dotted


class TorchRelease(_Row):
    """A torch release: CUDA builds of its official wheels, first and last Python."""

    torch: Dotted
    cuda: list[Dotted]
    python: tuple[Dotted, Dotted]
    secondary: bool = False


class Build(_Row):
    """What wheels of a CUDA build are compiled for, from one torch release to another."""

    cuda: Dotted
    torch: tuple[Dotted, Dotted]
    archs: list[Arch]


class Facts(_Row):
    """All tables, with look-ups. CUDA versions are `13.0` (its first release) or `13.0.2`."""

    sources: dict[str, str]
    toolkits: list[Toolkit]
    driver_levels: dict[str, Dotted]
    families: list[Family]
    forward: list[Forward]
    products: Products
    branches: list[Branch]
    capabilities: list[Arch]
    architectures: list[Architecture]
    blackwell: Blackwell
    torch: list[TorchRelease]
    builds: list[Build]

    def source(self, key: str) -> str:
        """Where a table stands."""
        return self.sources[key]

    @cached_property
    def releases(self) -> tuple[tuple[str, str | None], ...]:
        """(toolkit release, driver that it came with), oldest first."""
        rows = [(release, row.driver) for row in self.toolkits for release in row.releases]
        return tuple(sorted(rows, key=lambda row: dotted(row[0])))

    @cached_property
    def minors(self) -> tuple[str, ...]:
        """CUDA releases by their first two parts (`12.8`), oldest first."""
        return tuple(dict.fromkeys(minor(release) for release, _ in self.releases))

    def native_driver(self, cuda: str) -> str | None:
        """First driver that has all of this toolkit: its own row, else that of the next newer release; None unknown."""
        return next((driver for release, driver in self.releases if driver and at_least(release, cuda)), None)

    def family_floor(self, cuda: str) -> str | None:
        """First driver of minor-version compatibility for this toolkit; None for a major release without a row."""
        return next((row.driver for row in self.families if row.major == major(cuda)), None)

    def level_of(self, driver: str) -> str | None:
        """The CUDA version that a driver reports (`12.2`); None for one older than the first row."""
        branch_level = self.driver_levels.get(str(major(driver)))
        known = [minor(release) for release, own in self.releases if own and at_least(driver, own)]
        return branch_level or (known[-1] if known else None)

    def forward_row(self, cuda: str) -> Forward | None:
        """The branches that cuda-compat of this CUDA works on; None where no list was read."""
        return next((row for row in self.forward if minor(cuda) in row.cuda), None)

    def branch(self, driver: str) -> Branch | None:
        """The row of a driver's branch."""
        return next((row for row in self.branches if row.branch == major(driver)), None)

    @property
    def newest_branch(self) -> int:
        """The newest driver branch of any table."""
        return max(row.branch for row in self.branches)

    def torch_release(self, torch: str) -> TorchRelease | None:
        """The row of a torch version such as `2.12.1`."""
        return next((row for row in self.torch if row.torch == minor(torch)), None)

    def build(self, torch: str, cuda: str) -> Build | None:
        """What the official wheel of this torch for this CUDA is compiled for."""
        return next(
            (
                row
                for row in self.builds
                if row.cuda == minor(cuda)
                and at_least(minor(torch), row.torch[0])
                and at_least(row.torch[1], minor(torch))
            ),
            None,
        )

    def architecture(self, capability: str) -> Architecture | None:
        """The row that says which toolkits compile for a card: its own or, of the same major, the next lower one."""
        rows = [
            row
            for row in self.architectures
            if major(row.capability) == major(capability) and at_least(capability, row.capability)
        ]
        return rows[-1] if rows else None

    def compiled_by(self, cuda: str) -> tuple[str, ...]:
        """Compute capabilities that the libraries of a toolkit have code for."""
        return tuple(
            row.capability
            for row in self.architectures
            if at_least(minor(cuda), row.first) and (row.last_major is None or major(cuda) <= row.last_major)
        )


@lru_cache(maxsize=1)
def facts() -> Facts:
    """The facts that come with Myriad, read once."""
    text = resources.files("myriad.images").joinpath("compat_facts.yml").read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return Facts.model_validate(yaml.load(text, Loader=loader))  # noqa: S506 - a safe loader


Interval = tuple[str, str | None]
"""Compute capabilities from the first to below the second; None has no upper end."""


def cubin_intervals(archs: tuple[str, ...] | list[str]) -> tuple[Interval, ...]:
    """Cards that compiled code runs on as it is: each capability and the newer ones of its major, joined.

    Source: CUDA C++ programming guide, "Binary Compatibility".
    """
    spans = sorted((dotted(arch.removesuffix("+PTX")), major(arch.removesuffix("+PTX")) + 1) for arch in archs)
    joined: list[tuple[Version, int]] = []
    for start, end in spans:
        if joined and start <= (joined[-1][1], 0):
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return tuple((".".join(map(str, start)), str(end)) for start, end in joined)


def ptx_interval(archs: tuple[str, ...] | list[str]) -> Interval | None:
    """Cards that embedded PTX reaches: from the lowest one on, without end (same guide, "PTX Compatibility")."""
    lowest = sorted(dotted(arch.removesuffix("+PTX")) for arch in archs if arch.endswith("+PTX"))
    return (".".join(map(str, lowest[0])), None) if lowest else None


def inside(capability: str, spans: Iterator[Interval] | tuple[Interval, ...]) -> bool:
    """Is the card in one of the intervals?"""
    return any(at_least(capability, low) and (high is None or not at_least(capability, high)) for low, high in spans)
