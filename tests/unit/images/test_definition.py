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


DIGEST = "a" * 64


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("gpu: {archs: [sm_999]}", "gpu.archs.0 no GPU has compute capability 99.9 (sm_999); those that NVIDIA made"),
        ("gpu: {archs: [sm_13+PTX]}", "gpu.archs.0 no GPU has compute capability 1.3 (sm_13)"),
        ("gpu: {archs: [sm_90a]}", "gpu.archs.0 sm_90a is how code for that one kind of card is called; "),
        ("base: {image: 'r.site/x@sha256:abcd'}", "what follows @ is 4 characters and not sha256: with 64"),
        (f"base: {{image: 'docker://r.site/x@sha256:{DIGEST}'}}", '"docker://r.site/x" is not the name of an image'),
        (f"base: {{image: 'r.site/x@sha256:{DIGEST}', name: b}}", "base has both image and name; keep the one to"),
        ("layer_mb: true", "layer_mb is true to YAML, which is no number of MB"),
        ("files: [{from: image.yml, to: /x, mode: 755}]", 'is the number 755 to YAML; write "0755" in quotes'),
        ("files: [{from: image.yml, to: /x, mode: 444}]", 'write "0674" in quotes, or "0444" where those digits'),
        ("files: [{from: image.yml, to: /a/../b}]", 'files.0.to "/a/../b" takes a detour; write "/b"'),
        ("files: [{from: image.yml, to: /}]", "files.0.to / is a folder; write the path of the file"),
        ("files: [{from: image.yml, to: /x}, {from: image.yml, to: /x/y}]", "files: /x is a file, so /x/y cannot lie"),
        ("files: [{from: '.', to: /x}]", 'files.0.from is ".", which is a folder'),
        ("wheels: {requirements: image.yml, lock: image.yml}", "wheels requirements and lock are both image.yml"),
        ("wheels: {requirements: image.yml, lock: ../l}", 'wheels.lock "../l" leaves the image\'s folder'),
        ("env: {'A=B': x}", 'env "A=B" cannot name a variable'),
        ("env: {NVIDIA_REQUIRE_CUDA: 'cuda>=99'}", "env NVIDIA_REQUIRE_CUDA is computed from gpu"),
        ("user: '4294967295'", "user 4294967295 is beyond the largest id of Linux"),
        ("pins: {NumPy: '2.2', numpy: '2.3'}", "pins NumPy and numpy are the same package; pin it once"),
        ("1: x", "1 is no text to YAML, and keys are words"),
        ("bundle: maybe", "bundle is 'maybe'; whether a bundle carries the image"),
    ],
)
def test_what_would_only_fail_later_is_said_at_once(tmp_path: Path, text: str, sentence: str) -> None:
    told = refused(tmp_path, MINIMAL + text)
    assert told[0] == "1 error" and sentence in told[1]


def test_an_entrypoint_of_an_empty_word(tmp_path: Path) -> None:
    told = refused(tmp_path, MINIMAL.replace("[x]", "['']"))
    assert told == ["1 error", "entrypoint its first word is empty; name the program"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (MINIMAL.encode() + b"x: a\0b\n", "image.yml:5: not YAML: the character 0 cannot stand in YAML"),
        (MINIMAL.encode() + b"x: 2026-13-40\n", "not YAML: month must be in 1..12"),
        (b"a: " + b"[" * 3000, "image.yml: not YAML"),
    ],
)
def test_what_the_reader_of_yaml_itself_chokes_on(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "image.yml").write_bytes(data)
    with pytest.raises(InputError) as caught:
        load_definition(tmp_path)
    assert words in str(caught.value)


@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf"])
def test_a_file_of_another_editor_is_the_same(tmp_path: Path, before: bytes) -> None:
    (tmp_path / "image.yml").write_bytes(before + MINIMAL.replace("\n", "\r\n").encode())
    assert load_definition(tmp_path).repo == "a/b"


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
