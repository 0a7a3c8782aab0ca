"""Recording a checksum: what `myriad lock pin` trusts, and its edit of the lock's text, which keeps every comment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import yaml

from myriad.errors import InputError
from myriad.stack.fetch import Fetcher
from myriad.stack.lock import OPEN, Arch, Lock, parse_lock
from myriad.stack.pull import Puller
from myriad.stack.sources import release_url


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """One checksum that was recorded: `size` is in bytes, of what was downloaded (of the manifest, for an image)."""

    component: str
    field: str
    arch: str
    url: str
    size: int
    sha256: str
    path: tuple[str, ...]


def find_pins(lock: Lock, name: str, *, arch: str, fetcher: Fetcher, puller: Puller) -> list[Pinned]:
    """Download everything of a component whose pin is open, and tell its checksum. Records nothing yet.

    Raises:
        InputError: no such component.
        FetchError: one cannot be had.
    """
    component = lock.component(name)
    machine = cast(Arch, arch)
    found = []
    for key, file in component.sources.release.items():
        if file.sha256.get(machine) == OPEN:
            url = release_url(component, key, arch=arch)
            digest, size = fetcher.fetch_unpinned(url)
            path: tuple[str, ...] = ("components", name, "sources", "release", key, "sha256", arch)
            found.append(Pinned(component=name, field=key, arch=arch, url=url, size=size, sha256=digest, path=path))
    for repo, image in component.upstream_images.items():
        if image.sha256.get(machine) == OPEN:
            ref = image.ref.format(version=component.version)
            digest, size = puller.resolve(ref, arch=arch)
            path = ("components", name, "upstream_images", repo, "sha256", arch)
            found.append(Pinned(component=name, field=repo, arch=arch, url=ref, size=size, sha256=digest, path=path))
    return found


def record_pins(lock_path: Path, pins: Sequence[Pinned]) -> None:
    """Write pins into the lock. Only those scalars change; the file is replaced at once.

    Raises:
        InputError: a place is not `open`, or the lock would not be valid.
    """
    text = lock_path.read_text(encoding="utf-8")
    for pin in pins:
        text = replace_scalar(text, pin.path, old=OPEN, new=pin.sha256, where=str(lock_path))
    parse_lock(text, where=str(lock_path))
    temporary = lock_path.with_name(f".{lock_path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.chmod(lock_path.stat().st_mode & 0o777)
    temporary.replace(lock_path)


def replace_scalar(text: str, path: Sequence[str], *, old: str, new: str, where: str) -> str:
    """Replace one scalar of a YAML text by its place, and nothing else. Raises InputError when it is not `old`."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    for key in path:
        entries = node.value if isinstance(node, yaml.MappingNode) else []
        node = next((value for name, value in entries if name.value == key), None)
    if not isinstance(node, yaml.ScalarNode) or node.value != old:
        raise InputError(f"{'.'.join(path)} is not `{old}`", where=where, hint="it was changed meanwhile: run it again")
    return text[: node.start_mark.index] + new + text[node.end_mark.index :]
