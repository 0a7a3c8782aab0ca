"""Which layers an image is made of, in which order, how large they get, and how long a node takes for them. Pure:
nothing is read, fetched or built.

Layers are ordered by how often they change, lowest the least: a node that has the lower ones pulls only what is new.
A layer holds one thing (a CUDA library, torch, the small wheels together) and weighs no more than a cap, so that a
runtime fetches several side by side and unpacks one while the next is on its way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from myriad.images.definition import ExternalBase, ImageDefinition, OwnBase
from myriad.images.wheels import Wheel, WheelFile

MB = 10**6


class Change(IntEnum):
    """How often a layer changes, the least first."""

    SYSTEM = 0  # with Debian's point releases and security fixes, and with Python; or with the base's digest
    PACKAGES = 1  # with the list of Debian packages
    CUDA = 2  # with a CUDA release
    FRAMEWORK = 3  # with a torch release
    LARGE = 4  # with a large wheel's release
    WHEELS = 5  # with the lock
    LOADER = 6  # with the names of libraries
    TOOLS = 7  # with gpu-check
    SOURCE = 8  # with every commit to the modules that it holds
    FILES = 9  # with the image's own folder


@dataclass(frozen=True)
class Contents:
    """A wheel and what installing it writes; None where the file is not at hand."""

    wheel: Wheel
    files: tuple[WheelFile, ...] | None = None


@dataclass(frozen=True)
class PlannedLayer:
    """One layer to be.

    Attributes:
        change: how often it changes.
        holds: what is in it, for people.
        search_path: the folder in it that Python imports from beyond its own; empty for none.
        wheels: the wheels in it.
        paths: of the wheels' files only these, for a part of a wheel that is over the cap; None takes all.
        part: (which, of how many) for such a part.
        size, tar_size: bytes as compressed and as unpacked; 0 where nothing is known.
        known: `built` (measured), `wheel` (from the wheel's own directory), `estimate`, or `unknown`.
        below: it belongs to the image's base.
    """

    change: Change
    holds: str
    search_path: str = ""
    wheels: tuple[Wheel, ...] = ()
    paths: frozenset[str] | None = None
    part: tuple[int, int] | None = None
    size: int = 0
    tar_size: int = 0
    known: str = "unknown"
    below: bool = False

    @property
    def name(self) -> str:
        """`nvidia-cublas 13.1.1.3 (1 of 2)`."""
        return f"{self.holds} ({self.part[0]} of {self.part[1]})" if self.part else self.holds


#: Where a lean image keeps wheels and Myriad's own code, relative to its root.
SITE = "opt/myriad/site"
SOURCE = "opt/myriad/src"
#: The program that explains inside a pod why CUDA does not work.
CHECK = "gpu-check"
#: A wheel of at least this many bytes is a layer of its own: pushing it again for its neighbour's sake costs seconds.
LARGE = 25 * MB
#: CUDA wheels below it share a layer.
SMALL_CUDA = 25 * MB
_FRAMEWORKS = frozenset({"torch"})
#: Bytes that the contents of wheels take unpacked for each byte of the wheel, by what they are (torch 2.12, CUDA 13.0).
_UNPACKED = {Change.CUDA: 1.6, Change.FRAMEWORK: 2.6, Change.LARGE: 3.2, Change.WHEELS: 3.6}
#: Beside the content, a tar has 1.5 blocks of 512 bytes for each file.
_TAR_HEADER = 768


def plan_layers(
    definition: ImageDefinition,
    wheels: Sequence[Contents] = (),
    *,
    below: Sequence[PlannedLayer] = (),
    sizes: Mapping[Change, tuple[int, int]] | None = None,
) -> tuple[PlannedLayer, ...]:
    """The layers of an image, lowest first.

    Args:
        definition: the image.
        wheels: what its lock names; empty for a plan of the order alone.
        below: the layers of the base, where it is another image.
        sizes: (compressed, unpacked) of layers that are not made of wheels, where known.
    """
    known = dict(sizes or {})

    def single(change: Change, holds: str, *, search_path: str = "") -> PlannedLayer:
        size, tar_size = known.get(change, (0, 0))
        return PlannedLayer(
            change, holds, search_path, size=size, tar_size=tar_size, known="estimate" if size else "unknown"
        )

    if isinstance(definition.base, ExternalBase | OwnBase):
        name = definition.base.image if isinstance(definition.base, ExternalBase) else definition.base.name
        planned = [replace(one, below=True) for one in below] or [PlannedLayer(Change.SYSTEM, name, below=True)]
    else:
        planned = [single(Change.SYSTEM, "Debian 12, Python 3.11")]
    if definition.packages:
        planned.append(single(Change.PACKAGES, "packages " + _listed(definition.packages)))
    if definition.wheels is not None:
        own = definition.wheels.group
        made = wheel_layers(wheels, cap=definition.layer_mb * MB)
        if own is not None:
            made = [replace(one, search_path=f"/{SITE}") for one in made]
        planned += made or [single(Change.WHEELS, own or "wheels", search_path=f"/{SITE}" if own else "")]
        if any(content.wheel.is_cuda for content in wheels):
            planned.append(
                replace(single(Change.LOADER, "loader configuration"), size=20_000, tar_size=60_000, known="estimate")
            )
    if has_check(definition) and not any(one.change is Change.TOOLS for one in planned):
        planned.append(single(Change.TOOLS, CHECK))
    if definition.source is not None:
        planned.append(single(Change.SOURCE, ", ".join(definition.source.modules), search_path=f"/{SOURCE}"))
    if definition.files:
        planned.append(single(Change.FILES, _listed([file.target for file in definition.files])))
    return tuple(planned)


def has_check(definition: ImageDefinition) -> bool:
    """Whether an image carries gpu-check: all for workloads do; those of Myriad's own modules compute nothing. It needs
    a Python, which not every external base has."""
    python = definition.python is not None or not isinstance(definition.base, ExternalBase)
    return python and definition.source is None


def wheel_layers(wheels: Sequence[Contents], *, cap: int) -> list[PlannedLayer]:
    """The layers of wheels alone: CUDA libraries one a layer, torch, large wheels one a layer, the small together.

    Args:
        wheels: which, with their contents where they are at hand.
        cap: the most that a layer may weigh, in bytes as compressed; a single larger file is a layer of its own.
    """
    groups: dict[Change, list[Contents]] = {change: [] for change in Change}
    for content in sorted(wheels, key=lambda one: one.wheel):
        groups[rate_of(content.wheel)].append(content)
    layers: list[PlannedLayer] = []
    for change in (Change.CUDA, Change.FRAMEWORK, Change.LARGE):
        small = [one for one in groups[change] if change is Change.CUDA and one.wheel.size < SMALL_CUDA]
        for content in groups[change]:
            if content not in small:
                layers += _one_wheel(content, change, cap)
        layers += _together(small, change, "small CUDA wheels", cap)
    return [*layers, *_together(groups[Change.WHEELS], Change.WHEELS, "wheels", cap)]


def rate_of(wheel: Wheel) -> Change:
    """How often a wheel changes."""
    if wheel.is_cuda:
        return Change.CUDA
    if wheel.name in _FRAMEWORKS:
        return Change.FRAMEWORK
    return Change.LARGE if wheel.size >= LARGE else Change.WHEELS


def _one_wheel(content: Contents, change: Change, cap: int) -> list[PlannedLayer]:
    wheel = content.wheel
    holds = f"{wheel.name} {wheel.version}"
    size, tar_size, known = _sizes([content], change)
    if content.files is None or size <= cap:
        # Without the file its parts are not known; what it weighs is.
        return [PlannedLayer(change, holds, wheels=(wheel,), size=size, tar_size=tar_size, known=known)]
    parts = _bins(content.files, cap)
    return [
        PlannedLayer(
            change,
            holds,
            wheels=(wheel,),
            paths=frozenset(file.path for file in files),
            part=(number, len(parts)) if len(parts) > 1 else None,
            size=sum(file.compressed for file in files),
            tar_size=sum(file.size + _TAR_HEADER for file in files),
            known="wheel",
        )
        for number, files in enumerate(parts, start=1)
    ]


def _bins(files: Sequence[WheelFile], cap: int) -> list[list[WheelFile]]:
    """The files in as few parts below the cap as first-fit decreasing gives; a file over the cap stands alone."""
    bins: list[tuple[int, list[WheelFile]]] = []
    for file in sorted(files, key=lambda one: (-one.compressed, one.path)):
        for number, (size, members) in enumerate(bins):
            if size + file.compressed <= cap:
                members.append(file)
                bins[number] = (size + file.compressed, members)
                break
        else:
            bins.append((file.compressed, [file]))
    return [members for _, members in bins]


def _together(contents: Sequence[Contents], change: Change, name: str, cap: int) -> list[PlannedLayer]:
    """Wheels that share a layer, in alphabetical runs below the cap."""
    runs: list[list[Contents]] = []
    size = 0
    for content in contents:
        own = _sizes([content], change)[0]
        if not runs or size + own > cap:
            runs.append([])
            size = 0
        runs[-1].append(content)
        size += own
    layers = []
    for number, run in enumerate(runs, start=1):
        packed, tar_size, known = _sizes(run, change)
        count = f"{len(run)} {name}" if len(run) > 1 else f"{run[0].wheel.name} {run[0].wheel.version}"
        layers.append(
            PlannedLayer(
                change,
                count,
                wheels=tuple(one.wheel for one in run),
                part=(number, len(runs)) if len(runs) > 1 else None,
                size=packed,
                tar_size=tar_size,
                known=known,
            )
        )
    return layers


def _sizes(contents: Iterable[Contents], change: Change) -> tuple[int, int, str]:
    size = tar_size = 0
    known = "wheel"
    for content in contents:
        if content.files is None:
            size += content.wheel.size
            tar_size += int(content.wheel.size * _UNPACKED[change])
            known = "estimate" if content.wheel.size else "unknown"
        else:
            size += sum(file.compressed for file in content.files)
            tar_size += sum(file.size + _TAR_HEADER for file in content.files)
    return size, tar_size, known


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def python_path(layers: Iterable[PlannedLayer]) -> str:
    """PYTHONPATH for these layers: what changes more often is found first, so own code wins over a wheel of the same
    name."""
    return ":".join(dict.fromkeys(layer.search_path for layer in reversed(tuple(layers)) if layer.search_path))


# --- pins ---------------------------------------------------------------------------------------


#: Which wheel carries what a pin names; `{major}` is that of CUDA. The first that is there counts.
_PIN_WHEELS: Mapping[str, tuple[str, ...]] = {
    "cuda": ("cuda-toolkit", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12"),
    "cudnn": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu11", "nvidia-cudnn"),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11", "nvidia-nccl"),
}


def pin_problems(definition: ImageDefinition, wheels: Iterable[Wheel]) -> list[tuple[str, str]]:
    """Pins that nothing in the image meets: (key, sentence). Debian packages' pins are looked at in the built image."""
    by_name = {wheel.name: wheel.version for wheel in wheels}
    found = []
    for pin, wanted in definition.pins.items():
        if pin == "python":
            if not agrees(wanted, definition.python_version) and not agrees(definition.python_version, wanted):
                found.append(("pins.python", f"is {wanted}, but the image has Python {definition.python_version}"))
            continue
        if pin in definition.packages:
            continue
        name = next((one for one in _PIN_WHEELS.get(pin, (pin,)) if one in by_name), None)
        if name is None:
            found.append((f"pins.{pin}", f"is {wanted}, but nothing in the image installs it"))
        elif not agrees(wanted, by_name[name]):
            found.append((f"pins.{pin}", f"is {wanted}, but the lock has {name} {by_name[name]}"))
    return found


def agrees(wanted: str, version: str) -> bool:
    """Is a version what a pin asks for, as far as the pin says it: 13.0 takes 13.0.2, and 13.0.1 does not."""
    own = wanted.partition("+")[0].split(".")
    return version.partition("+")[0].split(".")[: len(own)] == own


# --- time ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """What a prediction assumes of a node. Rates are in bytes a second.

    Attributes:
        link: of its link to the registry.
        unpack: of decompressing and writing one layer, counted in unpacked bytes.
        parallel: layers that the runtime fetches at once (containerd: max_concurrent_downloads, 3 by default).
    """

    link: float = 125 * MB
    unpack: float = 300 * MB
    parallel: int = 3


@dataclass(frozen=True)
class Prediction:
    """Seconds for a node with an empty store. `one_layer_s`: the same content as a single layer."""

    pull_s: float
    unpack_s: float
    total_s: float
    one_layer_s: float
    unknown: tuple[str, ...] = field(default=())


def predict(layers: Sequence[PlannedLayer], node: Node | None = None) -> Prediction:
    """How long pulling and unpacking takes: layers share the link, and are unpacked in order as they arrive."""
    node = node or Node()
    size, tar_size = sum(one.size for one in layers), sum(one.tar_size for one in layers)
    arrived = _arrivals([one.size for one in layers], node)
    clock = 0.0
    for layer, at in zip(layers, arrived, strict=True):
        clock = max(clock, at) + layer.tar_size / node.unpack
    pull, unpack = size / node.link, tar_size / node.unpack
    return Prediction(
        pull_s=pull,
        unpack_s=unpack,
        total_s=clock,
        one_layer_s=pull + unpack,
        unknown=tuple(one.name for one in layers if one.known == "unknown"),
    )


def _arrivals(sizes: Sequence[int], node: Node) -> list[float]:
    """When each layer has come, if `parallel` at a time share the link equally and start in order."""
    arrived = [0.0] * len(sizes)
    left = {number: float(size) for number, size in enumerate(sizes[: node.parallel])}
    following = len(left)
    clock = 0.0
    while left:
        share = node.link / len(left)
        least = min(left.values())
        clock += least / share
        for number in [one for one, rest in left.items() if rest <= least]:
            arrived[number] = clock
            del left[number]
        left = {number: rest - least for number, rest in left.items()}
        while following < len(sizes) and len(left) < node.parallel:
            left[following] = float(sizes[following])
            following += 1
    return arrived
