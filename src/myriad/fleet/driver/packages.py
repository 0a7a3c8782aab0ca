"""The packages of a plan: which of the lock, whether the repository has them, and what apt would do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from myriad.fleet.driver.notes import Notes, Wish, versions_text
from myriad.fleet.driver.result import ModuleKind
from myriad.fleet.driver.rules import (
    MODULE_KINDS,
    REQUIRED_KINDS,
    PackageSet,
    exact,
    find_set,
    is_prebuilt,
    kind_of,
    kinds,
    matches,
    of_driver,
    sets,
)
from myriad.fleet.driver.versions import branch, compare, upstream, version_key
from myriad.fleet.names import did_you_mean, listing

_FABRIC_KINDS = ("fabric-manager", "subnet-manager")


def check_channel(wish: Wish, notes: Notes) -> None:
    """Refuse what is no channel, the runfile with its reason, and other choices that are none."""
    if wish.channel == "runfile":
        notes.refuse(
            "channel",
            "gpu_driver_channel",
            "runfile is refused: it writes files that no package database knows, so they can be neither held nor "
            "compared with "
            "the lock, and the next package upgrade mixes two drivers",
            "use distribution, or vendor with a mirror of NVIDIA's repository",
        )
    elif wish.channel not in ("distribution", "vendor"):
        notes.refuse(
            "channel",
            "gpu_driver_channel",
            f'"{wish.channel}" is no channel{did_you_mean(wish.channel, ["distribution", "vendor"])}',
            "use distribution or vendor",
        )
    if wish.existing not in ("skip", "adopt", "replace"):
        notes.refuse(
            "existing",
            "gpu_driver_existing",
            f'"{wish.existing}" is no choice{did_you_mean(wish.existing, ["skip", "adopt", "replace"])}',
            "use skip, adopt or replace",
        )
    if wish.module not in ("auto", "open", "proprietary"):
        notes.refuse(
            "module",
            "gpu_driver_module",
            f'"{wish.module}" is no module{did_you_mean(wish.module, ["auto", "open", "proprietary"])}',
            "use auto, open or proprietary",
        )
    if wish.driver and not upstream(wish.driver):
        notes.refuse(
            "lock",
            "gpu_driver_versions.driver",
            f'"{wish.driver}" is no exact driver version',
            "name it in full, as 580.126.20",
        )


def package_set(facts: Mapping[str, Any], wish: Wish, notes: Notes) -> PackageSet | None:
    """The package set of the host's distribution; refused where nobody has looked at it."""
    described = (facts.get("kernel") or {}).get("distribution") or {}
    name, release = str(described.get("id") or "").lower(), str(described.get("version") or "")
    if name == "debian":
        release = release.partition(".")[0]
    found = find_set(name, release, wish.channel)
    if found is None and wish.channel in ("distribution", "vendor"):
        known = dict.fromkeys(f"{one.distribution} {number}" for one in sets() for number in one.releases)
        if name and not release:
            fault = "it names no release (testing and unstable do not), so its driver packages are not known"
        elif name:
            fault = "its driver packages are not known"
        else:
            fault = "the facts name none, so the names of the driver's packages are not known"
        notes.refuse(
            "distribution",
            f"{name or 'distribution'} {release}".strip(),
            fault,
            f"use one of {listing(known)}, or add a set to myriad/fleet/driver/rules.yml",
        )
    return found


def choose_packages(
    wish: Wish, found: PackageSet | None, module: ModuleKind | None, notes: Notes, *, fabric: bool, subnet: bool
) -> dict[str, str]:
    """The packages of the lock that belong on this host, and a refusal for each that the lock lacks."""
    if module is None:
        return {}
    unwanted = {kind for kind in MODULE_KINDS if kind != f"module-{module}"}
    if not fabric:
        unwanted.update(_FABRIC_KINDS)
    elif not subnet:
        unwanted.add("subnet-manager")
    chosen = {
        name: version
        for name, version in wish.packages.items()
        if (kind := kind_of(name)) is None or kind.name not in unwanted
    }
    if found is not None:
        needed = [
            f"module-{module}",
            *REQUIRED_KINDS,
            *(["fabric-manager"] if fabric else []),
            *(["subnet-manager"] if subnet else []),
        ]
        if not wish.packages:
            _no_set(needed, wish, found, notes)
            return chosen
        for wanted in needed:
            _require(wanted, chosen, wish, found, notes)
    return chosen


def _no_set(needed: Sequence[str], wish: Wish, found: PackageSet, notes: Notes) -> None:
    """One sentence instead of one for each package, where the lock says nothing about this distribution and channel."""
    names = [alternatives[0] for kind in needed for alternatives in found.patterns(kind, wish.driver)]
    notes.refuse(
        "lock",
        "the lock's nvidia-driver packages",
        f"there are none for {found.distribution} and the channel {found.channel}",
        f"add a package set to stack.lock.yml with the exact versions of {', '.join(names)} and of what they depend on "
        f"(repository: {found.component})",
    )


def _require(kind: str, chosen: Mapping[str, str], wish: Wish, found: PackageSet, notes: Notes) -> None:
    where = f"{found.distribution}, channel {found.channel}"
    patterns = found.patterns(kind, wish.driver)
    if kind == "fabric-manager" and not patterns:
        notes.refuse(
            "fabric-manager",
            where,
            "this host has NVSwitches and the channel has no fabric manager; without one every CUDA program ends "
            "with error 802",
            "use the channel vendor",
        )
    for alternatives in patterns:
        if any(matches(alternatives, name) for name in chosen):
            continue
        names = " or ".join(alternatives)
        notes.refuse(
            "lock",
            "the lock's nvidia-driver packages",
            f"the lock names no {names} ({kinds()[kind].about}), and this host needs it",
            f"add {alternatives[0]} with its exact version (repository: {found.component})",
        )


def check_lock(packages: Mapping[str, str], wish: Wish, notes: Notes) -> None:
    """The lock itself must be one version set."""
    if not wish.driver:
        notes.refuse("lock", "gpu_driver_versions.driver", "no driver version is locked", "name the exact version")
        return
    if upstream(wish.driver):
        check_mix(packages, wish.driver, "the lock", notes)


def check_mix(packages: Mapping[str, str], driver: str, where: str, notes: Notes, *, todo: str = "") -> None:
    """Refuse versions that may not stand together; warn about those that may.

    Args:
        todo: what to do instead of locking other versions, where the versions are not the lock's.
    """
    other = {name: version for name, version in exact(packages).items() if version != driver}
    if other:
        kind_names = dict.fromkeys(kind.about for name in sorted(other) if (kind := kind_of(name)) is not None)
        notes.refuse(
            "mixed",
            where,
            f"driver {driver} cannot stand next to {versions_text({name: packages[name] for name in other})}: "
            f"{listing(kind_names)} must have the driver's version exactly",
            todo or "lock one version for all of them",
        )
    for name, version in sorted(packages.items()):
        kind = kind_of(name)
        if kind is None or kind.version != "branch" or upstream(version) == driver:
            continue
        if branch(version) < branch(driver):
            notes.refuse(
                "mixed",
                where,
                f"{name} {version} is of an older branch than driver {driver}; {kind.about} may be of "
                f"R{branch(driver)} or newer",
                todo or f"lock {name} of R{branch(driver)}",
            )
        else:
            notes.warn(
                f"{name} is {upstream(version)} and the driver {driver}: {kind.about} may differ within the branch "
                "or be newer"
            )


def check_candidates(
    packages: Mapping[str, str], facts: Mapping[str, Any], found: PackageSet | None, notes: Notes
) -> None:
    """Every package must be had in exactly the locked version; a newer one is never taken instead."""
    if facts.get("candidates") is None:
        return
    candidates: Mapping[str, Sequence[str]] = facts["candidates"]
    installed = facts.get("installed") or {}
    # Packages with the same fate are one sentence: a set moves on as a whole.
    gone: dict[tuple[str, ...], list[str]] = {}
    kept: list[str] = []
    for name, version in sorted(packages.items()):
        offered = tuple(sorted(candidates.get(name) or (), key=version_key))
        if version in offered:
            continue
        if installed.get(name) == version:
            kept.append(f"{name} {version}")
        else:
            gone.setdefault(offered, []).append(f"{name} {version}")
    if kept:
        notes.warn(f"installed and in no repository of this host any more, so keep a mirror: {', '.join(kept)}")
    archive = f" ({found.component})" if found else ""
    for offered, names in gone.items():
        have = f"the repositories have {', '.join(offered)}" if offered else "the repositories have no version at all"
        notes.refuse(
            "vanished",
            ", ".join(names),
            f"no repository of this host has {'that version' if len(names) == 1 else 'these versions'}; {have}",
            f"mirror the locked version{archive}, or lock another one on purpose; a newer one is never taken by itself",
        )


_KERNEL = re.compile(r"linux-(image|modules|modules-extra|generic|virtual)(-.*)?")


def _is_kernel(package: str) -> bool:
    return bool(_KERNEL.fullmatch(package)) and not is_prebuilt(package)


def check_simulation(
    packages: Mapping[str, str], remove: Sequence[str], facts: Mapping[str, Any], wish: Wish, notes: Notes
) -> list[str]:
    """Refuse a transaction that does more than the plan says.

    Returns:
        driver packages that come along by dependency: they are held like the named ones.
    """
    simulation = facts.get("simulation")
    if not simulation:
        return []
    if simulation.get("error"):
        notes.refuse(
            "simulation",
            "apt",
            f"it cannot resolve the locked set: {' '.join(str(simulation['error']).split())}",
            "lock the versions that it names, or repair the repositories; nothing was changed",
        )
        return []
    install = {str(name): str(version) for name, version in (simulation.get("install") or {}).items()}
    upgrade = {str(name): (str(pair[0]), str(pair[1])) for name, pair in (simulation.get("upgrade") or {}).items()}
    gone = [str(name) for name in simulation.get("remove") or ()]
    _refuse_kernels(install, upgrade, gone, notes)
    surprises = sorted(name for name in gone if name not in remove and not _is_kernel(name))
    if surprises:
        notes.refuse(
            "removal",
            "apt",
            f"installing the locked set would remove {listing(surprises)}",
            "remove them yourself if they are not needed, or lock versions that get along with them",
        )
    after = {**install, **{name: new for name, (_old, new) in upgrade.items()}}
    _refuse_downgrades(packages, upgrade, wish, notes)
    wrong = {name: after[name] for name, version in packages.items() if name in after and after[name] != version}
    if wrong:
        locked = {name: packages[name] for name in wrong}
        notes.refuse(
            "simulation",
            "apt",
            f"it would install {versions_text(wrong)} instead of the locked {versions_text(locked)}",
            "nothing was changed; look for pins in /etc/apt/preferences.d",
        )
    along = {name: version for name, version in of_driver(after).items() if name not in packages}
    check_mix(along, wish.driver, "what apt would add", notes)
    others = sorted(name for name in upgrade if name not in packages and kind_of(name) is None and not _is_kernel(name))
    if others:
        notes.warn(f"the transaction also upgrades {listing(others)}")
    return sorted(name for name in along if (kind := kind_of(name)) is not None and kind.version != "own")


def _refuse_kernels(
    install: Mapping[str, str], upgrade: Mapping[str, tuple[str, str]], gone: Sequence[str], notes: Notes
) -> None:
    touched = {
        **{name: f"install {name} {version}" for name, version in install.items() if _is_kernel(name)},
        **{name: f"upgrade {name} from {old} to {new}" for name, (old, new) in upgrade.items() if _is_kernel(name)},
        **{name: f"remove {name}" for name in gone if _is_kernel(name)},
    }
    if touched:
        notes.refuse(
            "kernel-change",
            "apt",
            f"the transaction would {listing(touched.values())}: the next boot would run another kernel, without a "
            "module",
            "hold the kernel packages, or upgrade the kernel first in a run of its own",
        )


def _refuse_downgrades(
    packages: Mapping[str, str], upgrade: Mapping[str, tuple[str, str]], wish: Wish, notes: Notes
) -> None:
    down = {name: pair for name, pair in upgrade.items() if compare(pair[1], pair[0]) < 0}
    # Going back to the lock is what replace is for.
    if wish.existing == "replace":
        down = {name: pair for name, pair in down.items() if name not in packages}
    if down:
        text = ", ".join(f"{name} from {old} to {new}" for name, (old, new) in sorted(down.items()))
        notes.refuse(
            "downgrade",
            "apt",
            f"the transaction would downgrade {text}",
            "set gpu_driver_existing to replace if the locked set is meant to come back, else lock what is installed",
        )
