"""Does an image run on a group of nodes: natively, by minor-version or forward compatibility, or not; and what then.

Pure. `verdict` asks the rules (`compat_rules`), looks for the smallest fix (`compat_fix`) and says what the facts
(`compat_facts.yml`) know of the driver's branch. `require_cuda` computes the condition that the image carries for the
container runtime. `image_facts` reads what a verdict needs from `image.yml`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import date

from myriad.errors import InputError
from myriad.images.compat_facts import Facts, at_least, cubin_intervals, inside, minor, ptx_interval
from myriad.images.compat_facts import facts as own_facts
from myriad.images.compat_fix import nearest, smallest_fix, variant_name, variants
from myriad.images.compat_require import require_cuda, why_require
from myriad.images.compat_rules import capabilities, image_fault, judge, life, plain_driver
from myriad.images.compat_types import ImageFacts, NodeGroup, Verdict
from myriad.images.definition import ImageDefinition

__all__ = [
    "Facts",
    "ImageFacts",
    "NodeGroup",
    "Verdict",
    "common_variant",
    "driver_floor",
    "faults",
    "image_facts",
    "own_facts",
    "plain_driver",
    "require_cuda",
    "uncovered",
    "variant_facts",
    "variant_name",
    "verdict",
    "why_require",
]

_LOCAL = re.compile(r"(?P<version>\d+(\.\d+)+)(\+cu(?P<cuda>\d{3}))?(\+cpu)?")
_VARIANT = re.compile(
    r"(?P<family>[a-z][a-z0-9-]*?)"
    r"(-(?P<torch>\d+\.\d+(\.\d+)?)-cu(?P<cu>\d{3})(-py(?P<python>3\d{1,2}))?|-(?P<cuda>\d{2}\.\d+))"
)


def verdict(image: ImageFacts, group: NodeGroup, *, facts: Facts | None = None, today: date | None = None) -> Verdict:
    """Whether and how the image runs on these nodes, by which rule, and the smallest fix where it does not.

    Args:
        image: the image.
        group: nodes with one GPU model and one driver.
        facts: the published tables; Myriad's own without it.
        today: for the life of driver branches; without it nothing is said about them.
    """
    table = facts or own_facts()
    group = replace(group, driver=plain_driver(group.driver))
    told = judge(image, group, table)
    warnings = life(group.driver, table, today) if today is not None and image.needs_gpu and group.model else ()
    return replace(told, fix="" if told.runs else smallest_fix(told, table), warnings=warnings)


def common_variant(image: ImageFacts, groups: Sequence[NodeGroup], facts: Facts | None = None) -> ImageFacts | None:
    """The nearest variant of the image that runs on every one of these groups; None without one."""
    return nearest(image, groups, facts or own_facts()) if image.needs_gpu and not image.compiled else None


def driver_floor(image: ImageFacts, facts: Facts | None = None) -> str:
    """First driver on which the image runs at all; empty without CUDA or where the facts do not reach."""
    table = facts or own_facts()
    if not image.needs_gpu:
        return ""
    floor, own = table.family_floor(image.cuda), table.native_driver(image.cuda)
    if floor is None:
        return ""
    return floor if own is None or at_least(own, floor) else own


def uncovered(image: ImageFacts, facts: Facts | None = None) -> tuple[str, ...]:
    """Capabilities that the image wants to cover (`archs`) and has no code for, sorted as they were written."""
    compiled = capabilities(image, facts or own_facts())
    spans = cubin_intervals(compiled)
    ptx = ptx_interval(compiled)
    reach = (*spans, ptx) if ptx is not None else spans
    return tuple(arch for arch in image.archs if not inside(arch.removesuffix("+PTX"), reach))


def faults(image: ImageFacts, facts: Facts | None = None) -> tuple[str, ...]:
    """What is wrong with an image on whichever nodes it starts, as sentences: known before anything is built."""
    table = facts or own_facts()
    if not image.needs_gpu:
        return ()
    told = image_fault(image, table)
    if told is not None:
        return (told[2],)
    missing = uncovered(image, table)
    if not missing:
        return ()
    better = next((one for one in variants(image, table) if not uncovered(one, table)), None)
    fix = f"; {variant_name(better, image.name)} has it" if better is not None else ""
    return (f"gpu.archs wants {_sm(missing)}; {image.what} has code for {_sm(capabilities(image, table))}{fix}",)


def _sm(archs: Sequence[str]) -> str:
    return ", ".join(f"sm_{arch.replace('.', '')}" for arch in archs)


def image_facts(definition: ImageDefinition, name: str, *, python: str = "") -> ImageFacts:
    """What a verdict needs from `image.yml`.

    Raises:
        InputError: `gpu` contradicts itself: torch without CUDA, a wheel of another CUDA, a kind without its version.
    """
    gpu = definition.gpu
    if gpu is None:
        return ImageFacts(name=name)
    where = f"images/{name}/image.yml: gpu"
    torch, cuda = "", gpu.cuda or ""
    if gpu.torch:
        match = _LOCAL.fullmatch(gpu.torch)
        if match is None:
            raise InputError(f'torch "{gpu.torch}" is no version such as 2.12.1 or 2.12.1+cu130', where=where)
        torch = match["version"]
        own = f"{match['cuda'][:2]}.{match['cuda'][2:]}" if match["cuda"] else ""
        if own and cuda and minor(cuda) != own:
            raise InputError(
                f"torch {gpu.torch} is a wheel of CUDA {own}, but cuda says {cuda}", where=where, hint="make them agree"
            )
        cuda = cuda or own
        if gpu.torch.endswith("+cpu"):
            if gpu.cuda:
                raise InputError(
                    f"torch {gpu.torch} is a build for CPUs, but cuda says {gpu.cuda}",
                    where=where,
                    hint="leave +cpu out, or leave cuda out and gpu with it",
                )
            return ImageFacts(name=name, torch=torch, python=python)
    if not cuda:
        raise InputError(
            "cuda is missing", where=where, hint='the CUDA that the wheels bring, for example cuda: "13.0"'
        )
    if gpu.kind == "pytorch" and not torch:
        raise InputError("kind is pytorch, but torch is missing", where=where, hint='for example torch: "2.12.1"')
    try:
        return ImageFacts(
            name=name, cuda=cuda, torch=torch, python=python, archs=gpu.archs, cuda_compat=gpu.cuda_compat
        )
    except ValueError as error:
        raise InputError(str(error), where=where) from error


def variant_facts(name: str) -> ImageFacts | None:
    """A variant by its name alone, whether built or not: `pytorch-2.12-cu126`, with `-py311` behind it as matrix.yml
    calls it, `cuda-runtime-12.8`. None for any other name.
    """
    match = _VARIANT.fullmatch(name)
    if match is None:
        return None
    if match["cuda"]:
        return ImageFacts(name=match["family"], cuda=match["cuda"])
    cuda = f"{match['cu'][:2]}.{match['cu'][2:]}"
    python = f"3.{match['python'][1:]}" if match["python"] else ""
    return ImageFacts(name=match["family"], torch=match["torch"], cuda=cuda, python=python)
