"""What the steps of a plan collect: everything that stands in the way at once, never the first only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from myriad.fleet.driver.result import Refusal


@dataclass(slots=True)
class Notes:
    """Refusals, warnings and reasons for a reboot, in the order they were found."""

    refusals: list[Refusal] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    reboot: list[str] = field(default_factory=list)

    def refuse(self, rule: str, where: str, what: str, todo: str) -> None:
        """One thing stands in the way: `where: what; todo`."""
        refusal = Refusal(rule, what, where, todo)
        if refusal not in self.refusals:
            self.refusals.append(refusal)

    def warn(self, sentence: str) -> None:
        """Say something that does not stop the plan."""
        if sentence not in self.warnings:
            self.warnings.append(sentence)


@dataclass(frozen=True, slots=True)
class Wish:
    """What is wanted of a host, read from the role's input.

    Attributes:
        channel: `distribution` or `vendor`.
        existing: `skip`, `adopt` or `replace`.
        driver: the locked driver version.
        module: `auto`, `open` or `proprietary`.
        packages: the lock: package to exact version.
        kernel: release that the module is for; empty for the running one.
        load_modules: whether the module is to be loaded on this host.
        fabric_manager: `auto`, or what somebody who knows better says.
        models: models that an image is for, where it is made on a machine without GPUs.
        kernels_accepted: kernel series (`6.18`) that the site has tried itself.
    """

    channel: str
    existing: str
    driver: str
    module: str
    packages: Mapping[str, str]
    kernel: str
    load_modules: bool
    fabric_manager: bool | None
    models: Sequence[str]
    kernels_accepted: Sequence[str]


def read_wish(want: Mapping[str, Any]) -> Wish:
    """The wish in a role's input; missing keys get the roles' defaults."""
    fabric = want.get("fabric_manager", "auto")
    return Wish(
        channel=str(want.get("channel") or "distribution"),
        existing=str(want.get("existing") or "adopt"),
        driver=str((want.get("versions") or {}).get("driver") or ""),
        module=str(want.get("module") or "auto"),
        packages={str(name): str(version) for name, version in (want.get("packages") or {}).items()},
        kernel=str(want.get("kernel") or ""),
        load_modules=bool(want.get("load_modules", True)),
        fabric_manager=fabric if isinstance(fabric, bool) else None,
        models=tuple(want.get("models") or ()),
        kernels_accepted=tuple(str(one) for one in want.get("kernels_accepted") or ()),
    )


def count_of(names: Sequence[str]) -> str:
    """`8 x H100-SXM5-80GB, 1 x L4`: equal names counted, in order of first appearance."""
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{count} x {name}" for name, count in counts.items())


def versions_text(packages: Mapping[str, str]) -> str:
    """`nvidia-smi 580.1, libcuda1 580.2`, sorted by name."""
    return ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))
