"""What the kernel and the driver show of the GPUs in files: sysfs, procfs, the kernel's log, device nodes (pure).

Names and formats are those of Linux and of NVIDIA's kernel module; the roots are `document.SYS_DIR` and `PROC_DIR`.
"""

from __future__ import annotations

from typing import Any

from myriad.lab.double import mig
from myriad.lab.double.document import (
    PCI_DIR,
    PROC_DIR,
    SYS_DIR,
    XID_TEXTS,
    bus_gpus,
    driver_gpus,
    faulty,
    has_fault,
    lost_gpus,
    module_loaded,
    pci_address,
    versions,
    xids,
)

Document = dict[str, Any]

#: Characters that a device node answers with: those of /dev/null, which opens for everybody.
ALIVE = (1, 3)
#: Processors of the two sockets of the machine that the doubles stand in, by NUMA node.
CPUS = {0: "0-55,112-167", 1: "56-111,168-223"}
_PCIE_GT = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}


def tree_files(document: Document) -> dict[str, str]:
    """Every file of the trees: absolute path to content."""
    return {
        **pci_files(document),
        **_system_files(),
        **_nic_files(document),
        **_driver_files(document),
        **_log(document),
    }


def pci_files(document: Document) -> dict[str, str]:
    """The PCI tree for this document: absolute path to content, with the file names and formats of sysfs."""
    files: dict[str, str] = {}
    for gpu in bus_gpus(document):
        generation = int(gpu.get("pcie_gen", 5))
        files.update(
            _device(
                gpu,
                vendor="0x10de",
                kind="0x030200",
                subsystem=("0x10de", str(gpu.get("pci_subsystem_id", "0x16c1"))),
                generation=generation,
            )
        )
    for switch in document.get("nvswitches", []):
        files.update(_device(switch, vendor="0x10de", kind="0x068000", subsystem=("0x10de", "0x1796"), generation=4))
    for nic in document.get("nics", []):
        kind = "0x020700" if nic["link"] == "InfiniBand" else "0x020000"
        files.update(_device(nic, vendor="0x15b3", kind=kind, subsystem=("0x15b3", "0x0041"), generation=5))
    return files


def _device(device: Document, *, vendor: str, kind: str, subsystem: tuple[str, str], generation: int) -> dict[str, str]:
    folder = f"{PCI_DIR}/{pci_address(device)}"
    speed = f"{_PCIE_GT[generation]} GT/s PCIe\n"
    numa = int(device["numa_node"])
    values = {
        "vendor": vendor,
        "device": str(device["pci_device_id"]),
        "class": kind,
        "revision": "0xa1",
        "numa_node": str(numa),
        "local_cpulist": CPUS[numa],
        "subsystem_vendor": subsystem[0],
        "subsystem_device": subsystem[1],
        "current_link_width": str(device.get("pcie_width", 16)),
        "max_link_width": "16",
    }
    files = {f"{folder}/{name}": f"{value}\n" for name, value in values.items()}
    return {**files, f"{folder}/current_link_speed": speed, f"{folder}/max_link_speed": speed}


def _system_files() -> dict[str, str]:
    return {f"{SYS_DIR}/devices/system/node/node{node}/cpulist": f"{cpus}\n" for node, cpus in CPUS.items()}


def _nic_files(document: Document) -> dict[str, str]:
    """Network interfaces and RDMA devices; the rate is given in Gb/s as a port of this kind says it."""
    files: dict[str, str] = {}
    for number, nic in enumerate(document.get("nics", [])):
        rate, name = int(nic["rate_gb_s"]), str(nic["name"])
        net, port = f"{SYS_DIR}/class/net/{name}", f"{SYS_DIR}/class/infiniband/mlx5_{number}/ports/1"
        uevent = f"DRIVER=mlx5_core\nPCI_SLOT_NAME={pci_address(nic)}\n"
        is_up = nic.get("state", "up") == "up"
        for folder in (net, f"{SYS_DIR}/class/infiniband/mlx5_{number}"):
            files[f"{folder}/device/numa_node"] = f"{nic['numa_node']}\n"
            files[f"{folder}/device/vendor"] = "0x15b3\n"
            files[f"{folder}/device/device"] = f"{nic['pci_device_id']}\n"
            files[f"{folder}/device/uevent"] = uevent
        files[f"{net}/address"] = f"b8:3f:d2:00:{number:02x}:01\n"
        files[f"{net}/mtu"] = f"{nic.get('mtu', 4092 if nic['link'] == 'InfiniBand' else 9000)}\n"
        files[f"{net}/operstate"] = "up\n" if is_up else "down\n"
        files[f"{net}/carrier"] = "1\n" if is_up else "0\n"
        files[f"{net}/speed"] = f"{rate * 1000}\n"
        files[f"{net}/type"] = "32\n" if nic["link"] == "InfiniBand" else "1\n"
        files[f"{port}/link_layer"] = f"{nic['link']}\n"
        files[f"{port}/rate"] = f"{rate} Gb/sec (4X {_rate_name(rate)})\n"
        files[f"{port}/state"] = "4: ACTIVE\n" if is_up else "1: DOWN\n"
        files[f"{port}/phys_state"] = "5: LinkUp\n" if is_up else "3: Disabled\n"
        files[f"{port}/gid_attrs/ndevs/0"] = f"{name}\n"
    return files


def _rate_name(rate: int) -> str:
    return {100: "EDR", 200: "HDR", 400: "NDR", 800: "XDR"}.get(rate, "EDR")


def _driver_files(document: Document) -> dict[str, str]:
    """What NVIDIA's kernel module shows; nothing where it is not loaded."""
    if not module_loaded(document):
        return {}
    version = versions(document)["module"]
    flavour = "Open Kernel Module" if document.get("module_license") != "NVIDIA" else "Kernel Module"
    nvidia = f"{PROC_DIR}/driver/nvidia"
    files = {
        f"{SYS_DIR}/module/nvidia/version": f"{version}\n",
        f"{SYS_DIR}/module/nvidia/initstate": "live\n",
        f"{SYS_DIR}/module/nvidia/refcnt": "16\n",
        f"{SYS_DIR}/module/nvidia_uvm/initstate": "live\n",
        f"{PROC_DIR}/devices": "Character devices:\n  1 mem\n195 nvidia-frontend\n234 nvidia-caps\n507 nvidia-uvm\n",
        f"{nvidia}/version": (
            f"NVRM version: NVIDIA UNIX {flavour} for x86_64  {version}  Release Build  (dvs-builder@U22-I3-H04-01-5)  "
            "Wed Jan  7 05:33:13 UTC 2026\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1) \n"
        ),
        f"{nvidia}/params": "NVreg_EnableGpuFirmware: 18\nNVreg_DeviceFileMode: 438\n",
    }
    dead = lost_gpus(document)
    for gpu in driver_gpus(document):
        folder = f"{nvidia}/gpus/{pci_address(gpu)}"
        bios = "??.??.??.??.??" if gpu["index"] in dead else gpu.get("vbios", "96.00.99.00.01")
        files[f"{folder}/information"] = (
            f"Model: \t\t {gpu['name']}\nIRQ:   \t\t {170 + gpu['index']}\nGPU UUID: \t {gpu['uuid']}\n"
            f"Video BIOS: \t {bios}\nBus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\n"
            f"Bus Location: \t {pci_address(gpu)}\nDevice Minor: \t {gpu['index']}\nGPU Firmware: \t {version}\n"
            "GPU Excluded:\t No\n"
        )
    if document.get("mig_profiles"):
        files[f"{PROC_DIR}/driver/nvidia-caps/mig-minors"] = "config 1\nmonitor 2\n" + "".join(
            f"{name} {minor}\n" for gpu in driver_gpus(document) for name, minor in _minors(document, gpu).items()
        )
        for name, minor in {"mig/config": 1, "mig/monitor": 2}.items():
            files[f"{nvidia}/capabilities/{name}"] = (
                f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
            )
        for gpu in driver_gpus(document):
            for name, minor in _minors(document, gpu).items():
                path = f"{nvidia}/capabilities/{name.replace('/gi', '/mig/gi', 1)}"
                files[path] = f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
    return files


def _minors(document: Document, gpu: Document) -> dict[str, int]:
    """Capability minors of the GPU's MIG devices: `gpu0/gi7/access` and `gpu0/gi7/ci0/access`."""
    found = {}
    for device in mig.devices(document, gpu):
        first = 3 + int(gpu["index"]) * 135 + int(device["gi"]) * 9
        found[f"gpu{gpu['index']}/gi{device['gi']}/access"] = first
        found[f"gpu{gpu['index']}/gi{device['gi']}/ci0/access"] = first + 1
    return found


def capabilities(document: Document, gpu: Document, device: Document) -> list[str]:
    """Device nodes that open one MIG device, besides those of its GPU."""
    minors = _minors(document, gpu)
    name = f"gpu{gpu['index']}/gi{device['gi']}"
    return [f"/dev/nvidia-caps/nvidia-cap{minors[f'{name}/{end}']}" for end in ("access", "ci0/access")]


def _log(document: Document) -> dict[str, str]:
    """The kernel's log as /proc/kmsg shows it: `<level>[seconds] text`."""
    version = versions(document)["module"]
    lines = []
    if has_fault(document, "module_refused"):
        lines = [
            (12.3, 5, "nvidia: Loading of module with unavailable key is rejected"),
            (12.4, 3, "systemd-modules-load[412]: Failed to insert module 'nvidia': Key was rejected by service"),
        ]
    elif module_loaded(document) and document["gpus"]:
        lines = [(12.3, 6, "nvidia-nvlink: Nvlink Core is being initialized, major device number 236"),
                 (12.4, 6, f"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {version}")]  # fmt: skip
        lines += _versions_differ(document)
    by_index = {gpu["index"]: gpu for gpu in document["gpus"]}
    for index, code, uptime_s in xids(document):
        where = pci_address(by_index[index])[:-2]
        text = XID_TEXTS.get(code, "")
        lines.append((uptime_s, 4, f"NVRM: Xid (PCI:{where}): {code}, pid='<unknown>', name=<unknown>, {text}"))
    for index in sorted(faulty(document, "lost")):
        where = pci_address(by_index[index])
        lines.append((50.0 + index, 4, f"NVRM: GPU {where}: GPU has fallen off the bus."))
    return {f"{PROC_DIR}/kmsg": "".join(f"<{level}>[{at:12.6f}] {text}\n" for at, level, text in sorted(lines))}


def _versions_differ(document: Document) -> list[tuple[float, int, str]]:
    parts = versions(document)
    if parts["module"] == parts["library"]:
        return []
    text = (
        f"NVRM: API mismatch: the client has the version {parts['library']}, but\n"
        f"NVRM: this kernel module has the version {parts['module']}.  Please\n"
        "NVRM: make sure that this kernel module and all NVIDIA driver\n"
        "NVRM: components have the same version."
    )
    return [(55.0, 4, line) for line in text.split("\n")]


def device_nodes(document: Document) -> dict[str, bool]:
    """Device nodes that the driver makes: path to whether it opens."""
    if not module_loaded(document) or not document["gpus"]:
        return {}
    dead = lost_gpus(document) | faulty(document, "device_node")
    nodes = {"/dev/nvidiactl": True, "/dev/nvidia-uvm": True, "/dev/nvidia-uvm-tools": True}
    if document.get("nvswitches"):
        nodes["/dev/nvidia-nvswitchctl"] = True
        nodes.update({f"/dev/nvidia-nvswitch{number}": True for number in range(len(document["nvswitches"]))})
    if document.get("mig_profiles"):
        nodes.update({"/dev/nvidia-caps/nvidia-cap1": True, "/dev/nvidia-caps/nvidia-cap2": True})
    for gpu in driver_gpus(document):
        nodes[f"/dev/nvidia{gpu['index']}"] = gpu["index"] not in dead
        for device in mig.devices(document, gpu):
            nodes.update(dict.fromkeys(capabilities(document, gpu, device), gpu["index"] not in dead))
    return nodes
