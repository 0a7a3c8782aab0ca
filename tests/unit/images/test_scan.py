"""Vulnerabilities by the bill of materials: ranges of OSV, both orders of versions, scanners, exceptions that end."""

from __future__ import annotations

import json
import sys
from datetime import date
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myriad.errors import InputError, MyriadError
from myriad.images import sbom, scan
from myriad.images.proof_documents import inventory
from myriad.images.proof_rules import ExemptVulnerability
from myriad.images.scan_versions import debian, order
from tests.unit.images import proof_images as small

TODAY = date(2026, 11, 30)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    image = small.layout(tmp_path_factory.mktemp("image"), small.system(), small.pytorch())
    tree, packages = inventory(image)
    return sbom.build(image, tree, packages, "cyclonedx", version="0.1.0")


def record(name: str, *events: dict[str, str], ecosystem: str = "PyPI", **more: Any) -> dict[str, Any]:
    affected = {
        "package": {"ecosystem": ecosystem, "name": name},
        "ranges": [{"type": "ECOSYSTEM", "events": list(events)}],
    }
    return {"id": "GHSA-1", "aliases": ["CVE-2026-1"], "summary": "it breaks", "affected": [affected], **more}


def hits(document: bytes, tmp_path: Path, *rows: dict[str, Any]) -> list[scan.Vulnerability]:
    path = tmp_path / "osv.json"
    path.write_text(json.dumps(list(rows)))
    return scan.scan_database(document, path)[0]


def test_a_package_in_a_range_is_found_with_what_fixes_it(document: bytes, tmp_path: Path) -> None:
    (one,) = hits(document, tmp_path, record("Torch", {"introduced": "2.0"}, {"fixed": "2.12.2"}))
    assert (one.package, one.version, one.fixed, one.aliases) == ("torch", "2.12.1+cu130", "2.12.2", ("CVE-2026-1",))


@pytest.mark.parametrize(
    ("events", "hit"),
    [
        ([{"introduced": "0"}], True),
        ([{"introduced": "0"}, {"fixed": "2.12.1"}], False),
        ([{"introduced": "0"}, {"last_affected": "2.12.1"}], True),
        ([{"introduced": "0"}, {"last_affected": "2.12.0"}], False),
        ([{"introduced": "2.13"}], False),
        ([{"introduced": "2.12.1"}], True),
        ([{"introduced": "2.13"}, {"fixed": "2.14"}, {"introduced": "0"}, {"fixed": "2.12.5"}], True),
        ([{"introduced": "0"}, {"fixed": "2.1"}, {"introduced": "2.13"}, {"fixed": "2.14"}], False),
    ],
)
def test_events_in_any_order(document: bytes, tmp_path: Path, events: list[dict[str, str]], hit: bool) -> None:
    assert bool(hits(document, tmp_path, record("torch", *events))) is hit


def test_a_list_of_versions_and_what_was_withdrawn(document: bytes, tmp_path: Path) -> None:
    listed = {
        "id": "P-1",
        "affected": [{"package": {"ecosystem": "PyPI", "name": "numpy"}, "versions": ["2.2.0", "2.2.1"]}],
    }
    assert [one.id for one in hits(document, tmp_path, listed)] == ["P-1"]
    assert hits(document, tmp_path, {**listed, "withdrawn": "2026-01-01T00:00:00Z"}) == []


def test_debians_packages_by_release(document: bytes, tmp_path: Path) -> None:
    events = ({"introduced": "0"}, {"fixed": "2.36-9+deb12u14"})
    (one,) = hits(document, tmp_path, record("libc6", *events, ecosystem="Debian:12"))
    assert one.fixed == "2.36-9+deb12u14"
    assert hits(document, tmp_path, record("libc6", *events, ecosystem="Debian:13")) == []
    assert hits(document, tmp_path, record("libc6", *events, ecosystem="PyPI")) == []
    assert len(hits(document, tmp_path, record("libc6", *events, ecosystem="Debian"))) == 1


def test_a_record_that_cannot_be_compared_is_named_not_dropped(document: bytes, tmp_path: Path) -> None:
    path = tmp_path / "osv.json"
    path.write_text(json.dumps(record("torch", {"introduced": "not a version"})))
    found, unread = scan.scan_database(document, path)
    assert found == [] and unread == ["GHSA-1: torch 2.12.1+cu130: Invalid version: 'not a version'"]


def test_a_folder_and_an_archive_are_databases(document: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "db" / "PyPI"
    folder.mkdir(parents=True)
    (folder / "GHSA-1.json").write_text(json.dumps(record("torch", {"introduced": "0"})))
    assert len(scan.scan_database(document, tmp_path / "db")[0]) == 1
    with ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.write(folder / "GHSA-1.json", "GHSA-1.json")
    assert len(scan.scan_database(document, tmp_path / "all.zip")[0]) == 1


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("none.json", None, "there is no such database"),
        ("a.json", "{", "is not JSON"),
        ("a.json", "[{}]", "it has no id"),
        ("a.zip", "no zip", "is no zip archive"),
        ("", "", "has no .json files"),
    ],
)
def test_a_database_that_is_none(document: bytes, tmp_path: Path, name: str, text: str | None, words: str) -> None:
    if name and text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=words):
        scan.scan_database(document, tmp_path / name)


# Orders


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("1.0~rc1", "1.0"),
        ("1.0", "1.0a"),
        ("1.0a", "1.0+b"),
        ("1.9", "1.10"),
        ("9.9", "1:0.1"),
        ("2.36-9", "2.36-9+deb12u1"),
        ("2.36-9+deb12u9", "2.36-9+deb12u13"),
        ("1.0-1", "1.0-1.1"),
        ("1.0", "1.0-1"),
        ("3.11.2-6", "3.11.2-6+deb12u6"),
        ("1.2.3~~", "1.2.3~a"),
    ],
)
def test_debians_order(left: str, right: str) -> None:
    assert (debian(left, right), debian(right, left), debian(left, left)) == (-1, 1, 0)


_VERSIONS = st.from_regex(r"([0-2]:)?[0-9][0-9a-b.+~]{0,5}(-[0-9a-b.+~]{1,3})?", fullmatch=True)


@given(_VERSIONS, _VERSIONS, _VERSIONS)
def test_debians_order_is_one(a: str, b: str, c: str) -> None:
    assert debian(a, b) == -debian(b, a)
    if debian(a, b) <= 0 and debian(b, c) <= 0:
        assert debian(a, c) <= 0


def test_pythons_order_leaves_the_build_out() -> None:
    assert order("PyPI", "2.12.1+cu130", "2.12.1") == 0
    assert order("PyPI", "2.12.1rc1", "2.12.1") == -1
    with pytest.raises(ValueError, match="order of versions of npm is not known"):
        order("npm", "1", "2")


# Scanners

OSV_SCANNER = {
    "results": [
        {
            "packages": [
                {
                    "package": {"name": "torch", "version": "2.12.1", "ecosystem": "PyPI"},
                    "vulnerabilities": [record("torch", {"introduced": "0"}, {"fixed": "2.13"})],
                }
            ]
        }
    ]
}
CYCLONEDX = {
    "bomFormat": "CycloneDX",
    "components": [{"bom-ref": "x", "name": "torch", "version": "2.12.1", "purl": "pkg:pypi/torch@2.12.1"}],
    "vulnerabilities": [
        {"id": "CVE-2026-1", "affects": [{"ref": "x"}], "ratings": [{"severity": "high"}], "description": "it breaks"}
    ],
}


def scanner(tmp_path: Path, body: object, rc: int = 1) -> str:
    """A program that reads the list and prints findings, as scanners do."""
    path = tmp_path / "scanner.py"
    check = "import json, sys; assert json.load(open(sys.argv[1]))['bomFormat'] == 'CycloneDX'"
    path.write_text(f"{check}\nprint({json.dumps(body)!r})\nsys.exit({rc})\n")
    return f"{sys.executable} {path} {{sbom}}"


@pytest.mark.parametrize("body", [OSV_SCANNER, CYCLONEDX])
def test_what_a_scanner_prints_is_read(document: bytes, tmp_path: Path, body: dict[str, Any]) -> None:
    (one,) = scan.scan_command(document, scanner(tmp_path, body))
    assert one.package == "torch" and "CVE-2026-1" in one.ids and one.summary == "it breaks"


def test_a_scanner_that_finds_nothing(document: bytes, tmp_path: Path) -> None:
    assert scan.scan_command(document, scanner(tmp_path, {"results": []}, rc=0)) == []


@pytest.mark.parametrize(
    ("command", "kind", "words"),
    [
        ("true", InputError, "does not take the bill of materials"),
        ("'", InputError, "cannot be read"),
        ("/no/such/scanner {sbom}", InputError, "the scanner cannot be started"),
        (f"{sys.executable} -c 'print(1)' {{sbom}}", MyriadError, "printed no OSV-Scanner or CycloneDX JSON"),
        (f"{sys.executable} -c 'print(\"{{{{}}}}\")' {{sbom}}", MyriadError, "printed no OSV-Scanner"),
        (f"{sys.executable} -c 'exit(\"no database\")' {{sbom}}", MyriadError, "ended with 1 .*: no database"),
    ],
)  # fmt: skip
def test_a_scanner_that_fails_is_no_clean_image(
    document: bytes, command: str, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        scan.scan_command(document, command)


# Exceptions


def exception(until: date, **more: str) -> ExemptVulnerability:
    return ExemptVulnerability.model_validate(
        {"id": "CVE-2026-1", "reason": "the function is never called", "until": until, **more}
    )


def test_an_exception_by_an_alias_holds_until_its_day(document: bytes, tmp_path: Path) -> None:
    found = hits(document, tmp_path, record("torch", {"introduced": "0"}))
    held = scan.apply(found, [exception(TODAY)], TODAY, components=1)
    assert held.found == () and held.accepted[0][1].reason == "the function is never called"
    ended = scan.apply(found, [exception(date(2026, 11, 29))], TODAY, components=1)
    assert ended.found[0].note == ('(accepted until 2026-11-29 because "the function is never called"; that has ended)')
    elsewhere = scan.apply(found, [exception(TODAY, package="numpy")], TODAY, components=1)
    assert len(elsewhere.found) == 1 and elsewhere.unused[0].package == "numpy"


def test_an_exception_without_a_reason_or_an_end_is_refused() -> None:
    for wrong in ({"reason": "no"}, {"until": None}, {"id": "everything"}):
        with pytest.raises(ValueError, match=r"reason|until|id"):
            ExemptVulnerability.model_validate(
                {"id": "CVE-1", "reason": "long enough a reason", "until": TODAY, **wrong}
            )
