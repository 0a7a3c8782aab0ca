"""`myriad lint`: conflicts and traps in a cluster, in files, or in what an inventory renders."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from myriad.cli import _cluster as cluster
from myriad.cli.output import console, emit_json
from myriad.errors import InputError
from myriad.fleet.names import closest
from myriad.lint import RULES, findings, live, report, scene_of
from myriad.lint.documents import Document, NotAnObject, is_object, is_volcano_configuration, read_text
from myriad.lint.rule import Finding
from myriad.lint.rules_cluster import unpacked
from myriad.lint.scene import Scene

SUFFIXES = (".yml", ".yaml", ".json")
_HAS_KIND = re.compile(r"^kind:", re.MULTILINE)
_SAYS_SOMETHING = re.compile(r"^(?!---|\.\.\.)[^\s#\ufeff]", re.MULTILINE)
#: Kinds of which an inventory renders every object.
RENDERED = frozenset(
    {
        "ClusterQueue",
        "LocalQueue",
        "ResourceFlavor",
        "Cohort",
        "Topology",
        "WorkloadPriorityClass",
        "PriorityClass",
        "Namespace",
        "Node",
    }
)
FOUND_ERRORS = 4


def register(app: typer.Typer) -> None:
    """Add the verb."""

    @app.command()
    def lint(
        paths: Annotated[
            list[str] | None,
            typer.Argument(help="Files or folders of YAML or JSON, - for standard input; the cluster without any."),
        ] = None,
        inventory: Annotated[
            list[Path] | None,
            typer.Option(
                "--inventory", "-i", help="Look at what this inventory renders, or judge files together with it."
            ),
        ] = None,
        with_cluster: Annotated[
            bool, typer.Option("--with-cluster", help="Judge files together with what is in the cluster.")
        ] = False,
        only: Annotated[
            list[str] | None, typer.Option("--rule", help="Ask this rule only; may be given several times.")
        ] = None,
        skip: Annotated[
            list[str] | None, typer.Option("--skip", help="Leave this rule out; may be given several times.")
        ] = None,
        strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
        rules: Annotated[bool, typer.Option("--rules", help="List all rules with their sources.")] = False,
        as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
        kubeconfig: Annotated[str | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")] = None,
    ) -> None:
        """Find conflicts and traps before they cost a night. Exit 0: no errors, 4: errors, 1: wrong input."""
        if rules:
            if as_json:
                emit_json(report.rule_dicts())
                return
            for line in report.rule_lines():
                console.print(line, markup=False)
            return
        asked = _asked(only or [], skip or [])
        missing: list[str] = []
        skipped: list[str] = []
        given: list[Document] = []
        context: list[Document] = []
        sure: frozenset[str] = frozenset()
        now: datetime | None = None
        if paths:
            given, skipped = read_paths(paths)
        if inventory:
            rendered = of_inventory(inventory)
            (context if paths else given).extend(rendered)
            sure |= RENDERED
        if with_cluster or not (paths or inventory):
            with closing(cluster.reach(kubeconfig)) as api:
                documents, complete, missing = live.read(api)
            (context if paths or inventory else given).extend(documents)
            sure |= complete
            now = datetime.now(UTC)
        scene = with_configurations(scene_of(given, context=context, sure=sure, now=now))
        found = findings(scene, only=asked)
        if as_json:
            emit_json(as_document(found, len(given), skipped, missing))
        else:
            for line in report.lines_of(found):
                console.print(line, markup=False)
            for note in notes(skipped, missing):
                console.print(note, markup=False)
            console.print(report.verdict(found, len(given)), markup=False)
        if any(f.severity == "error" or (strict and f.severity == "warning") for f in found):
            raise typer.Exit(FOUND_ERRORS)


def _asked(only: Sequence[str], skip: Sequence[str]) -> list[str]:
    for name in (*only, *skip):
        if name not in RULES:
            best = closest(name, RULES)
            raise InputError(
                f"there is no rule {name}" + (f"; did you mean {best}?" if best else ""),
                hint="`myriad lint --rules` lists them",
            )
    return [name for name in (only or RULES) if name not in skip]


def with_configurations(scene: Scene) -> Scene:
    """The scene with configurations taken out of their ConfigMaps, so that rules find them like any object."""
    inside, _ = unpacked(scene.things)
    return Scene((*scene.things, *inside), scene.sure, scene.now)


def read_paths(paths: Iterable[str]) -> tuple[list[Document], list[str]]:
    """Objects of files and folders, and the files of folders that hold none.

    Raises:
        InputError: a path cannot be read, or a file is not what it should be; names all of them, with file and line.
    """
    documents: list[Document] = []
    skipped: list[str] = []
    wrong: list[InputError] = []
    for name in paths:
        try:
            if name == "-":
                documents += _named(sys.stdin.read(), "<stdin>")
                continue
            path = Path(name)
            if not path.is_dir():
                documents += _named(_text(path), name)
                continue
            files = sorted(f for f in path.rglob("*") if f.suffix in SUFFIXES and f.is_file() and not _hidden(f, path))
            if not files:
                raise InputError(
                    "there is no file of YAML or JSON in this folder",
                    where=name,
                    hint="give a folder of rendered objects",
                )
        except InputError as error:
            wrong.append(error)
            continue
        except UnicodeDecodeError as error:
            wrong.append(
                InputError(
                    f"standard input is not text (UTF-8): {error.reason}", where="<stdin>", hint="give YAML or JSON"
                )
            )
            continue
        for file in files:
            try:
                found = _objects(read_text(_text(file), str(file)), strict=False)
            except NotAnObject as error:
                # Patches and values lie beside manifests; in a file that has objects too it is a mistake.
                if _HAS_KIND.search(_text(file)):
                    wrong.append(error)
                else:
                    skipped.append(str(file))
                continue
            except InputError as error:
                wrong.append(error)
                continue
            documents += found
            if not found:
                skipped.append(str(file))
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        raise InputError("\n".join(str(error) for error in wrong))
    return documents, skipped


def _named(text: str, name: str) -> list[Document]:
    """Objects of a file that was named; one that holds nothing is a mistake (a pipe from a command that failed)."""
    found = _objects(read_text(text, name), strict=True)
    if not found and not _SAYS_SOMETHING.search(text):
        raise InputError("holds nothing: no object is in it", where=name, hint="look at what should have written it")
    return found


def _hidden(file: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(root).parts)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", where=str(path), hint="give a file, a folder, or - for standard input"
        ) from None
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        utf16 = path.read_bytes()[:2] in (b"\xff\xfe", b"\xfe\xff")
        raise InputError(
            "is written in UTF-16" if utf16 else f"is not text (UTF-8): {error.reason}",
            where=f"{path}:{line}",
            hint="save it as UTF-8 (in PowerShell: `... | Set-Content -Encoding utf8 FILE`)"
            if utf16
            else "give YAML or JSON",
        ) from None


def _objects(documents: Sequence[Document], *, strict: bool) -> list[Document]:
    """Those that are Kubernetes objects; a file that was named (strict) must hold nothing else."""
    found = []
    for document in documents:
        body = document.body
        if is_object(body) or is_volcano_configuration(body):
            found.append(document)
        elif strict and body:
            lacks = [key for key in ("apiVersion", "kind") if not isinstance(body.get(key), str)]
            line = document.line()
            raise InputError(
                f"this is no Kubernetes object: it has no {' and no '.join(lacks)}",
                where=f"{document.file}:{line}" if line else document.file,
                hint="each document needs apiVersion and kind; a Volcano configuration has actions and tiers",
            )
    return found


def of_inventory(inventory: Sequence[Path]) -> list[Document]:
    """What an inventory renders, and its GPU nodes as they should be.

    Raises:
        InputError: the inventory has errors.
    """
    from myriad.fleet import check, objects_for_cluster_policy
    from myriad.fleet.labels import node_labels
    from myriad.inventory import read_inventory

    checked = check(read_inventory(*inventory))
    if checked.errors:
        raise InputError(
            f"the inventory has {len(checked.errors)} error{'' if len(checked.errors) == 1 else 's'}; the first: "
            f"{checked.errors[0].subject} {checked.errors[0].message}",
            where=str(inventory[0]),
            hint="`myriad validate -i INVENTORY` shows all of them",
        )
    fleet = checked.fleet
    documents = [Document(body) for body in objects_for_cluster_policy(fleet)]
    for name, host in fleet.hosts.items():
        if host.pool is None:
            continue
        pool = fleet.pools[host.pool]
        # Cores and memory are not described, so only GPUs are known of a node.
        gpus = {pool.resource: str(host.gpus)}
        documents.append(
            Document(
                {
                    "apiVersion": "v1", "kind": "Node",
                    "metadata": {"name": name, "labels": {**node_labels(fleet, name), "kubernetes.io/hostname": name}},
                    "status": {"capacity": gpus, "allocatable": gpus},
                }
            )
        )  # fmt: skip
    return documents


def notes(skipped: Sequence[str], missing: Sequence[str]) -> list[str]:
    """What was not looked at."""
    lines = []
    if skipped:
        names = ", ".join(skipped[:4]) + (", ..." if len(skipped) > 4 else "")
        lines.append(f"({len(skipped)} file{'' if len(skipped) == 1 else 's'} without Kubernetes objects: {names})")
    if missing:
        lines.append(f"(these credentials may not read {', '.join(missing)}: what depends on them was not judged)")
    return lines


def as_document(
    found: Sequence[Finding], objects: int, skipped: Sequence[str], missing: Sequence[str]
) -> dict[str, object]:
    """What `--json` prints."""
    return {
        "ok": not any(f.severity == "error" for f in found),
        "objects": objects,
        "findings": [f.as_dict() for f in found],
        "errors": sum(f.severity == "error" for f in found),
        "warnings": sum(f.severity == "warning" for f in found),
        "notes": sum(f.severity == "note" for f in found),
        "files_without_objects": list(skipped),
        "not_readable": list(missing),
    }
