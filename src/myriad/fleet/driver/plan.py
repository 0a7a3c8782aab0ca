"""The decision itself: the steps in their order, and the plan that follows from what they found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from myriad.fleet.driver.choice import (
    SWITCH_LINK_MODULES,
    Gpus,
    check_branch,
    check_imex,
    check_mig,
    choose_fabric,
    choose_module,
    needs_subnet_manager,
    sort_gpus,
)
from myriad.fleet.driver.host import (
    check_headers,
    check_kernel,
    check_prebuilt,
    check_reboot,
    check_runfile,
    check_secure_boot,
    check_strange_module,
    check_unsigned,
    target_kernel,
    unbuilt,
)
from myriad.fleet.driver.notes import Notes, Wish, count_of, read_wish
from myriad.fleet.driver.packages import (
    check_candidates,
    check_channel,
    check_lock,
    check_mix,
    check_simulation,
    choose_packages,
    package_set,
)
from myriad.fleet.driver.result import Action, DriverPlan, ModuleKind, Refusal
from myriad.fleet.driver.rules import exact, kind_of, of_driver
from myriad.fleet.hardware import Bus, read_bus
from myriad.fleet.names import listing


def plan(facts: Mapping[str, Any], want: Mapping[str, Any]) -> DriverPlan:
    """Decide what happens to the GPU driver of one host.

    Args:
        facts: what `driver_facts` read on the host. Keys that are absent were not asked for, and nothing is concluded
            from them (without `candidates` no version is missing).
        want: `channel`, `existing`, `versions.driver`, `module`, `packages` (the lock: name to exact version),
            `kernel`, `load_modules`; optional `fabric_manager` (true, false or auto), `models` (an image's, where no
            GPU is), `kernels_accepted` (series that the site has tried itself).

    Returns:
        the plan; refused with every reason at once, or the exact transaction.
    """
    wish = read_wish(want)
    notes = Notes()
    bus = read_bus(facts.get("pci") or ())
    check_channel(wish, notes)
    if wish.existing == "skip" and not notes.refusals:
        return _skipped(facts, bus, wish)
    gpus = sort_gpus(bus, wish, notes)
    idle = _nothing_to_drive(gpus, notes)
    if idle:
        return DriverPlan("none", idle, gpus=gpus.found, warnings=tuple(notes.warnings))
    if gpus.others:
        notes.warn(f"{gpus.others}: this role installs NVIDIA's driver only")
    if gpus.guests:
        notes.warn(f"given to virtual machines and left alone: {gpus.guests} of {len(gpus.found)} GPUs")
    decision = _decide(facts, bus, gpus, wish, notes)
    check_runfile(facts, notes)
    check_strange_module(facts, wish, notes)
    return _Work(facts, wish, notes, gpus, decision).result()


def channel_refusals(channel: str) -> list[Refusal]:
    """Why packages cannot come by this channel on any host; empty where they can."""
    notes = Notes()
    check_channel(read_wish({"channel": channel}), notes)
    return notes.refusals


def _skipped(facts: Mapping[str, Any], bus: Bus, wish: Wish) -> DriverPlan:
    found = sort_gpus(bus, wish, Notes()).found
    driver = str((facts.get("module") or {}).get("loaded") or "")
    return DriverPlan(
        "skip", "gpu_driver_existing is skip: the driver of this host is somebody else's", gpus=found, driver=driver
    )


def _nothing_to_drive(gpus: Gpus, notes: Notes) -> str:
    """Why no driver is needed; empty where one is, or where something has to be said first."""
    if gpus.models or gpus.unknown or notes.refusals:
        return ""
    if gpus.others:
        return f"{gpus.others}: no GPU of NVIDIA, and this role installs NVIDIA's driver only"
    if gpus.guests:
        return f"all {gpus.guests} GPUs are given to virtual machines (vfio), whose guests need the driver"
    return "no GPU on the PCI bus"


@dataclass(frozen=True, slots=True)
class _Decision:
    """What the hardware asks for."""

    module: ModuleKind | None
    module_reason: str
    fabric: bool
    fabric_reason: str
    subnet: bool


def _decide(facts: Mapping[str, Any], bus: Bus, gpus: Gpus, wish: Wish, notes: Notes) -> _Decision:
    module: ModuleKind | None = None
    reason = ""
    if gpus.models or (gpus.unknown and wish.module != "auto"):
        module, reason = choose_module(gpus, wish, notes)
    check_imex(gpus, wish, notes)
    virtual = bool(facts.get("virtualization"))
    fabric, why = choose_fabric(bus, gpus, wish, notes, virtual=virtual)
    subnet = needs_subnet_manager(bus, gpus, fabric=fabric)
    return _Decision(module, reason, fabric, why, subnet)


@dataclass(slots=True)
class _Work:
    """The second half: packages, what is there already, and the plan."""

    facts: Mapping[str, Any]
    wish: Wish
    notes: Notes
    gpus: Gpus
    decision: _Decision

    def result(self) -> DriverPlan:
        """The plan."""
        wish, notes, facts, decision = self.wish, self.notes, self.facts, self.decision
        installed = of_driver(facts.get("installed") or {})
        if wish.existing == "adopt" and exact(installed):
            adopted = self._adopt(installed)
            if adopted is not None:
                return adopted
        found = package_set(facts, wish, notes)
        packages = choose_packages(wish, found, decision.module, notes, fabric=decision.fabric, subnet=decision.subnet)
        check_branch(self.gpus, decision.module, wish.driver, "gpu_driver_versions.driver", notes)
        check_lock(packages, wish, notes)
        mig = check_mig(self.gpus, wish.driver, notes)
        remove = self._leaving(installed, packages)
        here = all(installed.get(name) == version for name, version in packages.items()) and not remove
        missing = unbuilt(facts, wish, wish.driver) if here else ""
        along: list[str] = []
        if not here or missing:
            check_headers(facts, wish, packages, found, notes)
            check_kernel(facts, wish, wish.driver, packages, notes)
            check_prebuilt(facts, wish, packages, notes)
            check_secure_boot(facts, wish, packages, notes)
        else:
            check_unsigned(facts, wish, packages, notes)
        if not here:
            check_candidates(packages, facts, found, notes)
            along = check_simulation(packages, remove, facts, wish, notes)
        check_reboot(facts, wish, wish.driver, decision.module, notes)
        action, reason = self._action(installed, packages, remove, missing, here=here)
        return self._finish(action, reason, wish.driver, packages, remove, along, mig)

    def _leaving(self, installed: Mapping[str, str], packages: Mapping[str, str]) -> tuple[str, ...]:
        """Driver packages that are there, are not in the set, and would mix versions or belong to the other module."""
        return tuple(
            sorted(
                name for name, version in installed.items() if name not in packages and self._disturbs(name, version)
            )
        )

    def _disturbs(self, name: str, version: str) -> bool:
        kind = kind_of(name)
        if kind is None or kind.version == "own":
            return kind is not None and kind.name == "subnet-manager" and not self.decision.subnet
        if kind.name.startswith("module-") and kind.name not in ("module-support", f"module-{self.decision.module}"):
            return True
        if kind.name == "fabric-manager" and not self.decision.fabric:
            return True
        return kind.version == "driver" and exact({name: version}).get(name, self.wish.driver) != self.wish.driver

    def _adopt(self, installed: dict[str, str]) -> DriverPlan | None:
        """The plan that keeps an existing set; None where it is the locked one, which is kept the ordinary way."""
        wish, notes, decision = self.wish, self.notes, self.decision
        versions = exact(installed)
        distinct = sorted(set(versions.values()))
        if len(distinct) > 1:
            groups = "; ".join(
                f"{version}: {', '.join(sorted(name for name, one in versions.items() if one == version))}"
                for version in distinct
            )
            notes.refuse(
                "adopt",
                "installed driver packages",
                f"they are of {len(distinct)} versions ({groups}), and a driver works with one version only",
                f"set gpu_driver_existing to replace: the locked {wish.driver} then takes their place, drained and "
                "with a reboot",
            )
            return self._finish("refused", "", "", {}, (), [], check_mig(self.gpus, wish.driver, notes))
        driver = distinct[0]
        if driver == wish.driver and self._is_part_of_lock(installed):
            return None
        where, todo = "installed driver packages", f"set gpu_driver_existing to replace, which brings {wish.driver}"
        check_mix(installed, driver, where, notes, todo=todo)
        check_branch(self.gpus, None, driver, where, notes, todo=todo)
        names = {kind.name for name in installed if (kind := kind_of(name)) is not None}
        held = [kind for kind in ("open", "proprietary") if f"module-{kind}" in names]
        if decision.module and held and decision.module not in held and not self._either_module():
            notes.refuse(
                "adopt",
                "installed driver packages",
                f"they hold the {held[0]} module, and {decision.module_reason}",
                "set gpu_driver_existing to replace",
            )
        if decision.fabric and "fabric-manager" not in names:
            notes.refuse(
                "adopt",
                "installed driver packages",
                f"there is no fabric manager among them, and {decision.fabric_reason}: every CUDA program ends with "
                "error 802",
                f"install the fabric manager {driver}, or set gpu_driver_existing to replace",
            )
        if not decision.fabric and "fabric-manager" in names:
            notes.warn(
                f"a fabric manager is installed and has nothing to do here ({decision.fabric_reason}): its unit fails"
            )
        if driver != wish.driver:
            notes.warn(
                f"the host keeps driver {driver} and the lock says {wish.driver or 'nothing'}: the gate expects "
                f"{driver} here. gpu_driver_existing: replace brings the locked one"
            )
        check_reboot(self.facts, wish, driver, None, notes)
        missing = unbuilt(self.facts, wish, driver)
        if missing:
            notes.refuse(
                "adopt",
                "installed driver packages",
                f"{missing}, so there is nothing to adopt",
                "build it (dkms autoinstall), or set gpu_driver_existing to replace",
            )
        else:
            check_unsigned(self.facts, wish, installed, notes)
        mig = check_mig(self.gpus, driver, notes)
        reason = f"driver {driver} is there, of one version in all its {len(versions)} packages, and stays"
        return self._finish("adopt", reason, driver, installed, (), [], mig, held_module=_one(held))

    def _is_part_of_lock(self, installed: Mapping[str, str]) -> bool:
        """Nothing differs from the lock, at most something is missing: an installation that was cut off goes on."""
        locked = self._locked()
        same = all(installed.get(name, version) == version for name, version in locked.items())
        return same and not self._leaving(installed, locked)

    def _either_module(self) -> bool:
        return self.decision.module_reason.startswith(("both modules", "gpu_driver_module"))

    def _locked(self) -> dict[str, str]:
        """The locked packages of this host, without complaining about what the lock lacks."""
        quiet = Notes()
        found = package_set(self.facts, self.wish, quiet)
        decision = self.decision
        return choose_packages(self.wish, found, decision.module, quiet, fabric=decision.fabric, subnet=decision.subnet)

    def _action(
        self,
        installed: Mapping[str, str],
        packages: Mapping[str, str],
        remove: tuple[str, ...],
        missing: str,
        *,
        here: bool,
    ) -> tuple[Action, str]:
        driver = self.wish.driver
        if here and not missing:
            return "keep", f"driver {driver} is there as locked"
        if here:
            return "install", f"the locked packages are there, but {missing}"
        old = sorted(set(exact(installed).values()))
        if old == [driver] and not remove:
            lacking = sorted(name for name, version in packages.items() if installed.get(name) != version)
            return "install", f"driver {driver} is there in part; {listing(lacking)} still to come"
        if old == [driver]:
            return "replace", f"driver {driver} is there with {listing(remove)}, which does not belong here"
        if old:
            return "replace", f"driver {' and '.join(old)} is there; the locked {driver} takes its place"
        return (
            "install",
            f"no driver is there; {driver} for {count_of([model.name for model in self.gpus.models]) or 'this host'}",
        )

    def _finish(
        self,
        action: Action,
        reason: str,
        driver: str,
        packages: Mapping[str, str],
        remove: tuple[str, ...],
        along: list[str],
        mig: bool,
        *,
        held_module: ModuleKind | None = None,
    ) -> DriverPlan:
        notes, decision = self.notes, self.decision
        refused = bool(notes.refusals)
        if refused:
            count = len(notes.refusals)
            action, reason = "refused", f"{count} thing{'' if count == 1 else 's'} in the way; nothing was touched"
        hold = () if refused else self._hold(packages, along)
        return DriverPlan(
            action,
            reason,
            gpus=self.gpus.found,
            driver="" if refused else driver,
            module=held_module or decision.module,
            module_reason="as installed" if held_module else decision.module_reason,
            fabric_manager=decision.fabric,
            fabric_reason=decision.fabric_reason,
            mig_capable=mig,
            packages={} if refused else dict(sorted(packages.items())),
            remove=() if refused else remove,
            hold=hold,
            refusals=tuple(notes.refusals),
            warnings=tuple(notes.warnings),
            reboot=() if refused else tuple(notes.reboot),
            boot_modules=SWITCH_LINK_MODULES if decision.subnet and not refused else (),
        )

    def _hold(self, packages: Mapping[str, str], along: list[str]) -> tuple[str, ...]:
        """The set, what came with it, and the running kernel with its headers: none may move by itself."""
        release = target_kernel(self.facts, self.wish)
        headers = str((self.facts.get("kernel") or {}).get("headers_package") or "")
        if release not in headers:
            headers = f"linux-headers-{release}"
        kernel = [f"linux-image-{release}", headers] if release else []
        return tuple(sorted({*packages, *along, *(name for name in kernel if name)}))


def _one(kinds: list[str]) -> ModuleKind | None:
    return None if len(kinds) != 1 else ("open" if kinds[0] == "open" else "proprietary")
