"""What an image still needs on a node's disks, and whether it may be fetched at all. Pure but for `Disk.at`.

An image lies on a node twice: its compressed layers in containerd's content store, and unpacked in the snapshotter.
Layers that are there already, and bytes of layers that a pull which broke off left behind, are not needed again. What
must stay free is what the kubelet keeps free: below that it evicts pods and deletes images, and the rollout would have
caused it. https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

# Defaults of the kubelet on Linux, used where its configuration names no hard threshold at all.
EVICTION_DEFAULTS = {"nodefs.available": "10%", "imagefs.available": "15%", "nodefs.inodesFree": "5%"}
_QUANTITY = re.compile(r"^([0-9]+(?:\.[0-9]+)?)(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$")
_UNITS = {
    None: 1,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
}
# Where no kubelet runs, this share of a file system stays free.
RESERVE_SHARE = 0.05


@dataclass(frozen=True)
class Disk:
    """One file system, in bytes. `device` tells whether two paths share it."""

    path: str
    device: int
    total: int
    free: int
    inodes: int = 0
    inodes_free: int = 0

    @classmethod
    def at(cls, path):
        """The file system below a path; of one that is not made yet, that of the folder it will be made in."""
        there = path
        while not os.path.exists(there) and there != "/":
            there = os.path.dirname(there)
        found = os.statvfs(there)
        return cls(
            path,
            os.stat(there).st_dev,
            found.f_blocks * found.f_frsize,
            found.f_bavail * found.f_frsize,
            found.f_files,
            found.f_favail,
        )


@dataclass(frozen=True)
class Need:
    """Bytes that are still to come.

    Attributes:
        fetch: compressed, into the content store.
        unpack: unpacked, into the snapshotter.
        layers, present: layers of the image, and those that are unpacked already.
        size: compressed bytes of the whole image.
        estimated: whether unpacked sizes are guessed, because nobody has unpacked the layers yet.
    """

    fetch: int
    unpack: int
    layers: int
    present: int
    size: int
    estimated: bool = False

    @property
    def total(self):
        return self.fetch + self.unpack


def need(layers, blobs, snapshots, partial):
    """What of an image is still to come.

    Args:
        layers: from the lowest, each `digest`, `chain` (of it and all below), `size` and `unpacked` bytes, `estimated`.
        blobs: digests in the content store.
        snapshots: chains that are unpacked.
        partial: bytes by digest that a pull which broke off left.
    """
    fetch = unpack = present = 0
    estimated = False
    for layer in layers:
        if layer.get("chain") and layer["chain"] in snapshots:
            # A runtime may discard the compressed bytes of what it has unpacked; it does not fetch them again.
            present += 1
            continue
        if layer["digest"] not in blobs:
            fetch += max(0, layer["size"] - partial.get(layer["digest"], 0))
        unpack += layer["unpacked"]
        estimated = estimated or bool(layer.get("estimated"))
    return Need(fetch, unpack, len(layers), present, sum(layer["size"] for layer in layers), estimated)


def amount(text, whole):
    """A threshold of the kubelet (`15%`, `1Gi`, bytes) as a number; of `whole` where it is a share.

    Raises:
        ValueError: it is neither.
    """
    text = str(text).strip()
    share = re.match(r"^([0-9]+(?:\.[0-9]+)?)%$", text)
    if share:
        return int(float(share.group(1)) / 100 * whole)
    match = _QUANTITY.match(text)
    if not match:
        raise ValueError(f"{text!r} is no threshold; the kubelet takes a share such as 15% or a quantity such as 10Gi")
    return int(float(match.group(1)) * _UNITS[match.group(2)])


def thresholds(kubelet):
    """What the kubelet keeps free, as (signal, value, where it stands) in the order of its configuration.

    Args:
        kubelet: its configuration; None where no kubelet runs.
    """
    if kubelet is None:
        return []
    hard = kubelet.get("evictionHard") or {}
    if not hard or kubelet.get("mergeDefaultEvictionSettings"):
        hard = {**EVICTION_DEFAULTS, **hard}
    found = [(signal, value, "evictionHard") for signal, value in hard.items()]
    return found + [(signal, value, "evictionSoft") for signal, value in (kubelet.get("evictionSoft") or {}).items()]


@dataclass(frozen=True)
class Admission:
    """Whether an image may be fetched.

    Attributes:
        allowed: whether.
        sentence: why not, with the numbers; empty where it may.
        warnings: what the kubelet will do afterwards although it may.
    """

    allowed: bool
    sentence: str = ""
    warnings: tuple[str, ...] = ()


def admit(name, needed, content, snapshots, kubelet, nodefs=None):
    """Whether there is room for an image, told before any byte comes.

    Args:
        name: the image, for the sentence.
        needed: what is still to come.
        content, snapshots: file systems of the content store and of the snapshotter; often one.
        kubelet: its configuration; None where no kubelet runs.
        nodefs: the file system of the kubelet's own folder.
    """
    demands = {}
    for disk, size in ((content, needed.fetch), (snapshots, needed.unpack)):
        known, before = demands.get(disk.device, (disk, 0))
        demands[disk.device] = (known, before + size)
    warnings = []
    for disk, demand in demands.values():
        if not demand:
            continue
        keep, why = _kept(disk, kubelet, nodefs)
        short = demand + keep - disk.free
        if short > 0:
            return Admission(False, _refusal(name, needed, disk, demand, (keep, why, short)))
        if disk.inodes and disk.inodes_free < (floor := _inodes(disk, kubelet)):
            return Admission(
                False,
                f"{name} is not fetched: {disk.path} has {disk.inodes_free} inodes free, and the kubelet evicts pods "
                f"below {floor}. Delete images there that nobody needs, or enlarge it.",
            )
        high = int((kubelet or {}).get("imageGCHighThresholdPercent") or 85)
        used = 100 * (1 - (disk.free - demand) / disk.total) if disk.total else 0
        if kubelet is not None and used > high:
            warnings.append(
                f"with {name} {disk.path} is {used:.0f} % full, above the kubelet's imageGCHighThresholdPercent of "
                f"{high}: it then deletes images that are unused and not pinned"
            )
    return Admission(True, "", tuple(warnings))


def _kept(disk, kubelet, nodefs):
    """Bytes that stay free on a file system, and who says so."""
    if kubelet is None:
        return int(disk.total * RESERVE_SHARE), f"{RESERVE_SHARE:.0%} of {size_text(disk.total)} that stay free"
    best, why = 0, "nothing that the kubelet keeps free"
    for signal, value, key in thresholds(kubelet):
        scope, _, what = signal.partition(".")
        of_node = scope == "nodefs" and nodefs is not None and nodefs.device == disk.device
        if what != "available" or not (scope in ("imagefs", "containerfs") or of_node):
            continue
        kept = amount(value, disk.total)
        if kept > best:
            share = f" of {size_text(disk.total)}" if str(value).endswith("%") else ""
            best, why = kept, f"{size_text(kept)} that the kubelet keeps free ({key} {signal} {value}{share})"
    return best, why


def _inodes(disk, kubelet):
    values = [amount(value, disk.inodes) for signal, value, _ in thresholds(kubelet) if signal.endswith("inodesFree")]
    return max(values, default=0)


def _refusal(name, needed, disk, demand, found):
    keep, why, short = found
    parts = []
    if needed.fetch:
        have = f"; {needed.present} of {needed.layers} layers are there" if needed.present else ""
        parts.append(f"{size_text(needed.fetch)} to fetch (of {size_text(needed.size)}{have})")
    if needed.unpack:
        about = "about " if needed.estimated else ""
        parts.append(f"{about}{size_text(needed.unpack)} unpacked")
    split = "" if demand == needed.total else f" ({size_text(demand)} of it here)"
    parts.append(why)
    return (
        f"{name} is refused before any byte: it needs {size_text(demand + keep)} free on {disk.path}: "
        f"{', '.join(parts)}{split}. {size_text(disk.free)} are free, {size_text(short)} too few. "
        "Delete images there that nobody needs (`crictl images` lists them), or enlarge it."
    )


def size_text(count):
    """Bytes as people read them: `3.1 GB`, `27 MB`."""
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            value = count / size
            return f"{value:.1f} {unit}" if value < 100 and unit in ("TB", "GB") else f"{value:.0f} {unit}"
    return f"{count} B"
