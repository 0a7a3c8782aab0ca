"""The smallest change after which a refused image runs: a nearby variant, a driver, or the image without cuda-compat.

Pure. A change is offered only when the rules, asked again with it, say that it runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from myriad.fleet.catalog import CATALOG
from myriad.fleet.names import closest, listing
from myriad.images.compat_facts import Facts, at_least, dotted, major, minor, newest
from myriad.images.compat_rules import card_of, judge
from myriad.images.compat_types import ImageFacts, NodeGroup, Verdict


def variants(image: ImageFacts, facts: Facts) -> Iterator[ImageFacts]:
    """The image with every other torch, CUDA and Python that the facts have, nearest first.

    Near: the same torch before another one, the nearest release before a farther one, the newer of two equally far;
    then the same major release of CUDA, the nearest CUDA, and the same Python where its wheels allow it.
    """
    order = facts.minors
    here = _place(order, minor(image.cuda))

    def distance(cuda: str) -> tuple[bool, int, int]:
        there = _place(order, cuda)
        return major(cuda) != major(image.cuda), abs(there - here), -there

    if not image.torch:
        others = sorted((cuda for cuda in order if cuda != minor(image.cuda)), key=distance)
        for cuda in others:
            yield _variant(image, cuda=cuda)
        return
    torches = [row.torch for row in facts.torch]
    start = _place(torches, minor(image.torch))
    rows = []
    for release in facts.torch:
        there = torches.index(release.torch)
        for cuda in release.cuda:
            if (release.torch, cuda) != (minor(image.torch), minor(image.cuda)) or image.python:
                rows.append(((abs(there - start), -there, *distance(cuda)), release, cuda))
    for _key, release, cuda in sorted(rows, key=lambda row: row[0]):
        yield _variant(image, cuda=cuda, torch=release.torch, python=_python(image.python, release.python))


def smallest_fix(verdict: Verdict, facts: Facts) -> str:
    """What to change, as a phrase; the smallest first. Empty where the facts have nothing that runs."""
    image, group = verdict.image, verdict.group
    if verdict.rule in ("driver-unknown", "driver-incomplete"):
        return _say_driver(image, group, facts)
    if verdict.rule == "gpu-unknown" and not group.capability:
        return _say_gpu(group.model)
    if verdict.rule in ("gpu-unknown", "no-gpu", "no-nvidia-gpu", "cpu-architecture"):
        return ""
    offers = []
    if image.cuda_compat:
        plain = judge(replace(image, cuda_compat=False), group, facts)
        if plain.runs:
            offers.append(f"the same image without cuda-compat ({_how(plain)})")
    if not image.compiled and not offers:
        found = nearest(image, [group], facts)
        if found is not None:
            offers.append(_offer(found, image, group, facts))
    driver = smallest_driver(image, group, facts)
    if driver is not None:
        same_branch = driver.startswith(">=") and group.driver.startswith(f"{major(driver.removeprefix('>= '))}.")
        offers.insert(0 if same_branch else len(offers), f"driver {driver}")
    if verdict.rule == "family-floor" and not image.cuda_compat:
        with_package = judge(replace(image, cuda_compat=True), group, facts)
        if with_package.level == "forward-compat":
            offers.append(f"cuda-compat-{minor(image.cuda).replace('.', '-')} in the image (forward compatibility)")
    return "; or ".join(offers[:3]) or _both(image, group, facts)


def nearest(image: ImageFacts, groups: Sequence[NodeGroup], facts: Facts) -> ImageFacts | None:
    """The nearest variant that runs on all of these groups, or None."""
    return next(
        (one for one in variants(image, facts) if all(judge(one, group, facts).runs for group in groups)),
        None,
    )


def smallest_driver(image: ImageFacts, group: NodeGroup, facts: Facts) -> str | None:
    """The least change of driver after which the image runs (`>= 580.65.06`, `of branch R580`), or None."""
    card = card_of(group, facts)
    if card is None or not image.needs_gpu:
        return None
    if card.last_branch is not None and major(group.driver or "0") > card.last_branch:
        known = [row.branch for row in facts.branches if row.branch <= card.last_branch]
        if not known:
            return None
        older = replace(group, driver=f"{max(known)}.999")
        return f"of branch R{max(known)}" if judge(image, older, facts).runs else None
    own, floor = facts.native_driver(image.cuda), facts.family_floor(image.cuda)
    needed = [card.first_driver, card.mig_driver if group.mig else ""]
    for least in sorted({one for one in (own, floor) if one}, key=dotted):
        version = newest(least, *needed)
        if at_least(version, group.driver or "0") and judge(image, replace(group, driver=version), facts).runs:
            return f">= {version}"
    return None


def variant_name(image: ImageFacts, family: str) -> str:
    """`pytorch-2.12-cu126`; `cuda-runtime-12.8` without torch."""
    cuda = minor(image.cuda)
    return f"{family}-{minor(image.torch)}-cu{cuda.replace('.', '')}" if image.torch else f"{family}-{cuda}"


def _variant(image: ImageFacts, *, cuda: str, torch: str = "", python: str = "") -> ImageFacts:
    return replace(image, cuda=cuda, torch=torch, python=python, compiled=())


def _place(order: Sequence[str], version: str) -> int:
    """Index of a version in a sorted list; where it is not there, of the next older one."""
    older = [place for place, one in enumerate(order) if at_least(version, one)]
    return older[-1] if older else 0


def _python(wanted: str, bounds: Iterable[str]) -> str:
    low, high = bounds
    if not wanted:
        return ""
    if not at_least(minor(wanted), low):
        return low
    return wanted if at_least(high, minor(wanted)) else high


def _offer(found: ImageFacts, image: ImageFacts, group: NodeGroup, facts: Facts) -> str:
    told = judge(found, group, facts)
    python = f", Python {minor(found.python)}" if image.python and minor(found.python) != minor(image.python) else ""
    return f"{variant_name(found, image.name)} ({_how(told)}{python})"


def _both(image: ImageFacts, group: NodeGroup, facts: Facts) -> str:
    """Where neither another image nor another driver is enough: the nearest image that only needs another driver."""
    if image.compiled:
        return ""
    for found in variants(image, facts):
        driver = smallest_driver(found, group, facts)
        if driver is not None:
            return f"{variant_name(found, image.name)} and driver {driver}"
    return ""


def _how(told: Verdict) -> str:
    if told.level == "native":
        return "native"
    return f"{told.level}, native from {told.needs}" if told.needs else told.level


def _say_gpu(model: str) -> str:
    """The catalog's names that were probably meant."""
    word = re.sub(r"[^a-z0-9]", "", model.lower().replace("nvidia", ""))
    near = [name for name in CATALOG if word and word in re.sub(r"[^a-z0-9]", "", name.lower())]
    best = closest(model, CATALOG)
    near = near or ([best] if best else [])
    if near:
        return f"name it as the catalog does: {listing(near, limit=4)}"
    return "a card that the catalog does not have becomes a row of myriad.fleet.gpu_rows"


def _say_driver(image: ImageFacts, group: NodeGroup, facts: Facts) -> str:
    least = smallest_driver(image, replace(group, driver=""), facts)
    runs = f"; it runs with driver {least}" if least else ""
    return f"give --driver {group.pool}=VERSION, or --kubeconfig for what the nodes report{runs}"
