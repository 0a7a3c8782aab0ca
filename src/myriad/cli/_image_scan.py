"""`myriad image scan`: known vulnerabilities of a built image. Exit 0: none, or all accepted; 2: some."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from myriad.cli import _image_subject as subjects
from myriad.cli.output import console, emit_json
from myriad.errors import InputError
from myriad.images import sbom, scan
from myriad.images.proof_documents import inventory, myriad_version
from myriad.images.proof_rules import ProofRules, load_rules
from myriad.images.proof_types import counted


def add(app: typer.Typer) -> None:
    """Add the subcommand."""

    @app.command(name="scan")
    def scan_(
        target: subjects.TargetArgument,
        database: Annotated[Path | None, typer.Option(help="Records in OSV format: a folder, .json or .zip.")] = None,
        command: Annotated[
            str | None,
            typer.Option(envvar="MYRIAD_SCAN_COMMAND", help='A scanner, as "osv-scanner --format json --sbom {sbom}".'),
        ] = None,
        definition: subjects.DefinitionOption = None,
        ref: subjects.RefOption = "",
        images: subjects.ImagesOption = Path("images"),
        ca: subjects.CaOption = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    ) -> None:
        """Hold an image's list of packages against known vulnerabilities; proof.yml accepts some, until a day."""
        if database is None and not command:
            raise InputError(
                "nothing to look in",
                hint="--database FOLDER with records in OSV format (as osv.dev has them), or --command with a scanner",
            )
        with subjects.opened(target, ref=ref, ca=ca) as image:
            known = subjects.found_of(definition, image, images)
            rules = load_rules(known.folder) if known is not None else ProofRules()
            tree, packages = inventory(image)
            document = sbom.build(image, tree, packages, "cyclonedx", version=myriad_version())
            name, digest = image.name, image.digest
        found, unread = scan.scan_database(document, database) if database is not None else ([], [])
        if command:
            found = [*found, *scan.scan_command(document, command)]
        unique = list({(one.id, one.package, one.version): one for one in found}.values())
        result = scan.apply(
            unique, rules.vulnerabilities, datetime.now(UTC).date(), components=scan.count(document), unread=unread
        )
        if as_json:
            emit_json({"image": name, "digest": digest, **as_document(result)})
        else:
            for line in lines(result):
                console.print(line, markup=False)
        if result.found:
            raise typer.Exit(2)


def as_document(result: scan.Scan) -> dict[str, object]:
    """What `--json` prints."""
    return {
        "ok": not result.found,
        "packages": result.components,
        "vulnerabilities": [one.as_dict() for one in result.found],
        "accepted": [
            {**one.as_dict(), "reason": rule.reason, "until": rule.until.isoformat()} for one, rule in result.accepted
        ],
        "unused_exceptions": [{"id": one.id, "package": one.package} for one in result.unused],
        "unread": list(result.unread),
    }


def lines(result: scan.Scan) -> list[str]:
    """The answer for people."""
    told = []
    for one in result.found:
        names = ", ".join((one.id, *one.aliases))
        fix = f"fixed in {one.fixed}" if one.fixed else "no version without it is named"
        told.append(
            f"FAIL      {one.package} {one.version}: {names}: {one.summary or 'no summary'}; {fix} {one.note}".rstrip()
        )
    for one, rule in result.accepted:
        told.append(f"accepted  {one.package} {one.version}: {one.id} until {rule.until.isoformat()}: {rule.reason}")
    for rule in result.unused:
        told.append(f"unused    the exception for {rule.id} ({rule.package}) matches nothing; remove it from proof.yml")
    for sentence in result.unread:
        told.append(f"unread    {sentence}")
    told.append(
        f"{counted(result.components, 'package')}, {counted(len(result.found), 'vulnerability', 'vulnerabilities')}"
    )
    return told
