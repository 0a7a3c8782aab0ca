"""Variants of an image: the product of the axes, what is excluded, and what nobody publishes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from myriad.errors import InputError
from myriad.images.find import find_image
from myriad.images.matrix import load_matrix

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "images" / "train"
    folder.mkdir(parents=True)
    (folder / "requirements.in").write_text("torch==2.12.1\nnumpy\n")
    value = {
        "repo": "train",
        "title": "Train",
        "entrypoint": ["x"],
        "budget_mb": 1,
        "wheels": {"requirements": "requirements.in", "lock": "requirements.lock"},
        "gpu": {"archs": ["sm_70", "sm_90"]},
        "pins": {"torch": "2.12.1", "cuda": "13.0", "nccl": "2.29.7", "numpy": "2.4"},
    }
    (folder / "image.yml").write_text(yaml.safe_dump(value))
    return folder


def matrix(folder: Path, **value: object) -> Path:
    (folder / "matrix.yml").write_text(yaml.safe_dump(value))
    return folder


def test_variants_are_the_product_of_the_axes(folder: Path) -> None:
    found = load_matrix(
        matrix(
            folder,
            torch=["2.12.1", "2.10.0"],
            cuda=["13.0", "12.8", "12.6"],
            indexes={"12.6": "https://example.com/cu126"},
            exclude=[{"torch": "2.10.0", "cuda": "13.0"}],
        )
    )
    assert {one.name: bool(one.refused) for one in found} == {
        "train-2.12-cu130-py311": False,
        "train-2.12-cu128-py311": True,
        "train-2.12-cu126-py311": False,
        "train-2.10-cu128-py311": False,
        "train-2.10-cu126-py311": False,
    }
    refused = next(one.refused for one in found if one.refused)
    assert refused.startswith("torch 2.12 has no wheels for CUDA 12.8 (there are ")
    old = found[-1]
    assert (old.index, old.requirements.splitlines()[0]) == ("https://example.com/cu126", "torch==2.10.0")
    assert "torch==2.12.1" not in old.requirements
    # Pins of the image's own CUDA do not hold for another one; others do.
    assert old.definition.pins == {"numpy": "2.4", "torch": "2.10.0", "cuda": "12.6", "python": "3.11"}
    assert old.definition.wheels is not None and old.definition.wheels.lock == "locks/train-2.10-cu126-py311.lock"
    # CUDA 13 dropped Volta, so a variant for it does not claim it.
    assert found[0].definition.gpu is not None and found[0].definition.gpu.archs == ("9.0",)
    assert old.definition.gpu is not None and old.definition.gpu.archs == ("7.0", "9.0")


def test_a_python_that_debian_lacks_needs_a_base(folder: Path) -> None:
    with pytest.raises(InputError, match=r"python 3\.12 +is not in Debian 12"):
        load_matrix(matrix(folder, torch=["2.12.1"], cuda=["13.0"], python=["3.11", "3.12"]))
    base = {"3.12": {"image": "docker.io/library/python@sha256:" + "a" * 64}}
    found = load_matrix(matrix(folder, torch=["2.12.1"], cuda=["13.0"], python=["3.12"], bases=base))
    assert found[0].definition.python_version == "3.12"


def test_what_is_wrong_in_it_is_told_together(folder: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_matrix(matrix(folder, torch=[2.12], cuda=["13"], colour="red"))
    for sentence in ("2.12 is a number to YAML", "is '13'; a list of CUDA releases in quotes", "is no key here"):
        assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"cuda": ["13.0", "13.0"]}, "makes 2 variants that are called train-2.12-cu130-py311"),
        ({"torch": ["2.12.0", "2.12.1"]}, "makes 2 variants that are called train-2.12-cu130-py311"),
        ({"cuda": "13.0"}, "is '13.0'; a list of CUDA releases in quotes, such as [\"13.0\"]"),
        ({"indexes": {"13.0": "not-a-url"}}, '"not-a-url" is no address of an index'),
        ({"indexes": {"13.0": "https://u:p4ss@a.site/simple"}}, "keeps a password in the address; ~/.netrc"),
        ({"indexes": {"12.1": "https://a.site/simple"}}, "is for no CUDA of this matrix (13.0)"),
        ({"bases": {"3.12": {"image": "python:3.12"}}}, '"python:3.12" can name other bits tomorrow'),
    ],
)
def test_what_would_only_fail_at_a_lock_or_a_build_is_said_at_once(
    folder: Path, more: dict[str, object], words: str
) -> None:
    with pytest.raises(InputError) as caught:
        load_matrix(matrix(folder, **{"torch": ["2.12.1"], "cuda": ["13.0"], **more}))
    assert words in str(caught.value) and "p4ss" not in str(caught.value)


def test_two_patches_of_one_release_are_two_variants_where_they_differ_otherwise(folder: Path) -> None:
    left_out = [{"torch": "2.12.0", "cuda": "13.0"}, {"torch": "2.12.1", "cuda": "12.6"}]
    found = load_matrix(matrix(folder, torch=["2.12.0", "2.12.1"], cuda=["13.0", "12.6"], exclude=left_out))
    assert [(one.torch, one.cuda) for one in found] == [("2.12.0", "12.6"), ("2.12.1", "13.0")]


def test_a_name_finds_an_image_its_path_or_a_variant(folder: Path) -> None:
    matrix(folder, torch=["2.12.1"], cuda=["13.0", "12.8"])
    images = folder.parent
    assert find_image("train", images).folder == folder
    assert find_image(str(folder), images).name == "train"
    assert find_image("train-2.12-cu130-py311", images).definition.pins["torch"] == "2.12.1"
    with pytest.raises(InputError, match=r"is refused: torch 2\.12 has no wheels for CUDA 12\.8"):
        find_image("train-2.12-cu128-py311", images)
    with pytest.raises(InputError, match='did you mean "train"'):
        find_image("trian", images)


def test_the_shipped_matrix_holds() -> None:
    assert [one.name for one in load_matrix(REPOSITORY / "images/pytorch") if not one.refused]
