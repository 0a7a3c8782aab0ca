"""Vulnerabilities of an image, by its bill of materials: from a database on disk, or by a scanner's command.

The image is not unpacked and not searched: the list of packages is, which takes seconds for an image of any size.
A database is a folder or file of records in OSV format (https://ossf.github.io/osv-schema/), as the archives of
https://osv.dev are. A command gets the path of the list in place of `{sbom}` and prints its findings as OSV-Scanner
(`results`) or CycloneDX (`vulnerabilities`) JSON, which osv-scanner, trivy and grype can.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from myriad.errors import InputError, MyriadError
from myriad.images import sbom
from myriad.images.proof_packages import normalised
from myriad.images.proof_rules import ExemptVulnerability, lapsed, lapsed_words
from myriad.images.scan_versions import order

_TIMEOUT_S = 600

Json = dict[str, Any]
Component = tuple[str, str, str]
"""(ecosystem, name, version)."""


@dataclass(frozen=True, slots=True)
class Vulnerability:
    """One vulnerability of one package.

    Attributes:
        id: of the record.
        package, version, ecosystem: what has it.
        aliases: other ids, such as CVE numbers.
        summary: in a few words.
        fixed: first version without it; empty where there is none.
        severity: as the record says it, a CVSS vector or a word; empty where it does not.
        note: about an exception that has ended.
    """

    id: str
    package: str
    version: str
    ecosystem: str
    aliases: tuple[str, ...] = ()
    summary: str = ""
    fixed: str = ""
    severity: str = ""
    note: str = ""

    @property
    def ids(self) -> frozenset[str]:
        """The id and its aliases."""
        return frozenset((self.id, *self.aliases))

    def as_dict(self) -> Json:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Scan:
    """What a scan found.

    Attributes:
        found: vulnerabilities that nobody accepted.
        accepted: those that an exception accepts, with it.
        unused: exceptions that accept nothing.
        components: how many packages were looked at.
        unread: what could not be compared, as sentences.
    """

    found: tuple[Vulnerability, ...]
    accepted: tuple[tuple[Vulnerability, ExemptVulnerability], ...]
    unused: tuple[ExemptVulnerability, ...]
    components: int
    unread: tuple[str, ...] = ()


def scan_database(document: bytes, database: Path) -> tuple[list[Vulnerability], list[str]]:
    """Hold a bill of materials against a database on disk.

    Args:
        document: CycloneDX or SPDX.
        database: a folder, a .json file with a record or a list of them, or a .zip archive of records.

    Returns:
        Vulnerabilities, and sentences about records that could not be compared.

    Raises:
        InputError: the document or the database is none.
    """
    wanted: dict[tuple[str, str], list[Component]] = {}
    for ecosystem, name, version in _components(document):
        wanted.setdefault((ecosystem.partition(":")[0], _name(ecosystem, name)), []).append((ecosystem, name, version))
    found: dict[tuple[str, str, str], Vulnerability] = {}
    unread: dict[str, None] = {}
    for record in records(database):
        if record.get("withdrawn"):
            continue
        for affected in record.get("affected") or ():
            package = affected.get("package") or {}
            ecosystem = str(package.get("ecosystem", ""))
            key = (ecosystem.partition(":")[0], _name(ecosystem, str(package.get("name", ""))))
            for component in wanted.get(key, ()):
                if ":" in ecosystem and ":" in component[0] and ecosystem != component[0]:
                    continue
                try:
                    hit, fixed = is_affected(affected, component)
                except ValueError as error:
                    unread[f"{record.get('id')}: {component[1]} {component[2]}: {error}"] = None
                    continue
                if hit:
                    found[str(record["id"]), component[1], component[2]] = _vulnerability(
                        record, affected, component, fixed
                    )
    return [found[key] for key in sorted(found)], list(unread)


def _components(document: bytes) -> list[Component]:
    try:
        return list(sbom.components(document))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"is no bill of materials: {error}", hint="`myriad image sbom LAYOUT` writes one") from error


def _name(ecosystem: str, name: str) -> str:
    return normalised(name) if ecosystem.partition(":")[0] == "PyPI" else name


def records(database: Path) -> Iterator[Json]:
    """The records of a database, in the order of their files.

    Raises:
        InputError: there is none, or a file of it is not what it should be.
    """
    if database.is_dir():
        paths = sorted(database.rglob("*.json"))
        if not paths:
            raise InputError("has no .json files", where=str(database), hint="records in OSV format, one a file")
        for path in paths:
            yield from _of_text(path.read_bytes(), str(path))
    elif database.suffix == ".zip":
        try:
            with ZipFile(database) as archive:
                for name in sorted(archive.namelist()):
                    if name.endswith(".json"):
                        yield from _of_text(archive.read(name), f"{database}:{name}")
        except (BadZipFile, OSError) as error:
            raise InputError(f"is no zip archive: {error}", where=str(database)) from error
    elif database.is_file():
        yield from _of_text(database.read_bytes(), str(database))
    else:
        raise InputError("there is no such database", where=str(database), hint="a folder, .json or .zip in OSV format")


def _of_text(data: bytes, where: str) -> Iterator[Json]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise InputError(f"is not JSON: {error}", where=where) from error
    rows = value if isinstance(value, list) else [value]
    for row in rows:
        if not isinstance(row, dict) or "id" not in row:
            raise InputError("is no record in OSV format: it has no id", where=where)
        yield row


def is_affected(affected: Mapping[str, Any], component: Component) -> tuple[bool, str]:
    """Whether a version is affected, and the first version after it that is not (empty where none is named).

    Source: https://ossf.github.io/osv-schema/#evaluation.

    Raises:
        ValueError: versions cannot be compared.
    """
    ecosystem, _, version = component
    fixed = ""
    hit = False
    for one in affected.get("versions") or ():
        try:
            hit = hit or order(ecosystem, str(one), version) == 0
        except ValueError:
            hit = hit or str(one) == version
    for row in affected.get("ranges") or ():
        if row.get("type") not in ("ECOSYSTEM", "SEMVER"):
            continue
        inside = False
        for kind, at in _events(row.get("events") or (), ecosystem):
            if kind == "introduced":
                inside = inside or at == "0" or order(ecosystem, version, at) >= 0
            elif inside and order(ecosystem, version, at) >= (1 if kind == "last_affected" else 0):
                inside = False
            elif inside and kind == "fixed" and not fixed:
                fixed = at
        hit = hit or inside
    return hit, fixed if hit else ""


def _events(events: Iterable[Mapping[str, str]], ecosystem: str) -> list[tuple[str, str]]:
    """Events in the order of their versions; `introduced: 0` is before all."""
    rows = [
        (kind, str(at))
        for event in events
        for kind, at in event.items()
        if kind in ("introduced", "fixed", "last_affected")
    ]

    class _Key:
        def __init__(self, row: tuple[str, str]) -> None:
            self.row = row

        def __lt__(self, other: _Key) -> bool:
            if "0" in (self.row[1], other.row[1]):
                return self.row[1] == "0" and other.row[1] != "0"
            return order(ecosystem, self.row[1], other.row[1]) < 0

    return sorted(rows, key=_Key)


def _vulnerability(record: Json, affected: Mapping[str, Any], component: Component, fixed: str) -> Vulnerability:
    ecosystem, name, version = component
    severities = [*(affected.get("severity") or ()), *(record.get("severity") or ())]
    word = (affected.get("ecosystem_specific") or {}).get("urgency") or (record.get("database_specific") or {}).get(
        "severity"
    )
    return Vulnerability(
        id=str(record["id"]),
        package=name,
        version=version,
        ecosystem=ecosystem,
        aliases=tuple(str(one) for one in record.get("aliases") or ()),
        summary=" ".join(str(record.get("summary") or record.get("details") or "").split())[:200],
        fixed=fixed,
        severity=str(word or (severities[0].get("score") if severities else "") or ""),
    )


# A scanner's command


def scan_command(document: bytes, command: str) -> list[Vulnerability]:
    """Let a scanner look at the bill of materials.

    Args:
        document: CycloneDX.
        command: its command line; `{sbom}` is replaced by the path of the document.

    Raises:
        InputError: the command line has no `{sbom}` or cannot be started.
        MyriadError: it failed, hung, or printed something else.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(f"the command cannot be read: {error}", where=command) from error
    if not any("{sbom}" in word for word in words):
        raise InputError(
            "the command does not take the bill of materials", where=command, hint="write {sbom} where its path goes"
        )
    with tempfile.TemporaryDirectory(prefix="myriad-scan-") as scratch:
        path = Path(scratch) / "bom.cdx.json"
        path.write_bytes(document)
        argv = [word.replace("{sbom}", str(path)) for word in words]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
        except OSError as error:
            raise InputError(
                f"the scanner cannot be started: {error.strerror}", where=argv[0], hint="install it, or give its path"
            ) from None
        except subprocess.TimeoutExpired:
            raise MyriadError(f"the scanner did not end within {_TIMEOUT_S} s", where=command) from None
    try:
        body = json.loads(done.stdout)
        # Scanners end with 1 where they found something.
        return list(_of_scanner(body))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        said = " ".join((done.stderr or done.stdout).split())[-300:] or "nothing"
        raise MyriadError(
            f"the scanner ended with {done.returncode} and printed no OSV-Scanner or CycloneDX JSON ({error}): {said}",
            where=command,
            hint="osv-scanner --format json, trivy sbom --format cyclonedx, grype -o cyclonedx-json",
        ) from error


def _of_scanner(body: Json) -> Iterator[Vulnerability]:
    if "results" in body:
        for result in body["results"] or ():
            for row in result["packages"]:
                package = row["package"]
                component = (str(package["ecosystem"]), str(package["name"]), str(package["version"]))
                for record in row.get("vulnerabilities") or ():
                    fixes = (is_fixed for one in record.get("affected") or () for is_fixed in _fixes(one, component))
                    yield _vulnerability(record, {}, component, next(fixes, ""))
    elif body.get("bomFormat") == "CycloneDX":
        names = {one.get("bom-ref"): one for one in body.get("components") or ()}
        for row in body.get("vulnerabilities") or ():
            for target in row.get("affects") or ():
                held = names.get(target["ref"], {})
                known = sbom.of_purl(str(held.get("purl") or target["ref"]))
                ecosystem, name, version = known or (
                    "",
                    str(held.get("name") or target["ref"]),
                    str(held.get("version", "")),
                )
                ratings = row.get("ratings") or [{}]
                yield Vulnerability(
                    id=str(row["id"]),
                    package=name,
                    version=version,
                    ecosystem=ecosystem,
                    summary=" ".join(str(row.get("description") or "").split())[:200],
                    severity=str(ratings[0].get("severity") or ""),
                    fixed=str(row.get("recommendation") or ""),
                )
    else:
        raise ValueError("neither results nor a CycloneDX document")


def _fixes(affected: Mapping[str, Any], component: Component) -> Iterator[str]:
    package = affected.get("package") or {}
    if _name(component[0], str(package.get("name", ""))) == _name(component[0], component[1]):
        try:
            yield is_affected(affected, component)[1]
        except ValueError:
            return


# Exceptions


def apply(
    found: Sequence[Vulnerability],
    exceptions: Sequence[ExemptVulnerability],
    today: date,
    *,
    components: int,
    unread: Sequence[str] = (),
) -> Scan:
    """Take accepted vulnerabilities out; one whose exception has ended is found again and says so."""
    left, accepted, used = [], [], set()
    for one in found:
        fitting = [
            (number, rule)
            for number, rule in enumerate(exceptions)
            if rule.id in one.ids and rule.package in ("*", one.package)
        ]
        used |= {number for number, _rule in fitting}
        holding = [rule for _number, rule in fitting if not lapsed(rule, today)]
        if holding:
            accepted.append((one, holding[0]))
        elif fitting:
            left.append(replace(one, note=lapsed_words(fitting[0][1])))
        else:
            left.append(one)
    unused = tuple(rule for number, rule in enumerate(exceptions) if number not in used)
    return Scan(tuple(left), tuple(accepted), unused, components, tuple(unread))


def count(document: bytes) -> int:
    """How many packages a bill of materials lists that databases know."""
    return len(_components(document))
