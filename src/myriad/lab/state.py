"""What a lab is and how far it got: `.lab/state.json`, written whole at each step so that any run can be cut short.

The file is the only memory of a lab. The inventory script reads it, `make lab` goes on from it, `make lab-down` undoes
what it records.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from myriad.errors import InputError, MyriadError

#: Where the doubles and the lab's own helpers live on a node.
NODE_DIR = "/var/lib/myriad-lab"


def clone_root(start: Path | None = None) -> Path:
    """The clone that holds `inventories/lab`, searched upwards from `start` (default: the working directory).

    Raises:
        MyriadError: when no parent folder is a clone.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / "inventories" / "lab" / "hosts.yml").is_file() and (folder / "pyproject.toml").is_file():
            return folder
    raise MyriadError(
        "no Myriad clone here or above: the lab belongs to a clone",
        where=str(here),
        hint="Run this in the folder that git clone made.",
    )


class LabPaths:
    """The files of one lab, all under `<clone>/.lab` (a benchmark's lab has a folder of its own), and its description.

    Args:
        clone: the clone's folder.
        folder: where the lab keeps its record.
        profile: which lab: empty for `inventories/lab`, else `inventories/lab-<profile>`.
    """

    def __init__(self, clone: Path, folder: str = ".lab", *, profile: str = "") -> None:
        self.clone = clone
        self.profile = profile
        self.inventory = clone / "inventories" / (f"lab-{profile}" if profile else "lab")
        self.dir = clone / folder
        self.state = self.dir / "state.json"
        self.ssh = self.dir / "ssh"
        self.ssh_key = self.ssh / "id_ed25519"
        self.known_hosts = self.dir / "known_hosts"
        self.kubeconfig = self.dir / "kubeconfig"
        self.kube_cache = self.dir / "kube-cache"  # kubectl's, which it would keep in ~/.kube
        self.env = self.dir / "env"
        self.logs = self.dir / "logs"
        self.bin = self.dir / "bin"

    def make(self) -> None:
        """Create the folders; the key folder is for its owner alone."""
        for folder in (self.dir, self.logs, self.bin):
            folder.mkdir(parents=True, exist_ok=True)
        self.ssh.mkdir(mode=0o700, exist_ok=True)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class HostRecord(_Model):
    """One node: its fixed address on the lab's network and the container that is it."""

    address: str
    gpus: int = 0
    container: str = ""
    spec: str = Field(default="", description="hash of the container's settings, to tell a right one from an old one")


class Detected(_Model):
    """What this machine's containers can do; each becomes an input of a role through the inventory."""

    cgroup_version: int = 2
    cap_sys_resource: bool = True
    dev_kmsg: bool = True
    engine_version: str = ""


class PhaseRecord(_Model):
    """How a phase of the last run ended."""

    ok: bool
    seconds: float


class LabState(_Model):
    """The whole record. Fields that a phase has not reached yet are empty."""

    version: int = 1
    name: str
    network: str = ""
    subnet: str = ""
    gateway: str = ""
    hosts: dict[str, HostRecord] = Field(default_factory=dict)
    detected: Detected = Field(default_factory=Detected)
    node_image: str = ""
    bundle: str = ""
    phases: dict[str, PhaseRecord] = Field(default_factory=dict)
    extra: dict[str, str] = Field(default_factory=dict)


def atomic_write(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Replace `path` in one step: a reader, or a run after Ctrl-C, sees the old or the new content, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)  # noqa: PTH101 (a name from mkstemp)
        os.replace(temporary, path)  # noqa: PTH105
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def save_state(paths: LabPaths, state: LabState) -> None:
    """Write the record."""
    atomic_write(paths.state, json.dumps(state.model_dump(), indent=2) + "\n")


def load_state(paths: LabPaths) -> LabState | None:
    """The record, or None where no lab was made yet.

    Raises:
        MyriadError: when the file is not a record of this version.
    """
    try:
        text = paths.state.read_text()
    except FileNotFoundError:
        return None
    try:
        raw: dict[str, Any] = json.loads(text)
        return LabState.model_validate(raw)
    except (ValueError, ValidationError) as error:
        raise MyriadError(
            f"this is not a lab record that this version reads: {str(error).splitlines()[0]}",
            where=str(paths.state),
            hint="`make lab-down` removes the lab by its name alone; then run `make lab` again.",
        ) from error


def lab_paths(clone: Path, profile: str | None = None) -> LabPaths:
    """The files of the clone's lab, with the profile that it was brought up with.

    Args:
        clone: the clone's folder.
        profile: the wanted one; None takes what is recorded.

    Raises:
        InputError: there is no such profile, or a lab of another one is up.
    """
    state = load_state(LabPaths(clone))
    recorded = state.extra.get("profile", "") if state else ""
    paths = LabPaths(clone, profile=recorded if profile is None else profile)
    if not (paths.inventory / "hosts.yml").is_file():
        known = sorted(folder.name[4:] for folder in paths.inventory.parent.glob("lab-*") if folder.is_dir())
        raise InputError(f'there is no lab profile "{paths.profile}"', hint=f"There is {', '.join(known)}.")
    if state and state.hosts and recorded != paths.profile:
        raise InputError(
            f"a lab of the profile {recorded or 'without a name'} is up in this clone",
            where=str(paths.dir),
            hint="`make lab-down` removes it; then bring up the other one.",
        )
    return paths


def require_state(paths: LabPaths) -> LabState:
    """The record of a lab that was brought up.

    Raises:
        MyriadError: when there is none.
    """
    state = load_state(paths)
    if state is None or not state.hosts:
        raise MyriadError("there is no lab yet", where=str(paths.dir), hint="`make lab` brings one up.")
    return state
