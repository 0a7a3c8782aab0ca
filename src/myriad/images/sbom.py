"""The bill of materials of an image in CycloneDX 1.6 and SPDX 2.3, from its dist-info, dpkg and locks: seconds, not
minutes, and the same bytes for the same image.

Formats: https://cyclonedx.org/docs/1.6/json/ and https://spdx.github.io/spdx-spec/v2.3/. Both are written from one list
of packages, so they cannot disagree. Times are those that the image bears, ids are made of its digest.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from typing import Any, Literal
from urllib.parse import parse_qs, quote, unquote

from myriad.images.oci import canonical_json
from myriad.images.proof_layout import LayoutImage, attach
from myriad.images.proof_packages import Package, Packages, distribution
from myriad.images.proof_tree import ImageTree

CYCLONEDX = "application/vnd.cyclonedx+json"
SPDX = "application/spdx+json"
Format = Literal["cyclonedx", "spdx"]
MEDIA_TYPES: dict[Format, str] = {"cyclonedx": CYCLONEDX, "spdx": SPDX}

_NAMESPACE = uuid.UUID("6f0b7d3e-7d0c-5d0e-9c39-2f3a3a5f1c10")
_TOOL = "myriad"

Json = dict[str, Any]


def build(image: LayoutImage, tree: ImageTree, packages: Packages, kind: Format, *, version: str) -> bytes:
    """The document.

    Args:
        image: what it is of.
        tree, packages: its files and packages.
        kind: the format.
        version: of Myriad, which is named as the tool.
    """
    document = (
        _cyclonedx(image, tree, packages, version) if kind == "cyclonedx" else _spdx(image, tree, packages, version)
    )
    return canonical_json(document)


def attach_all(image: LayoutImage, tree: ImageTree, packages: Packages, *, version: str) -> dict[Format, str]:
    """Attach both documents to the image by digest; format -> digest of the attached manifest."""
    return {
        kind: attach(image, media_type, [(media_type, build(image, tree, packages, kind, version=version))])
        for kind, media_type in MEDIA_TYPES.items()
    }


def purl(package: Package, distro: tuple[str, str]) -> str:
    """The package's URL (https://github.com/package-url/purl-spec), by which scanners know it."""
    version = quote(package.version, safe="")
    if package.kind == "pypi":
        return f"pkg:pypi/{package.name}@{version}"
    name, release = distro
    qualifiers = [f"arch={package.architecture}"] if package.architecture else []
    qualifiers += [f"distro={name}-{release}"] if release else []
    return f"pkg:deb/{name or 'debian'}/{quote(package.name, safe='')}@{version}" + (
        f"?{'&'.join(qualifiers)}" if qualifiers else ""
    )


# CycloneDX


def _cyclonedx(image: LayoutImage, tree: ImageTree, packages: Packages, version: str) -> Json:
    distro = distribution(tree)
    refs = _refs(packages)
    root = f"oci:{image.digest}"
    rows = [(refs[id(one)], one) for one in packages.found]
    name, tag = _name(image)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, image.digest)}",
        "version": 1,
        "metadata": {
            "timestamp": image.created,
            "tools": {"components": [{"type": "application", "name": _TOOL, "version": version}]},
            "component": {
                "type": "container",
                "bom-ref": root,
                "name": name,
                "version": tag or image.digest,
                "purl": f"pkg:oci/{name.rpartition('/')[2]}@{quote(image.digest, safe='')}",
                "hashes": [{"alg": "SHA-256", "content": image.digest.removeprefix("sha256:")}],
            },
        },
        "components": [_component(ref, one, distro) for ref, one in rows],
        "dependencies": [
            {"ref": root, "dependsOn": sorted(ref for ref, _one in rows)},
            *(_needs(ref, one, packages, refs) for ref, one in sorted(rows, key=lambda row: row[0])),
        ],
    }


def _component(ref: str, package: Package, distro: tuple[str, str]) -> Json:
    found: Json = {
        "type": "library",
        "bom-ref": ref,
        "name": package.name,
        "version": package.version,
        "purl": purl(package, distro),
        "properties": [{"name": "myriad:unpacked-bytes", "value": str(package.size)}],
    }
    if package.licence:
        found["licenses"] = _cyclonedx_licence(package.licence)
    if package.sha256:
        found["hashes"] = [{"alg": "SHA-256", "content": package.sha256}]
    if package.homepage:
        found["externalReferences"] = [{"type": "website", "url": _url(package.homepage)}]
    if package.source and package.source != package.name:
        found["properties"].append({"name": "myriad:debian-source", "value": package.source})
    return found


def _cyclonedx_licence(text: str) -> list[Json]:
    if is_expression(text):
        return [{"expression": text}]
    return [{"license": {"name": text}}]


def _needs(ref: str, package: Package, packages: Packages, refs: dict[int, str]) -> Json:
    names = set(package.requires)
    found = sorted(
        refs[id(one)] for one in packages.found if one.kind == package.kind and one.name in names and one is not package
    )
    return {"ref": ref, "dependsOn": sorted(set(found))} if found else {"ref": ref}


# SPDX


def _spdx(image: LayoutImage, tree: ImageTree, packages: Packages, version: str) -> Json:
    distro = distribution(tree)
    refs = {key: _spdx_id(ref) for key, ref in _refs(packages).items()}
    name, tag = _name(image)
    root = {
        "SPDXID": "SPDXRef-Image",
        "name": name,
        "versionInfo": tag or image.digest,
        "primaryPackagePurpose": "CONTAINER",
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "checksums": [{"algorithm": "SHA256", "checksumValue": image.digest.removeprefix("sha256:")}],
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "supplier": "NOASSERTION",
        "externalRefs": [_purl_ref(f"pkg:oci/{name.rpartition('/')[2]}@{quote(image.digest, safe='')}")],
    }
    extracted: dict[str, str] = {}
    rows = [_spdx_package(refs[id(one)], one, distro, extracted) for one in packages.found]
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-Image")]
    relations += [("SPDXRef-Image", "CONTAINS", row["SPDXID"]) for row in rows]
    for one in packages.found:
        for needed in _needs(refs[id(one)], one, packages, refs).get("dependsOn", ()):
            relations.append((refs[id(one)], "DEPENDS_ON", needed))
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{name} {tag or image.digest}",
        "documentNamespace": f"https://myriad.dev/spdx/{quote(name)}/{image.digest.removeprefix('sha256:')}",
        "creationInfo": {"created": image.created, "creators": [f"Tool: {_TOOL}-{version}"]},
        "packages": [root, *rows],
        "relationships": [
            {"spdxElementId": left, "relationshipType": kind, "relatedSpdxElement": right}
            for left, kind, right in sorted(set(relations))
        ],
        **(
            {
                "hasExtractedLicensingInfos": [
                    {"licenseId": key, "name": text, "extractedText": text} for key, text in sorted(extracted.items())
                ]
            }
            if extracted
            else {}
        ),
    }


def _spdx_package(ref: str, package: Package, distro: tuple[str, str], extracted: dict[str, str]) -> Json:
    found: Json = {
        "SPDXID": ref,
        "name": package.name,
        "versionInfo": package.version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": _spdx_licence(package.licence, extracted),
        "copyrightText": "NOASSERTION",
        "supplier": "NOASSERTION",
        "externalRefs": [_purl_ref(purl(package, distro))],
    }
    if package.homepage:
        found["homepage"] = _url(package.homepage)
    if package.sha256:
        found["checksums"] = [{"algorithm": "SHA256", "checksumValue": package.sha256}]
    if package.source and package.source != package.name:
        found["sourceInfo"] = f"built from the Debian source package {package.source}"
    return found


def _purl_ref(text: str) -> Json:
    return {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": text}


def _spdx_licence(text: str, extracted: dict[str, str]) -> str:
    if not text:
        return "NOASSERTION"
    if is_expression(text):
        return text
    key = f"LicenseRef-{re.sub(r'[^A-Za-z0-9.]+', '-', text).strip('-') or 'other'}"
    extracted[key] = text
    return key


def _spdx_id(ref: str) -> str:
    return f"SPDXRef-Package-{re.sub(r'[^A-Za-z0-9.-]+', '-', ref)}"


# What both share

#: Licence ids of https://spdx.org/licenses/ that packages of the field name; another text is kept as it is, by name.
_IDS = """
    0BSD AFL-2.1 AGPL-3.0-only AGPL-3.0-or-later Apache-2.0 Artistic-2.0 BSD-2-Clause BSD-3-Clause BSD-4-Clause BSL-1.0
    CC0-1.0 CC-BY-4.0 GPL-2.0-only GPL-2.0-or-later GPL-3.0-only GPL-3.0-or-later HPND ISC LGPL-2.1-only
    LGPL-2.1-or-later LGPL-3.0-only LGPL-3.0-or-later MIT MIT-0 MIT-CMU MPL-2.0 NCSA OFL-1.1 PSF-2.0 Python-2.0
    Unlicense WTFPL X11 Zlib ZPL-2.1
"""
LICENCES = frozenset(_IDS.split())
_EXCEPTIONS = frozenset(("GCC-exception-3.1", "LLVM-exception", "Classpath-exception-2.0"))


def is_expression(text: str) -> bool:
    """Whether a text is an SPDX licence expression of known ids (`MIT OR Apache-2.0 WITH LLVM-exception`)."""
    return _expression(re.findall(r"[()]|[^\s()]+", text))


def _expression(words: list[str]) -> bool:
    """One pass over `id [WITH exception] {AND|OR id ...}` with brackets."""
    depth, wants = 0, True
    position = 0
    while position < len(words):
        word = words[position]
        if wants and word == "(":
            depth += 1
        elif wants and word in LICENCES:
            wants = False
            if words[position + 1 : position + 2] == ["WITH"]:
                if words[position + 2 : position + 3] == [] or words[position + 2] not in _EXCEPTIONS:
                    return False
                position += 2
        elif not wants and word == ")" and depth:
            depth -= 1
        elif not wants and word in ("AND", "OR"):
            wants = True
        else:
            return False
        position += 1
    return not wants and depth == 0


def _refs(packages: Packages) -> dict[int, str]:
    """A name for each package that is unique in the document and the same on every run."""
    found: dict[int, str] = {}
    seen: dict[str, int] = {}
    for one in packages.found:
        base = f"{one.kind}:{one.name}@{one.version}"
        seen[base] = seen.get(base, 0) + 1
        found[id(one)] = base if seen[base] == 1 else f"{base}#{seen[base]}"
    return found


def _name(image: LayoutImage) -> tuple[str, str]:
    """(repository, tag) of an image; its digest's start where it has no name."""
    plain = image.ref.partition("@")[0]
    repo, colon, tag = plain.rpartition(":")
    if not colon or "/" in tag:
        repo, tag = plain, ""
    return repo or image.digest[7:19], tag


def _url(text: str) -> str:
    return quote(text, safe=":/?#[]@!$&'()*+,;=%-._~")


def components(document: bytes) -> Iterator[tuple[str, str, str]]:
    """(ecosystem, name, version) of what a document of either format lists: `PyPI`, or `Debian:12`.

    Raises:
        ValueError: it is neither.
    """
    body = json.loads(document)
    if body.get("bomFormat") == "CycloneDX":
        urls = [str(one.get("purl", "")) for one in body.get("components", ())]
    elif str(body.get("spdxVersion", "")).startswith("SPDX-2"):
        urls = [
            str(ref["referenceLocator"])
            for one in body.get("packages", ())
            for ref in one.get("externalRefs", ())
            if ref.get("referenceType") == "purl"
        ]
    else:
        raise ValueError("neither CycloneDX nor SPDX 2")
    for url in urls:
        found = of_purl(url)
        if found is not None:
            yield found


def of_purl(url: str) -> tuple[str, str, str] | None:
    """What a package URL names, as vulnerability databases call it; None for what they do not have."""
    match = re.fullmatch(r"pkg:(pypi|deb)/(?:([^/@]+)/)?([^/@?]+)@([^?#]+)(?:\?([^#]*))?(?:#.*)?", url)
    if match is None:
        return None
    kind, vendor, name, version, query = match.groups()
    if kind == "pypi":
        return "PyPI", unquote(name), unquote(version)
    distro = parse_qs(query or "").get("distro", [""])[0]
    release = distro.rpartition("-")[2]
    ecosystem = {"debian": "Debian", "ubuntu": "Ubuntu"}.get(vendor or "", vendor or "")
    return f"{ecosystem}:{release}" if release else ecosystem, unquote(name), unquote(version)
