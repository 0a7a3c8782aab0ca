"""nvidia-smi's texts for people: -L, --query-gpu, --version and the table."""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from typing import Any

from myriad.lab.double import mig
from myriad.lab.double.document import (
    fabric_state,
    faulty,
    lost_gpus,
    module_loaded,
    pci_address,
    value_of,
    versions,
)

Document = dict[str, Any]


class Failure(Exception):
    """Ends the program with a text and an exit code; `document` is what had changed by then."""

    def __init__(self, text: str, code: int, document: Document | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.code = code
        self.document = document


def lost(document: Document, gpu: Document) -> str | None:
    """The text for a GPU that fell off the bus, or None."""
    if gpu["index"] not in lost_gpus(document):
        return None
    short = pci_address(gpu).upper()
    return (
        f"Unable to determine the device handle for GPU{short}: GPU is lost.  Reboot the system to recover this GPU\n"
    )


def version(document: Document) -> str:
    """The answer to --version."""
    parts = versions(document)
    talks = module_loaded(document) and parts["module"] == parts["library"]
    short = ".".join(str(parts["library"]).split(".")[:2])
    return (
        f"NVIDIA-SMI version  : {parts['library']}\nNVML version        : {short}\n"
        f"DRIVER version      : {parts['module'] if talks else 'N/A'}\n"
        f"CUDA Version        : {document['cuda_version'] if talks else 'N/A'}\n"
    )


def field(document: Document, gpu: Document, count: int, name: str) -> tuple[Any, str]:
    """(value, unit) of one --query-gpu field; raises for a field this double does not have."""
    errors = 2 if gpu["index"] in faulty(document, "ecc") else 0
    remap = value_of(document, "row_remap", gpu["index"])
    current, pending = mig.mode(document, gpu["index"])
    shown = ("[N/A]" if current == "N/A" else current, "[N/A]" if pending == "N/A" else pending)
    state, status = fabric_state(document)
    generation = gpu.get("pcie_gen", 5)
    power = f"{float(gpu.get('power_w', 700)):.2f}"
    values = {
        "index": (gpu["index"], ""),
        "count": (count, ""),
        "name": (gpu["name"], ""),
        "gpu_name": (gpu["name"], ""),
        "uuid": (gpu["uuid"], ""),
        "gpu_uuid": (gpu["uuid"], ""),
        "serial": (gpu["serial"], ""),
        "gpu_serial": (gpu["serial"], ""),
        "driver_version": (versions(document)["module"], ""),
        "vbios_version": (gpu.get("vbios", "96.00.99.00.01"), ""),
        "memory.total": (gpu["memory_mib"], " MiB"),
        "memory.used": (0, " MiB"),
        "memory.free": (gpu["memory_mib"], " MiB"),
        "utilization.gpu": (0, " %"),
        "utilization.memory": (0, " %"),
        "temperature.gpu": (31, ""),
        "power.draw": ("70.10", " W"),
        "power.limit": (power, " W"),
        "pci.bus_id": (gpu["bus_id"], ""),
        "gpu_bus_id": (gpu["bus_id"], ""),
        "pci.device_id": ("0x" + gpu["pci_device_id"][2:].upper() + "10DE", ""),
        "pci.sub_device_id": ("0x" + gpu.get("pci_subsystem_id", "0x16c1")[2:].upper() + "10DE", ""),
        "pcie.link.gen.current": (generation, ""),
        "pcie.link.gen.max": (generation, ""),
        "pcie.link.width.current": (gpu.get("pcie_width", 16), ""),
        "pcie.link.width.max": (16, ""),
        "mig.mode.current": (shown[0], ""),
        "mig.mode.pending": (shown[1], ""),
        "persistence_mode": ("Enabled", ""),
        "compute_mode": ("Default", ""),
        "compute_cap": (gpu.get("compute_cap", "9.0"), ""),
        "ecc.mode.current": ("Enabled", ""),
        "ecc.errors.uncorrected.volatile.total": (errors, ""),
        "ecc.errors.uncorrected.aggregate.total": (errors, ""),
        "ecc.errors.corrected.volatile.total": (0, ""),
        "retired_pages.pending": ("No", ""),
        "remapped_rows.pending": ("Yes" if remap == "pending" else "No", ""),
        "remapped_rows.failure": ("Yes" if remap == "failure" else "No", ""),
        "fabric.state": (state, ""),
        "fabric.status": (status, ""),
    }
    if name not in values:
        raise Failure(f'Field "{name}" is not a valid field to query.\n\n', 2)
    return values[name]


def query(document: Document, gpus: list[Document], fields: list[str], options: list[str]) -> str:
    """CSV lines; a lost GPU ends the list with its text and exit code 15."""
    plain = "nounits" in options
    lines = []
    if "noheader" not in options:
        heads = []
        for name in fields:
            unit = field(document, gpus[0], len(gpus), name)[1].strip() if gpus else ""
            heads.append(f"{name} [{unit}]" if unit else name)
        lines.append(", ".join(heads))
    for gpu in gpus:
        text = lost(document, gpu)
        if text:
            sys.stdout.write("".join(line + "\n" for line in lines))
            raise Failure(text, 15)
        cells = []
        for name in fields:
            value, unit = field(document, gpu, len(gpus), name)
            cells.append(f"{value}" if plain else f"{value}{unit}")
        lines.append(", ".join(cells))
    return "".join(line + "\n" for line in lines)


def listing(document: Document, gpus: list[Document]) -> str:
    """The answer to -L, MIG devices under their GPU."""
    out = ""
    for gpu in gpus:
        text = lost(document, gpu)
        if text:
            sys.stdout.write(out)
            raise Failure(text, 15)
        out += f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})\n"
        for device in mig.devices(document, gpu):
            out += f"  MIG {device['profile']['name']:<11} Device {device['index']:>2}: (UUID: {device['uuid']})\n"
    return out or "No devices were found\n"


def table(document: Document, gpus: list[Document]) -> str:
    """The answer without an argument: the header and one block for each GPU."""
    rule = "+" + "-" * 89 + "+\n"
    now = datetime.now(tz=timezone.utc).strftime("%a %b %d %H:%M:%S %Y")  # noqa: UP017 (Python 3.9 nodes)
    parts = versions(document)
    head = f"| NVIDIA-SMI {parts['library']:<23} Driver Version: {parts['module']:<15} "
    head += f"CUDA Version: {document['cuda_version']:<9}|\n"
    out = f"{now}       \n{rule}{head}{rule}"
    for gpu in gpus:
        text = lost(document, gpu)
        if text:
            raise Failure(text, 15)
        errors = 2 if gpu["index"] in faulty(document, "ecc") else 0
        left = f"| {gpu['index']:>3}  {gpu['name']:<25} On "
        out += f"{left:<42}|   {gpu['bus_id']} Off | {errors:>20} |\n"
        power = f"{gpu.get('power_w', 700)}W"
        used = f"0MiB / {gpu['memory_mib']}MiB"
        out += f"| N/A   31C    P0    70W / {power:<15} | {used:>22} |      0%      Default |\n"
        out += f"|{'':<41}|{'':<24}| {mig.mode(document, gpu['index'])[0]:>20} |\n{rule}"
    return out
