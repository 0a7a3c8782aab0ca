"""What a host says about its GPU driver: kernel, Secure Boot, PCI bus, modules, packages. Nothing is changed.

sysfs and procfs are looked at below roots that are given, so that a container, an image or a recorded machine can be
looked at like a host.
"""

from __future__ import annotations

import os
import re

from ansible_collections.myriad.gpu.plugins.module_utils import host, packages, record
from ansible_collections.myriad.gpu.plugins.module_utils.record import below

GLOBAL_GUID = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
SHIM_GUID = "605dab50-e046-4300-abb6-3dd810dd8b23"
#: Certificates with which dkms signs what it builds, in DER: dkms's own, and that of Ubuntu's shim.
SIGNING_KEYS = ("/var/lib/dkms/mok.pub", "/var/lib/shim-signed/mok/MOK.der")
#: Display controllers, bridges of class "other" (NVSwitch), processing accelerators.
CLASSES = ("0x03", "0x0680", "0x12")
NVIDIA = "0x10de"
#: A network card, and on boards of NVLink 5 the way to the NVSwitches: its vital product data tells.
CONNECTX7 = ("0x15b3", "0x1021")
#: The names under which distributions install the module.
MODULE_NAMES = ("nvidia", "nvidia-current", "nvidia-current-open", "nvidia-open")
#: What belongs to a driver set, whoever named it.
DRIVER_PACKAGE = re.compile(
    r"nvidia|^libcuda\d|^libcudadebugger|^cuda-drivers|^libnvcuvid|^libnvoptix|^libxnvctrl|^libnvsdm|^dkms$"
)
MODPROBE_FOLDERS = (
    "/etc/modprobe.d",
    "/run/modprobe.d",
    "/usr/local/lib/modprobe.d",
    "/usr/lib/modprobe.d",
    "/lib/modprobe.d",
)
_VERSION = re.compile(r"\b(\d{3}\.\d{2,3}(?:\.\d{2})?)\b")


def read_bytes(path):
    """Content of a file; None when it is not there or may not be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return None


def efi_variable(sysfs, name, guid):
    """Value of an EFI variable without its four bytes of attributes; None without it."""
    data = read_bytes(os.path.join(sysfs, "firmware/efi/efivars", f"{name}-{guid}"))
    return data[4:] if data is not None and len(data) > 4 else None


def secure_boot(sysfs):
    """Whether modules must be signed; None: cannot be read. False also for a BIOS, and where shim does not verify."""
    if not os.path.isdir(os.path.join(sysfs, "firmware/efi")):
        return False
    value = efi_variable(sysfs, "SecureBoot", GLOBAL_GUID)
    if value is None:
        return None
    if (efi_variable(sysfs, "SetupMode", GLOBAL_GUID) or b"\0")[-1] == 1:
        return False
    if (efi_variable(sysfs, "MokSBStateRT", SHIM_GUID) or b"\0")[-1] == 1:
        return False
    return value[-1] == 1


def mok_enrolled(sysfs, root="/"):
    """Whether a key that dkms signs with is enrolled; None where there is no such key or no list of enrolled ones."""
    keys = [data for data in (read_bytes(below(root, path)) for path in SIGNING_KEYS) if data]
    enrolled = efi_variable(sysfs, "MokListRT", SHIM_GUID)
    if not keys or enrolled is None:
        return None
    return any(key in enrolled for key in keys)


def pci_devices(sysfs):
    """Devices that a GPU driver is about, by address.

    `driver` is the kernel driver that a device is bound to, `vpd` the vital product data of those whose use it tells.
    """
    folder = os.path.join(sysfs, "bus/pci/devices")
    found = []
    for address in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        path = os.path.join(folder, address)
        device = {
            name: host.read(os.path.join(path, name))
            for name in ("vendor", "device", "class", "subsystem_vendor", "subsystem_device")
        }
        ours = device["class"].startswith(CLASSES) or (device["vendor"] == NVIDIA and device["class"])
        bridge = (device["vendor"], device["device"]) == CONNECTX7
        if not (ours or bridge):
            continue
        # sysfs remembers the ids of a device that fell off the bus; its configuration space answers with ones.
        if (read_bytes(os.path.join(path, "config")) or b"")[:4] == b"\xff\xff\xff\xff":
            device["vendor"] = device["device"] = "0xffff"
        if bridge:
            device["vpd"] = (read_bytes(os.path.join(path, "vpd")) or b"").decode("ascii", "replace")
        link = os.path.join(path, "driver")
        bound = os.path.basename(os.path.realpath(link)) if os.path.islink(link) else None
        found.append(dict(device, address=address, driver=bound))
    return found


def loaded_module(sysfs, procfs):
    """Version of the loaded module and its license; (None, None) without one."""
    said = host.read(os.path.join(procfs, "driver/nvidia/version"))
    version = host.read(os.path.join(sysfs, "module/nvidia/version"))
    if not version:
        match = _VERSION.search(said.splitlines()[0]) if said else None
        version = match[1] if match else ""
    if not version:
        return None, None
    if not said:
        return version, None
    return version, "Dual MIT/GPL" if "Open Kernel Module" in said else "NVIDIA"


def modinfo(kernel, root="/"):
    """The module on the disk for a kernel: version, vermagic, license, signer, filename; None without one."""
    where = ["--basedir", root] if root not in ("", "/") else []
    for name in MODULE_NAMES:
        code, text = packages.run(["modinfo", *where, "-k", kernel, name], timeout=60)
        if code != 0:
            continue
        fields = {}
        for line in text.splitlines():
            key, colon, value = line.partition(":")
            if colon and key.strip() in ("filename", "version", "vermagic", "license", "signer"):
                fields.setdefault(key.strip(), value.strip())
        if fields.get("version"):
            return {
                "version": fields["version"],
                "vermagic": fields.get("vermagic", "").split(" ")[0],
                "license": fields.get("license", ""),
                "signer": fields.get("signer", ""),
                "filename": fields.get("filename", ""),
            }
    return None


def dkms_source(version):
    """Name under which dkms knows the driver's source of a version; None when no package brought it."""
    folder = "/usr/src"
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if (
            name.startswith("nvidia")
            and name.endswith("-" + version)
            and os.path.exists(os.path.join(folder, name, "dkms.conf"))
        ):
            return name[: -len(version) - 1]
    return None


def build(version, kernel):
    """Have dkms build and install the driver's module for a kernel; what it said."""
    name = dkms_source(version)
    if name is None:
        return f"no package brought the source of driver {version} below /usr/src"
    command = ["dkms", "install", "--force", "-m", name, "-v", version, "-k", kernel]
    _code, text = packages.run(command)
    for log in (
        f"/var/lib/dkms/{name}/{version}/build/make.log",
        f"/var/lib/dkms/{name}/{version}/{kernel}/{os.uname().machine}/log/make.log",
    ):
        if os.path.exists(log):
            return f"{text}\n{log}:\n{packages.tail(host.read(log))}"
    return text


def not_built(version, kernel, found, said):
    """Why there is no module for the kernel, as a message."""
    state = (
        f"modinfo shows version {found['version']} for {found['vermagic']} ({found['filename']})"
        if found
        else "modinfo finds none"
    )
    return (
        f"the packages are installed, but no module {version} was built for kernel {kernel}: {state}. dkms said:\n"
        f"{packages.tail(said)}\n"
        "Lock a driver that knows this kernel, or boot the kernel that the lock was made for. "
        "`dkms status` on the host lists what is built."
    )


def nouveau_blacklisted(procfs, root="/"):
    """Whether modprobe is told to leave nouveau alone, by a file or on the kernel's command line."""
    line = re.compile(
        r"^\s*(blacklist\s+nouveau\b|alias\s+nouveau\s+off\b|install\s+nouveau\s+\S*/(false|true)\b)", re.MULTILINE
    )
    for folder in MODPROBE_FOLDERS:
        real = below(root, folder)
        for name in sorted(os.listdir(real)) if os.path.isdir(real) else ():
            if name.endswith(".conf") and line.search(host.read(os.path.join(real, name))):
                return True
    words = host.read(os.path.join(procfs, "cmdline")).split()
    return any(
        word.startswith("modprobe.blacklist=") and "nouveau" in word.partition("=")[2].split(",") for word in words
    )


def runfile(installed, root="/"):
    """Leftovers of NVIDIA's own installer, which no package database knows: {"runfile", "version"}."""
    signs = [
        path for path in ("/usr/bin/nvidia-uninstall", "/usr/bin/nvidia-installer") if os.path.exists(below(root, path))
    ]
    log = host.read(below(root, "/var/lib/nvidia/log"))
    if not signs and not log:
        return {"runfile": False, "version": None}
    # A package that brings a program of this name is no runfile.
    if not log and any(
        name.startswith("nvidia-installer") and name != "nvidia-installer-cleanup" for name in installed
    ):
        return {"runfile": False, "version": None}
    match = _VERSION.search(log) or _VERSION.search(host.read(below(root, "/var/log/nvidia-installer.log")))
    return {"runfile": True, "version": match[1] if match else None}


def unattended_upgrades(installed):
    """Whether packages are upgraded behind everybody's back."""
    if "unattended-upgrades" not in installed:
        return False
    _code, text = packages.run(["apt-config", "dump", "APT::Periodic::Unattended-Upgrade"], timeout=30)
    period = re.search(r'^APT::Periodic::Unattended-Upgrade "(.*)";', text, re.MULTILINE)
    # Days, or a number with s, m, h or d, or "always" (apt.systemd.daily); a 0 is never.
    return bool(period) and period[1].strip() not in ("", "0", "false", "no")


def reboot_reasons(loaded, built, wanted, root="/"):
    """Why this host has to be rebooted, as sentences.

    Args:
        loaded: version of the module in the kernel, None without one.
        built: version of the module on the disk for the running kernel, None without one.
        wanted: the locked driver version, empty where there is none.
    """
    reasons = []
    if loaded and built and loaded != built:
        reasons.append(f"the kernel runs module {loaded}, {built} is installed")
    elif loaded and wanted and loaded != wanted:
        reasons.append(f"the kernel runs module {loaded}, the lock says {wanted}")
    if os.path.exists(below(root, "/run/reboot-required")):
        names = sorted(set(host.read(below(root, "/run/reboot-required.pkgs")).split()))
        reasons.append(f"asked for by {', '.join(names)}" if names else "/run/reboot-required is there")
    return reasons


def recorded(path):
    """Packages with their versions that a role's record names; {} without one."""
    return {entry["name"]: entry["version"] for entry in record.load(path).get("packages", ())}


def candidates(apt, names):
    """Versions that the repositories have, by package, the one that apt likes best last."""
    return {name: versions[::-1] for name, versions in apt.versions(names).items()}


def facts(params, apt):
    """All facts in the shape that `myriad.fleet.driver.plan` reads.

    Args:
        params: kernel, sysfs, procfs, root, version (the locked driver version), record (a role's record), names
            (packages that apt is asked about; it is not asked at all without), simulate ({name: version}), remove
            (packages that leave with it).
        apt: the apt to ask. Lists are fetched when there is something to simulate.

    Returns:
        the facts, and what apt said while it fetched lists (empty when it did not).
    """
    root, sysfs, procfs = params["root"], params["sysfs"], params["procfs"]
    kernel = params["kernel"] or os.uname().release
    release = host.os_release(root)
    database = packages.Database(root)
    installed = database.names()
    names = set(params["names"])
    version, license_ = loaded_module(sysfs, procfs)
    built = modinfo(kernel, root)
    headers = f"linux-headers-{kernel}"
    shown = {
        name: database.versions[name]
        for name in sorted(installed)
        if name in names or DRIVER_PACKAGE.search(name) or name in (headers, f"linux-image-{kernel}")
    }
    found = {
        "kernel": {
            "release": kernel,
            "headers": os.path.exists(below(root, f"/lib/modules/{kernel}/build/Makefile")),
            "headers_package": headers,
            "distribution": {
                "id": release.get("ID", ""),
                "version": release.get("VERSION_ID", ""),
                "codename": release.get("VERSION_CODENAME", ""),
            },
        },
        "virtualization": " hypervisor" in host.read(os.path.join(procfs, "cpuinfo")),
        "secure_boot": secure_boot(sysfs),
        "mok_enrolled": mok_enrolled(sysfs, root),
        "pci": pci_devices(sysfs),
        "module": {
            "loaded": version,
            "license": license_ or (built["license"] if built and version else None),
            "built": built,
            "blacklisted_nouveau": nouveau_blacklisted(procfs, root),
            "nouveau_loaded": os.path.isdir(os.path.join(sysfs, "module/nouveau")),
        },
        "installed": shown,
        "recorded": recorded(params["record"]),
        "held": sorted(name for name in database.held if name in shown),
        "unfinished": database.unfinished,
        "foreign": runfile(installed, root),
        "unattended_upgrades": unattended_upgrades(installed),
        "reboot_required": reboot_reasons(version, built["version"] if built else None, params["version"], root),
    }
    wanted = params["simulate"]
    # What is to be installed is asked of the repositories as they are now, not as they were.
    said = apt.fetch() if wanted else ""
    # None: nobody asked. An empty answer would say that the repositories have nothing.
    found["candidates"] = candidates(apt, names | {headers}) if names else None
    offered = all(version in (found["candidates"] or {}).get(name, ()) for name, version in wanted.items())
    found["simulation"] = apt.simulate(wanted, params["remove"]) if wanted and offered else None
    return found, said
