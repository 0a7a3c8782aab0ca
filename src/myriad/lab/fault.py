"""`myriad lab fault`: switch a fault of a node's GPU doubles on or off; they show it within a second."""

from __future__ import annotations

import json
from typing import Any

from docker.errors import NotFound

from myriad.errors import InputError, MyriadError
from myriad.lab import engine
from myriad.lab.double.document import PATH, set_fault
from myriad.lab.double.files import GPU_DOUBLE
from myriad.lab.nodes import archive, exec_text
from myriad.lab.state import LabState


def read_document(state: LabState, node: str) -> dict[str, Any]:
    """The node's JSON file.

    Raises:
        InputError: when there is no such node, or it has no GPUs.
        MyriadError: when its container is gone.
    """
    code, text = exec_text(_container(state, node), f"cat {PATH}")
    if code != 0:
        gpu_nodes = ", ".join(name for name, host in state.hosts.items() if host.gpus)
        raise InputError(f"{node} has no GPU doubles", hint=f"Nodes with GPUs: {gpu_nodes}.")
    document: dict[str, Any] = json.loads(text)
    return document


def switch(
    state: LabState, node: str, kind: str, *, gpu: int | None = None, clear: bool = False, value: str | None = None
) -> dict[str, Any]:
    """Switch one fault. Returns the node's new document.

    Raises:
        InputError: when the node, the kind or the GPU does not exist; the message lists what does.
    """
    document = read_document(state, node)
    container = _container(state, node)
    _, uptime = exec_text(container, "cut -d' ' -f1 /proc/uptime")
    try:
        changed = set_fault(document, kind, gpu=gpu, clear=clear, value=value, uptime_s=float(uptime))
    except ValueError as error:
        raise InputError(f"{error}", where=node) from error
    put(container, changed, node=node)
    return changed


def put(container: Any, document: dict[str, Any], *, node: str) -> None:
    """Give a node another document; its trees and device nodes follow at once.

    Raises:
        MyriadError: when the node does not take it.
    """
    folder, name = PATH.rsplit("/", 1)
    text = json.dumps(document, indent=2).encode() + b"\n"
    # Put beside it and renamed, so that nobody reads half a file.
    container.put_archive("/", archive({f"{folder}/.{name}.new": (text, 0o644)}))
    code, said = exec_text(container, f"mv {folder}/.{name}.new {PATH} && {GPU_DOUBLE} apply")
    if code != 0:
        raise MyriadError(
            f"the GPU doubles did not follow: {said.strip() or 'no word'}", where=node, hint="`make lab` makes it anew."
        )


def _container(state: LabState, node: str) -> Any:
    if node not in state.hosts:
        raise InputError(f'there is no node "{node}" in this lab', hint=f"It has {', '.join(state.hosts)}.")
    try:
        return engine.connect().containers.get(state.hosts[node].container)
    except NotFound as error:
        raise MyriadError("its container is gone", where=node, hint="`make lab` makes it anew.") from error
