"""Multi-instance GPUs: what a card can be cut into, whether a layout fits, and what follows from it. Pure.

A layout is the profiles of one GPU (`{"1g.10gb": 7}`); an empty one is a whole card, which is the default. Slices and
places follow the MIG user guide, "Supported MIG Profiles" and "MIG Device Names":
https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any

from myriad.fleet.catalog import CATALOG, GpuModel
from myriad.fleet.names import closest, show

Layout = tuple[tuple[str, int], ...]
"""Profiles of one GPU with their counts, the largest first; empty for a whole card."""

WHOLE: Layout = ()

# Ids that the driver gives to profiles by their shape (compute slices, memory slices), on cards of 7 and of 4 slices.
_IDS_OF_7 = {(1, 1): 19, (1, 2): 15, (2, 2): 14, (3, 4): 9, (4, 4): 5, (7, 8): 0}
_IDS_OF_4 = {(1, 1): 14, (2, 2): 5, (4, 4): 0}
_ID_OF_MEDIA_1G = {7: 20, 4: 21}


@dataclass(frozen=True, slots=True)
class Profile:
    """One way to cut a card.

    Attributes:
        name: without "MIG ", as `1g.10gb`.
        slices: compute slices that it takes.
        size: memory slices that it takes.
        starts: memory slices at which it may begin.
        count: the most of them on one card.
        id: the driver's number for it; None where no source for it was found.
    """

    name: str
    slices: int
    size: int
    starts: tuple[int, ...]
    count: int
    id: int | None


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a model can be cut into.

    Attributes:
        slices: compute slices of the card.
        memory: memory slices of the card.
        profiles: by name.
    """

    slices: int
    memory: int
    profiles: Mapping[str, Profile]


@cache
def geometry(model: str) -> Geometry | None:
    """The slices of a model of the catalog; None for one without MIG.

    Raises:
        KeyError: the catalog has no such model.
    """
    card: GpuModel = CATALOG[model]
    if not card.mig:
        return None
    slices = max(profile.slices for profile in card.mig)
    memory = 8 if slices == 7 else slices
    whole_gib = max(profile.memory_gib for profile in card.mig)
    ids = _IDS_OF_7 if slices == 7 else _IDS_OF_4
    profiles = {}
    for row in card.mig:
        size = max(1, round(Fraction(row.memory_gib * memory, whole_gib)))
        number = ids.get((row.slices, size))
        if "+" in row.name or "-" in row.name:
            number = _ID_OF_MEDIA_1G.get(slices) if row.slices == 1 and row.name.endswith("+me") else None
        profiles[row.name] = Profile(row.name, row.slices, size, _starts(row.slices, size, slices), row.count, number)
    return Geometry(slices, memory, profiles)


def _starts(slices: int, size: int, whole: int) -> tuple[int, ...]:
    """Where an instance may begin. Of eight memory slices beside seven compute slices the last has no compute."""
    memory = 8 if whole == 7 else whole
    if size == memory or slices * 2 > whole:
        return (0,)
    places = range(0, memory, size)
    if whole == 7 and size == slices:
        return tuple(start for start in places if start + size <= whole)
    return tuple(places)


def placement(model: str, layout: Layout) -> tuple[tuple[str, int], ...] | None:
    """Places of a layout's instances as (profile, first memory slice), or None where it does not fit.

    Raises:
        KeyError: no such model, or no such profile.
    """
    shape = geometry(model)
    if shape is None:
        return None if layout else ()
    wanted = [shape.profiles[name] for name, count in layout for _ in range(count)]
    if any(count > shape.profiles[name].count for name, count in layout):
        return None
    if sum(profile.slices for profile in wanted) > shape.slices:
        return None
    return _place(sorted(wanted, key=lambda profile: (-profile.size, -profile.slices, profile.name)), frozenset())


def _place(wanted: Sequence[Profile], taken: frozenset[int]) -> tuple[tuple[str, int], ...] | None:
    if not wanted:
        return ()
    first, rest = wanted[0], wanted[1:]
    for start in reversed(first.starts):
        span = frozenset(range(start, start + first.size))
        if taken & span:
            continue
        found = _place(rest, taken | span)
        if found is not None:
            return ((first.name, start), *found)
    return None


def creation_order(model: str, layout: Layout) -> tuple[str, ...]:
    """Profiles in the order in which the driver must be asked: it chooses the places itself, and a small instance that
    comes first can stand in the way of a large one (MIG user guide, "Instance Geometry", example 2)."""
    shape = geometry(model)
    if shape is None:
        return ()
    names = [name for name, count in layout for _ in range(count)]
    return tuple(sorted(names, key=lambda name: (-shape.profiles[name].size, -shape.profiles[name].slices, name)))


def layout_fault(model: str, layout: Layout) -> str | None:
    """Why a layout is none for this model, as a sentence that reads on from its key; None when it fits."""
    shape = geometry(model)
    if not layout:
        return None
    if shape is None:
        return f"cuts the card, and {model} cannot be cut: MIG came with A100, A30, H100 and later data center cards"
    for name, count in layout:
        if name not in shape.profiles:
            best = closest(name, shape.profiles)
            offer = f'; did you mean "{best}"?' if best else ""
            return f'names the profile "{name}", which {model} does not have: {", ".join(shape.profiles)}{offer}'
        most = shape.profiles[name].count
        if count > most:
            return f"asks for {count} x {name}; one {model} holds {most}"
    if placement(model, layout) is None:
        compute = sum(shape.profiles[name].slices * count for name, count in layout)
        memory = sum(shape.profiles[name].size * count for name, count in layout)
        if compute > shape.slices or memory > shape.memory:
            return (
                f"needs {compute} compute and {memory} memory slices ({text(layout)}); "
                f"one {model} has {shape.slices} and {shape.memory}"
            )
        return f"cannot be placed on one {model} ({text(layout)}): each profile may begin at some slices only"
    return None


def text(layout: Layout) -> str:
    """As people read it: `3 x 2g.20gb, 1 x 1g.10gb`, or `whole`."""
    return ", ".join(f"{count} x {name}" for name, count in layout) or "whole"


def read_layout(value: Any) -> Layout:
    """A layout as people write it: `{1g.10gb: 7}`, `[3g.40gb, 3g.40gb]`, `1g.80gb`, or `whole`.

    Raises:
        ValueError: with a sentence that reads on from its key.
    """
    if value is None or value == "whole" or value in ([], {}):
        return WHOLE
    if isinstance(value, str):
        value = [value]
    if isinstance(value, Mapping):
        wrong = [name for name, count in value.items() if isinstance(count, bool) or not isinstance(count, int)]
        low = [name for name, count in value.items() if name not in wrong and count < 1]
        if wrong or low:
            name = (wrong or low)[0]
            raise ValueError(f"gives {name} the count {show(value[name])}; a count is a whole number, 1 or more")
        return _sorted({str(name): int(count) for name, count in value.items()})
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        return _sorted({name: list(value).count(name) for name in value})
    raise ValueError(f"is {show(value)}; write profiles with counts, for example {{1g.10gb: 7}} or [3g.40gb, 3g.40gb]")


def _sorted(counts: Mapping[str, int]) -> Layout:
    def slices(name: str) -> int:
        head = name.partition("g.")[0]
        return int(head) if head.isdigit() else 0

    return tuple(sorted(counts.items(), key=lambda item: (-slices(item[0]), item[0])))


@dataclass(frozen=True, slots=True)
class Cut:
    """How the GPUs of a pool are cut.

    Attributes:
        layout: of every GPU that is not named below.
        gpus: layouts by GPU index.
        hosts: whole cuts of single hosts, by name.
        strategy: `mixed` gives each profile a resource of its own, `single` counts slices of one kind as GPUs.
        training_allowed: a training pool is cut on purpose.
    """

    layout: Layout = WHOLE
    gpus: Mapping[int, Layout] = field(default_factory=dict)
    hosts: Mapping[str, Cut] = field(default_factory=dict)
    strategy: str = "mixed"
    training_allowed: bool = False

    def of(self, host: str, gpus: int) -> tuple[Layout, ...]:
        """Layouts of a host's GPUs, by index."""
        own = self.hosts.get(host, self)
        return tuple(own.gpus.get(index, own.layout) for index in range(gpus))

    @property
    def layouts(self) -> tuple[tuple[str, Layout], ...]:
        """Every layout with where it is written below `mig`."""
        found = [("layout", self.layout), *((f"gpus.{index}", layout) for index, layout in self.gpus.items())]
        for name, cut in self.hosts.items():
            found += [(f"hosts.{name}.{key}", layout) for key, layout in cut.layouts]
        return tuple(found)


_CUT_KEYS = ("layout", "gpus", "hosts", "strategy", "training_allowed")


def read_cut(value: Any, *, of_host: bool = False) -> Cut:
    """`myriad_pools.<pool>.mig`: a layout for every GPU, or `{layout, gpus, hosts, strategy, training_allowed}`.

    Raises:
        ValueError: with a sentence that reads on from its key.
    """
    if not isinstance(value, Mapping) or not value or not set(map(str, value)) & set(_CUT_KEYS):
        return Cut(read_layout(value))
    keys = _CUT_KEYS[:2] if of_host else _CUT_KEYS
    strange = [str(key) for key in value if key not in keys]
    if strange:
        best = closest(strange[0], keys)
        offer = f'; did you mean "{best}"?' if best else f"; known: {', '.join(keys)}"
        raise ValueError(f'has the key "{strange[0]}", which it does not know{offer}')
    strategy, allowed = value.get("strategy", "mixed"), value.get("training_allowed", False)
    if strategy not in ("mixed", "single"):
        raise ValueError(f"has the strategy {show(strategy)}; allowed: mixed or single")
    if not isinstance(allowed, bool):
        raise ValueError(f"has training_allowed {show(allowed)}; write true or false")
    gpus: dict[int, Layout] = {}
    for key, layout in _mapping(value, "gpus").items():
        for index in _indices(key):
            gpus[index] = read_layout(layout)
    hosts = {str(name): read_cut(cut, of_host=True) for name, cut in _mapping(value, "hosts").items()}
    return Cut(read_layout(value.get("layout")), gpus, hosts, strategy, allowed)


def _mapping(value: Mapping[str, Any], key: str) -> Mapping[Any, Any]:
    found = value.get(key) or {}
    if not isinstance(found, Mapping):
        raise ValueError(f"has {key} {show(found)}; write a mapping, for example {{0: whole}}")
    return found


def _indices(key: Any) -> Iterable[int]:
    """`3`, `"0-3"` or `"0,2"`."""
    numbers: list[int] = []
    for part in str(key).split(","):
        low, _, high = part.strip().partition("-")
        if isinstance(key, bool) or not low.isdigit() or not (high or low).isdigit() or int(high or low) < int(low):
            raise ValueError(f'names the GPUs {show(key)}; write an index, or a range such as "0-3"')
        numbers += range(int(low), int(high or low) + 1)
    return numbers


def cut_fault(cut: Cut, *, model: str, gpus: int, use: str, resource: str) -> str | None:
    """What is wrong with a cut for its pool, as a sentence that reads on from `mig`; None when nothing is.

    Args:
        cut: as described.
        model: the pool's.
        gpus: cards of one node.
        use: training or inference.
        resource: what the pool counts GPUs by.
    """
    cuts_nothing = all(not layout for _, layout in cut.layouts)
    if cuts_nothing:
        return None
    if not resource.startswith("nvidia.com/"):
        return f"cuts cards that are counted as {resource}; MIG is NVIDIA's: leave it out for this pool"
    if use == "training" and not cut.training_allowed:
        return (
            "cuts the cards of a training pool: slices have no NVLink to each other, so a gang cannot use them; "
            "set use: inference, or mig.training_allowed: true if that is meant"
        )
    for where, layout in cut.layouts:
        fault = layout_fault(model, layout)
        if fault is not None:
            return f"({where}) {fault}" if where != "layout" else fault
    for name, part in (("", cut), *((f"hosts.{host}.", part) for host, part in cut.hosts.items())):
        beyond = [index for index in part.gpus if index >= gpus]
        if beyond:
            return f"({name}gpus) names GPU {beyond[0]}; a node of this pool has GPU 0 to {gpus - 1}"
    if cut.strategy == "single":
        kinds = {layout for part in (cut, *cut.hosts.values()) for layout in part.of("", gpus)}
        if len(kinds) > 1 or any(len(layout) > 1 for layout in kinds):
            return (
                "has the strategy single and more than one kind of slice; the device plugin then gives out none: "
                "cut every GPU into slices of one profile, or use strategy: mixed"
            )
    return None


def resource_name(profile: str, resource: str = "nvidia.com/gpu") -> str:
    """Extended resource of a profile with strategy mixed: `nvidia.com/mig-1g.10gb`. A + is not allowed in a name."""
    return f"{resource.rpartition('/')[0]}/mig-{profile.replace('+', '.')}"


def node_resources(
    cut: Cut, *, host: str, gpus: int, resource: str = "nvidia.com/gpu", replicas: int = 1
) -> dict[str, int]:
    """What the kubelet of a node counts, by resource. Resources with nothing in them are left out."""
    counts: dict[str, int] = {}
    for layout in cut.of(host, gpus):
        for profile, count in layout:
            name = resource if cut.strategy == "single" else resource_name(profile, resource)
            counts[name] = counts.get(name, 0) + count
        if not layout:
            counts[resource] = counts.get(resource, 0) + replicas
    return counts


def shares_per_gpu(
    cut: Cut, *, hosts: Mapping[str, int], gpus: int, resource: str = "nvidia.com/gpu", replicas: int = 1
) -> dict[str, Fraction]:
    """How much of each resource one GPU of a pool stands for: what a quota in GPUs is multiplied with.

    Args:
        cut: of the pool.
        hosts: GPUs by host; a pool without hosts counts as one node of `gpus` cards.
        gpus: cards of one node.
        resource: what the pool counts whole GPUs by.
        replicas: how many pods share a whole GPU.
    """
    members = dict(hosts) or {"": gpus}
    total = sum(members.values()) or 1
    sums: dict[str, int] = {}
    for host, count in members.items():
        for name, found in node_resources(cut, host=host, gpus=count, resource=resource, replicas=replicas).items():
            sums[name] = sums.get(name, 0) + found
    return {name: Fraction(count, total) for name, count in sorted(sums.items())}


def node_layout(cut: Cut, *, model: str, host: str, gpus: int) -> dict[str, list[str]]:
    """What the node is told: profiles by GPU index, in the order of creation; empty lists are whole cards. Empty where
    nothing of the pool is cut."""
    layouts = cut.of(host, gpus)
    if not any(layouts):
        return {}
    return {str(index): list(creation_order(model, layout)) for index, layout in enumerate(layouts)}
