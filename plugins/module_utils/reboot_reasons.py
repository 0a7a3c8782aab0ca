"""What on a host asks for a reboot, and which boot it is in. Reads files and nvidia-smi; changes nothing."""

from __future__ import annotations

import glob
import os
import re
import subprocess

SMI_TIMEOUT_S = 60
MISMATCH = re.compile(
    r"Driver/library version mismatch(?:\s+NVML library version: (?P<library>[\d.]+))?", re.IGNORECASE
)


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def boot_id(proc="/proc"):
    """The boot: the kernel's id and the start of process 1, which is another one when a container starts again."""
    started = read(os.path.join(proc, "1/stat")).rpartition(")")[2].split()
    return "{}.{}".format(
        read(os.path.join(proc, "sys/kernel/random/boot_id")), started[19] if len(started) > 19 else ""
    )


def required_by_packages(run):
    """/run/reboot-required, as the package manager's hooks write it, with the packages that asked."""
    if not os.path.exists(os.path.join(run, "reboot-required")):
        return []
    packages = sorted(set(read(os.path.join(run, "reboot-required.pkgs")).split()))
    return ["packages ask for it{}".format(": " + ", ".join(packages) if packages else "")]


def _numbers(release):
    return [int(part) for part in re.findall(r"\d+", release)]


def other_kernel(running, wanted, boot):
    """Another kernel is wanted than the one that runs: the one that is named, or a newer one of the same flavour."""
    if wanted:
        return [] if wanted == running else [f"kernel {running} runs, {wanted} is wanted"]
    flavour = running.rpartition("-")[2]
    installed = [os.path.basename(path)[len("vmlinuz-") :] for path in glob.glob(os.path.join(boot, "vmlinuz-*"))]
    newer = [
        release
        for release in installed
        if release.rpartition("-")[2] == flavour and _numbers(release) > _numbers(running)
    ]
    return [f"kernel {running} runs, {max(newer, key=_numbers)} is installed"] if newer else []


def loaded_module(sysfs, procfs):
    """Version of the NVIDIA module that is loaded, "" where none is."""
    version = read(os.path.join(sysfs, "module/nvidia/version"))
    if version:
        return version
    match = re.search(
        r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)", read(os.path.join(procfs, "driver/nvidia/version"))
    )
    return match.group(1) if match else ""


def library_versions(folders):
    """Versions of libnvidia-ml that are installed, by the names of its files."""
    found = set()
    for folder in folders:
        for path in glob.glob(os.path.join(folder, "libnvidia-ml.so.*")):
            match = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)*)$", path)
            if match and not os.path.islink(path):
                found.add(match.group(1))
    return found


def driver_mismatch(loaded, libraries, module_on_disk, smi_text):
    """The module that is loaded is another one than what is installed."""
    if not loaded:
        return []
    if libraries and loaded not in libraries:
        return ["driver module {} is loaded, library {} is installed".format(loaded, ", ".join(sorted(libraries)))]
    if module_on_disk and module_on_disk != loaded:
        return [f"driver module {loaded} is loaded, module {module_on_disk} is installed"]
    match = MISMATCH.search(smi_text)
    if match:
        library = match.group("library")
        return ["driver module {} is loaded, the library is {}".format(loaded, library or "of another version")]
    return []


def mig_pending(smi_text):
    """GPUs whose MIG mode waits for a reset, from nvidia-smi's CSV of index, current and pending mode."""
    waiting = []
    for line in smi_text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 3 and {parts[1], parts[2]} == {"Enabled", "Disabled"}:
            waiting.append((parts[0], parts[2]))
    if not waiting:
        return []
    modes = sorted({mode for _index, mode in waiting})
    return [
        "MIG {} waits for it on GPU {}".format("/".join(modes).lower(), ", ".join(index for index, _mode in waiting))
    ]


def _output(command):
    """What a program printed, "" where it is not there or does not end."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SMI_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")


def look(params):
    """Boot, kernel and reasons of this host."""
    running = os.uname().release
    loaded = loaded_module(params["sysfs"], params["procfs"])
    smi = (
        _output(["nvidia-smi", "--query-gpu=index,mig.mode.current,mig.mode.pending", "--format=csv,noheader"])
        if loaded
        else ""
    )
    on_disk = _output(["modinfo", "-F", "version", "nvidia"]).strip() if loaded else ""
    on_disk = on_disk if re.fullmatch(r"[\d.]+", on_disk) else ""
    reasons = (
        required_by_packages(params["run"])
        + other_kernel(running, params["kernel"], params["boot"])
        + driver_mismatch(loaded, library_versions(params["libraries"]), on_disk, smi)
        + mig_pending(smi)
    )
    return {"boot": boot_id(), "kernel": running, "reasons": reasons}
