"""The files of a node's GPU doubles, as path to (content, mode)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

from myriad.lab.double.document import PATH, gpu_document, pci_files


class _Node(Protocol):
    """What is needed to know of a node."""

    @property
    def name(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def gpus(self) -> int: ...


def node_files(node: _Node) -> dict[str, tuple[bytes, int]]:
    """Everything that makes a fresh node look as if it had its GPUs; nothing for a node without."""
    if node.gpus == 0:
        return {}
    smi = (Path(__file__).parent / "nvidia_smi.py").read_bytes()
    return {"/usr/bin/nvidia-smi": (smi, 0o755), **document_files(gpu_document(node.name, node.model, node.gpus))}


def document_files(document: dict[str, Any]) -> dict[str, tuple[bytes, int]]:
    """The JSON file and the PCI tree that follows from it."""
    files = {PATH: (json.dumps(document, indent=2).encode() + b"\n", 0o644)}
    files.update({path: (text.encode(), 0o644) for path, text in pci_files(document).items()})
    return files
