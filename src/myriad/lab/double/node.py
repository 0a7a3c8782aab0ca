"""The half of the doubles that runs on a node: writes the trees and device nodes that follow from the JSON file.

`gpu-double boot` runs at every start of the node before ordinary services, as loading the driver does on a machine:
/dev is new then, GPU instances are gone, a pending MIG mode takes effect. `gpu-double apply` follows a changed file.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

from myriad.lab.double import mig
from myriad.lab.double.document import LAB_DIR, PATH, PROC_DIR, SYS_DIR, versions
from myriad.lab.double.trees import ALIVE, device_nodes, tree_files

Document = dict[str, Any]

#: A unit that holds the GPUs open puts a file here while it runs: the doubles' way to see a client.
CLIENTS = "/run/myriad-lab/gpu-clients"
#: Files of the real procfs that a reader of PROC_DIR may also want.
_REAL = ("uptime", "stat", "meminfo", "cpuinfo", "modules")


def read(path: Path) -> Document:
    """The JSON file."""
    document: Document = json.loads(path.read_text())
    return document


def write(path: Path, document: Document) -> None:
    """Replace the JSON file at once, so that nobody reads half of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".gpu-")
    with os.fdopen(handle, "w") as file:
        json.dump(document, file, indent=2)
        file.write("\n")
    Path(name).chmod(0o644)
    Path(name).replace(path)


def is_busy(root: Path = Path("/")) -> bool:
    """Whether a client has the GPUs open."""
    folder = root / CLIENTS.lstrip("/")
    return folder.is_dir() and any(folder.iterdir())


def apply(document: Document, root: Path = Path("/")) -> None:
    """Make trees and device nodes what the document says; what it no longer says goes.

    Files are written before others are removed, so that a reader finds no empty tree in between.
    """
    wanted = {root / path.lstrip("/"): text for path, text in tree_files(document).items()}
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)
    for tree in (
        f"{SYS_DIR}/bus",
        f"{SYS_DIR}/class",
        f"{SYS_DIR}/module",
        f"{PROC_DIR}/driver",
        f"{PROC_DIR}/devices",
    ):
        _prune(root / tree.lstrip("/"), set(wanted))
    _make_nodes(device_nodes(document), root)


def _prune(tree: Path, wanted: set[Path]) -> None:
    if tree.is_file() and tree not in wanted:
        tree.unlink()
    if not tree.is_dir():
        return
    for folder, _, names in os.walk(tree, topdown=False):
        for name in names:
            if Path(folder, name) not in wanted:
                Path(folder, name).unlink()
        if not any(Path(folder).iterdir()):
            Path(folder).rmdir()


def _make_nodes(wanted: dict[str, bool], root: Path) -> None:
    dev = root / "dev"
    present = [path for path in [*dev.glob("nvidia*"), *dev.glob("nvidia-caps/*")] if not path.is_dir()]
    nodes = {root / path.lstrip("/"): alive for path, alive in wanted.items()}
    for path in present:
        if path not in nodes:
            path.unlink()
    for path, alive in nodes.items():
        device = os.makedev(*(ALIVE if alive else (dead_major(), 0)))
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() or path.is_symlink():
            if stat.S_ISCHR(path.lstat().st_mode) and path.lstat().st_rdev == device:
                continue
            path.unlink()
        os.mknod(path, 0o666 | stat.S_IFCHR, device)
        path.chmod(0o666)
    caps = dev / "nvidia-caps"
    if caps.is_dir() and not any(caps.iterdir()):
        caps.rmdir()


def dead_major(devices: Path = Path("/proc/devices")) -> int:
    """A major number of character devices that no driver of this kernel serves: opening such a node gives ENXIO."""
    taken = {
        int(line.split()[0])
        for line in devices.read_text().split("Block")[0].splitlines()
        if line[:3].strip().isdigit()
    }
    free: list[int] = sorted({*range(120, 128), *range(60, 64), *range(200, 254)} - taken)
    return free[0]


def boot(path: Path, root: Path = Path("/")) -> Document:
    """A start of the node: what survives it, and all faces anew."""
    document = mig.reboot(read(path))
    write(path, document)
    kernel = root / PROC_DIR.lstrip("/") / "sys" / "kernel"
    (kernel / "random").mkdir(parents=True, exist_ok=True)
    (kernel / "osrelease").write_text(f"{os.uname().release}\n")
    # The containers of one machine share the kernel's own boot id, which does not change with them.
    (kernel / "random" / "boot_id").write_text(f"{uuid.uuid4()}\n")
    for name in _REAL:
        link = root / PROC_DIR.lstrip("/") / name
        if not link.is_symlink():
            link.symlink_to(f"/proc/{name}")
    apply(document, root)
    return document


def fabric_manager(arguments: list[str], document: Document) -> int:
    """The double of nv-fabricmanager: --version, or a start that ends well or with the real refusal."""
    parts = versions(document)
    version = parts["fabric_manager"]
    if arguments and arguments[0] in ("-v", "--version"):
        print(f"Fabric Manager version is : {version or document['driver_version']}")
        return 0
    if not document.get("nvswitches"):
        print(
            "request to query NVSwitch device information from NVSwitch driver failed with error:"
            "WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]"
        )
        return 1
    if version != parts["module"]:
        print(
            f"fabric manager NVIDIA GPU driver interface version {version} don't match with driver version "
            f"{parts['module']}. Please update with matching NVIDIA driver package."
        )
        return 1
    print(f"Successfully configured all the available NVSwitches to route GPU NVLink traffic. Fabric Manager {version}")
    return 0


def main(arguments: list[str]) -> int:
    """`gpu-double boot|apply|clean`, or the fabric manager when called by its name."""
    path = Path(os.environ.get("MYRIAD_LAB_GPU_JSON", PATH))
    if Path(sys.argv[0]).name == "nv-fabricmanager":
        return fabric_manager(arguments, read(path))
    verbs = {"boot": lambda: boot(path), "apply": lambda: apply(read(path)), "clean": _clean}
    if len(arguments) != 1 or arguments[0] not in verbs:
        print(f"usage: gpu-double {'|'.join(verbs)}", file=sys.stderr)
        return 2
    verbs[arguments[0]]()
    return 0


def _clean() -> None:
    _make_nodes({}, Path("/"))
    shutil.rmtree(f"{LAB_DIR}/sys", ignore_errors=True)
    shutil.rmtree(f"{LAB_DIR}/proc", ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
