"""nvidia-smi -q -x: the whole document in the structure of nvsmi_device_v13.dtd (drivers from 575; v12 before)."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from myriad.lab.double import mig
from myriad.lab.double.document import driver_gpus, fabric_state, faulty, value_of, versions
from myriad.lab.double.smi_text import Failure, lost

Document = dict[str, Any]
#: An element: its name, and its text or the elements in it.
Element = tuple[str, Any]

_NA = "N/A"
_OLD = "Requested functionality has been deprecated"


def xml(document: Document, gpus: list[Document]) -> str:
    """The answer to -q -x.

    Raises:
        Failure: a GPU is lost; the real program prints no document then.
    """
    stamp = datetime.now(tz=timezone.utc).strftime("%a %b %d %H:%M:%S %Y")  # noqa: UP017 (Python 3.9 nodes)
    parts = versions(document)
    new = int(str(parts["module"]).split(".")[0]) >= 575
    lines = [
        '<?xml version="1.0" ?>',
        f'<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v{13 if new else 12}.dtd">',
        "<nvidia_smi_log>",
    ]
    head = [
        ("timestamp", stamp),
        ("driver_version", parts["module"]),
        ("cuda_version", document["cuda_version"]),
        ("attached_gpus", len(driver_gpus(document))),
    ]
    _write(lines, head, 1)
    for gpu in gpus:
        text = lost(document, gpu)
        if text:
            raise Failure(text, 15)
        lines.append(f'\t<gpu id="{gpu["bus_id"]}">')
        _write(lines, [*_identity(document, gpu, new=new), *_pci(gpu), *_state(document, gpu, new=new)], 2)
        lines.append("\t</gpu>")
    return "\n".join([*lines, "</nvidia_smi_log>", ""])


def _write(lines: list[str], elements: list[Element], depth: int) -> None:
    pad = "\t" * depth
    for name, content in elements:
        if isinstance(content, list):
            lines.append(f"{pad}<{name}>")
            _write(lines, content, depth + 1)
            lines.append(f"{pad}</{name}>")
        elif content == "None" and name == "mig_devices":
            lines += [f"{pad}<{name}>", f"{pad}\tNone", f"{pad}</{name}>"]
        else:
            # Not xml.sax.saxutils, which brings half of the library along: this program is called every few seconds.
            text = str(content).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
            lines.append(f"{pad}<{name}>{text}</{name}>")


def _same(names: str, value: Any) -> list[Element]:
    return [(name, value) for name in names.split()]


def _memory(total: int, *, reserved: int | None = None) -> list[Element]:
    extra = [] if reserved is None else [("reserved", f"{reserved} MiB")]
    free = total - (reserved or 0)
    return [("total", f"{total} MiB"), *extra, ("used", "0 MiB"), ("free", f"{free} MiB")]


def _mig_devices(document: Document, gpu: Document) -> Any:
    devices = mig.devices(document, gpu)
    if not devices:
        return "None"
    found: list[Element] = []
    for device in devices:
        profile = device["profile"]
        shared = [
            ("multiprocessor_count", profile["sms"]),
            ("copy_engine_count", profile["slices"]),
            ("encoder_count", 0),
            ("decoder_count", profile.get("dec", 0)),
            ("ofa_count", profile.get("ofa", 0)),
            ("jpg_count", profile.get("jpeg", 0)),
        ]
        found.append(
            (
                "mig_device",
                [
                    ("index", device["index"]),
                    ("gpu_instance_id", device["gi"]),
                    ("compute_instance_id", device["ci"]),
                    ("device_attributes", [("shared", shared)]),
                    ("ecc_error_count", [("volatile_count", [("sram_uncorrectable", 0)])]),
                    ("fb_memory_usage", _memory(profile["memory_mib"], reserved=0)),
                    ("bar1_memory_usage", _memory(32767)),
                ],
            )
        )
    return found


def _identity(document: Document, gpu: Document, *, new: bool) -> list[Element]:
    current, pending = mig.mode(document, gpu["index"])
    version = versions(document)["module"]
    device = gpu["pci_device_id"][2:].upper()
    module_id = gpu["index"] + 1
    elements: list[Element] = [
        ("product_name", gpu["name"]),
        ("product_brand", gpu.get("brand", "NVIDIA")),
        ("product_architecture", gpu.get("architecture", "Hopper")),
        ("display_mode", _OLD if new else "Enabled"),
        *([("display_attached", "No")] if new else []),
        ("display_active", "Disabled"),
        ("persistence_mode", "Enabled"),
        ("addressing_mode", "HMM" if new else "None"),
        ("mig_mode", [("current_mig", current), ("pending_mig", pending)]),
        ("mig_devices", _mig_devices(document, gpu)),
        ("accounting_mode", "Disabled"),
        ("accounting_mode_buffer_size", 4000),
        ("driver_model", _same("current_dm pending_dm", _NA)),
        ("serial", gpu["serial"]),
        ("uuid", gpu["uuid"]),
        *([("pdi", f"0x{int(gpu['serial']):016x}")] if new else []),
        ("minor_number", gpu["index"]),
        ("vbios_version", gpu.get("vbios", "96.00.99.00.01")),
        ("multigpu_board", "No"),
        ("board_id", f"0x{gpu['bus_id'][9:11].lower()}00"),
        ("board_part_number", _NA),
        ("gpu_part_number", f"{device}-885-A1"),
        ("gpu_fru_part_number", _NA),
    ]
    if new:
        platform = [
            ("chassis_serial_number", _NA),
            ("slot_number", _NA),
            ("tray_index", _NA),
            ("host_id", 1),
            ("peer_type", "Switch Connected" if document.get("nvswitches") else "Direct Connected"),
            ("module_id", module_id),
            ("gpu_fabric_guid", f"0x{int(gpu['serial']) % 2**64:016x}"),
        ]
        elements.append(("platformInfo", platform))
    else:
        elements.append(("gpu_module_id", module_id))
    elements += [
        (
            "inforom_version",
            [("img_version", "G520.0200.00.05"), ("oem_object", "2.1"), ("ecc_object", "7.16"), ("pwr_object", _NA)],
        ),
        *([("inforom_bbx_flush", _same("latest_timestamp latest_duration", _NA))] if new else []),
        ("gpu_operation_mode", _same("current_gom pending_gom", _NA)),
        *([("c2c_mode", "Disabled")] if new else []),
        (
            "gpu_virtualization_mode",
            [("virtualization_mode", "None"), ("host_vgpu_mode", _NA), ("vgpu_heterogeneous_mode", _NA)],
        ),
    ]
    pending_reset = value_of(document, "row_remap", gpu["index"]) == "pending"
    if new:
        elements.append(("gpu_recovery_action", "GPU Reset" if pending_reset else "None"))
    else:
        required = "Yes" if pending_reset else "No"
        elements.append(("gpu_reset_status", [("reset_required", required), ("drain_and_reset_recommended", "No")]))
    return [*elements, ("gsp_firmware_version", version), ("ibmnpu", [("relaxed_ordering_mode", _NA)])]


def _pci(gpu: Document) -> list[Element]:
    generation, width = gpu.get("pcie_gen", 5), gpu.get("pcie_width", 16)
    bus = gpu["bus_id"]
    link: list[Element] = [
        (
            "pcie_gen",
            _same(
                "max_link_gen current_link_gen device_current_link_gen max_device_link_gen max_host_link_gen",
                generation,
            ),
        ),
        ("link_widths", [("max_link_width", "16x"), ("current_link_width", f"{width}x")]),
    ]
    pci: list[Element] = [
        ("pci_bus", bus[9:11]),
        ("pci_device", bus[12:14]),
        ("pci_domain", bus[4:8]),
        ("pci_base_class", 3),
        ("pci_sub_class", 2),
        ("pci_device_id", f"{gpu['pci_device_id'][2:].upper()}10DE"),
        ("pci_bus_id", bus),
        ("pci_sub_system_id", f"{str(gpu.get('pci_subsystem_id', '0x16c1'))[2:].upper()}10DE"),
        ("pci_gpu_link_info", link),
        ("pci_bridge_chip", _same("bridge_chip_type bridge_chip_fw", _NA)),
        ("replay_counter", 0),
        ("replay_rollover_counter", 0),
        ("tx_util", "492 KB/s"),
        ("rx_util", "476 KB/s"),
        ("atomic_caps_outbound", _NA),
        ("atomic_caps_inbound", "FETCHADD_32 FETCHADD_64 SWAP_32 SWAP_64 CAS_32 CAS_64"),
    ]
    return [("pci", pci)]


_REASONS = (
    "gpu_idle applications_clocks_setting sw_power_cap hw_slowdown hw_thermal_slowdown hw_power_brake_slowdown "
    "sync_boost sw_thermal_slowdown display_clocks_setting"
)


def _state(document: Document, gpu: Document, *, new: bool) -> list[Element]:
    reasons = [(f"clocks_event_reason_{name}", "Not Active") for name in _REASONS.split()]
    reasons[0] = ("clocks_event_reason_gpu_idle", "Active")
    memory = int(gpu["memory_mib"])
    in_mig = mig.is_enabled(document, gpu["index"])
    power = f"{float(gpu.get('power_w', 700)):.2f} W"
    limits = [(name, power) for name in ["current_power_limit", "requested_power_limit", "default_power_limit"]]
    draw = (
        [("average_power_draw", "70.10 W"), ("instant_power_draw", "70.08 W")] if new else [("power_draw", "70.10 W")]
    )
    elements: list[Element] = [
        ("fan_speed", _NA),
        ("performance_state", "P0"),
        ("clocks_event_reasons", reasons),
        ("fb_memory_usage", _memory(memory, reserved=memory // 160)),
        ("bar1_memory_usage", _memory(131072)),
        ("cc_protected_memory_usage", _memory(0)),
        ("compute_mode", "Default"),
        (
            "utilization",
            _same("gpu_util memory_util encoder_util decoder_util jpeg_util ofa_util", _NA if in_mig else "0 %"),
        ),
        ("encoder_stats", _same("session_count average_fps average_latency", 0)),
        ("fbc_stats", _same("session_count average_fps average_latency", 0)),
        ("ecc_mode", _same("current_ecc pending_ecc", "Enabled")),
        ("ecc_errors", _ecc(document, gpu, new=new)),
        ("retired_pages", _retired()),
        ("remapped_rows", _remapped(document, gpu)),
        ("temperature", _temperature(new=new)),
        ("supported_gpu_target_temp", _same("gpu_target_temp_min gpu_target_temp_max", _NA)),
        (
            "gpu_power_readings",
            [
                ("power_state", _OLD if new else "P0"),
                *draw,
                *limits,
                ("min_power_limit", "200.00 W"),
                ("max_power_limit", power),
            ],
        ),
        ("clocks", _clocks()),
        ("max_clocks", _clocks()),
        ("clock_policy", _same("auto_boost auto_boost_default", _NA)),
        ("fabric", _fabric(document)),
        ("supported_clocks", _NA),
        ("processes", ""),
        ("accounted_processes", ""),
    ]
    return elements


def _clocks() -> list[Element]:
    return [
        ("graphics_clock", "1980 MHz"),
        ("sm_clock", "1980 MHz"),
        ("mem_clock", "2619 MHz"),
        ("video_clock", "1545 MHz"),
    ]


def _ecc(document: Document, gpu: Document, *, new: bool) -> list[Element]:
    errors = 2 if gpu["index"] in faulty(document, "ecc") else 0
    sram = (
        "sram_correctable sram_uncorrectable_parity sram_uncorrectable_secded"
        if new
        else "sram_correctable sram_uncorrectable"
    )
    counts: list[Element] = [*_same(sram, 0), ("dram_correctable", 0), ("dram_uncorrectable", errors)]
    if not new:
        return [("volatile", counts), ("aggregate", counts)]
    sources = _same("sram_l2 sram_sm sram_microcontroller sram_pcie sram_other", 0)
    return [
        ("volatile", counts),
        ("aggregate", [*counts, ("sram_threshold_exceeded", "No")]),
        ("aggregate_uncorrectable_sram_sources", sources),
        ("channel_repair_pending", "No"),
        ("tpc_repair_pending", "No"),
    ]


def _retired() -> list[Element]:
    none = _same("retired_count retired_pagelist", _NA)
    return [
        ("multiple_single_bit_retirement", none),
        ("double_bit_retirement", none),
        ("pending_blacklist", _NA),
        ("pending_retirement", _NA),
    ]


def _remapped(document: Document, gpu: Document) -> list[Element]:
    remap = value_of(document, "row_remap", gpu["index"])
    banks = "max high partial low none"
    full = {
        "max": "2560 bank(s)" if remap is None else "2559 bank(s)",
        "partial": "0 bank(s)" if remap is None else "1 bank(s)",
    }
    histogram = [(f"row_remapper_histogram_{name}", full.get(name, "0 bank(s)")) for name in banks.split()]
    return [
        ("remapped_row_corr", 0),
        ("remapped_row_unc", 0 if remap is None else 1),
        ("remapped_row_pending", "Yes" if remap == "pending" else "No"),
        ("remapped_row_failure", "Yes" if remap == "failure" else "No"),
        ("row_remapper_histogram", histogram),
    ]


def _temperature(*, new: bool) -> list[Element]:
    if new:
        return [
            ("gpu_temp", "31 C"),
            ("gpu_temp_tlimit", "55 C"),
            ("gpu_temp_max_tlimit_threshold", "-8 C"),
            ("gpu_temp_slow_tlimit_threshold", "-2 C"),
            ("gpu_temp_max_gpu_tlimit_threshold", "0 C"),
            ("gpu_target_temperature", _NA),
            ("memory_temp", "42 C"),
            ("gpu_temp_max_mem_tlimit_threshold", "0 C"),
        ]
    return [
        ("gpu_temp", "31 C"),
        ("gpu_temp_tlimit", _NA),
        ("gpu_temp_max_threshold", "92 C"),
        ("gpu_temp_slow_threshold", "89 C"),
        ("gpu_temp_max_gpu_threshold", "85 C"),
        ("gpu_target_temperature", _NA),
        ("memory_temp", "42 C"),
        ("gpu_temp_max_mem_threshold", "95 C"),
    ]


def _fabric(document: Document) -> list[Element]:
    state, status = fabric_state(document)
    fabric = document.get("fabric", {})
    known = state == "Completed" and status == "Success"
    healthy = "Healthy" if known else _NA
    health = [
        ("summary", healthy),
        ("bandwidth", "Full" if known else _NA),
        *_same("route_recovery_in_progress route_unhealthy access_timeout_recovery", "False" if known else _NA),
        ("incorrect_configuration", "None" if known else _NA),
    ]
    return [
        ("state", state),
        ("status", status),
        ("cliqueId", fabric.get("clique_id", 0) if known else _NA),
        ("clusterUuid", fabric.get("cluster_uuid", _NA) if known else _NA),
        ("health", health),
    ]
