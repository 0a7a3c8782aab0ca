"""The files of a node's GPU doubles, as path to (content, mode)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from myriad.lab.double.document import PATH
from myriad.lab.double.trees import tree_files

#: Where the modules of the programs stand on a node (they need the standard library only), and their own program.
HOME = "/usr/local/lib/myriad-lab/double"
GPU_DOUBLE = "/usr/local/lib/myriad-lab/gpu-double"
#: Programs and the modules that answer for them. A module that is not in this package is left out.
PROGRAMS = {
    "/usr/bin/nvidia-smi": "nvidia_smi",
    "/usr/bin/nvidia-ctk": "nvidia_ctk",
    "/usr/bin/nv-fabricmanager": "node",
    GPU_DOUBLE: "node",
}
#: Modules of the device plugin's image alone.
_ELSEWHERE = ("__main__", "files", "plugin", "protocol")

_STUB = """\
#!/usr/bin/python3
import sys

sys.path.insert(0, "{home}")
from myriad.lab.double import {module}

sys.exit({module}.main({arguments}))
"""

_UNIT = f"""\
# The driver of the lab's GPU doubles: what is new at every start of the node.
[Unit]
Description=GPU doubles of the lab
DefaultDependencies=no
After=local-fs.target systemd-tmpfiles-setup-dev.service
Before=sysinit.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={GPU_DOUBLE} boot

[Install]
WantedBy=sysinit.target
"""

_FABRIC_UNIT = """\
[Unit]
Description=NVIDIA fabric manager service
After=network-online.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/nv-fabricmanager -c /usr/share/nvidia/nvswitch/fabricmanager.cfg

[Install]
WantedBy=multi-user.target
"""


def node_files(document: dict[str, Any]) -> dict[str, tuple[bytes, int]]:
    """Everything that makes a fresh node look as if it had its GPUs; nothing for a node without.

    Args:
        document: the node's content, from `myriad.lab.gpus.gpu_document`.
    """
    if not document["gpus"]:
        return {}
    files = {**program_files(), **document_files(document)}
    units = {"myriad-lab-gpu.service": (_UNIT, "sysinit.target")}
    if document["nvswitches"]:
        units["nvidia-fabricmanager.service"] = (_FABRIC_UNIT, "multi-user.target")
    for name, (text, target) in units.items():
        files[f"/usr/lib/systemd/system/{name}"] = (text.encode(), 0o644)
        # What `systemctl enable` writes, as a unit that only pulls: an archive of files holds no links.
        files[f"/etc/systemd/system/{target}.d/10-{name.split('.')[0]}.conf"] = (
            f"[Unit]\nWants={name}\n".encode(),
            0o644,
        )
    return files


def program_files() -> dict[str, tuple[bytes, int]]:
    """The programs, and the modules that they need."""
    here = Path(__file__).parent
    own = {path.stem: path for path in sorted(here.glob("*.py")) if path.stem not in _ELSEWHERE}
    files = {f"{HOME}/myriad/lab/double/{path.name}": (path.read_bytes(), 0o644) for path in own.values()}
    files.update({f"{HOME}/{package}/__init__.py": (b"", 0o644) for package in ("myriad", "myriad/lab")})
    for program, module in PROGRAMS.items():
        if module in own:
            arguments = "" if module == "nvidia_smi" else "sys.argv[1:]"
            stub = _STUB.format(home=HOME, module=module, arguments=arguments)
            files[program] = (stub.encode(), 0o755)
    return files


def document_files(document: dict[str, Any]) -> dict[str, tuple[bytes, int]]:
    """The JSON file and the trees that follow from it."""
    files = {PATH: (json.dumps(document, indent=2).encode() + b"\n", 0o644)}
    files.update({path: (text.encode(), 0o644) for path, text in tree_files(document).items()})
    return files
