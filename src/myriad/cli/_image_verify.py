"""`myriad image verify`: the proof after a build. Exit 0: proven; 1: wrong input; 2: findings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn

from myriad.cli import _image_subject as subjects
from myriad.cli.output import console, emit_json, err_console
from myriad.images import proof_files
from myriad.images.proof import Report, declared_of, look, prove
from myriad.images.proof_rules import ProofRules
from myriad.images.proof_run import GPU_CHOICES, run_image
from myriad.images.proof_types import Finding, Outcome, counted, megabytes

_PACKAGES_SHOWN = 8


def add(app: typer.Typer) -> None:
    """Add the subcommand."""

    @app.command(name="verify")
    def verify(
        target: subjects.TargetArgument,
        definition: subjects.DefinitionOption = None,
        ref: subjects.RefOption = "",
        images: subjects.ImagesOption = Path("images"),
        run: Annotated[
            bool, typer.Option("--run/--no-run", help="Also start it, without network, and ask what is loaded.")
        ] = True,
        gpu: Annotated[
            str, typer.Option(help=f"{', '.join(GPU_CHOICES)}: whether to compute on the GPUs of this machine.")
        ] = "auto",
        sizes: Annotated[bool, typer.Option("--sizes", help="List the size of each layer and package.")] = False,
        ca: subjects.CaOption = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    ) -> None:
        """Prove an image: versions, one copy of each library, architectures, size, secrets, rights. 2: findings."""
        if gpu not in GPU_CHOICES:
            raise typer.BadParameter(f"{gpu!r} is none of {', '.join(GPU_CHOICES)}", param_hint="--gpu")
        with subjects.opened(target, ref=ref, ca=ca) as image:
            found = subjects.found_of(definition, image, images)
            declared, rules, own = (
                declared_of(found.folder, found.definition) if found is not None else (None, ProofRules(), None)
            )
            with _bar(as_json) as progress:
                subject = look(image, declared, progress=progress)
            more = run_image(subject, smoke=own.smoke if own is not None else (), gpu=gpu) if run else ()
            report = prove(subject, rules, today=datetime.now(UTC).date(), more=more)
            if as_json:
                emit_json(report.document())
            else:
                width = console.width if console.is_terminal else None
                for line in lines(report, width, sizes=sizes):
                    console.print(line, markup=False)
        if not report.ok:
            raise typer.Exit(2)


@contextmanager
def _bar(quiet: bool) -> Iterator[subjects.OnLayer]:
    if quiet or not err_console.is_terminal:
        yield lambda done, total: None
        return
    bar = Progress(
        TextColumn("reading layers"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        console=err_console,
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def lines(report: Report, width: int | None, *, sizes: bool = False) -> list[str]:
    """The answer for people; without a width every check is one line."""
    image = report.subject.image
    told = [
        f"{image.name}   {image.digest[:19]}...   {megabytes(image.size)} in {counted(len(image.layers), 'layer')}",
        "",
    ]
    wide = max(len(one.rule) for one in report.outcomes)
    for outcome in report.outcomes:
        told += _outcome(outcome, wide, width)
    for finding, rule in report.applied.accepted:
        told += _wrapped(
            "accepted  ", f"{finding.rule} {finding.where} until {rule.until.isoformat()}: {rule.reason}", width
        )
    for one in report.applied.unused:
        told += _wrapped(
            "unused    ", f"the exception for {one.rule} {one.path} matches nothing; remove it from proof.yml", width
        )
    if sizes:
        told += ["", *_sizes(report)]
    done = sum(not one.skipped for one in report.outcomes)
    left = len(report.outcomes) - done
    verdict = f"{counted(done, 'check')}, {counted(len(report.findings), 'finding')}"
    told += ["", verdict + (f"; {left} could not look" if left else "")]
    return told


def _outcome(outcome: Outcome, wide: int, width: int | None) -> Iterator[str]:
    word = "FAIL" if outcome.failed else "-" if outcome.skipped else "ok"
    head = f"{word:<4}  {outcome.rule:<{wide}}  "
    text = "; ".join(filter(None, (outcome.detail, outcome.skipped)))
    if not outcome.failed:
        yield from _wrapped(head, text, width)
    for finding in sorted(outcome.findings, key=lambda one: one.severity != "error"):
        yield from _finding(
            finding, head if finding.severity == "error" else f"{'note':<4}  {outcome.rule:<{wide}}  ", width
        )


def _finding(finding: Finding, head: str, width: int | None) -> Iterator[str]:
    place = "" if finding.where and finding.where in finding.what else f"{finding.where}: "
    yield from _wrapped(head, f"{place}{finding.what}", width)
    if finding.hint:
        yield from _wrapped(" " * len(head), f"-> {finding.hint}", width)


def _wrapped(head: str, sentence: str, width: int | None) -> list[str]:
    if width is None or width - len(head) < 30:
        return [(head + sentence).rstrip()]
    return textwrap.wrap(
        head + sentence, width, subsequent_indent=" " * len(head), break_long_words=False, break_on_hyphens=False
    ) or [head.rstrip()]


def _sizes(report: Report) -> Iterator[str]:
    subject = report.subject
    yield "layer                     pulled         unpacked   holds"
    for layer, unpacked in zip(subject.image.layers, subject.tree.tar_sizes, strict=True):
        yield f"{layer.digest[7:19]}  {layer.size:>16,}  {unpacked:>15,}   {layer.comment}"
    found = proof_files.by_size(subject)
    yield ""
    yield "package                                          unpacked"
    for one in found[:_PACKAGES_SHOWN]:
        yield f"{one.label:<40}  {one.size:>15,}"
    rest = sum(one.size for one in found[_PACKAGES_SHOWN:])
    yield f"{f'{len(found[_PACKAGES_SHOWN:])} more':<40}  {rest:>15,}"
    yield f"{'files of no package':<40}  {subject.packages.unowned:>15,}"
