"""The rules of an image verdict, in the order in which they are asked. Pure.

`judge` says whether one image runs on one group of equal nodes, by which rule, and why; `myriad.images.compat` adds the
smallest fix. The rules are NVIDIA's (CUDA compatibility guide, CUDA programming guide, release notes) and what
PyTorch's wheels are built for; the figures are those of `compat_facts.yml`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date

from myriad.fleet.catalog import CATALOG
from myriad.fleet.hardware import ARCHITECTURES
from myriad.images.compat_facts import (
    Facts,
    at_least,
    cubin_intervals,
    dotted,
    inside,
    major,
    minor,
    newest,
    ptx_interval,
)
from myriad.images.compat_types import Card, ImageFacts, Kind, Level, NodeGroup, Verdict

_DRIVER = re.compile(r"[0-9]{3}(\.[0-9]+){1,3}")
_BEGUN = re.compile(r"[0-9]{3}(\.[0-9]+)?")
"""The first part of a driver's version, or the first two."""
_WRITTEN = re.compile(r"(?:[0-9]+:)?[RrVv]?(?P<version>[0-9]{3}(\.[0-9]+){0,3})([-~+].*)?")

_Answer = tuple[Level, str, str, str]
"""Level, rule, reason, key of the source."""


def card_of(group: NodeGroup, facts: Facts) -> Card | None:
    """The card of a group; None where it has none that runs CUDA or its capability is not known."""
    model = CATALOG.get(group.model)
    if model is None:
        return Card(group.model or "GPU", group.capability) if group.capability else None
    if model.compute_capability is None:
        return None
    era = ARCHITECTURES[model.architecture]
    kinds: dict[str, Kind] = {
        **dict.fromkeys(facts.products.data_center, "data_center"),
        **dict.fromkeys(facts.products.workstation, "workstation"),
        **dict.fromkeys(facts.products.consumer, "consumer"),
    }
    return Card(
        model.name,
        model.compute_capability,
        "arm64" if model.form == "superchip" else "amd64",
        kinds.get(model.name, "unknown"),
        model.first_driver or f"{era.first_branch}.0",
        era.last_branch,
        model.mig_driver,
        era.name,
    )


def plain_driver(text: str) -> str:
    """The driver's own version in what people and packages write: `535.104.05-1`, `R535`, `1:580.95.05~deb12`.

    What holds no version is returned as it is.
    """
    match = _WRITTEN.fullmatch(text.strip())
    return match["version"] if match else text


def judge(image: ImageFacts, group: NodeGroup, facts: Facts) -> Verdict:
    """The verdict without a fix. Never raises: what the facts do not reach is `unknown`."""
    card = card_of(group, facts)
    if not image.needs_gpu:
        answer: _Answer = ("native", "no-cuda", "there is no CUDA in it: it runs on any node", "myriad.images")
    elif card is None:
        answer = _no_card(group)
    elif _BEGUN.fullmatch(group.driver):
        # Versions that begin so: where the first and the last of them get one answer, so does what was meant.
        first, last = (
            _answer(image, replace(group, driver=f"{group.driver}.{rest}"), card, facts) for rest in ("0", "99999")
        )
        answer = first if first[:2] == last[:2] else _incomplete(group)
    else:
        answer = _answer(image, group, card, facts)
    level, rule, reason, source = answer
    needs = native_driver_for(image, group, facts) or ""
    return Verdict(
        image=image,
        group=group,
        level=level,
        rule=rule,
        reason=reason,
        source=facts.sources.get(source, source),
        needs=needs if level != "native" else "",
    )


def _answer(image: ImageFacts, group: NodeGroup, card: Card, facts: Facts) -> _Answer:
    return (
        _cpu(image, card)
        or image_fault(image, facts)
        or _code(image, card, facts)
        or _driver_and_card(group, card)
        or _compat_package(image, group, card, facts)
        or _driver_and_cuda(image, group, card, facts)
    )


def _incomplete(group: NodeGroup) -> _Answer:
    return (
        "unknown",
        "driver-incomplete",
        f'"{group.driver}" is no full driver version such as 580.126.20, and a branch has both sides of a floor',
        "release-notes",
    )


def capabilities(image: ImageFacts, facts: Facts) -> tuple[str, ...]:
    """What the code in the image is compiled for; empty where the facts do not reach."""
    if image.compiled:
        return image.compiled
    if not image.torch:
        return facts.compiled_by(image.cuda)
    build = facts.build(image.torch, image.cuda)
    return tuple(build.archs) if build else ()


def native_driver_for(image: ImageFacts, group: NodeGroup, facts: Facts) -> str | None:
    """First driver that has all of the image's CUDA, knows the card and can cut it where it is cut; None unknown."""
    card = card_of(group, facts)
    own = facts.native_driver(image.cuda) if image.cuda else None
    if card is None or own is None:
        return None
    return newest(own, card.first_driver, card.mig_driver if group.mig else "")


def _no_card(group: NodeGroup) -> _Answer:
    model = CATALOG.get(group.model)
    if model is not None:
        return "refused", "no-nvidia-gpu", f"{model.name} does not run CUDA", "myriad.fleet.gpu_rows"
    if group.model:
        return (
            "unknown",
            "gpu-unknown",
            f'the catalog has no GPU "{group.model}", so its compute capability is not known',
            "myriad.fleet.gpu_rows",
        )
    return "refused", "no-gpu", "these nodes have no GPU, and the image has CUDA in it", "myriad.fleet.gpu_rows"


def _cpu(image: ImageFacts, card: Card) -> _Answer | None:
    if card.cpu == image.cpu:
        return None
    return (
        "refused",
        "cpu-architecture",
        f"nodes with {card.name} have {card.cpu} processors, the image is built for {image.cpu}",
        "myriad.fleet.gpu_rows",
    )


def image_fault(image: ImageFacts, facts: Facts) -> _Answer | None:
    """What is wrong with the image itself, whatever the nodes are."""
    if image.cpu != "amd64":
        return (
            "unknown",
            "cpu-architecture",
            f"the facts are for x86_64, not for {image.cpu}",
            "release-notes",
        )
    known, asked = facts.minors, minor(image.cuda)
    if asked not in known and at_least(asked, known[0]) and at_least(known[-1], asked):
        also = [branch for branch, level in facts.driver_levels.items() if level == asked]
        hint = f"; driver {also[0]} only reports that number" if also else ""
        return "refused", "no-such-cuda", f"there is no CUDA {asked} toolkit{hint}", "release-notes"
    if facts.family_floor(image.cuda) is None and at_least(asked, known[0]):
        return (
            "unknown",
            "cuda-newer",
            f"CUDA {image.cuda} is newer than the facts, which end with {facts.releases[-1][0]}: no rule covers it",
            "release-notes",
        )
    if image.compiled or not image.torch:
        return None
    return _torch_fault(image, facts)


def _torch_fault(image: ImageFacts, facts: Facts) -> _Answer | None:
    release = facts.torch_release(image.torch)
    first, last = facts.torch[0].torch, facts.torch[-1].torch
    if release is None:
        side = "newer" if at_least(image.torch, last) else "older"
        edge = f"end with {last}" if side == "newer" else f"begin with {first}"
        return (
            "unknown",
            f"torch-{side}",
            f"torch {image.torch} is {side} than the facts, which {edge}: what it is compiled for is not known",
            "torch-matrix",
        )
    if minor(image.cuda) not in release.cuda:
        offered = ", ".join(release.cuda)
        return (
            "refused",
            "no-such-wheel",
            f"there is no wheel of torch {release.torch} for CUDA {minor(image.cuda)} (there are {offered})",
            "torch-matrix",
        )
    low, high = release.python
    if image.python and not (at_least(minor(image.python), low) and at_least(high, minor(image.python))):
        return (
            "refused",
            "no-such-python",
            f"torch {release.torch} has wheels for Python {low} to {high}, not {minor(image.python)}",
            "torch-matrix",
        )
    return None


def _code(image: ImageFacts, card: Card, facts: Facts) -> _Answer | None:
    """Is there code for the card? PTX alone is asked about again once the driver is known."""
    compiled = capabilities(image, facts)
    ptx = ptx_interval(compiled)
    if inside(card.capability, cubin_intervals(compiled)) or (ptx is not None and inside(card.capability, (ptx,))):
        return None
    wanted = f"sm_{card.capability.replace('.', '')}"
    bounds = facts.blackwell
    if image.torch and major(card.capability) in (10, 12) and not image.compiled:
        return (
            "refused",
            "blackwell-both-bounds",
            f"{card.name} is Blackwell ({wanted}) and needs both torch >= {bounds.torch} and CUDA >= {bounds.cuda}; "
            f"this is torch {image.torch} with CUDA {minor(image.cuda)}",
            "torch-blackwell",
        )
    if image.torch or image.compiled:
        listed = ", ".join(f"sm_{arch.replace('.', '')}" for arch in compiled)
        what = image.what if image.torch else image.name
        return "refused", "arch-missing", f"{what} has no {wanted} for {card.name} (it has {listed})", "torch-archs"
    row = facts.architecture(card.capability)
    if row is None:
        return "unknown", "gpu-unknown", f"no toolkit of the facts names {wanted}", "architectures"
    if not at_least(minor(image.cuda), row.first):
        return (
            "refused",
            "arch-before-toolkit",
            f"{row.name} ({wanted}) needs CUDA >= {row.first}; this is {image.cuda}",
            row.source,
        )
    return (
        "refused",
        "arch-dropped",
        f"CUDA {row.last_major}.x was the last for {row.name} ({wanted}); this is {image.cuda}",
        row.source,
    )


def _driver_and_card(group: NodeGroup, card: Card) -> _Answer | None:
    """Does the driver itself know the card, and can it cut it?"""
    catalog = "myriad.fleet.gpu_rows"
    if not group.driver:
        return "unknown", "driver-unknown", "nobody says which driver these nodes have", "release-notes"
    if not _DRIVER.fullmatch(group.driver):
        return _incomplete(group)
    if card.first_driver and not at_least(group.driver, card.first_driver):
        shown = card.first_driver.removesuffix(".0")
        return "refused", "driver-before-card", f"drivers know {card.name} from {shown} on", catalog
    if card.last_branch is not None and major(group.driver) > card.last_branch:
        return (
            "refused",
            "driver-after-card",
            f"R{card.last_branch} is the last driver branch for {card.era} ({card.name})",
            "architectures",
        )
    if group.mig and card.mig_driver and not at_least(group.driver, card.mig_driver):
        return "refused", "driver-before-mig", f"{card.name} can be cut by MIG from {card.mig_driver} on", catalog
    return None


def _compat_package(image: ImageFacts, group: NodeGroup, card: Card, facts: Facts) -> _Answer | None:
    """Forward compatibility: asked only where cuda-compat is in the image and would be loaded.

    The container toolkit loads it where its own branch is newer than the driver's (libnvidia-container,
    src/cli/compat_mode.c), also where minor-version compatibility would have done.
    """
    if not image.cuda_compat:
        return None
    own, cuda = facts.native_driver(image.cuda), minor(image.cuda)
    if own is None:
        return "unknown", "forward-branch", f"from which driver cuda-compat for CUDA {cuda} is, is not known", "forward"
    if major(group.driver) >= major(own):
        return None
    branch, row = major(group.driver), facts.forward_row(image.cuda)
    if card.kind == "consumer":
        return (
            "refused",
            "forward-hardware",
            f"the image's cuda-compat would be loaded on {card.name}: CUDA error 804, forward compatibility, "
            "which is for data-centre GPUs only",
            "forward",
        )
    if card.kind == "workstation":
        return (
            "unknown",
            "forward-hardware",
            f"the image's cuda-compat would be loaded on {card.name}: forward compatibility is for select NGC Server "
            "Ready workstation cards, which NVIDIA does not list (CUDA error 804 on others)",
            "forward",
        )
    if card.kind == "unknown":
        return (
            "unknown",
            "forward-hardware",
            f"whether cuda-compat is for {card.name} is not known",
            "forward",
        )
    if row is not None and branch in row.branches:
        return (
            "forward-compat",
            "forward-branch",
            f"the image's cuda-compat for CUDA {cuda} works on data-centre GPUs with driver branch R{branch}",
            "cuda-images",
        )
    if row is None or not row.complete:
        return (
            "unknown",
            "forward-branch",
            f"whether cuda-compat for CUDA {cuda} works on driver branch R{branch} is not in the facts",
            "cuda-images",
        )
    listed = ", ".join(f"R{one}" for one in row.branches)
    return (
        "refused",
        "forward-branch",
        f"the image's cuda-compat for CUDA {cuda} works on driver branches {listed}, not on R{branch}",
        "cuda-images",
    )


def _driver_and_cuda(image: ImageFacts, group: NodeGroup, card: Card, facts: Facts) -> _Answer:
    """Backward and minor-version compatibility."""
    compiled = capabilities(image, facts)
    own, floor = facts.native_driver(image.cuda), facts.family_floor(image.cuda)
    compiled_in = inside(card.capability, cubin_intervals(compiled))
    code = f"{_cubin(card, compiled)} compiled in" if compiled_in else "its PTX is compiled at start"
    if own is not None and at_least(group.driver, own):
        if not at_least(image.cuda, facts.minors[0]):
            older = f"CUDA {image.cuda} is older than the facts, and newer drivers run it; those from {own} on do"
            return "native", "backward", f"{older}; {code}", "release-notes"
        if major(group.driver) > facts.newest_branch:
            newer = f"R{major(group.driver)} is newer than the facts (R{facts.newest_branch}), and newer drivers run it"
            return "native", "backward", f"CUDA {image.cuda} needs >= {own}; {newer}; {code}", "release-notes"
        return "native", "driver-floor", f"CUDA {image.cuda} needs >= {own}; {code}", "release-notes"
    if floor is None or not at_least(group.driver, floor):
        if floor is None:
            return (
                "unknown",
                "cuda-older",
                f"CUDA {image.cuda} is older than the facts, which begin with {facts.releases[0][0]} and {own}",
                "release-notes",
            )
        return (
            "refused",
            "family-floor",
            f"CUDA {major(image.cuda)}.x needs driver >= {floor}; {_no_way_forward(image, card, facts)}",
            "minor-version",
        )
    if not compiled_in:
        known = f">= {own}" if own else "that its toolkit came with, which is not in the facts"
        return (
            "refused" if own else "unknown",
            "ptx-needs-driver",
            f"only PTX covers {card.name}, and that needs the driver {known}: no PTX under minor-version compatibility",
            "binary",
        )
    came = f"came with {own}" if own else f"is newer than the facts ({facts.releases[-1][0]}): native from not known"
    if own is None and any(release == image.cuda or minor(release) == image.cuda for release, _ in facts.releases):
        came = "came with a driver whose number is not in the facts"
    return (
        "minor-version",
        "minor-version",
        f"CUDA {image.cuda} {came}; {major(image.cuda)}.x runs from {floor} on, without PTX and some features; {code}",
        "minor-version",
    )


def _cubin(card: Card, compiled: tuple[str, ...]) -> str:
    """The newest code that the card runs as it is, such as `sm_86` on a card of 8.9."""
    fitting = [
        arch.removesuffix("+PTX")
        for arch in compiled
        if inside(card.capability, cubin_intervals((arch.removesuffix("+PTX"),)))
    ]
    return f"sm_{max(fitting, key=dotted).replace('.', '')}"


def _no_way_forward(image: ImageFacts, card: Card, facts: Facts) -> str:
    if image.cuda_compat:
        return "cuda-compat does not reach this driver"
    if card.kind == "data_center":
        return "the image has no cuda-compat"
    return f"forward compatibility is not for {card.name}"


def life(driver: str, facts: Facts, today: date | None) -> tuple[str, ...]:
    """What to say about the driver's branch. Without a date only what is always true."""
    if not _DRIVER.fullmatch(driver) and not _BEGUN.fullmatch(driver):
        return ()
    branch, row = major(driver), facts.branch(driver)
    if row is None:
        if branch > facts.newest_branch:
            return (f"driver branch R{branch} is newer than the facts (R{facts.newest_branch})",)
        listed = ", ".join(f"R{one.branch}" for one in facts.branches)
        return (f"driver branch R{branch} is not among those that NVIDIA lists with a support date ({listed})",)
    when = date(int(row.ends[:4]), int(row.ends[5:]), 1)
    shown = when.strftime("%B %Y")
    if today is not None and (today.year, today.month) > (when.year, when.month):
        return (f"driver branch R{branch} ({row.kind}) reached its end of life in {shown}: no more security fixes",)
    months = (when.year - today.year) * 12 + when.month - today.month if today is not None else None
    if months is not None and months <= 6:
        return (f"driver branch R{branch} ({row.kind}) reaches its end of life in {shown}",)
    return ()
