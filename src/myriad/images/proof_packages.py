"""The packages of an image: Python's by their dist-info, Debian's by dpkg, with the files and bytes of each. Pure."""

from __future__ import annotations

import base64
import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.parser import HeaderParser
from posixpath import dirname, join, normpath
from typing import Literal

from myriad.images.proof_tree import ImageTree

Kind = Literal["pypi", "deb"]

# setuptools and pip carry packages of their own inside; nothing else imports those.
_VENDORED = re.compile(r"/_vendor(ed)?/")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A line of RECORD: a file of a wheel, with the sha256 (hexadecimal) and size that it had when it was built."""

    path: str
    sha256: str = ""
    size: int | None = None


@dataclass(slots=True)
class Package:
    """An installed package.

    Attributes:
        kind: `pypi` or `deb`.
        name: normalised for Python (`nvidia-nccl-cu13`), as dpkg says it for Debian.
        version: in full.
        where: its dist-info folder, or dpkg's status.
        licence: what its metadata says.
        homepage: likewise.
        requires: names of what it depends on, without extras.
        recorded: lines of its RECORD; None where the image has none.
        files: paths in the image that are its.
        size: bytes of its files, unpacked.
        architecture: Debian's.
        source: Debian's source package.
        sha256: of the wheel's file that it was installed from, by its provenance_url.json (PEP 710); empty without.
    """

    kind: Kind
    name: str
    version: str
    where: str
    licence: str = ""
    homepage: str = ""
    requires: tuple[str, ...] = ()
    recorded: tuple[Recorded, ...] | None = None
    files: list[str] = field(default_factory=list)
    size: int = 0
    architecture: str = ""
    source: str = ""
    sha256: str = ""

    @property
    def label(self) -> str:
        """`torch 2.12.1`."""
        return f"{self.name} {self.version}"


@dataclass(slots=True)
class Packages:
    """All packages of an image. `unowned` are bytes of files that belong to none."""

    found: list[Package]
    unowned: int = 0

    def named(self, *names: str) -> list[Package]:
        """Packages of these names."""
        return [one for one in self.found if one.name in names]

    @property
    def python(self) -> list[Package]:
        """Python's."""
        return [one for one in self.found if one.kind == "pypi"]

    @property
    def debian(self) -> list[Package]:
        """Debian's."""
        return [one for one in self.found if one.kind == "deb"]


def normalised(name: str) -> str:
    """A Python package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_packages(tree: ImageTree) -> Packages:
    """What is installed, and what of the image's files is whose."""
    found = [*_python(tree), *_debian(tree)]
    owner: dict[str, Package] = {}
    for package in found:
        if package.kind == "pypi":
            _claim_python(tree, package, owner)
    by_name = {one.name: one for one in found if one.kind == "deb"}
    for listing in tree.matching("var/lib/dpkg/info/*.list"):
        name = listing.path.rpartition("/")[2].removesuffix(".list").partition(":")[0]
        if name in by_name and listing.text is not None:
            for line in listing.text.decode(errors="replace").splitlines():
                path = tree.resolve(line.strip("/"))
                file = tree.files.get(path)
                if file is not None and file.kind == "file":
                    owner.setdefault(path, by_name[name])
    unowned = 0
    for file in tree.regular():
        owned = owner.get(file.path)
        if owned is None:
            unowned += file.size
        else:
            owned.files.append(file.path)
            owned.size += file.size
    return Packages(sorted(found, key=lambda one: (one.kind != "pypi", one.name, one.version, one.where)), unowned)


def _python(tree: ImageTree) -> Iterator[Package]:
    for file in tree.matching("*.dist-info/METADATA"):
        if _VENDORED.search(file.path):
            continue
        yield _distribution(tree, file.path, dirname(file.path))
    for file in tree.matching("*.egg-info*"):
        if file.kind == "file" and file.path.endswith((".egg-info", ".egg-info/PKG-INFO")):
            yield _distribution(tree, file.path, file.path.removesuffix("/PKG-INFO"))


def _distribution(tree: ImageTree, metadata: str, where: str) -> Package:
    head = HeaderParser().parsestr(tree.text(metadata).partition("\n\n")[0])
    name, version = normalised(str(head.get("Name") or "")), str(head.get("Version") or "")
    record = tree.text(f"{where}/RECORD")
    requires = {
        normalised(match[0])
        for line in head.get_all("Requires-Dist") or ()
        if "extra ==" not in line and (match := re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line))
    }
    return Package(
        kind="pypi",
        name=name or normalised(where.rpartition("/")[2].partition("-")[0]),
        version=version,
        where=where,
        licence=_licence(head.get("License-Expression"), head.get("License"), head.get_all("Classifier") or []),
        homepage=_homepage(head.get("Home-page"), head.get_all("Project-URL") or []),
        requires=tuple(sorted(requires)),
        recorded=tuple(_record(record, dirname(where))) if record else None,
        sha256=_installed_from(tree.text(f"{where}/provenance_url.json")),
    )


def _installed_from(text: str) -> str:
    """The sha256 of the file that a package was installed from."""
    try:
        value = json.loads(text or "{}")["archive_info"]["hashes"]["sha256"]
    except (ValueError, KeyError, TypeError):
        return ""
    return value if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) else ""


def _licence(expression: str | None, text: str | None, classifiers: list[str]) -> str:
    if expression:
        return expression.strip()
    named = [one.rpartition(" :: ")[2] for one in classifiers if one.startswith("License :: ")]
    plain = (text or "").strip()
    # Some packages put a whole licence into the field.
    return plain if plain and "\n" not in plain and len(plain) <= 60 else " and ".join(named)


def _homepage(plain: str | None, urls: list[str]) -> str:
    labelled = {label.strip().lower(): url.strip() for label, _, url in (one.partition(",") for one in urls)}
    found = plain or labelled.get("homepage") or labelled.get("repository") or labelled.get("source") or ""
    return found if found.startswith(("https://", "http://")) else ""


def _record(text: str, folder: str) -> Iterator[Recorded]:
    for row in csv.reader(text.splitlines()):
        if not row or not row[0]:
            continue
        name, digest, size = [*row, "", ""][:3]
        algorithm, _, value = digest.partition("=")
        path = name.lstrip("/") if name.startswith("/") else normpath(join(folder, name))
        decoded = ""
        if algorithm == "sha256":
            try:
                decoded = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()
            except ValueError:
                decoded = "?"
        yield Recorded(path, decoded, int(size) if size.isdigit() else None)


def locked_hashes(requirements: str) -> dict[tuple[str, str], tuple[str, ...]]:
    """(name, version) -> sha256 of the files that a locked requirements text allows."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for line in requirements.replace("\\\n", " ").splitlines():
        match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;]+)", line)
        if match:
            found[normalised(match[1]), match[2]] = tuple(sorted(re.findall(r"--hash[= ]sha256:([0-9a-f]{64})", line)))
    return found


def _claim_python(tree: ImageTree, package: Package, owner: dict[str, Package]) -> None:
    """Files by RECORD, with their bytecode; without one, the folders that go by the package's own name."""
    if package.recorded is not None:
        for line in package.recorded:
            path = tree.resolve(line.path)
            owner.setdefault(path, package)
            if path.endswith(".py"):
                folder, _, base = path.rpartition("/")
                for child in tree.children(f"{folder}/__pycache__"):
                    if child.rpartition("/")[2].startswith(f"{base[:-3]}.cpython-"):
                        owner.setdefault(child, package)
    site = dirname(package.where)
    _claim_below(tree, package.where, package, owner)
    if package.recorded is None:
        for name in {package.name, package.name.replace("-", "_")}:
            _claim_below(tree, f"{site}/{name}", package, owner)


def _claim_below(tree: ImageTree, path: str, package: Package, owner: dict[str, Package]) -> None:
    owner.setdefault(path, package)
    for child in tree.children(path):
        _claim_below(tree, child, package, owner)


def _debian(tree: ImageTree) -> Iterator[Package]:
    texts = [("var/lib/dpkg/status", tree.text("var/lib/dpkg/status"))]
    # Distroless images keep one file a package.
    texts += [
        (file.path, tree.text(file.path))
        for file in tree.matching("var/lib/dpkg/status.d/*")
        if not file.path.endswith(".md5sums")
    ]
    for where, text in texts:
        for paragraph in text.split("\n\n"):
            head = HeaderParser().parsestr(paragraph)
            state = str(head.get("Status") or "install ok installed")
            if head.get("Package") and head.get("Version") and state.endswith(" installed"):
                yield Package(
                    kind="deb",
                    name=str(head["Package"]),
                    version=str(head["Version"]),
                    where=where,
                    homepage=_homepage(head.get("Homepage"), []),
                    architecture=str(head.get("Architecture") or ""),
                    source=str(head.get("Source") or "").partition(" ")[0],
                    requires=tuple(sorted(set(_debian_names(head.get("Depends"), head.get("Pre-Depends"))))),
                )


def _debian_names(*fields: str | None) -> Iterator[str]:
    for text in fields:
        for clause in (text or "").split(","):
            first = clause.partition("|")[0].strip()
            if first:
                yield re.split(r"[\s(:]", first, maxsplit=1)[0]


def distribution(tree: ImageTree) -> tuple[str, str]:
    """(`debian`, `12`) of the image's os-release; empty strings without one."""
    text = tree.text("etc/os-release") or tree.text("usr/lib/os-release")
    fields = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))
    return fields.get("ID", ""), fields.get("VERSION_ID", "")
