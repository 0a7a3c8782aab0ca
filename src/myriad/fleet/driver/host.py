"""What the host's kernel and firmware allow: headers, kernel series, Secure Boot, nouveau, foreign drivers, reboots."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from myriad.fleet.driver.notes import Notes, Wish
from myriad.fleet.driver.result import ModuleKind
from myriad.fleet.driver.rules import PackageSet, exact, is_prebuilt, kernel_limit
from myriad.fleet.driver.versions import numbers

OLDEST_KERNEL = "4.15"
"""README of NVIDIA/open-gpu-kernel-modules: "currently Linux kernel 4.15 or newer", for both modules."""


def target_kernel(facts: Mapping[str, Any], wish: Wish) -> str:
    """The release that the module is for."""
    return wish.kernel or str((facts.get("kernel") or {}).get("release") or "")


def check_runfile(facts: Mapping[str, Any], notes: Notes) -> None:
    """A driver that a runfile installed: neither adopted nor replaced."""
    foreign = facts.get("foreign") or {}
    if not foreign.get("runfile"):
        return
    version = foreign.get("version") or ""
    notes.refuse(
        "runfile",
        f"driver {version}".strip(),
        "it was installed by NVIDIA's runfile, so no package database knows its files, and packages beside it would "
        "mix "
        "two drivers",
        "remove it with nvidia-uninstall (or sh NVIDIA-Linux-x86_64-"
        f"{version or 'VERSION'}.run --uninstall), reboot, and run again",
    )


def check_strange_module(facts: Mapping[str, Any], wish: Wish, notes: Notes) -> None:
    """A loaded module that neither a package nor a runfile brought: a driver container, or packages that are gone."""
    loaded = str((facts.get("module") or {}).get("loaded") or "")
    foreign = facts.get("foreign") or {}
    if not loaded or foreign.get("runfile") or "installed" not in facts or exact(facts["installed"] or {}):
        return
    if wish.existing == "adopt":
        notes.refuse(
            "strange-module",
            f"module {loaded}",
            "it is loaded, and no package or runfile of this host brought it (a driver container, or packages that "
            "were "
            "removed since), so there is nothing to adopt",
            "take the driver container away and reboot, or set gpu_driver_existing to skip where it is meant",
        )


def check_headers(
    facts: Mapping[str, Any], wish: Wish, packages: Mapping[str, str], found: PackageSet | None, notes: Notes
) -> None:
    """The module is built for one kernel, so that kernel's headers must be there."""
    kernel = facts.get("kernel") or {}
    release = target_kernel(facts, wish)
    if kernel.get("headers") or not _is_built(packages):
        return
    running = str(kernel.get("release") or "")
    name = str(kernel.get("headers_package") or "")
    if not name or (wish.kernel and wish.kernel != running and running in name):
        name = f"linux-headers-{release}"
    if name in wish.packages or name in packages:
        return
    offered = (facts.get("candidates") or {}).get(name)
    archive = f" (in {found.headers})" if found else ""
    if offered:
        todo = f"install {name} {offered[-1]}{archive}, or add it to the lock's packages"
    elif facts.get("candidates") is not None:
        todo = (
            f"no repository of this host offers {name}{archive}: the archive has moved on to a newer kernel. Boot "
            "the newest "
            "installed kernel whose headers there are, or mirror the older headers"
        )
    else:
        todo = f"install {name}{archive}"
    notes.refuse(
        "headers",
        f"kernel {release}",
        f"its headers are not installed, so no module can be built ({name} is missing)",
        todo,
    )


def check_kernel(facts: Mapping[str, Any], wish: Wish, driver: str, packages: Mapping[str, str], notes: Notes) -> None:
    """Refuse a kernel that the driver does not build for; warn where nobody is known to have tried."""
    release = target_kernel(facts, wish)
    if not release or not driver or not _is_built(packages):
        return
    series = numbers(release)[:2]
    if not series:
        notes.refuse(
            "kernel",
            f"kernel {release}",
            f"its release begins with no version, so whether driver {driver} builds for it is not known",
            "give the release as uname -r prints it",
        )
        return
    text = ".".join(str(part) for part in series)
    if series < numbers(OLDEST_KERNEL):
        notes.refuse(
            "kernel",
            f"kernel {release}",
            f"driver {driver} needs Linux {OLDEST_KERNEL} or newer",
            "boot a newer kernel",
        )
        return
    limit, proven = kernel_limit(driver)
    if limit is None or series <= numbers(limit.last) or text in wish.kernels_accepted:
        return
    if proven:
        notes.refuse(
            "kernel",
            f"kernel {release}",
            f"driver {driver} is not known to build for Linux {text}, {limit.last} is the newest ({limit.source})",
            f"boot a kernel up to {limit.last}, lock a newer driver, or write {text} into "
            "gpu_driver_kernels_accepted once "
            "you have tried it",
        )
    else:
        notes.warn(
            f"kernel {release}: whether driver {driver} builds for Linux {text} is not recorded; {limit.last} is the "
            "newest known"
        )


def _is_built(packages: Mapping[str, str]) -> bool:
    """Whether the transaction builds a module here, and does not bring a built one."""
    return any("dkms" in name or "kernel-source" in name for name in packages)


_RELEASE = re.compile(r"-(\d+\.\d+\.\d+-\d+-[a-z0-9.-]+)$")


def check_prebuilt(facts: Mapping[str, Any], wish: Wish, packages: Mapping[str, str], notes: Notes) -> None:
    """A module that the distribution built is for one kernel; a name without a release is for the newest one."""
    release = target_kernel(facts, wish)
    for name in sorted(packages):
        if not is_prebuilt(name) or not release:
            continue
        match = _RELEASE.search(name)
        if match is None:
            notes.warn(
                f"{name} is for the archive's newest kernel: lock the package that ends in {release}, so that kernel "
                "and module move together"
            )
        elif match[1] != release:
            notes.refuse(
                "prebuilt",
                name,
                f"it holds the module for {match[1]}, and the host runs {release}",
                f"lock the package that ends in {release}, or boot {match[1]}",
            )


def check_secure_boot(facts: Mapping[str, Any], wish: Wish, packages: Mapping[str, str], notes: Notes) -> None:
    """With Secure Boot on the kernel loads signed modules only."""
    if not wish.load_modules or any(is_prebuilt(name) for name in packages) or not _is_built(packages):
        return
    if "secure_boot" in facts and facts["secure_boot"] is None:
        notes.warn(
            "Secure Boot: whether it is on could not be read; where it is, the kernel refuses the module that is built "
            "here unless its key is enrolled. Look with mokutil --sb-state"
        )
    if not facts.get("secure_boot"):
        return
    if facts.get("mok_enrolled"):
        notes.warn("Secure Boot is on: the module is signed with the enrolled machine owner key (dkms does that)")
        return
    _refuse_unsigned("the module that is built here is signed with no key that the firmware knows", notes)


def check_unsigned(facts: Mapping[str, Any], wish: Wish, packages: Mapping[str, str], notes: Notes) -> None:
    """A module that is built already and not loaded yet: whether Secure Boot lets it in."""
    state = facts.get("module") or {}
    built = state.get("built") or {}
    if not facts.get("secure_boot") or not wish.load_modules or state.get("loaded") or not built:
        return
    if any(is_prebuilt(name) for name in packages) or facts.get("mok_enrolled"):
        return
    # A signer whose key is not among dkms's may be enrolled all the same (in the firmware's own list).
    if built.get("signer") == "":
        _refuse_unsigned(f"the module {built.get('version', '')} on the disk is not signed", notes)
    elif facts.get("mok_enrolled") is False:
        _refuse_unsigned(
            f"the key that module {built.get('version', '')} on the disk is signed with is not enrolled", notes
        )


def _refuse_unsigned(what: str, notes: Notes) -> None:
    notes.refuse(
        "secure-boot",
        "Secure Boot",
        f'it is on, and {what} ("Key was rejected by service")',
        "enrol a machine owner key (mokutil --import /var/lib/dkms/mok.pub, then confirm it on the console at the next "
        "boot), or lock signed modules (Ubuntu: linux-modules-nvidia-...), or switch Secure Boot off in the firmware",
    )


def check_reboot(facts: Mapping[str, Any], wish: Wish, driver: str, module: ModuleKind | None, notes: Notes) -> None:
    """Why the host needs a reboot before the driver of the plan works."""
    state = facts.get("module") or {}
    loaded = str(state.get("loaded") or "")
    if loaded and driver and loaded != driver:
        notes.reboot.append(
            f"the kernel holds module {loaded} and the packages are {driver}: NVML answers a version mismatch until "
            "the "
            "old module is gone"
        )
    kind = loaded_kind(state)
    if loaded and module and kind and kind != module:
        notes.reboot.append(f"the {kind} module is loaded and the plan has the {module} one")
    if state.get("nouveau_loaded") and wish.load_modules:
        notes.reboot.append("nouveau holds the GPUs; NVIDIA's packages keep it out from the next boot on")
        if not state.get("blacklisted_nouveau"):
            notes.warn(
                "nouveau is loaded and not kept out yet: the packages' modprobe.d file does that, and the initramfs "
                "must be renewed"
            )
    running = str((facts.get("kernel") or {}).get("release") or "")
    if wish.kernel and running and wish.kernel != running and wish.load_modules:
        notes.reboot.append(f"the host runs {running} and the module is built for {wish.kernel}")
    reasons: Sequence[Any] = facts.get("reboot_required") or ()
    # What the host says about the module is compared with the lock; here it is compared with the plan, above.
    notes.reboot.extend(str(reason) for reason in reasons if not str(reason).startswith("the kernel runs module"))


def loaded_kind(state: Mapping[str, Any]) -> ModuleKind | None:
    """Which module the kernel holds, by its license; None when none is loaded or nothing is known."""
    text = str(state.get("license") or "")
    if not state.get("loaded") or not text:
        return None
    return "open" if "GPL" in text else "proprietary"


def unbuilt(facts: Mapping[str, Any], wish: Wish, driver: str) -> str:
    """Why the installed packages have no module for the kernel; empty when they have, or nothing is known."""
    built = (facts.get("module") or {}).get("built")
    release = target_kernel(facts, wish)
    if "module" not in facts:
        return ""
    if not built:
        return f"no module is built for {release}"
    if str(built.get("version") or "") not in ("", driver):
        return f"the module on the disk is {built['version']}, the packages are {driver}"
    vermagic = str(built.get("vermagic") or "").split(" ")[0]
    if vermagic and release and vermagic != release:
        return f"the module is built for {vermagic}, not for {release}"
    return ""
