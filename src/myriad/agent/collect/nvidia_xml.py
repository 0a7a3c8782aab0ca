"""Reads what `nvidia-smi -q -x`, `-L`, `topo -m` and `--version` print. Pure: text in, facts out.

The XML changes with the driver: throttle reasons are `clocks_throttle_reasons` up to driver 530 and
`clocks_event_reasons` after, temperature limits became distances (`tlimit`) with Hopper, memory errors are
`device_memory` before Ampere and `sram`/`dram` since. A field that a card does not have says N/A, [N/A],
[Not Supported] or "Requested functionality has been deprecated". All of that is "not known" here, and every
generation's names are read.
"""

from __future__ import annotations

import contextlib
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from myriad.agent.collect.base import Gauge, at_least, whole
from myriad.fleet.portrait import Band, Ecc, Gpu, Link, Mig, MigMode, MigSlice, RowRemap

LOST = re.compile(
    r"Unable to determine the device handle for GPU\s?(?P<address>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d): "
    r"(?P<why>[^\n]*)"
)
"""How nvidia-smi names a GPU that it cannot open; some versions leave out the blank before the address."""

# Throttle reasons that mean something is wrong with cooling, power or board. Idle, application clocks, software power
# cap and sync boost are ordinary. Names: nvidia-smi(1), "Clocks Event Reasons".
SERIOUS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
_BROKEN = ("gpu is lost", "unknown error", "err!", "gpu requires reset")
# These two speak of the whole GPU in whichever field they stand; the others may be one sensor's.
_WHOLE = ("gpu is lost", "gpu requires reset")
# Without these a GPU is no use to anybody.
_VITAL = ("product_name", "uuid", "fb_memory_usage/total")
_UNKNOWN = (
    "",
    "n/a",
    "none",
    "not supported",
    "insufficient permissions",
    "requested functionality has been deprecated",
)
NO_CLUSTER = "00000000-0000-0000-0000-000000000000"
_GPU_BLOCK = re.compile(r"<gpu id=\"[^\"]*\">.*?</gpu>", re.DOTALL)
_RECOVERIES = ("reset", "gpu reset", "reboot", "node reboot", "drain p2p")
"""Recovery actions of newer drivers without which the GPU takes no new work; with "Drain and Reset" it still does.
https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html"""
_FORBIDDEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_STRAY = re.compile(r"&(?!#?\w+;)")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class FabricState:
    """One GPU's own view of the NVLink fabric; None where it has none."""

    state: str | None = None
    status: str | None = None
    cluster_uuid: str | None = None
    clique: int | None = None


@dataclass(slots=True)
class Log:
    """One `nvidia-smi -q -x`.

    Attributes:
        driver: version of the loaded driver; empty where it is not said.
        cuda: highest CUDA version.
        gpus: those that answer, and those that are lost (with `fault`).
        fabrics: by GPU index.
        gauges: numbers that move.
        fault: why the document is not whole, as a sentence.
    """

    driver: str = ""
    cuda: str = ""
    gpus: list[Gpu] = field(default_factory=list)
    fabrics: dict[int, FabricState] = field(default_factory=dict)
    gauges: list[Gauge] = field(default_factory=list)
    fault: str = ""


def read(*texts: str) -> Log | None:
    """The documents in `texts`, one for all GPUs or one for each; None where none of them holds one.

    A text may have sentences around its document or end in the middle.
    """
    log = Log()
    elements: list[ET.Element] = []
    is_one = False
    for text in texts:
        start, end = text.find("<nvidia_smi_log"), text.find("</nvidia_smi_log>")
        if start < 0:
            continue
        is_one = True
        try:
            root = _parsed(text[start : end + len("</nvidia_smi_log>")]) if end > 0 else None
        except ET.ParseError:
            root = None
        if root is None:
            log.fault = (
                "nvidia-smi broke off in the middle of its answer"
                if end < 0
                else "nvidia-smi's answer is no well-formed XML"
            )
            elements += _readable(_GPU_BLOCK.findall(text))
        else:
            elements += root.findall("gpu")
        for name in ("driver_version", "cuda_version"):
            said = re.search(rf"<{name}>([^<]+)</{name}>", text)
            setattr(log, name.partition("_")[0], said[1].strip() if said else "")
    if not is_one:
        return None
    _fill(log, elements, lost("\n".join(texts)))
    return log


def lost(text: str) -> dict[str, str]:
    """Addresses of the GPUs that nvidia-smi says it cannot open, with its reason."""
    return {address(match["address"]): " ".join(match["why"].split()).rstrip(".") for match in LOST.finditer(text)}


def _parsed(text: str) -> ET.Element:
    # The node's own root-owned program wrote this; entities are refused all the same.
    if "<!ENTITY" in text:
        raise ET.ParseError("entities")
    # Names come from firmware: what XML does not allow in a text is left out or meant as it stands.
    return ET.fromstring(_STRAY.sub("&amp;", _FORBIDDEN.sub("", text)))  # noqa: S314


def _readable(blocks: Iterable[str]) -> Iterator[ET.Element]:
    for block in blocks:
        with contextlib.suppress(ET.ParseError):
            yield _parsed(block)


def _why_useless(element: ET.Element) -> str:
    """Why a GPU that is listed cannot be used, in the tool's words; empty where nothing says so."""
    for child in element.iter():
        said = " ".join((child.text or "").strip(" []\n\t").split())
        if said.rstrip(".").lower() in _WHOLE:
            return said
    vital = [(path.rpartition("/")[0] or path, _raw(element, path)) for path in _VITAL]
    broken = next((f"{name}: {said}" for name, said in vital if _is_broken(said)), "")
    if broken:
        return broken
    # A row remap asks for its reset itself, and the GPU works until then.
    action, remap = _text(element, "gpu_recovery_action"), _row_remap(element)
    if action.lower() in _RECOVERIES and not (remap and (remap.pending or remap.failure)):
        return f"the driver asks for a recovery: {action}"
    return "" if _text(element, "product_name") or _text(element, "uuid") else "it tells neither its name nor its UUID"


def _fill(log: Log, elements: Iterable[ET.Element], gone: Mapping[str, str]) -> None:
    found: dict[str, tuple[ET.Element | None, str]] = {at: (None, why) for at, why in gone.items()}
    for element in elements:
        at = address(element.get("id", "") or _text(element, "pci/pci_bus_id"))
        found[at] = (element, gone.get(at) or _why_useless(element))
    # The driver counts GPUs in the order of the bus; one that is lost keeps its number (nvidia-smi(1), -i).
    for index, at in enumerate(sorted(found, key=_order)):
        gpu, why = found[at]
        if gpu is None or why:
            log.gpus.append(
                Gpu(
                    observed=f"gpus/{index}",
                    index=index,
                    uuid="" if gpu is None or _is_broken(_raw(gpu, "uuid")) else _text(gpu, "uuid"),
                    vendor="nvidia",
                    pci_address=at,
                    driver=log.driver,
                    fault=why or "it does not answer",
                )
            )
            continue
        log.gpus.append(_gpu(gpu, index, at, log.driver))
        log.fabrics[index] = fabric_state(gpu)
        log.gauges += _gauges(gpu, str(index))


def _gpu(element: ET.Element, index: int, at: str, driver: str) -> Gpu:
    device = _text(element, "pci/pci_device_id")
    return Gpu(
        observed=f"gpus/{index}",
        index=index,
        uuid=_text(element, "uuid"),
        vendor="nvidia",
        product=_text(element, "product_name"),
        architecture=_text(element, "product_architecture").lower().replace(" ", "-"),
        memory_mib=_whole(element, "fb_memory_usage/total"),
        link=Link(
            pcie_generation=_whole(element, "pci/pci_gpu_link_info/pcie_gen/max_link_gen"),
            pcie_width=_whole(element, "pci/pci_gpu_link_info/link_widths/current_link_width"),
            pcie_width_max=_whole(element, "pci/pci_gpu_link_info/link_widths/max_link_width"),
        ),
        pci_address=at,
        # 233010DE: device, then vendor.
        pci_device=f"{device[4:]}:{device[:4]}".lower() if re.fullmatch(r"[0-9A-Fa-f]{8}", device) else "",
        mig=_mig(element),
        vbios=_text(element, "vbios_version"),
        ecc=_ecc(element),
        row_remap=_row_remap(element),
        throttle=_throttle(element),
        temperature=_band(element),
        driver=driver,
    )


def _mig(element: ET.Element) -> Mig | None:
    mode, pending = _mode(element, "mig_mode/current_mig"), _mode(element, "mig_mode/pending_mig")
    if mode is None:
        return None
    slices = tuple(
        MigSlice(
            profile="",
            memory_mib=_whole(device, "fb_memory_usage/total"),
            gpu_instance=_whole(device, "gpu_instance_id"),
            compute_instance=_whole(device, "compute_instance_id"),
        )
        for device in element.findall("mig_devices/mig_device")
    )
    return Mig(mode=mode, pending=pending or mode, slices=slices)


def _mode(element: ET.Element, path: str) -> MigMode | None:
    text = _text(element, path).lower()
    return "enabled" if text == "enabled" else "disabled" if text == "disabled" else None


def _ecc(element: ET.Element) -> Ecc | None:
    current, pending = _mode(element, "ecc_mode/current_ecc"), _mode(element, "ecc_mode/pending_ecc")
    if current is None:
        return None
    return Ecc(
        enabled=current == "enabled",
        pending=None if pending is None else pending == "enabled",
        uncorrected=_errors(element, "aggregate", corrected=False),
        volatile_uncorrected=_errors(element, "volatile", corrected=False),
        corrected_at_least=_band_of(_errors(element, "aggregate", corrected=True)),
    )


def _band_of(count: int | None) -> int | None:
    return None if count is None else at_least(count)


def _errors(element: ET.Element, span: str, *, corrected: bool) -> int | None:
    section = element.find(f"ecc_errors/{span}")
    if section is None:
        return None
    # Before Ampere: <double_bit><total>; since: <sram_uncorrectable(_parity|_secded)> and <dram_uncorrectable>.
    old = _whole(section, ("single_bit" if corrected else "double_bit") + "/total")
    if old is not None:
        return old
    wanted = re.compile(r"^(sram|dram)_correctable" if corrected else r"^(sram|dram)_uncorrectable")
    counts = [whole(_clean(child.text)) for child in section if wanted.match(child.tag)]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _row_remap(element: ET.Element) -> RowRemap | None:
    pending = _text(element, "remapped_rows/remapped_row_pending")
    failure = _text(element, "remapped_rows/remapped_row_failure")
    if pending or failure:
        return RowRemap(
            pending=pending.lower() == "yes",
            failure=failure.lower() == "yes",
            corrected=_whole(element, "remapped_rows/remapped_row_corr") or 0,
            uncorrected=_whole(element, "remapped_rows/remapped_row_unc") or 0,
        )
    # Before Ampere whole pages were retired instead of rows.
    retiring = _text(element, "retired_pages/pending_retirement")
    if not retiring:
        return None
    return RowRemap(
        pending=retiring.lower() == "yes",
        failure=False,
        corrected=_whole(element, "retired_pages/multiple_single_bit_retirement/retired_count") or 0,
        uncorrected=_whole(element, "retired_pages/double_bit_retirement/retired_count") or 0,
    )


def _throttle(element: ET.Element) -> tuple[str, ...] | None:
    for new, old in (
        ("clocks_event_reasons", "clocks_event_reason"),
        ("clocks_throttle_reasons", "clocks_throttle_reason"),
    ):
        section = element.find(new)
        if section is not None:
            return tuple(
                reason.replace("_", "-") for reason in SERIOUS if _raw(section, f"{old}_{reason}").lower() == "active"
            )
    return None


def _band(element: ET.Element) -> Band | None:
    """Hopper and later say how far away the limit is, and at which distances things happen; before, degrees."""
    distance = _degrees(element, "gpu_temp_tlimit")
    if distance is not None:
        slowdown, most = (
            _degrees(element, "gpu_temp_slow_tlimit_threshold"),
            _degrees(element, "gpu_temp_max_gpu_tlimit_threshold"),
        )
        if slowdown is not None and distance <= slowdown:
            return "slowdown"
        return "hot" if most is not None and distance <= most else "normal"
    now = _degrees(element, "gpu_temp")
    if now is None:
        return None
    slowdown, most = _degrees(element, "gpu_temp_slow_threshold"), _degrees(element, "gpu_temp_max_gpu_threshold")
    if slowdown is not None and now >= slowdown:
        return "slowdown"
    return "hot" if most is not None and now >= most else "normal"


def _degrees(element: ET.Element, name: str) -> float | None:
    return _number(_text(element, f"temperature/{name}"))


def fabric_state(element: ET.Element) -> FabricState:
    """State, status, domain and clique of one GPU, as the portrait spells them."""
    state, status = _text(element, "fabric/state"), _text(element, "fabric/status")
    uuid = _text(element, "fabric/clusterUuid").lower()
    return FabricState(
        state=state.lower().replace(" ", "-") or None,
        status=status.lower().replace(" ", "-") or None,
        # A fabric that ends at the chassis has no domain, or one of zeros.
        cluster_uuid=uuid if uuid and uuid != NO_CLUSTER else None,
        clique=whole(_text(element, "fabric/cliqueId")) if uuid and uuid != NO_CLUSTER else None,
    )


# Path in the document, name of the gauge.
_GAUGES = (
    ("temperature/gpu_temp", "temperature_celsius"),
    ("temperature/memory_temp", "memory_temperature_celsius"),
    ("utilization/gpu_util", "utilization_percent"),
    ("utilization/memory_util", "memory_utilization_percent"),
    ("fb_memory_usage/used", "memory_used_mib"),
    ("clocks/sm_clock", "sm_clock_mhz"),
    ("pci/pci_gpu_link_info/pcie_gen/current_link_gen", "pcie_generation"),
    ("pci/replay_counter", "pcie_replays"),
)


def _gauges(element: ET.Element, index: str) -> list[Gauge]:
    found = []
    for path, name in _GAUGES:
        value = _number(_text(element, path))
        if value is not None:
            found.append(Gauge(name, value, index))
    for path in ("gpu_power_readings/average_power_draw", "gpu_power_readings/power_draw", "power_readings/power_draw"):
        power = _number(_text(element, path))
        if power is not None:
            found.append(Gauge("power_watts", power, index))
            break
    corrected = _errors(element, "aggregate", corrected=True)
    if corrected is not None:
        found.append(Gauge("ecc_corrected", float(corrected), index))
    counters = element.find("clocks_event_reasons_counters")
    for child in () if counters is None else counters:
        value = _number(_clean(child.text))
        if value is not None:
            reason = child.tag.removeprefix("clocks_event_reasons_counters_").replace("_", "-")
            found.append(Gauge("throttled_seconds", value / 1e6, index, reason))
    return found


# Other texts

_LIST_GPU = re.compile(r"^GPU (?P<index>\d+): .*\(UUID: (?P<uuid>GPU-[0-9A-Za-z-]+)\)")
_LIST_MIG = re.compile(r"^\s+MIG (?P<profile>\S+)\s+Device\s+(?P<index>\d+): \(UUID: (?P<uuid>MIG-[^)\s]+)\)")


def mig_devices(text: str) -> dict[str, list[tuple[str, str]]]:
    """Profile and UUID of each MIG device by its GPU's UUID, in the driver's order, from `nvidia-smi -L`."""
    found: dict[str, list[tuple[str, str]]] = {}
    current = ""
    for line in text.splitlines():
        if (gpu := _LIST_GPU.match(line)) is not None:
            current = gpu["uuid"]
        elif (device := _LIST_MIG.match(line)) is not None and current:
            found.setdefault(current, []).append((device["profile"], device["uuid"]))
    return found


def name_slices(gpu: Gpu, devices: Sequence[tuple[str, str]]) -> Gpu:
    """`gpu` with the profiles and UUIDs that `mig_devices` gave; unchanged where the two lists do not fit."""
    if gpu.mig is None or len(devices) != len(gpu.mig.slices):
        return gpu
    slices = tuple(
        piece.model_copy(update={"profile": profile, "uuid": uuid})
        for piece, (profile, uuid) in zip(gpu.mig.slices, devices, strict=True)
    )
    return gpu.model_copy(update={"mig": gpu.mig.model_copy(update={"slices": slices})})


def links(text: str) -> dict[int, dict[int, int]]:
    """NVLinks between GPUs by `nvidia-smi topo -m`: index to peer to number of links; 0 where they have none.

    The matrix says NV18 for eighteen links, SYS, NODE, PHB, PXB, PIX for ways over PCIe (nvidia-smi-topo(1)).
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    columns: list[str] = []
    found: dict[int, dict[int, int]] = {}
    for line in plain.splitlines():
        cells = line.split()
        if not cells:
            continue
        if not columns and cells[0] == "GPU0" and (len(cells) == 1 or cells[1] != "X"):
            columns = cells
        elif columns and re.fullmatch(r"GPU\d+", cells[0]):
            own = int(cells[0][3:])
            peers = found.setdefault(own, {})
            for column, cell in zip(columns, cells[1:], strict=False):
                if re.fullmatch(r"GPU\d+", column) and cell != "X":
                    count = re.fullmatch(r"NV(\d+)", cell)
                    peers[int(column[3:])] = int(count[1]) if count else 0
    return found


_VERSIONS = {
    "tool": re.compile(r"^\s*NVIDIA-SMI version\s*:\s*([\d.]+)", re.MULTILINE),
    "library": re.compile(r"^\s*NVML (?:library )?version\s*:\s*([\d.]+)", re.MULTILINE),
    "driver": re.compile(r"^\s*DRIVER version\s*:\s*([\d.]+)", re.MULTILINE),
}


def versions(text: str) -> dict[str, str]:
    """Versions in `nvidia-smi --version` and in the sentence of a mismatch; NVML's has two parts (`535.161`)."""
    return {name: match[1] for name, pattern in _VERSIONS.items() if (match := pattern.search(text))}


def address(text: str) -> str:
    """A PCI address as sysfs writes it: `00000000:1B:00.0` becomes `0000:1b:00.0`."""
    domain, _, rest = text.strip().lower().partition(":")
    # Four digits, and more only where the domain needs them (the kernel's %04x: a VMD's is 10000).
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}" if rest else text.lower()


def _order(at: str) -> tuple[int, str]:
    domain = at.partition(":")[0]
    return len(domain), at


def _is_broken(text: str) -> bool:
    return text.strip("[] .").lower() in _BROKEN


def _clean(text: str | None) -> str:
    plain = (text or "").strip()
    return "" if plain.strip("[]").lower() in _UNKNOWN or _is_broken(plain) else plain


def _raw(element: ET.Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _text(element: ET.Element, path: str) -> str:
    return _clean(element.findtext(path))


def _number(text: str) -> float | None:
    match = _NUMBER.match(text)
    return float(match[0]) if match else None


def _whole(element: ET.Element, path: str) -> int | None:
    number = _number(_text(element, path))
    return None if number is None else int(number)
