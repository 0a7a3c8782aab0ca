"""image.yml is checked as a whole; the images that Myriad ships are right."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from myriad.errors import InputError
from myriad.images.closure import needed_files
from myriad.images.definition import load_definition, runtime_folders, schema_text

REPOSITORY = Path(__file__).parents[3]
SHIPPED = runtime_folders(REPOSITORY / "images")


def refused(tmp_path: Path, text: str) -> list[str]:
    """The lines that say what is wrong."""
    (tmp_path / "image.yml").write_text(text)
    with pytest.raises(InputError) as caught:
        load_definition(tmp_path)
    return [" ".join(line.split()) for line in caught.value.message.splitlines()]


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    told = refused(
        tmp_path,
        "repo: Not/Allowed\ntitle: x\nentrypoint: []\nbudget_mb: 0\ncolour: red\nentripoint: [a]\n"
        "files: [{from: gone, to: rel, mode: 0644}]\npins: {torch: 2.10}\nuser: a\nuser: b\n"
        "wheels: {requirements: r.in}\nsmoke: ['echo \"']\n",
    )
    assert told[0] == "14 errors"
    for sentence in (
        "repo is 'Not/Allowed'; repository in the registry: lower case, digits, and . _ - / between them",
        "budget_mb is 0; most that a node with an empty store may pull, a whole number of MB (10**6 bytes) above 0",
        'entripoint is no key here; did you mean "entrypoint"?',
        f'files.0.from is "gone", which does not exist; a file of {tmp_path}',
        "files.0.to is 'rel'; absolute path inside the image",
        'files.0.mode without quotes is the number 420 to YAML; write "0644" in quotes',
        'pins.torch 2.1 is a number to YAML, which drops zeros; write it in quotes: "2.1"',
        "user is written twice, on lines 9 and 10",
        "wheels lock is missing; requirements says what is wanted, lock with which hashes",
    ):
        assert sentence in told


MINIMAL = "repo: a/b\ntitle: t\nentrypoint: [x]\nbudget_mb: 1\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "base: {image: 'nvidia/cuda:13.0'}",
            'base.image "nvidia/cuda:13.0" can name other bits tomorrow; name the digest',
        ),
        ("base: ubuntu", "base is 'ubuntu'; debian (the shared minimal Debian 12"),
        ("base: {name: b}\npython: {version: '3.12'}", "python is for an external base; this one has Python 3.11"),
        ("pins: {torch: '2.12.1'}\ngpu: {torch: '2.11.0'}", "gpu.torch is 2.11.0, but pins.torch is 2.12.1"),
        ("gpu: {archs: [sm_9x]}", "gpu.archs.0 is 'sm_9x'; compute capabilities to cover"),
        ("smoke: [{run: a, expect: '('}]", "smoke.0.expect '(' is no regular expression"),
        ("files: [{from: ../x, to: /x}]", 'files.0.from "../x" leaves the image'),
        ("files: [{from: image.yml, to: /x}, {from: image.yml, to: /x}]", "files: two are written to /x"),
    ],
)
def test_what_is_wrong_is_said_with_what_is_allowed(tmp_path: Path, text: str, sentence: str) -> None:
    assert any(sentence in line for line in refused(tmp_path, MINIMAL + text))


def test_versions_are_said_once(tmp_path: Path) -> None:
    (tmp_path / "image.yml").write_text(
        MINIMAL
        + "pins: {torch: '2.12.1', cuda: '13.0'}\ngpu: {archs: [sm_90, sm_120+PTX]}\nsmoke: ['python3 -c \"1 + 1\"']\n"
    )
    definition = load_definition(tmp_path)
    assert definition.gpu is not None
    assert (definition.gpu.torch, definition.gpu.cuda, definition.gpu.archs) == ("2.12.1", "13.0", ("9.0", "12.0+PTX"))
    assert definition.smoke[0].run == ("python3", "-c", "1 + 1")


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda path: path.name)
def test_the_published_schema_takes_the_shipped_images(folder: Path) -> None:
    jsonschema.validate(yaml.safe_load((folder / "image.yml").read_text()), json.loads(schema_text()))


def test_a_node_image_is_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "node-x").mkdir()
    with pytest.raises(InputError, match="is a node image"):
        load_definition(tmp_path / "node-x")


def test_a_folder_without_image_yml(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no image\.yml"):
        load_definition(tmp_path)


def test_what_is_no_yaml(tmp_path: Path) -> None:
    (tmp_path / "image.yml").write_text("a: [")
    with pytest.raises(InputError, match="not YAML"):
        load_definition(tmp_path)


def test_the_shipped_images_are_found() -> None:
    assert {path.name for path in SHIPPED} >= {"extension", "gang-check", "lab-gpu-double"}


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda path: path.name)
def test_a_shipped_image_names_modules_and_files_that_exist(folder: Path) -> None:
    definition = load_definition(folder)
    assert all((folder / file.source).is_file() for file in definition.files)
    if definition.source is not None:
        assert needed_files(REPOSITORY / "src", definition.source.modules)


def package(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path = path.with_name(path.name.replace("init", "__init__") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_an_image_gets_what_its_modules_import_and_no_more(tmp_path: Path) -> None:
    root = package(
        tmp_path,
        top__init="",
        top__a__init="",
        top__a__main="def f():\n    from top.b import used\n",
        top__b__init="from .errors import Wrong\n",
        top__b__errors="class Wrong(Exception): ...\n",
        top__b__used="import json\nfrom .. import c\nTABLE = 'table.yml'\n",
        top__b__unused="",
        top__c="import top.d.e as e\n",
        top__d__init="",
        top__d__e="",
        top__z="",
    )
    (root / "top" / "a" / "page.html").write_text("<p>")
    (root / "top" / "b" / "table.yml").write_text("{}")
    (root / "top" / "b" / "other.yml").write_text("{}")
    found = [path.as_posix() for path in needed_files(root, ["top.a"])]
    assert found == [
        "top/__init__.py",
        "top/a/__init__.py",
        "top/a/main.py",
        "top/a/page.html",
        "top/b/__init__.py",
        "top/b/errors.py",
        "top/b/table.yml",
        "top/b/used.py",
        "top/c.py",
        "top/d/__init__.py",
        "top/d/e.py",
    ]


def test_a_module_that_does_not_exist_is_named(tmp_path: Path) -> None:
    root = package(tmp_path, top__init="", top__a="import top.gone\n")
    with pytest.raises(InputError, match=r"no module top\.none"):
        needed_files(root, ["top.none"])
    with pytest.raises(InputError, match=r"imports top\.gone, which does not exist") as caught:
        needed_files(root, ["top.a"])
    assert (caught.value.where or "").endswith("a.py:1")
