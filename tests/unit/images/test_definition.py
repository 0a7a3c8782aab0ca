"""image.yml is checked as a whole; the images that Myriad ships are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from myriad.errors import InputError
from myriad.images.closure import needed_files
from myriad.images.definition import load_definition

REPOSITORY = Path(__file__).parents[3]
SHIPPED = sorted(path.parent for path in (REPOSITORY / "images").glob("*/image.yml"))


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "image.yml").write_text("repo: Not/Allowed\ntitle: x\nentrypoint: []\nbudget_mb: 0\ncolour: red\n")
    with pytest.raises(InputError) as caught:
        load_definition(tmp_path)
    for key in ("repo", "entrypoint", "budget_mb", "colour"):
        assert f"{key}: " in caught.value.message


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
