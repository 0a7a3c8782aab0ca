"""`myriad image verdict`: whether an image runs on each group of nodes, by which rule, and the smallest fix."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from myriad.cli._image_groups import LOCKED, groups_of
from myriad.cli.output import console, emit_json, err_console
from myriad.cli.validate import InventoryOption, print_problems
from myriad.errors import InputError
from myriad.fleet import check
from myriad.fleet.names import did_you_mean
from myriad.images.compat import (
    ImageFacts,
    Verdict,
    common_variant,
    driver_floor,
    image_facts,
    plain_driver,
    require_cuda,
    uncovered,
    variant_facts,
    variant_name,
    verdict,
    why_require,
)
from myriad.images.definition import load_definition, runtime_folders
from myriad.inventory import read_inventory

_NARROWEST = 48
"""Fewest columns for a sentence beside the columns of its line; with less it goes below them."""

_HOPELESS = ("no-gpu", "no-nvidia-gpu", "cpu-architecture")
"""Rules against which no variant of an image helps."""


def add(app: typer.Typer) -> None:
    """Add the subcommand."""

    @app.command(name="verdict")
    def verdict_(
        name: Annotated[str, typer.Argument(help="A folder of images/, its path, or a variant as pytorch-2.12-cu126.")],
        inventory: InventoryOption,
        driver: Annotated[
            list[str] | None,
            typer.Option("--driver", metavar="POOL=VERSION", help="Driver of a pool; may be given several times."),
        ] = None,
        kubeconfig: Annotated[
            str | None, typer.Option(help="Take GPUs and drivers that the nodes of this cluster report.")
        ] = None,
        images: Annotated[Path, typer.Option(help="Folder with the images' definitions.")] = Path("images"),
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    ) -> None:
        """Hold an image against the fleet, before it is built. Exit 0: all pools run it; 4: some do not."""
        image = named_image(name, images)
        checked = check(read_inventory(*inventory))
        if checked.errors:
            print_problems(checked.errors, to=err_console)
            raise InputError("the description is wrong; no verdict", hint="`myriad validate` says the same")
        given = given_drivers(driver or (), checked.fleet.pools)
        groups = groups_of(checked.fleet, inventory, given, kubeconfig)
        if not groups:
            raise InputError("the description has no pool with nodes", hint="hosts of a group pool_NAME")
        today = datetime.now(UTC).date()
        verdicts = [verdict(image, group, today=today) for group in groups]
        if as_json:
            emit_json(as_document(image, verdicts))
        else:
            width = console.width if console.is_terminal else None
            for line in lines(image, verdicts, width):
                console.print(line, markup=False)
        if not all(one.runs for one in verdicts):
            raise typer.Exit(4)


def named_image(name: str, folder: Path) -> ImageFacts:
    """The image of a folder, or the variant that a name like `pytorch-2.12-cu126` spells.

    Raises:
        InputError: there is neither, or its image.yml is wrong.
    """
    path = folder / name if (folder / name / "image.yml").is_file() else Path(name)
    if (path / "image.yml").is_file():
        return image_facts(load_definition(path), path.name)
    variant = variant_facts(name)
    if variant is not None:
        return variant
    known = [one.name for one in runtime_folders(folder)]
    raise InputError(
        f'there is no image "{name}"{did_you_mean(name, known)}',
        where=str(folder),
        hint="a folder with image.yml, or a variant by its versions, as pytorch-2.12-cu126",
    )


def given_drivers(options: Sequence[str], pools: Mapping[str, Any]) -> dict[str, str]:
    """`--driver POOL=VERSION` by pool.

    Raises:
        InputError: no such pool, no version, or a pool twice.
    """
    found: dict[str, str] = {}
    for option in options:
        pool, equals, version = option.partition("=")
        if not equals or not version:
            raise InputError(f"--driver {option}", hint="write --driver POOL=VERSION, as h100=580.126.20")
        if pool not in pools:
            raise InputError(f'--driver: there is no pool "{pool}"{did_you_mean(pool, pools)}')
        if pool in found:
            raise InputError(f"--driver: pool {pool} is given twice")
        found[pool] = plain_driver(version)
    for pool, version in found.items():
        if not re.fullmatch(r"[0-9]{3}(\.[0-9]+){0,3}", version):
            raise InputError(
                f'--driver: "{version}" of pool {pool} is no driver version',
                hint="write it as nvidia-smi prints it, such as 580.126.20",
            )
    return found


def as_document(image: ImageFacts, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """What `--json` prints."""
    condition, why = _condition(image)
    shared = _shared(image, verdicts)
    return {
        "image": image.name,
        "cuda": image.cuda,
        "torch": image.torch,
        "python": image.python,
        "cuda_compat": image.cuda_compat,
        "driver_floor": driver_floor(image),
        "nvidia_require_cuda": condition,
        "why": why,
        "uncovered": list(uncovered(image)) if image.needs_gpu else [],
        "ok": all(one.runs for one in verdicts),
        "runs_everywhere": shared,
        "verdicts": [one.as_dict() for one in verdicts],
    }


def lines(image: ImageFacts, verdicts: Sequence[Verdict], width: int | None) -> list[str]:
    """The answer for people. Without a width every group is one line, however long."""
    labels = [_label(one, verdicts) for one in verdicts]
    drivers = [
        f"driver {one.group.driver or 'not known'}{'*' if one.group.source == LOCKED else ''}" for one in verdicts
    ]
    names = [one.level if one.runs else one.level.upper() for one in verdicts]
    wide = [max(map(len, column)) for column in (labels, drivers, names)]
    told = []
    for one, *cells in zip(verdicts, labels, drivers, names, strict=True):
        head = "   ".join(cell.ljust(size) for cell, size in zip(cells, wide, strict=True)) + "   "
        sentence = "; ".join((one.reason, *((f"{_fix_word(one)}: {one.fix}",) if one.fix else ())))
        told += _wrapped(head, sentence, width)
    told += _notes(image, verdicts, width)
    return told


def _notes(image: ImageFacts, verdicts: Sequence[Verdict], width: int | None) -> list[str]:
    told = []
    by_warning: dict[str, list[str]] = {}
    for one in verdicts:
        for warning in one.warnings:
            by_warning.setdefault(warning, []).append(one.group.pool)
    for warning, pools in by_warning.items():
        told += _wrapped("warning   ", f"{', '.join(dict.fromkeys(pools))}: {warning}", width)
    missing = uncovered(image) if image.needs_gpu else ()
    if missing:
        told += _wrapped("warning   ", f"image.yml wants {', '.join(missing)}, which it has no code for", width)
    if any(map(_star, verdicts)):
        told += _wrapped(
            "*         ",
            "the driver that `myriad site` installs where a host has none; for what runs: --kubeconfig or --driver",
            width,
        )
    shared = _shared(image, verdicts)
    if shared:
        told += _wrapped("fix       ", f"{shared} runs on all pools that can run CUDA for this processor", width)
    condition, why = _condition(image)
    if condition:
        # Never wrapped: it is made to be copied.
        told += [f"requires  NVIDIA_REQUIRE_CUDA={condition}", *_wrapped("          ", why, width)]
    elif why:
        told += _wrapped("requires  ", why, width)
    nodes, total = sum(one.group.nodes for one in verdicts if one.runs), sum(one.group.nodes for one in verdicts)
    told.append(f"{image.name}: runs on {nodes:,} of {total:,} nodes")
    return told


def _fix_word(one: Verdict) -> str:
    return "next" if one.rule in ("driver-unknown", "driver-incomplete", "gpu-unknown") else "smallest fix"


def _driver(one: Verdict) -> str:
    if one.rule in ("no-gpu", "no-nvidia-gpu"):
        return ""
    return f"driver {one.group.driver or 'not known'}{_star(one)}"


def _star(one: Verdict) -> str:
    return "*" if one.group.source == LOCKED and one.image.needs_gpu else ""


def _label(one: Verdict, verdicts: Sequence[Verdict]) -> str:
    """`pool h100`, with what tells groups of one pool apart."""
    group = one.group
    pool = [other.group for other in verdicts if other.group.pool == group.pool]
    label = f"pool {group.pool}"
    if len(pool) > 1:
        label += f" ({group.nodes:,} node{'' if group.nodes == 1 else 's'}"
        label += f", {group.model}" if len({other.model for other in pool}) > 1 and group.model else ""
        label += ", MIG" if group.mig and not all(other.mig for other in pool) else ""
        label += ")"
    return label


def _wrapped(head: str, sentence: str, width: int | None) -> list[str]:
    if width is None:
        return [head + sentence]
    if width - len(head) >= _NARROWEST:
        return textwrap.wrap(
            head + sentence, width, subsequent_indent=" " * len(head), break_long_words=False, break_on_hyphens=False
        )
    body = textwrap.wrap(
        sentence, width, initial_indent="    ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    return [head.rstrip(), *body]


def _shared(image: ImageFacts, verdicts: Sequence[Verdict]) -> str:
    """Name of the one variant that runs where this image does not run everywhere; empty without one."""
    able = [one for one in verdicts if one.rule not in _HOPELESS]
    if len(able) < 2 or all(one.runs for one in able):
        return ""
    found = common_variant(image, [one.group for one in able])
    return variant_name(found, image.name) if found is not None else ""


def _condition(image: ImageFacts) -> tuple[str, str]:
    if not image.needs_gpu:
        return "", ""
    try:
        return require_cuda(image), why_require(image)
    except ValueError as error:
        return "", str(error)
