"""Node labels that follow from a portrait and its spec: one pure function, several vocabularies.

`own` labels are Myriad's and what its scheduling reads. The others are written only where configured, for consumers
that know them: GPU feature discovery (https://github.com/NVIDIA/k8s-device-plugin/tree/main/docs/gpu-feature-discovery),
Topograph before and after its keys were renamed
(https://docs.nvidia.com/topograph/v1.0.0/reference/node-labels-and-annotations), and the cloud's well-known keys
(https://kubernetes.io/docs/reference/labels-annotations-taints/).

A node with several products is marked `mixed`; no label ever names the first GPU's model for all of them.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from myriad.fleet.catalog import CATALOG
from myriad.fleet.labels import PREFIX, place_value
from myriad.fleet.names import MAX_NAME
from myriad.fleet.portrait import GPUS, PCI, Gpu, Labelling, MigStrategy, Portrait, Spec

MIXED = "mixed"
GPU_COUNT = f"{PREFIX}gpu-count"
GPU_DRIVER = f"{PREFIX}gpu-driver"
GPU_PRODUCT = f"{PREFIX}gpu-product"
GPU_MEMORY = f"{PREFIX}gpu-memory-mib"
GPU_ARCHITECTURE = f"{PREFIX}gpu-architecture"
GPU_VENDOR = f"{PREFIX}gpu-vendor"
GPU_LINK = f"{PREFIX}gpu-link"
CUDA_DRIVER = f"{PREFIX}cuda-driver"
MIG_STRATEGY = f"{PREFIX}mig-strategy"
NVLINK_DOMAIN = f"{PREFIX}nvlink-domain"
_NVIDIA = "nvidia.com/"
_HASHED = 8


def derive_labels(portrait: Portrait, spec: Spec, settings: Labelling) -> dict[str, str]:
    """All labels that the node has to carry: the description's own, and what the portrait shows.

    A portrait whose GPUs could not be asked gives the description's labels only (`is_complete`).
    """
    labels: dict[str, str] = {}
    if is_complete(portrait) and GPUS in portrait.observations:
        if "own" in settings.sets:
            labels |= _own(portrait)
        if "gfd" in settings.sets and any(gpu.vendor == "nvidia" for gpu in portrait.gpus):
            labels |= _gfd(portrait, settings)
    domain = _domain(portrait)
    location = spec.expected.location
    if "topograph" in settings.sets:
        labels |= _topograph(location, domain)
    if "topograph-v0" in settings.sets:
        labels |= _topograph_old(location, domain, ("leaf", "spine", "core"))
    if "topograph-v0.1" in settings.sets:
        labels |= _topograph_old(location, domain, ("block", "spine", "datacenter"))
    if "cloud" in settings.sets and settings.zone_level < len(location):
        labels["topology.kubernetes.io/zone"] = place_value(location[: settings.zone_level + 1])
    return {key: value for key, value in ((k, label_value(v)) for k, v in (labels | spec.labels).items()) if value}


def is_complete(portrait: Portrait) -> bool:
    """Whether it is known which GPUs there are: only then is a label that is missing here a label to be taken away."""
    if GPUS in portrait.observations:
        return not portrait.fault(GPUS)
    return not portrait.fault(PCI) and not portrait.pci.gpus


def label_value(text: str) -> str:
    """`text` as a label value: what labels may not hold becomes a hyphen; one that is too long ends in a hash, so that
    two long values stay two. https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/"""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", text.strip()).strip("-_.")
    if len(plain) <= MAX_NAME:
        return plain
    digest = hashlib.sha256(text.encode()).hexdigest()[:_HASHED]
    return f"{plain[: MAX_NAME - _HASHED - 1].rstrip('-_.')}-{digest}"


def _own(portrait: Portrait) -> dict[str, str]:
    gpus = portrait.usable
    labels = {GPU_COUNT: str(len(gpus))}
    if not gpus:
        return labels
    labels[GPU_VENDOR] = _one(gpu.vendor for gpu in gpus)
    labels[GPU_PRODUCT] = _one(_name(gpu) for gpu in gpus)
    labels[GPU_ARCHITECTURE] = _one(gpu.architecture for gpu in gpus)
    labels[GPU_LINK] = _one(gpu.link.kind or "" for gpu in gpus)
    labels[GPU_DRIVER] = _one(gpu.driver for gpu in gpus)
    memories = {gpu.memory_mib for gpu in gpus}
    # A number or nothing: whoever compares it must not meet a word.
    if len(memories) == 1 and None not in memories:
        labels[GPU_MEMORY] = str(memories.pop())
    if labels[GPU_PRODUCT] == MIXED:
        # Products whose names differ in what a key may not hold are counted together.
        for key, count in Counter(_count_key(_name(gpu)) for gpu in gpus).items():
            if key:
                labels[key] = str(count)
    if portrait.driver is not None and portrait.driver.cuda:
        labels[CUDA_DRIVER] = portrait.driver.cuda
    if any(gpu.mig is not None for gpu in gpus):
        labels[MIG_STRATEGY] = layout(gpus)
        for profile, count in _profiles(gpus).items():
            labels[f"{PREFIX}mig-{profile}"] = str(count)
    domain = _domain(portrait)
    if domain:
        labels[NVLINK_DOMAIN] = domain
    return labels


def _count_key(name: str) -> str:
    plain = label_value(name)[: MAX_NAME - len("gpu-count.")].rstrip("-_.")
    return f"{GPU_COUNT}.{plain}" if plain else ""


def _name(gpu: Gpu) -> str:
    return gpu.model or gpu.product


def _one(values: Iterable[str]) -> str:
    """The value that all have, `mixed` where they differ, nothing where it is not known of all."""
    different = set(values)
    return "" if "" in different and len(different) == 1 else different.pop() if len(different) == 1 else MIXED


def layout(gpus: Sequence[Gpu]) -> MigStrategy:
    """What the cards' MIG amounts to: `none` (whole cards), `single` (all cut into one profile), else `mixed`."""
    cut = [gpu for gpu in gpus if gpu.mig is not None and gpu.mig.mode == "enabled"]
    if not cut:
        return "none"
    alike = len(cut) == len(gpus) and all(gpu.mig is not None and gpu.mig.slices for gpu in gpus)
    return "single" if alike and len(_profiles(gpus)) == 1 else "mixed"


def _profiles(gpus: Sequence[Gpu]) -> dict[str, int]:
    # `1g.10gb+me` is `1g.10gb.me` in resource and label names, as the vendor's device plugin writes it.
    names = (_profile(piece.profile) for gpu in gpus if gpu.mig for piece in gpu.mig.slices)
    return dict(sorted(Counter(name for name in names if name).items()))


def _profile(name: str) -> str:
    # Room for what stands around it in keys.
    return label_value(name.replace("+", "."))[: MAX_NAME - len("mig-.sharing-strategy")].rstrip("-_.")


def _domain(portrait: Portrait) -> str:
    fabric = portrait.fabric
    return f"{fabric.cluster_uuid}.{fabric.clique or 0}" if fabric.cluster_uuid else ""


# GPU feature discovery


def _gfd(portrait: Portrait, settings: Labelling) -> dict[str, str]:
    gpus = [gpu for gpu in portrait.usable if gpu.vendor == "nvidia"]
    labels = {f"{_NVIDIA}gpu.present": "true", f"{_NVIDIA}mig.capable": _bool(any(gpu.mig for gpu in gpus))}
    versions = {gpu.driver for gpu in gpus if gpu.driver}
    if len(versions) == 1:
        labels |= _versions(versions.pop(), (portrait.driver.cuda if portrait.driver else None) or "")
    strategy = layout(gpus) if settings.mig_strategy == "auto" else settings.mig_strategy
    if strategy != "none":
        labels[f"{_NVIDIA}mig.strategy"] = strategy
    product = _one(gpu.product.replace(" ", "-") for gpu in gpus)
    labels[f"{_NVIDIA}gpu.family"] = _one(gpu.architecture for gpu in gpus)
    capabilities = {CATALOG[gpu.model].compute_capability for gpu in gpus if gpu.model}
    if len(capabilities) == 1 and (capability := capabilities.pop()) and all(gpu.model for gpu in gpus):
        labels[f"{_NVIDIA}gpu.compute.major"], _, labels[f"{_NVIDIA}gpu.compute.minor"] = capability.partition(".")
    domain = _domain(portrait)
    if domain:
        labels[f"{_NVIDIA}gpu.clique"] = domain
    if strategy == "single":
        return labels | _single(gpus, product, settings)
    whole = [gpu for gpu in gpus if strategy == "none" or gpu.mig is None or gpu.mig.mode == "disabled"]
    labels |= _resource("gpu", product, len(whole), _memory(gpus), settings)
    if strategy == "mixed":
        for profile, count in _profiles(gpus).items():
            pieces = [piece for gpu in gpus if gpu.mig for piece in gpu.mig.slices]
            sizes = {piece.memory_mib for piece in pieces if _profile(piece.profile) == profile}
            memory = sizes.pop() if len(sizes) == 1 else None
            labels |= _resource(f"mig-{profile}", f"{product}-MIG-{profile}", count, memory, settings)
    return labels


def _single(gpus: Sequence[Gpu], product: str, settings: Labelling) -> dict[str, str]:
    profiles = _profiles(gpus)
    if layout(gpus) != "single":
        # Cards that differ cannot be told apart under one resource name; feature discovery says so in the same way.
        return _resource("gpu", f"{product}-MIG-INVALID", 0, 0, settings)
    ((profile, count),) = profiles.items()
    sizes = {piece.memory_mib for gpu in gpus if gpu.mig for piece in gpu.mig.slices}
    return _resource("gpu", f"{product}-MIG-{profile}", count, sizes.pop() if len(sizes) == 1 else None, settings)


def _resource(name: str, product: str, count: int, memory: int | None, settings: Labelling) -> dict[str, str]:
    labels = {
        f"{_NVIDIA}{name}.count": str(count),
        f"{_NVIDIA}{name}.replicas": str(settings.replicas if count else 0),
        f"{_NVIDIA}{name}.product": f"{product}-SHARED" if settings.replicas > 1 else product,
        f"{_NVIDIA}{name}.sharing-strategy": "time-slicing" if settings.replicas > 1 else "none",
    }
    if memory is not None:
        labels[f"{_NVIDIA}{name}.memory"] = str(memory)
    return labels


def _memory(gpus: Sequence[Gpu]) -> int | None:
    sizes = {gpu.memory_mib for gpu in gpus}
    return sizes.pop() if len(sizes) == 1 else None


def _versions(driver: str, cuda: str) -> dict[str, str]:
    major, minor, revision = (*driver.split("."), "", "")[:3]
    labels = {
        f"{_NVIDIA}cuda.driver-version.full": driver,
        f"{_NVIDIA}cuda.driver-version.major": major,
        f"{_NVIDIA}cuda.driver-version.minor": minor,
        f"{_NVIDIA}cuda.driver-version.revision": revision,
        # The names before 0.16, which most consumers still read.
        f"{_NVIDIA}cuda.driver.major": major,
        f"{_NVIDIA}cuda.driver.minor": minor,
        f"{_NVIDIA}cuda.driver.rev": revision,
    }
    if cuda:
        cuda_major, _, cuda_minor = cuda.partition(".")
        labels |= {
            f"{_NVIDIA}cuda.runtime-version.full": cuda,
            f"{_NVIDIA}cuda.runtime-version.major": cuda_major,
            f"{_NVIDIA}cuda.runtime-version.minor": cuda_minor,
            f"{_NVIDIA}cuda.runtime.major": cuda_major,
            f"{_NVIDIA}cuda.runtime.minor": cuda_minor,
        }
    return labels


def _bool(value: object) -> str:
    return "true" if value else "false"


# Topology


def _outwards(location: Sequence[str]) -> list[str]:
    """Places from the node outwards, each by its whole path: rack, block, room."""
    return [place_value(location[:depth]) for depth in range(len(location), 0, -1)]


def _topograph(location: Sequence[str], domain: str) -> dict[str, str]:
    labels = {f"fabric.topograph.run/tier-{tier}": place for tier, place in enumerate(_outwards(location))}
    if domain:
        labels["accelerator.topograph.run/domain"] = domain
    return labels


def _topograph_old(location: Sequence[str], domain: str, names: Sequence[str]) -> dict[str, str]:
    prefix = "network.topology.nvidia.com/"
    labels = {f"{prefix}{name}": place for name, place in zip(names, _outwards(location), strict=False)}
    if domain:
        labels[f"{prefix}accelerator"] = domain
    return labels
