"""`make lab-down` and `make lab-clean`: take away what make lab made, and name what stays."""

from __future__ import annotations

import os
import shutil
import stat
import time
from pathlib import Path

from docker.errors import ImageNotFound

from myriad.errors import MyriadError
from myriad.lab import engine, machine, nodes, offline
from myriad.lab.display import Display, row
from myriad.lab.nodes import LABEL
from myriad.lab.preflight import lab_name, probe_engine
from myriad.lab.state import LabPaths
from myriad.stack.settings import cache_root

#: What the folder of a lab that is down still holds: the record of the environment, which is no part of a lab.
_KEPT = {"environment.lock", "environment.log"}


def take_down(clone: Path, display: Display) -> int:
    """Remove the lab of this clone: containers, network, volumes, settings, files, the engine if make lab started it.

    Works by the lab's name alone, so it also cleans up behind a lab whose record is lost. Running it again is fine.
    """
    name, paths = lab_name(str(clone)), LabPaths(clone)
    with display.phase("nodes") as phase:
        kind = probe_engine(dict(os.environ)).kind
        if kind == "docker":
            client = engine.connect()
            offline.unblock_network(client, name)
            removed = nodes.remove_lab(client, name)
            parts = [counted(len(items), what) for what, items in removed.items() if items]
            phase.result = f"removed {', '.join(parts)}" if parts else "there were none"
        elif kind == "stopped":
            phase.result = "Docker does not run; containers of a lab, if any, go with the next lab-down while it runs"
        elif kind == "none":
            phase.result = "there is no engine, so there are none"
        else:
            raise MyriadError(
                f"the engine cannot be used ({kind}), so the lab's containers stay", hint="`make preflight` tells why."
            )
    with display.phase("files") as phase:
        removed_files = _remove_files(paths)
        phase.result = f"removed {counted(removed_files, 'entries')} of .lab/" if removed_files else "there were none"
    with display.phase("machine") as phase:
        others = _other_labs(name) if kind == "docker" else []
        if others:
            verb = "is" if len(others) == 1 else "are"
            phase.result = f"settings and engine stay: {', '.join(others)} {verb} up on this machine"
        else:
            said = [*machine.restore_settings(), *engine.stop_engine(name)]
            for sentence in said[:-1]:
                display.say(sentence)
            phase.result = said[-1] if said else "nothing was changed on it"
    display.line(row("stays", f"{cache_root()} ({_size(cache_root())}), the node image in Docker, .venv"))
    display.line(row("", "make lab-clean removes the caches too"))
    return 0


def counted(number: int, plural: str) -> str:
    """`1 container`, `4 containers`, `1 entry`."""
    single = plural.removesuffix("ies") + "y" if plural.endswith("ies") else plural.removesuffix("s")
    return f"{number} {plural if number != 1 else single}"


def _remove_files(paths: LabPaths) -> int:
    """Remove `.lab` but for the environment's record. Returns how many entries went."""
    if not paths.dir.is_dir():
        return 0
    gone = 0
    for entry in paths.dir.iterdir():
        if entry.name in _KEPT:
            continue
        gone += 1
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    if not any(paths.dir.iterdir()):
        paths.dir.rmdir()
    return gone


def _other_labs(name: str) -> list[str]:
    """Names of other labs with running nodes on this engine."""
    found = set()
    for container in engine.connect().containers.list(filters={"label": LABEL}):
        label = container.labels.get(LABEL, "")
        if label not in (name, "probe"):
            found.add(label)
    return sorted(found)


def clean(clone: Path, display: Display) -> int:
    """Take the lab down, then remove the node images and the caches that all labs of this user share.

    Raises:
        MyriadError: while another lab of this machine is up, because it works from the same caches.
    """
    if probe_engine(dict(os.environ)).kind == "docker":
        others = _other_labs(lab_name(str(clone)))
        if others:
            raise MyriadError(
                f"{', '.join(others)} is up on this machine and works from the same caches",
                hint="Run `make lab-down` in its clone first.",
            )
        client = engine.connect()
        nodes.remove_lab(client, lab_name(str(clone)))
        with display.phase("images") as phase:
            images = client.images.list(nodes.IMAGE)
            for image in images:
                for tag in image.tags:
                    try:
                        client.images.remove(tag, force=True)
                    except ImageNotFound:
                        continue
            phase.result = f"removed {len(images)}"
    take_down(clone, display)
    with display.phase("caches") as phase:
        root = cache_root()
        phase.result = f"removed {root} ({_size(root)})" if root.is_dir() else "there were none"
        if root.is_dir():
            remove_tree(root)
    return 0


def remove_tree(root: Path) -> None:
    """Remove a folder whose parts may be read-only, as Go's module cache is."""
    for folder, _, _ in os.walk(root):
        path = Path(folder)
        path.chmod(path.stat().st_mode | stat.S_IRWXU)
    shutil.rmtree(root)


def _size(root: Path, *, budget_s: float = 2.0) -> str:
    """Disk use of a folder; a file with several names counts once. Go's module cache alone has some 100,000 files, so
    the count ends after `budget_s` and says so."""
    seen: set[int] = set()
    total, until = 0, time.monotonic() + budget_s
    for folder, _, names in os.walk(root):
        if time.monotonic() > until:
            return f"more than {total / 1e9:.1f} GB"
        for name in names:
            status = (Path(folder) / name).lstat()
            if status.st_ino not in seen:
                seen.add(status.st_ino)
                total += status.st_blocks * 512
    return f"{total / 1e9:.1f} GB"
