"""What a driver plan says: plain values, so that a role, a test and a person read the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Action = Literal["none", "skip", "keep", "adopt", "install", "replace", "refused"]
"""What is to be done on the host.

none: no GPU that a driver could serve. skip: told to leave the driver alone. keep: the locked set is already there.
adopt: an existing set of one version stays and is held. install: nothing there yet. replace: another set is there and
goes in the same transaction. refused: nothing may be touched; `refusals` say why.
"""
ModuleKind = Literal["open", "proprietary"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """One thing that stands in the way.

    Attributes:
        rule: stable name of the rule, for programs (`headers`, `secure-boot`, `vanished`, ...).
        what: what is wrong.
        where: the package, device, file or setting it is wrong at.
        todo: what to do next.
    """

    rule: str
    what: str
    where: str
    todo: str

    @property
    def sentence(self) -> str:
        """The whole of it in one line: `where: what; todo`."""
        return f"{self.where}: {self.what}; {self.todo}"

    def to_dict(self) -> dict[str, str]:
        """Plain types, with the sentence."""
        return {"rule": self.rule, "where": self.where, "what": self.what, "todo": self.todo, "sentence": self.sentence}


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """A display device of a GPU vendor, as the PCI bus names it.

    Attributes:
        address: PCI address (`0000:1b:00.0`).
        device: vendor and device id (`10de:2330`).
        model: its name in the catalog; empty where the catalog does not know the id.
        bound: the kernel driver that took it away from the GPU driver (`vfio-pci`), else empty.
    """

    address: str
    device: str
    model: str
    bound: str = ""

    def to_dict(self) -> dict[str, str]:
        """Plain types."""
        return {"address": self.address, "device": self.device, "model": self.model, "bound": self.bound}


@dataclass(frozen=True, slots=True)
class DriverPlan:
    """The decision for one host.

    Attributes:
        action: what is to be done.
        reason: why, as a sentence.
        gpus: the GPUs that were found.
        driver: the driver version that the host has after the plan; empty where there is none.
        module: which kernel module; None where no driver is installed by this plan.
        module_reason: why that module.
        fabric_manager: whether the fabric manager belongs on this host.
        fabric_reason: why, or why not.
        mig_capable: whether any GPU of the host can be split by MIG.
        packages: name to exact version: the transaction, and what is held afterwards.
        remove: packages of the existing set that leave in the same transaction.
        hold: packages that must not move by themselves (the set and the kernel).
        refusals: everything that stands in the way; not empty exactly when `action` is `refused`.
        warnings: sentences that do not stop the plan.
        reboot: why a reboot is needed after the plan; empty where none is.
        boot_modules: kernel modules that must be loaded before the fabric manager starts.
    """

    action: Action
    reason: str
    gpus: tuple[FoundGpu, ...] = ()
    driver: str = ""
    module: ModuleKind | None = None
    module_reason: str = ""
    fabric_manager: bool = False
    fabric_reason: str = ""
    mig_capable: bool = False
    packages: Mapping[str, str] = field(default_factory=dict)
    remove: tuple[str, ...] = ()
    hold: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()
    reboot: tuple[str, ...] = ()
    boot_modules: tuple[str, ...] = ()

    @property
    def refused(self) -> bool:
        """Whether nothing may be touched."""
        return bool(self.refusals)

    def to_dict(self) -> dict[str, Any]:
        """Plain types only: what the role's filter returns and `--json` prints."""
        return {
            "action": self.action,
            "reason": self.reason,
            "gpus": [gpu.to_dict() for gpu in self.gpus],
            "driver": self.driver,
            "module": self.module,
            "module_reason": self.module_reason,
            "fabric_manager": self.fabric_manager,
            "fabric_reason": self.fabric_reason,
            "mig_capable": self.mig_capable,
            "packages": dict(self.packages),
            "remove": list(self.remove),
            "hold": list(self.hold),
            "refused": self.refused,
            "refusals": [refusal.to_dict() for refusal in self.refusals],
            "warnings": list(self.warnings),
            "reboot": list(self.reboot),
            "boot_modules": list(self.boot_modules),
        }
