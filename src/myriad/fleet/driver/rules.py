"""The tables of rules.yml: kinds of packages, package sets, kernels. Loaded once; no other I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any

import yaml

from myriad.fleet.driver.versions import branch, numbers, older, upstream

MODULE_KINDS = ("module-open", "module-proprietary")
REQUIRED_KINDS = ("userspace", "persistence", "modprobe")
"""Kinds that every host needs beside the module."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of packages.

    Attributes:
        name: key in rules.yml.
        version: `driver`, `branch` or `own`: how its version must stand to the driver's.
        about: what it is, for sentences.
        source: where the rule stands.
    """

    name: str
    version: str
    about: str
    source: str


@dataclass(frozen=True, slots=True)
class PackageSet:
    """The packages of one distribution and channel.

    Attributes:
        distribution: `debian` or `ubuntu`.
        releases: its releases that were looked at.
        channel: `distribution` or `vendor`.
        component: where in the archive they are.
        headers: where the kernel's headers are.
        names: kind to package patterns; `a|b` is either, `{branch}` the driver's branch, `*` any rest.
    """

    distribution: str
    releases: tuple[str, ...]
    channel: str
    component: str
    headers: str
    names: Mapping[str, tuple[str, ...]]

    def patterns(self, kind: str, driver: str) -> list[tuple[str, ...]]:
        """The packages of one kind: each a tuple of alternatives, the branch filled in."""
        return [
            tuple(part.format(branch=branch(driver)) for part in pattern.split("|"))
            for pattern in self.names.get(kind, ())
        ]


@dataclass(frozen=True, slots=True)
class KernelLimit:
    """The newest kernel series that driver versions up to `through` build for."""

    through: str
    last: str
    source: str


@cache
def _tables() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("rules.yml").read_text(encoding="utf-8")
    tables: dict[str, Any] = yaml.safe_load(text)
    return tables


@cache
def kinds() -> dict[str, Kind]:
    """Every kind by its name."""
    return {
        name: Kind(name, row["version"], row["about"], " ".join(row["source"].split()))
        for name, row in _tables()["kinds"].items()
    }


@cache
def sets() -> tuple[PackageSet, ...]:
    """Every package set."""
    meta = {"distribution", "releases", "channel", "component", "headers", "source"}
    return tuple(
        PackageSet(
            row["distribution"],
            tuple(row["releases"]),
            row["channel"],
            row["component"],
            row["headers"],
            {kind: tuple(names) for kind, names in row.items() if kind not in meta},
        )
        for row in _tables()["sets"]
    )


def find_set(distribution: str, release: str, channel: str) -> PackageSet | None:
    """The package set of a host, or None where none was looked at."""
    return next(
        (
            one
            for one in sets()
            if one.distribution == distribution and release in one.releases and one.channel == channel
        ),
        None,
    )


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], ...], tuple[tuple[str, re.Pattern[str]], ...]]:
    tables = _tables()
    foreign = tuple(re.compile(pattern) for pattern in tables["foreign"])
    return foreign, tuple((kind, re.compile(pattern)) for kind, pattern in tables["packages"])


@cache
def kind_of(package: str) -> Kind | None:
    """The kind of a package by its name; None for what is no part of the driver."""
    name = package.partition(":")[0]
    foreign, rows = _patterns()
    if any(pattern.fullmatch(name) for pattern in foreign):
        return None
    return next((kinds()[kind] for kind, pattern in rows if pattern.fullmatch(name)), None)


def of_driver(packages: Mapping[str, str]) -> dict[str, str]:
    """Those packages that belong to the driver."""
    return {name: version for name, version in packages.items() if kind_of(name) is not None}


def exact(packages: Mapping[str, str]) -> dict[str, str]:
    """Those whose version must be the driver's: name to the driver version in it."""
    return {
        name: upstream(version)
        for name, version in packages.items()
        # Canonical's signed modules carry the kernel's version; apt ties them to the driver's by dependency.
        if (kind := kind_of(name)) is not None and kind.version == "driver" and not is_prebuilt(name)
    }


def is_prebuilt(package: str) -> bool:
    """A module that the distribution built and signed for one kernel."""
    return package.startswith(("linux-modules-nvidia-", "linux-objects-nvidia-", "linux-signatures-nvidia-"))


def matches(patterns: Iterable[str], package: str) -> bool:
    """Whether a package is one of these alternatives."""
    return any(fnmatchcase(package, pattern) for pattern in patterns)


def kernel_limit(driver: str) -> tuple[KernelLimit | None, bool]:
    """The limit that holds for a driver version, and whether it is proven (False: the driver is newer than the row)."""
    rows = [KernelLimit(**row) for row in _tables()["kernels"] if branch(row["through"]) == branch(driver)]
    rows.sort(key=lambda row: numbers(row.through))
    proven = next((row for row in rows if not older(row.through, driver)), None)
    if proven is not None:
        return proven, True
    return (rows[-1], False) if rows else (None, False)
