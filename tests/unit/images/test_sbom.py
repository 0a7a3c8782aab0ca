"""The bill of materials: valid by its own projects' schema and validator, the same bytes again, attached by digest."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from spdx_tools.spdx.parser.json.json_parser import JsonLikeDictParser
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from myriad.images import sbom
from myriad.images.oci import Layout
from myriad.images.proof_documents import attach_documents, inventory
from myriad.images.proof_layout import LayoutImage, attached, open_image
from myriad.images.proof_packages import Package, read_packages
from myriad.images.proof_tree import read_tree
from tests.unit.images import proof_images as small


def image(tmp_path: Path, *more: dict[str, bytes]) -> LayoutImage:
    wheels = small.pytorch()
    return small.layout(tmp_path, small.system(), wheels, *more)


def written(subject: LayoutImage, kind: sbom.Format) -> tuple[bytes, dict[str, Any]]:
    tree, packages = inventory(subject)
    data = sbom.build(subject, tree, packages, kind, version="0.1.0")
    return data, json.loads(data)


def test_cyclonedx_is_valid_by_its_published_schema(tmp_path: Path) -> None:
    odd = small.wheel("odd", "1.0", licence="BSD", requires=["torch", "torch>=2; python_version>'3'"])
    data, body = written(image(tmp_path, odd), "cyclonedx")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(data.decode()) is None
    rows = {one["name"]: one for one in body["components"]}
    assert rows["torch"]["purl"] == "pkg:pypi/torch@2.12.1%2Bcu130"
    assert rows["torch"]["licenses"] == [{"expression": "BSD-3-Clause"}]
    assert rows["torch"]["hashes"] == [{"alg": "SHA-256", "content": small.HASHES["torch"]}]
    assert rows["odd"]["licenses"] == [{"license": {"name": "BSD"}}]
    assert rows["libc6"]["purl"] == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u13?arch=amd64&distro=debian-12"
    assert "gone" not in rows, "a package that is removed but for its configuration is not there"
    needs = {one["ref"]: one.get("dependsOn", []) for one in body["dependencies"]}
    assert needs["pypi:torch@2.12.1+cu130"] == ["pypi:numpy@2.2.1", "pypi:nvidia-nccl-cu13@2.29.7"]
    assert needs["deb:python3.11-minimal@3.11.2-6+deb12u6"] == ["deb:libc6@2.36-9+deb12u13"]


def test_a_wrong_document_would_be_found_by_that_validator(tmp_path: Path) -> None:
    _data, body = written(image(tmp_path), "cyclonedx")
    body["components"][0]["licenses"] = [{"expression": "MIT"}, {"expression": "ISC"}]
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(body)) is not None


def test_spdx_is_valid_by_its_own_validator(tmp_path: Path) -> None:
    odd = {**small.wheel("odd", "1.0", licence="BSD"), **small.wheel("odd2", "1.0", licence="")}
    _data, body = written(image(tmp_path, odd), "spdx")
    parsed = JsonLikeDictParser().parse(body)
    assert [one.validation_message for one in validate_full_spdx_document(parsed)] == []
    rows = {one["name"]: one for one in body["packages"]}
    assert rows["odd"]["licenseDeclared"] == "LicenseRef-BSD" and rows["odd2"]["licenseDeclared"] == "NOASSERTION"
    assert rows["libc6"]["sourceInfo"] == "built from the Debian source package glibc"
    body["packages"][1]["licenseDeclared"] = "NO SUCH"
    parsed = JsonLikeDictParser().parse(body)
    assert validate_full_spdx_document(parsed), "the validator finds what is wrong"


def test_both_list_the_same_packages(tmp_path: Path) -> None:
    subject = image(tmp_path)
    first, second = (set(sbom.components(written(subject, kind)[0])) for kind in ("cyclonedx", "spdx"))
    assert first == second
    assert ("PyPI", "torch", "2.12.1+cu130") in first and ("Debian:12", "libc6", "2.36-9+deb12u13") in first


def test_the_same_image_gives_the_same_bytes_elsewhere(tmp_path: Path) -> None:
    for kind in ("cyclonedx", "spdx"):
        one, other = (written(image(tmp_path / name), kind)[0] for name in ("a", "b"))
        assert one == other and str(tmp_path).encode() not in one


def test_the_light_look_finds_what_the_full_one_does(tmp_path: Path) -> None:
    subject = image(tmp_path)
    tree, packages = inventory(subject)
    full = read_packages(read_tree(subject))
    assert [replace(one) for one in packages.found] == [replace(one) for one in full.found]
    assert tree.tar_sizes == read_tree(subject).tar_sizes


def test_documents_are_attached_by_digest_once(tmp_path: Path) -> None:
    subject = image(tmp_path)
    folder = small.definition(tmp_path)
    first = attach_documents(subject.root, folder)
    index = (subject.root / "index.json").read_bytes()
    assert attach_documents(subject.root, folder) == first
    assert (subject.root / "index.json").read_bytes() == index
    layout = Layout(subject.root)
    assert {one.artifact_type for one in layout.referrers(subject.digest)} == set(first)
    assert len(layout.images) == 1, "a document is no image"
    again = open_image(subject.root)
    assert again.digest == subject.digest, "attaching changes nothing of the image"
    data = attached(again, sbom.CYCLONEDX)
    assert data is not None and json.loads(data)["metadata"]["component"]["bom-ref"] == f"oci:{subject.digest}"


def test_a_newer_document_takes_the_place_of_the_older(tmp_path: Path) -> None:
    subject = image(tmp_path)
    tree, packages = inventory(subject)
    sbom.attach_all(subject, tree, packages, version="0.1.0")
    sbom.attach_all(subject, tree, packages, version="0.2.0")
    data = attached(open_image(subject.root), sbom.CYCLONEDX)
    assert data is not None and b'"version":"0.2.0"' in data
    assert len(Layout(subject.root).referrers(subject.digest)) == 2


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("MIT", True),
        ("(MIT OR Apache-2.0) AND BSD-3-Clause", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("Apache-2.0 WITH", False),
        ("MIT AND", False),
        ("(MIT", False),
        ("MIT)", False),
        ("BSD", False),
        ("MIT Apache-2.0", False),
        ("Dual License", False),
        ("", False),
    ],
)
def test_what_is_a_licence_expression(text: str, answer: bool) -> None:
    assert sbom.is_expression(text) is answer


@pytest.mark.parametrize(
    ("url", "answer"),
    [
        ("pkg:pypi/torch@2.12.1%2Bcu130", ("PyPI", "torch", "2.12.1+cu130")),
        (
            "pkg:deb/debian/libc6@2.36-9%2Bdeb12u13?arch=amd64&distro=debian-12",
            ("Debian:12", "libc6", "2.36-9+deb12u13"),
        ),
        ("pkg:deb/ubuntu/libc6@2.39?distro=ubuntu-24.04", ("Ubuntu:24.04", "libc6", "2.39")),
        ("pkg:oci/pytorch@sha256%3Aabc", None),
        ("torch", None),
    ],
)
def test_package_urls_are_read_back(url: str, answer: tuple[str, str, str] | None) -> None:
    assert sbom.of_purl(url) == answer


def test_a_package_of_an_unknown_distribution_still_has_a_url() -> None:
    package = Package("deb", "libstdc++6", "12.2.0-14", "var/lib/dpkg/status")
    assert sbom.purl(package, ("", "")) == "pkg:deb/debian/libstdc%2B%2B6@12.2.0-14"
