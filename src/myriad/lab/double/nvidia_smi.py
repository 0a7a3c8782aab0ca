#!/usr/bin/python3
"""A double of nvidia-smi: answers from /etc/myriad-lab/gpu.json with the texts and exit codes of the real program.

Supports no argument (the table), -L, --query-gpu=FIELDS --format=csv[,noheader][,nounits], -q -x, -i INDEX, --version.
One file that needs the standard library only, because it is copied to nodes as it is.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

Document = dict[str, Any]

DOCUMENT = os.environ.get("MYRIAD_LAB_GPU_JSON", "/etc/myriad-lab/gpu.json")

NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)


class Failure(Exception):
    """Ends the program with a text and an exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


def has(document: Document, kind: str) -> bool:
    """Whether a fault of the whole node is on."""
    return any(fault["kind"] == kind for fault in document["faults"])


def having(document: Document, kind: str) -> set[int | None]:
    """Indices of the GPUs with this fault."""
    return {fault.get("gpu") for fault in document["faults"] if fault["kind"] == kind}


def visible(document: Document) -> list[Document]:
    """The GPUs that the driver can talk to; raises for the faults that end the real program.

    The real program lists the GPUs before a lost one and then stops with the text below; so does this one, because a
    reader that trusts the list without the exit code is what the fault is for.
    """
    if has(document, "no_driver"):
        raise Failure(NO_DRIVER, 9)
    if has(document, "nvml_mismatch"):
        version = ".".join(document.get("mismatched_version", "580.142.09").split(".")[:2])
        raise Failure(
            f"Failed to initialize NVML: Driver/library version mismatch\nNVML library version: {version}\n", 18
        )
    gone = having(document, "missing")
    return [gpu for gpu in document["gpus"] if gpu["index"] not in gone]


def lost(document: Document, gpu: Document) -> str | None:
    """The text for a GPU that fell off the bus, or None."""
    if gpu["index"] not in having(document, "xid"):
        return None
    short = gpu["bus_id"][4:]
    return (
        f"Unable to determine the device handle for GPU{short}: GPU is lost.  Reboot the system to recover this GPU\n"
    )


def field(document: Document, gpu: Document, count: int, name: str) -> tuple[Any, str]:
    """(value, unit) of one --query-gpu field; raises for a field this double does not have."""
    errors = 2 if gpu["index"] in having(document, "ecc") else 0
    values = {
        "index": (gpu["index"], ""),
        "count": (count, ""),
        "name": (gpu["name"], ""),
        "gpu_name": (gpu["name"], ""),
        "uuid": (gpu["uuid"], ""),
        "gpu_uuid": (gpu["uuid"], ""),
        "serial": (gpu["serial"], ""),
        "gpu_serial": (gpu["serial"], ""),
        "driver_version": (document["driver_version"], ""),
        "vbios_version": ("96.00.99.00.01", ""),
        "memory.total": (gpu["memory_mib"], " MiB"),
        "memory.used": (0, " MiB"),
        "memory.free": (gpu["memory_mib"], " MiB"),
        "utilization.gpu": (0, " %"),
        "utilization.memory": (0, " %"),
        "temperature.gpu": (31, ""),
        "power.draw": ("70.10", " W"),
        "power.limit": ("700.00", " W"),
        "pci.bus_id": (gpu["bus_id"], ""),
        "gpu_bus_id": (gpu["bus_id"], ""),
        "pci.device_id": ("0x" + gpu["pci_device_id"][2:].upper() + "10DE", ""),
        "pcie.link.gen.current": (5, ""),
        "pcie.link.gen.max": (5, ""),
        "pcie.link.width.current": (16, ""),
        "pcie.link.width.max": (16, ""),
        "mig.mode.current": ("Disabled", ""),
        "mig.mode.pending": ("Disabled", ""),
        "persistence_mode": ("Enabled", ""),
        "compute_mode": ("Default", ""),
        "compute_cap": ("9.0", ""),
        "ecc.mode.current": ("Enabled", ""),
        "ecc.errors.uncorrected.volatile.total": (errors, ""),
        "ecc.errors.uncorrected.aggregate.total": (errors, ""),
        "ecc.errors.corrected.volatile.total": (0, ""),
        "retired_pages.pending": ("No", ""),
        "fabric.state": ("Completed", ""),
        "fabric.status": ("Success", ""),
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
    """The answer to -L."""
    out = ""
    for gpu in gpus:
        text = lost(document, gpu)
        if text:
            sys.stdout.write(out)
            raise Failure(text, 15)
        out += f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})\n"
    return out or "No devices were found\n"


def table(document: Document, gpus: list[Document]) -> str:
    """The answer without an argument: the header and one block for each GPU."""
    rule = "+" + "-" * 89 + "+\n"
    now = datetime.now(tz=timezone.utc).strftime("%a %b %d %H:%M:%S %Y")  # noqa: UP017 (Python 3.9 nodes)
    version = document["driver_version"]
    head = f"| NVIDIA-SMI {version:<23} Driver Version: {version:<15} CUDA Version: {document['cuda_version']:<9}|\n"
    out = f"{now}       \n{rule}{head}{rule}"
    for gpu in gpus:
        text = lost(document, gpu)
        if text:
            raise Failure(text, 15)
        errors = 2 if gpu["index"] in having(document, "ecc") else 0
        left = f"| {gpu['index']:>3}  {gpu['name']:<25} On "
        out += f"{left:<42}|   {gpu['bus_id']} Off | {errors:>20} |\n"
        used = f"0MiB / {gpu['memory_mib']}MiB"
        out += f"| N/A   31C    P0    70W / 700W           | {used:>22} |      0%      Default |\n"
        out += rule
    return out


def xml(document: Document, gpus: list[Document]) -> str:
    """The answer to -q -x: the elements that monitoring agents read."""
    stamp = datetime.now(tz=timezone.utc).strftime("%a %b %d %H:%M:%S %Y")  # noqa: UP017 (Python 3.9 nodes)
    lines = [
        '<?xml version="1.0" ?>',
        '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">',
        "<nvidia_smi_log>",
        f"\t<timestamp>{stamp}</timestamp>",
        f"\t<driver_version>{document['driver_version']}</driver_version>",
        f"\t<cuda_version>{document['cuda_version']}</cuda_version>",
        f"\t<attached_gpus>{len(gpus)}</attached_gpus>",
    ]
    for gpu in gpus:
        text = lost(document, gpu)
        if text:
            raise Failure(text, 15)
        errors = 2 if gpu["index"] in having(document, "ecc") else 0
        lines += [
            f'\t<gpu id="{gpu["bus_id"]}">',
            f"\t\t<product_name>{gpu['name']}</product_name>",
            f"\t\t<serial>{gpu['serial']}</serial>",
            f"\t\t<uuid>{gpu['uuid']}</uuid>",
            f"\t\t<minor_number>{gpu['index']}</minor_number>",
            "\t\t<mig_mode><current_mig>Disabled</current_mig><pending_mig>Disabled</pending_mig></mig_mode>",
            f"\t\t<pci><pci_bus_id>{gpu['bus_id']}</pci_bus_id></pci>",
            f"\t\t<fb_memory_usage><total>{gpu['memory_mib']} MiB</total><used>0 MiB</used></fb_memory_usage>",
            f"\t\t<ecc_errors><volatile><dram_uncorrectable>{errors}</dram_uncorrectable></volatile></ecc_errors>",
            "\t\t<fabric><state>Completed</state><status>Success</status></fabric>",
            "\t</gpu>",
        ]
    return "\n".join([*lines, "</nvidia_smi_log>", ""])


def run(arguments: list[str], document: Document) -> str:
    """The text for these arguments.

    Raises:
        Failure: with the real program's text and exit code.
    """
    fields: list[str] = []
    options: list[str] = []
    wanted: str | None = None
    mode = "table"
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--version":
            version = document["driver_version"]
            return f"NVIDIA-SMI version  : {version}\nDRIVER version      : {version}\n"
        if argument in ("-L", "--list-gpus"):
            mode = "list"
        elif argument.startswith("--query-gpu="):
            mode, fields = "query", [part.strip() for part in argument.split("=", 1)[1].split(",")]
        elif argument.startswith("--format="):
            options = [part.strip() for part in argument.split("=", 1)[1].split(",")]
        elif argument in ("-q", "--query", "-x", "--xml-format"):
            mode = "xml"
        elif argument.startswith("--id="):
            wanted = argument.split("=", 1)[1]
        elif argument in ("-i", "--id") and rest:
            wanted = rest.pop(0)
        else:
            text = "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help."
            raise Failure(f"{text} ({argument})\n", 2)
    if mode == "query" and "csv" not in options:
        raise Failure("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.\n", 2)
    gpus = visible(document)
    if wanted is not None:
        gpus = [gpu for gpu in gpus if wanted in (str(gpu["index"]), gpu["uuid"], gpu["bus_id"])]
        if not gpus:
            raise Failure("No devices were found\n", 6)
    if mode == "query":
        return query(document, gpus, fields, options)
    answers: dict[str, Callable[[Document, list[Document]], str]] = {"list": listing, "xml": xml, "table": table}
    return answers[mode](document, gpus)


def main() -> int:
    """Read the file, hang if told to, answer."""
    try:
        with open(DOCUMENT) as file:  # noqa: PTH123 (one small script, no pathlib import cost)
            document = json.load(file)
    except OSError:
        sys.stdout.write(NO_DRIVER)
        return 9
    if has(document, "hang"):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while True:
            signal.pause()
    try:
        sys.stdout.write(run(sys.argv[1:], document))
    except Failure as failure:
        sys.stdout.write(failure.text)
        return failure.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
