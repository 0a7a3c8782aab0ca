"""The GPU gate: what has to be true of a node before it takes work, compared with what was found. Pure.

The checks stand in the order in which one follows from another: a GPU that is not on the bus is no GPU for the driver,
nor for the kubelet. So the first difference is the cause, and those after it that follow from it say so.

`judge` compares; `myriad.agent.report` says what is written to the Node; `myriad.agent.keeper` does it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from myriad.agent import health
from myriad.agent.advice import Advice, advise
from myriad.agent.collect.pci import AMD, HUAWEI, NVIDIA, UNREAD
from myriad.agent.probe import ProbeResult
from myriad.agent.verdict import HEALTH, OWN_CAUSE, SETTLING, Check, Kubelet, Surroundings, Value, Verdict
from myriad.fleet.portrait import DEVICE_NODES, FABRIC_MANAGER, GPUS, MODULE, NEIGHBOURS, PCI, Expected, Gpu, Portrait

__all__ = [
    "HEALTH",
    "SETTLING",
    "Check",
    "Kubelet",
    "Surroundings",
    "Verdict",
    "agent_log",
    "judge",
    "registry_url",
    "resources",
]

_NVML = re.compile(r"version mismatch.*NVML library version: (?P<version>\d+(?:\.\d+)+)", re.DOTALL)

_SILENT = frozenset({"volta", "ampere"})
"""Architectures whose GPUs show no fabric state in nvidia-smi (it says N/A). What is wrong shows in CUDA's start."""


def judge(
    expected: Expected,
    portrait: Portrait,
    kubelet: Kubelet,
    probe: ProbeResult | None,
    *,
    surroundings: Surroundings | None = None,
) -> Verdict:
    """Compare what the description expects with the bus, the driver, the fabric, the kubelet and a container.

    Args:
        expected: from the node's description.
        portrait: what was found on the node.
        kubelet: what its kubelet reports.
        probe: what a container on the node found; None where none has looked since the node booted.
        surroundings: the rest.
    """
    judging = _Judging(expected, portrait, kubelet, probe, surroundings or Surroundings())
    return Verdict(tuple(_with_causes(judging.checks())))


def _with_causes(checks: Iterator[Check]) -> Iterator[Check]:
    first = ""
    for check in checks:
        if not check.ok and first and check.check not in OWN_CAUSE:
            yield replace(check, follows=first)
            continue
        if not check.ok and not first:
            first = check.check
        yield check


class _Judging:
    """The checks of one node, in order."""

    def __init__(
        self, expected: Expected, portrait: Portrait, kubelet: Kubelet, probe: ProbeResult | None, more: Surroundings
    ) -> None:
        self.expected = expected
        self.portrait = portrait
        self.kubelet = kubelet
        self.probe = probe
        self.more = more
        self.node = portrait.node or "NODE"

    def checks(self) -> Iterator[Check]:
        yield self._count(
            "pci",
            None if self.portrait.fault(PCI) else len(self.portrait.pci.gpus),
            self.portrait.fault(PCI),
            "on the PCI bus",
            f"ssh {self.node} lspci -nn -d {_vendor(self.expected)}: (power, seating and riser of the missing card)",
        )
        if not self.expected.gpus and not self.portrait.fault(PCI) and not self.portrait.pci.gpus:
            return
        yield from self._driver()
        yield from self._gpus()
        yield from self._fabric()
        yield from self._host_cuda()
        yield from self._mig()
        yield from self._topology()
        yield from self._resources()
        if self.more.policy:
            yield from self._policy()
        if self.more.probing:
            yield self._devices()

    # Counting

    def _count(self, check: str, found: int | None, fault: str, where: str, missing: str) -> Check:
        wanted = self.expected.gpus
        if found is None:
            advice = advise(fault or f"nothing is known of GPUs {where}", self.node)
            return Check(
                check,
                wanted,
                None,
                False,
                advice.cause,
                advice.next or agent_log(self.node),
            )
        if found == wanted:
            return Check(check, wanted, found, True)
        return Check(
            check,
            wanted,
            found,
            False,
            f"{found} of {wanted} GPUs are {where}",
            missing
            if found < wanted
            else f"describe them: myriad_gpus: {found} for {self.node} in the inventory, then myriad site --limit "
            f"{self.node}",
        )

    # Driver

    def _driver(self) -> Iterator[Check]:
        driver = self.portrait.driver
        loaded = driver.loaded if driver else None
        if not loaded:
            # Where neither module nor library is there, nothing was observed of it.
            advice = advise(self.portrait.fault(MODULE) if MODULE in self.portrait.observations else "", self.node)
            yield Check(
                "module", self.expected.versions.driver or "loaded", None, False,
                advice.cause or self._no_module(),
                advice.next or self._load(),
            )  # fmt: skip
        else:
            yield Check("module", self.expected.versions.driver or "loaded", loaded, True)
        yield from self._versions()
        yield self._answers()
        yield self._count(
            "driver",
            None if self.portrait.fault(GPUS) else len(self.portrait.gpus),
            self.portrait.fault(GPUS),
            "seen by the driver",
            f"ssh {self.node} 'dmesg | grep -i nvrm | tail' (why the driver leaves out a card of the bus)",
        )

    def _unread(self) -> bool:
        return bool(self.portrait.pci.gpus) and self.portrait.fault(GPUS) == UNREAD

    def _no_module(self) -> str:
        return UNREAD if self._unread() else "the driver's kernel module is not loaded"

    def _load(self) -> str:
        if self._unread():
            return f"take {self.node} out of its pool in the inventory; its GPUs need another installer"
        if _vendor(self.expected) == HUAWEI:
            return (
                f"ssh {self.node} 'lsmod | grep drv_; npu-smi info -t board -i 0; dmesg | grep -i davinci | tail' "
                "(the driver's package and its version)"
            )
        return f"ssh {self.node} 'modprobe nvidia; dmesg | grep -i nvrm | tail', then myriad site --limit {self.node}"

    def _versions(self) -> Iterator[Check]:
        driver, wanted = self.portrait.driver, self.expected.versions
        if driver is None:
            return
        # NVML names the library that it is, also before versions are looked at again.
        told = _NVML.search(self.portrait.observations[GPUS].fault) if GPUS in self.portrait.observations else None
        library = driver.userspace
        if told and not (library and _same_version(library, told["version"])):
            library = told["version"]
        parts = {"module": driver.loaded, "library": library, "fabric manager": driver.fabric_manager}
        found = {part: version for part, version in parts.items() if version}
        if found:
            shown = ", ".join(f"{part} {version}" for part, version in found.items())
            yield self._equal_versions(found, shown)
        if wanted.driver and driver.loaded and not _same_version(driver.loaded, wanted.driver):
            yield Check(
                "lock", wanted.driver, driver.loaded, False,
                f"the module that runs is {driver.loaded}; the description says {wanted.driver}",
                f"myriad site --limit {self.node} (installs {wanted.driver}; the module that runs changes at the next "
                "reboot)",
            )  # fmt: skip
        elif wanted.driver and driver.loaded:
            yield Check("lock", wanted.driver, driver.loaded, True)
        reported = sorted({gpu.driver for gpu in self.portrait.gpus if gpu.driver})
        if len(reported) > 1:
            yield Check(
                "one-driver", 1, len(reported), False,
                f"GPUs report different driver versions: {', '.join(reported)}", _reboot(self.node),
            )  # fmt: skip

    def _equal_versions(self, found: Mapping[str, str], shown: str) -> Check:
        module, library, manager = (found.get(part) for part in ("module", "library", "fabric manager"))
        hold = (
            f"{_reboot(self.node)} (loads the new module), or hold: myriad site --limit {self.node} "
            "(puts the packages back to the locked version and holds them)"
        )
        if module and library and not _same_version(module, library):
            return Check(
                "versions", module, shown, False,
                f"the running module is {module}, the library is {library}: packages were changed since the module was "
                "loaded; reboot, or hold the locked version", hold,
            )  # fmt: skip
        other = module or library
        if manager and other and not _same_version(manager, other):
            return Check(
                "versions", other, shown, False,
                f"the fabric manager is {manager}, the driver is {other}: it starts with its own version only",
                f"myriad site --limit {self.node} (installs nvidia-fabricmanager {other}), or reboot where "
                f"{manager} is the locked one",
            )  # fmt: skip
        return Check("versions", other, shown, True)

    def _answers(self) -> Check:
        fault = self.portrait.fault(GPUS)
        if not fault:
            return Check("answers", "yes", "yes", True)
        advice = advise(fault, self.node)
        return Check(
            "answers", "yes", "no", False, advice.cause,
            advice.next or f"ssh {self.node} 'dmesg | grep -iE \"nvrm|xid\" | tail'; {_reboot(self.node)}",
        )  # fmt: skip

    # GPUs

    def _gpus(self) -> Iterator[Check]:
        if self.portrait.fault(GPUS) and not self.portrait.gpus:
            return
        if self.expected.model:
            yield self._model()
        for finding in health.findings(self.portrait, self.more.baseline):
            yield Check(
                finding.check, finding.expected, finding.found, finding.ok, finding.cause,
                finding.next.replace("NODE", self.node),
            )  # fmt: skip

    def _model(self) -> Check:
        wanted = self.expected.model
        others: dict[str, list[int]] = {}
        for gpu in self.portrait.gpus:
            # A GPU that fell off the bus says nothing of itself; another check names it.
            if (gpu.model or gpu.product) and gpu.model != wanted:
                others.setdefault(gpu.model or f"{gpu.product} (not in the catalog)", []).append(gpu.index)
        if not others:
            return Check("model", wanted, wanted if self.portrait.gpus else None, True)
        shown = "; ".join(f"GPU {_numbers(indices)}: {name}" for name, indices in others.items())
        return Check(
            "model", wanted, shown, False, f"{shown}; the description says {wanted}",
            f"put {self.node} into the pool of its model in the inventory, then myriad site --limit {self.node}",
        )  # fmt: skip

    # Fabric, MIG, topology

    def _fabric(self) -> Iterator[Check]:
        fabric = self.portrait.fabric
        switches = len(self.portrait.pci.switches)
        if fabric.state is None:
            if (switches or self.expected.fabric.cluster_uuid) and not self.portrait.fault(GPUS):
                yield self._no_fabric(switches)
            return
        status = fabric.status or "success"
        if fabric.state == "completed" and status == "success":
            yield Check("fabric", "completed", "completed", True)
        else:
            shown = fabric.state if status == "success" else f"{fabric.state}, {status}"
            yield Check(
                "fabric", "completed", shown, False,
                f"the NVLink fabric is {shown}, although nvidia-smi answers: CUDA would fail with error 802",
                f"ssh {self.node} 'systemctl status nvidia-fabricmanager; journalctl -u nvidia-fabricmanager -n 30; "
                "lsmod | grep -E \"ib_umad|mlx5_ib\"'",
            )  # fmt: skip
        wanted = self.expected.fabric.cluster_uuid
        if wanted and wanted != fabric.cluster_uuid:
            yield Check(
                "nvlink-domain", wanted, fabric.cluster_uuid, False,
                f"the NVLink domain is {fabric.cluster_uuid or 'unknown'}; the description says {wanted}",
                f"correct the NVLink domain or the place of {self.node} in the description",
            )  # fmt: skip

    def _no_fabric(self, switches: int) -> Check:
        """NVSwitches, and no GPU that tells of a fabric: those before Hopper never do, they only need the manager."""
        manager = self.portrait.observations.get(FABRIC_MANAGER)
        version = self.portrait.driver.fabric_manager if self.portrait.driver else None
        if version and self.portrait.gpus and all(gpu.architecture in _SILENT for gpu in self.portrait.gpus):
            return Check("fabric", "fabric manager", "fabric manager", True)
        told = f": {manager.fault}" if manager and manager.fault else ""
        absent = "" if version else ", and no fabric manager is installed"
        return Check(
            "fabric", "completed", None, False,
            f"{switches} NVSwitches are on the bus{absent}; the GPUs report no fabric{told}",
            f"ssh {self.node} systemctl status nvidia-fabricmanager; myriad site --limit {self.node}",
        )  # fmt: skip

    def _host_cuda(self) -> Iterator[Check]:
        """Told only where something is there: most nodes have none. The loader's path is what reaches containers."""
        held = self.portrait.host_cuda
        if not held:
            return
        found = ", ".join(f"{one.path} {one.version}".strip() for one in held)
        bad = [one.path for one in held if one.kind == "loader"]
        ok = not bad or self._accepted("host-cuda")
        yield Check(
            "host-cuda", "none", found, ok,
            "" if ok else f"the host's loader searches {', '.join(bad)}: containers get that libcuda and end with "
            "error 803 or 804",
            "" if ok else f"ssh {self.node} 'dpkg -S {bad[0].partition(': ')[2]}; rm {bad[0].partition(': ')[0]}; "
            "ldconfig'; images bring their own CUDA",
        )  # fmt: skip

    def _mig(self) -> Iterator[Check]:
        described = self.expected.mig
        able = [gpu for gpu in self.portrait.gpus if gpu.mig is not None]
        sliced = bool(described.profiles or described.cards)
        layout = _layout(described.profiles) or ("by card" if described.cards else "whole cards")
        if not able:
            if sliced and self.portrait.gpus:
                yield Check(
                    "mig", layout, None, False, "MIG is described, and no GPU of the node can do it",
                    f"take the MIG layout of {self.node}'s group out of the description",
                )  # fmt: skip
            return
        pending = [gpu.index for gpu in able if gpu.mig and gpu.mig.mode != gpu.mig.pending]
        wrong = [text for gpu in able if gpu.index not in pending and (text := self._card(gpu))]
        if pending:
            yield Check(
                "mig", layout, "pending", False,
                f"the MIG mode of GPU {_numbers(pending)} changes at the next reset or reboot only",
                f"myriad site --limit {self.node} (drains, resets, applies the layout), or {_reboot(self.node)}",
            )  # fmt: skip
        elif wrong:
            yield Check(
                "mig", layout, wrong[0].partition(": ")[2].partition(", described")[0], False,
                f"{'; '.join(wrong[:3])}{f' and {len(wrong) - 3} more' if len(wrong) > 3 else ''}",
                f"myriad site --limit {self.node} (applies the layout to a drained node)",
            )  # fmt: skip
        else:
            yield Check("mig", layout, layout, True)

    def _card(self, gpu: Gpu) -> str:
        """How one card is cut otherwise than described, in words; empty where it is as described."""
        if gpu.mig is None:
            return ""
        described = self.expected.mig
        cards = described.cards.get(str(gpu.index), ())
        wanted = _tally(iter(cards)) if described.cards else dict(described.profiles)
        found = _tally(part.profile for part in gpu.mig.slices)
        mode = "enabled" if wanted else "disabled"
        if (gpu.mig.mode, found) == (mode, wanted):
            return ""
        shown = f"MIG is {gpu.mig.mode}" if gpu.mig.mode != mode else _layout(found) or "no slice"
        return f"GPU {gpu.index}: {shown}, described: {_layout(wanted) or 'whole card'}"

    def _topology(self) -> Iterator[Check]:
        wanted = self.expected.fabric
        if wanted.neighbours:
            # Imported here: nodes without described switches need none of it.
            from myriad.fleet.crosscheck import check_node
            from myriad.fleet.neighbours import Sighting, nvlink_sightings

            sightings = [
                Sighting(self.node, n.chassis or n.chassis_id, "LLDP", n.interface, n.port, n.chassis_id)
                for n in self.portrait.neighbours
            ]
            if self.portrait.fabric.cluster_uuid:
                pair = (self.portrait.fabric.cluster_uuid, str(self.portrait.fabric.clique or 0))
                # A domain that the description does not place says nothing about the place.
                sightings += [s for s in nvlink_sightings(self.node, [pair]) if s.peer in wanted.neighbours]
            finding = check_node(
                self.node, self.expected.location, wanted.neighbours, sightings, required=wanted.required,
                accepted=self._accepted("topology"),
            )  # fmt: skip
            fault = self.portrait.fault(NEIGHBOURS)
            cause = f"{finding.cause} ({fault})" if fault and not finding.ok and not sightings else finding.cause
            yield Check("topology", finding.expected, finding.found, finding.ok, cause, finding.next)
        if wanted.interfaces:
            from myriad.fleet.fabric import interface_faults

            faults = interface_faults(wanted.interfaces, [nic.model_dump() for nic in self.portrait.nics])
            ok = not faults or self._accepted("interfaces")
            names = ", ".join(wanted.interfaces)
            yield Check(
                "interfaces", names, "; ".join(f"{name}: {found}" for name, _, found, _ in faults) or names, ok,
                "" if ok else "; ".join(cause for *_, cause in faults),
                "" if ok else f"ssh {self.node} ip -br link; cable and switch port, or correct them in the description",
            )  # fmt: skip

    def _accepted(self, check: str) -> bool:
        return any(entry.partition(":")[0] == check for entry in self.expected.accepted)

    # Kubelet, policy, container

    def _resources(self) -> Iterator[Check]:
        wanted = resources(self.expected, self.kubelet)
        shown = _amounts(wanted)
        for check, amounts, words in (
            ("capacity", self.kubelet.capacity, "known to the kubelet"),
            ("allocatable", self.kubelet.allocatable, "allocatable"),
        ):
            found = {name: amounts.get(name, 0) for name in wanted}
            if found == wanted:
                yield Check(check, shown, _amounts(found), True)
                continue
            name = next(name for name in wanted if found[name] != wanted[name])
            of = "GPUs" if name == self.expected.resource else name
            plugin = "device-plugin" if _vendor(self.expected) == "10de" else "device plugin"
            yield Check(
                check, shown, _amounts(found), False, f"{found[name]} of {wanted[name]} {of} are {words}",
                f"kubectl get pods -A -o wide --field-selector spec.nodeName={self.node} | grep -i {plugin!r} "
                "(and its log: which device is unhealthy)",
            )  # fmt: skip

    def _policy(self) -> Iterator[Check]:
        fault = self.more.registry_fault
        if self.expected.registry and fault is not None:
            yield Check(
                "registry", self.expected.registry, "no answer" if fault else self.expected.registry, not fault,
                fault and f"the registry cannot be reached from the node: {fault}",
                fault and f"ssh {self.node} curl -sS {registry_url(self.expected.registry)}",
            )  # fmt: skip
        if self.expected.images:
            missing = [name for name in self.expected.images if not _has_image(self.kubelet.images, name)]
            total = len(self.expected.images)
            cut = " (the kubelet lists its 50 largest images only; nodeStatusMaxImages: -1 lists all)"
            cut = cut if self.kubelet.images_cut else ""
            yield Check(
                "images", total, total - len(missing), not missing,
                f"{len(missing)} of {total} images are not warm: {', '.join(missing[:3])}{cut}" if missing else "",
                f"myriad prewarm run --limit {self.node}" if missing else "",
            )  # fmt: skip

    def _devices(self) -> Check:
        wanted, probe = self.expected.gpus, self.probe
        if probe is None:
            return Check(
                "devices", wanted, None, False, "no container has opened the GPUs since the node came up",
                f"it is tried as soon as all before it agree: myriad gate {self.node}",
            )  # fmt: skip
        if probe.skipped:
            return Check("devices", wanted, f"not probed: {probe.skipped}", True)
        if not probe.done:
            return Check(
                "devices", wanted, "probing", False, "a container is opening the GPUs", f"myriad gate {self.node}"
            )
        if probe.ok:
            return Check("devices", wanted, probe.opened, True)
        advice: Advice = advise(probe.fault, self.node, where="container")
        names = self.portrait.device_nodes.names if not self.portrait.fault(DEVICE_NODES) else ()
        return Check(
            "devices", wanted, probe.opened, False, advice.cause,
            advice.next or (
                f"ssh {self.node} 'ls -l /dev/nvidia*; nvidia-ctk cdi list' ({len(names)} device files on the node; "
                "the toolkit or CDI hands them to containers)"
            ),
        )  # fmt: skip


def resources(expected: Expected, kubelet: Kubelet) -> dict[str, int]:
    """What the kubelet has to count, by resource: as described, else whole GPUs, else MIG slices.

    With MIG strategy `mixed` each profile is a resource of its own, with `single` all slices count as GPUs; a
    description that does not say which is taken by what the kubelet knows.
    """
    if expected.resources:
        return dict(expected.resources)
    profiles = expected.mig.profiles
    if not profiles:
        return {expected.resource: expected.gpus}
    domain = expected.resource.partition("/")[0]
    mixed = {f"{domain}/mig-{name.replace('+', '.')}": count * expected.gpus for name, count in profiles.items()}
    if len(profiles) == 1 and expected.resource in kubelet.capacity and not any(n in kubelet.capacity for n in mixed):
        return {expected.resource: sum(mixed.values())}
    return mixed


def agent_log(node: str) -> str:
    """The command that shows what a node's agent says."""
    return (
        "kubectl logs -n myriad-system $(kubectl get pods -n myriad-system -o name -l "
        f"app.kubernetes.io/name=myriad-agent --field-selector spec.nodeName={node})"
    )


def registry_url(registry: str) -> str:
    """Where a registry answers that it is one."""
    base = registry if "://" in registry else f"http://{registry}"
    return f"{base.rstrip('/')}/v2/"


def _vendor(expected: Expected) -> str:
    makers = {"huawei.com": HUAWEI, "amd.com": AMD}
    return makers.get(expected.resource.partition("/")[0], NVIDIA)


def _reboot(node: str) -> str:
    return f"kubectl drain {node} --ignore-daemonsets --delete-emptydir-data && ssh {node} reboot"


def _same_version(one: str, other: str) -> bool:
    """Whether two versions agree as far as both are told: NVML names its library by two of three numbers."""
    parts = [version.partition("-")[0].split(".") for version in (one, other)]
    shared = min(len(part) for part in parts)
    return parts[0][:shared] == parts[1][:shared]


def _tally(names: Iterator[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return found


def _layout(profiles: Mapping[str, int]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in sorted(profiles.items()))


def _numbers(indices: Sequence[int]) -> str:
    return ", ".join(str(index) for index in indices)


def _amounts(amounts: Mapping[str, int]) -> Value:
    if len(amounts) == 1:
        return next(iter(amounts.values()))
    return ", ".join(f"{name.rpartition('/')[2]} {count}" for name, count in sorted(amounts.items()))


def _has_image(names: Sequence[str], wanted: str) -> bool:
    """Whether an image is listed: by digest where the wanted one has a digest, else by name and tag."""
    _, at, digest = wanted.rpartition("@")
    if at:
        return any(name.endswith(f"@{digest}") for name in names)
    if wanted.startswith("sha256:"):
        return any(name.endswith(f"@{wanted}") for name in names)
    return any(name == wanted or name.endswith(f"/{wanted}") for name in names)
