"""One simulated host: a JSON file that holds what was done to it. Tasks of one host never run at the same time."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from uuid import NAMESPACE_DNS, uuid5

from myriad.errors import MyriadError


class NoSuchHostError(MyriadError):
    """A host that the simulated site does not have."""


@dataclass(slots=True)
class SimulatedHost:
    """What a host is and what was done to it.

    Attributes:
        name: its name in the inventory.
        address: its IPv4 address.
        machine_id: 32 hex digits; another one when it is reinstalled.
        dead: whether it answers nothing.
        adopts: whether its next look is taken for the inputs of a complete run before it: a host that has converged.
        inputs_hash: what the last complete run recorded; empty before one.
        parts: digests of inputs that one role alone follows from, as it recorded them.
        roles: names of roles that recorded something.
        done: digest of the arguments by the task's key: what is asked again changes nothing.
        paths: files that stand for something that was done (`kubeadm-join.done`).
        code: names of modules whose code it keeps, by key.
        tasks: how many modules ran on it.
    """

    name: str
    address: str
    machine_id: str
    dead: bool = False
    adopts: bool = False
    inputs_hash: str = ""
    parts: dict[str, str] = field(default_factory=dict)
    roles: list[str] = field(default_factory=list)
    done: dict[str, str] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    code: dict[str, list[str]] = field(default_factory=dict)
    tasks: int = 0


def bare(name: str, address: str, *, install: int = 0) -> SimulatedHost:
    """A machine that nothing was done to; each install of it has a machine-id of its own."""
    return SimulatedHost(name, address, uuid5(NAMESPACE_DNS, f"{name}-{install}.simulated").hex)


def _file(folder: Path, address: str) -> Path:
    return folder / f"{address}.json"


def load(folder: Path, address: str) -> SimulatedHost:
    """Read the host of an address.

    Raises:
        NoSuchHostError: the simulated site does not have it.
    """
    try:
        return SimulatedHost(**json.loads(_file(folder, address).read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise NoSuchHostError(f"there is no simulated host at {address}", where=str(folder)) from None


def save(folder: Path, host: SimulatedHost) -> None:
    """Write a host, whole or not at all: a run may be killed."""
    path = _file(folder, host.address)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(host)), encoding="utf-8")
    temporary.replace(path)
