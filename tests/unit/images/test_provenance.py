"""Provenance: inputs by digest, the same statement for the same build, and what it says against the folder now."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from myriad.errors import MyriadError
from myriad.images import provenance
from myriad.images.definition import load_definition
from myriad.images.proof_documents import attach_documents, inventory
from myriad.images.proof_layout import LayoutImage, open_image
from tests.unit.images import proof_images as small

FILES = "files: [{from: run.py, to: /opt/run.py}]\n"


def built(tmp_path: Path) -> tuple[LayoutImage, Path]:
    wheels = small.pytorch()
    folder = small.definition(tmp_path, small.IMAGE_YML)
    (folder / "run.py").write_text("print('hello')\n")
    (folder / "image.yml").write_text(small.IMAGE_YML + FILES)
    return small.layout(tmp_path, small.system(), wheels), folder


def statement(image: LayoutImage, folder: Path) -> bytes:
    return provenance.statement(image, folder, load_definition(folder), inventory(image)[1], version="0.1.0")


def test_every_input_is_named_by_digest(tmp_path: Path) -> None:
    image, folder = built(tmp_path)
    body = json.loads(statement(image, folder))
    assert body["_type"] == "https://in-toto.io/Statement/v1"
    assert body["predicateType"] == "https://slsa.dev/provenance/v1"
    assert body["subject"] == [{"name": "pytorch:2.12.1", "digest": {"sha256": image.digest.removeprefix("sha256:")}}]
    definition = body["predicate"]["buildDefinition"]
    inputs = {one["uri"]: one["digest"]["sha256"] for one in definition["resolvedDependencies"]}
    assert inputs["pkg:pypi/torch@2.12.1%2Bcu130"] == small.HASHES["torch"]
    assert inputs["base:debian"] == image.layers[0].digest.removeprefix("sha256:")
    for name in ("image.yml", "run.py", "requirements.lock"):
        assert inputs[f"file:images/pytorch/{name}"] == hashlib.sha256((folder / name).read_bytes()).hexdigest()
    assert definition["internalParameters"]["lock"]["sha256"] == inputs["file:images/pytorch/requirements.lock"]
    assert body["predicate"]["runDetails"]["builder"]["version"] == {"myriad": "0.1.0"}


def test_two_builds_in_two_places_are_one_statement(tmp_path: Path) -> None:
    one, other = (statement(*built(tmp_path / name)) for name in ("a", "b"))
    assert one == other
    assert str(tmp_path).encode() not in one


def test_an_external_base_is_named_by_its_digest(tmp_path: Path) -> None:
    image, folder = built(tmp_path)
    base = f'base: {{image: "registry.site/cuda@sha256:{"a" * 64}"}}\npython: {{version: "3.11"}}\n'
    (folder / "image.yml").write_text(small.IMAGE_YML + base)
    rows = json.loads(statement(image, folder))["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert {"uri": "pkg:oci/registry.site%2Fcuda", "digest": {"sha256": "a" * 64}} in rows


def test_a_missing_input_is_named(tmp_path: Path) -> None:
    image, folder = built(tmp_path)
    definition = load_definition(folder)
    (folder / "requirements.lock").unlink()
    with pytest.raises(MyriadError, match="an input of the image is missing"):
        provenance.statement(image, folder, definition, inventory(image)[1], version="0.1.0")


def test_a_lock_that_changed_since_is_a_finding(tmp_path: Path) -> None:
    image, folder = built(tmp_path)
    attach_documents(image.root, folder)
    image = open_image(image.root)
    assert provenance.held_against(image, folder, load_definition(folder)) == []
    (folder / "requirements.lock").write_text(small.lock({**small.HASHES, "numpy": "e" * 64}))
    (told,) = provenance.held_against(image, folder, load_definition(folder))
    assert told.what.startswith("the image was built with another lock (sha256 ")


def test_an_image_without_a_statement_has_nothing_held_against_it(tmp_path: Path) -> None:
    image, folder = built(tmp_path)
    assert provenance.held_against(image, folder, load_definition(folder)) == []
