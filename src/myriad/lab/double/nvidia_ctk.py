"""The toolkit's program on a node with GPU doubles: CDI specifications as `nvidia-ctk cdi generate` writes them.

It knows `cdi generate [--output=FILE] [--format=yaml|json]`, `cdi list` and `--version`. Layout and names of devices
(index, UUID, all; GPU:MIG for MIG devices) are those of nvidia-container-toolkit 1.19
(pkg/nvcdi and cmd/nvidia-ctk/cdi/generate); libraries and hooks are left out, because there are none here.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from myriad.lab.double import mig, node
from myriad.lab.double.document import PATH, driver_gpus, module_loaded, versions
from myriad.lab.double.trees import capabilities

Document = dict[str, Any]

VERSION = "1.19.1"
KIND = "nvidia.com/gpu"
#: Device nodes of every container with a GPU, besides those of its GPUs.
CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


class CtkError(Exception):
    """What the program says before it ends with 1."""


def specification(document: Document) -> Document:
    """The CDI specification of a node's GPUs (pure).

    Raises:
        CtkError: the driver is not there, or is not the library's.
    """
    if not module_loaded(document):
        raise CtkError("failed to initialize NVML: Driver Not Loaded")
    found = versions(document)
    if found["module"] != found["library"]:
        raise CtkError("failed to initialize NVML: Driver/library version mismatch")
    devices: list[Document] = []
    everything: list[str] = []
    for gpu in driver_gpus(document):
        own = [f"/dev/nvidia{gpu['index']}"]
        if mig.is_enabled(document, gpu["index"]):
            for device in mig.devices(document, gpu):
                nodes = own + capabilities(document, gpu, device)
                everything += [path for path in nodes if path not in everything]
                names = (f"{gpu['index']}:{device['index']}", str(device["uuid"]))
                devices += [_device(name, nodes) for name in names]
            continue
        everything += own
        devices += [_device(name, own) for name in (str(gpu["index"]), str(gpu["uuid"]))]
    if everything:
        devices.append(_device("all", everything))
    return {
        "cdiVersion": "0.5.0",
        "kind": KIND,
        "devices": devices,
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [{"path": path} for path in CONTROL],
        },
    }


def _device(name: str, nodes: list[str]) -> Document:
    return {"name": name, "containerEdits": {"deviceNodes": [{"path": path} for path in nodes]}}


def as_yaml(value: Any, indent: int = 0) -> str:
    """YAML of mappings, lists and strings, one scalar a line; the node has no YAML library."""
    space = "  " * indent
    if isinstance(value, dict):
        lines = []
        for key, item in value.items():
            nested = isinstance(item, (dict, list)) and item
            lines.append(
                f"{space}{key}:\n{as_yaml(item, indent + 1)}" if nested else f"{space}{key}: {json.dumps(item)}\n"
            )
        return "".join(lines)
    if isinstance(value, list):
        lines = []
        for item in value:
            text = as_yaml(item, indent + 1) if isinstance(item, (dict, list)) else f"{space}  {json.dumps(item)}\n"
            lines.append(f"{space}- {text[len(space) + 2 :]}")
        return "".join(lines)
    return f"{space}{json.dumps(value)}\n"


def _save(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name that no reader of the folder takes for a specification.
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text)
    temporary.chmod(0o644)
    temporary.replace(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nvidia-ctk")
    parser.add_argument("--version", action="version", version=f"NVIDIA Container Toolkit CLI version {VERSION}")
    cdi = parser.add_subparsers(dest="command", required=True).add_parser("cdi")
    verbs = cdi.add_subparsers(dest="verb", required=True)
    generate = verbs.add_parser("generate")
    generate.add_argument("--output", default="")
    generate.add_argument("--format", choices=["yaml", "json"])
    verbs.add_parser("list")
    return parser


def main(arguments: list[str]) -> int:
    """Do what the arguments say, with the exit code of the real program."""
    options = _parser().parse_args(arguments)
    path = Path(os.environ.get("MYRIAD_LAB_GPU_JSON", PATH))
    try:
        found = specification(node.read(path)) if path.is_file() else None
        if found is None:
            raise CtkError("failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND")
    except CtkError as error:
        sys.stderr.write(f'time="" level=error msg="failed to generate CDI spec: {error}"\n')
        return 1
    if options.verb == "list":
        names = [f"{KIND}={device['name']}\n" for device in found["devices"]]
        sys.stderr.write(f'level=info msg="Found {len(names)} CDI devices"\n')
        sys.stdout.write("".join(names))
        return 0
    kind = options.format or (Path(options.output).suffix[1:] if options.output.endswith(".json") else "yaml")
    text = json.dumps(found, indent=2) + "\n" if kind == "json" else "---\n" + as_yaml(found)
    if options.output:
        _save(Path(options.output), text)
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
