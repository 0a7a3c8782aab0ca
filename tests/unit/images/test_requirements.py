"""Requirements that no lock can hold are refused with their line; hashes that they name are kept to."""

from __future__ import annotations

import pytest

from myriad.errors import InputError, MyriadError
from myriad.images.lock import _check_hashes, named_packages
from myriad.images.requirements import advice, check_requirements, lines_of, wanted_hashes
from myriad.images.wheels import Wheel

HEX, OTHER = "a" * 64, "b" * 64


def refused(text: str) -> str:
    with pytest.raises(InputError) as caught:
        check_requirements(text, where="images/x/requirements.in")
    assert caught.value.where == "images/x/requirements.in" and caught.value.exit_code == 1
    return caught.value.message


@pytest.mark.parametrize(
    "line",
    ["-r other.txt", "--requirement=other.txt", "-c base.txt", "--constraint base.txt"],
)
def test_another_file_whose_changes_nobody_would_notice(line: str) -> None:
    assert refused(f"six\n{line}\n").startswith(f"line 2: {line!r} leads to another file")


@pytest.mark.parametrize(
    "line",
    [
        "-e .",
        "--editable=./x",
        "git+https://git.site/a/b@main",
        "b @ git+https://git@git.site/a/b",
        "b[c] @ https://a.site/b-1-py3-none-any.whl",
        "https://a.site/b-1.zip",
        "./b-1-py3-none-any.whl",
        "../b",
        "/opt/b",
        "b-1-py3-none-any.whl",
        "file:///opt/b",
    ],
)
def test_code_that_no_index_holds(line: str) -> None:
    assert refused(line).startswith(f"line 1: {line!r} is no package of an index: build a wheel of it")


def test_a_password_is_named_by_its_line_and_not_repeated() -> None:
    told = refused("six\n--extra-index-url https://ada:hunter2@a.site/simple\ngit+https://tok@a.site/b\n")
    assert "hunter2" not in told and "tok" not in told
    assert told.count("keeps a password in the address of an index: ~/.netrc is its place") == 2


@pytest.mark.parametrize("digest", ["sha256:abcd", "md5:" + "a" * 32, f"sha256:{HEX}a"])
def test_half_a_hash(digest: str) -> None:
    assert refused(f"six==1.0 --hash={digest}") == "line 1: a hash is sha256: and 64 hexadecimal digits"


def test_all_lines_are_told_together() -> None:
    assert refused("-r a\n-e b\n").count("line ") == 2


def test_what_people_write_in_requirements_passes() -> None:
    check_requirements(
        "\ufeff# comment\r\nnumpy>=2,<3  # why\r\nrequests[socks]==2.34.2 ; python_version < '3.12'\r\n"
        f"six==1.16.0 \\\r\n    --hash=sha256:{HEX}\r\ntorch==2.12.1+cu130\r\nflash_attn~=2.8\r\n\r\n"
        "--index-url https://a.site/simple\r\n--extra-index-url=https://b.site/simple\r\n--pre\r\n",
        where="x",
    )


def test_lines_are_joined_and_keep_their_number() -> None:
    assert list(lines_of("a\n\nb \\\n  --x \\\n# c\n  --y\nd \\\n")) == [(1, "a"), (3, "b --x"), (6, "--y"), (7, "d")]


def test_hashes_that_the_requirements_name_hold_for_the_locks_file() -> None:
    text = f"Six==1.16.0 --hash=sha256:{HEX}\nidna==3.1\n"
    assert wanted_hashes(text) == {"six": frozenset({HEX})}
    good = [Wheel("six", "1.16.0", "six-1.16.0-py3-none-any.whl", HEX, 1), Wheel("idna", "3.1", "i.whl", OTHER, 1)]
    _check_hashes(good, text, "x")
    with pytest.raises(
        MyriadError, match=r"has sha256 bbbbbbbbbbbb\.\.\., and the requirements allow only aaaaaaaaaaaa"
    ):
        _check_hashes([Wheel("six", "1.16.0", "six-1.16.0-py3-none-any.whl", OTHER, 1)], text, "x")


def test_a_first_line_of_another_editor_names_its_package() -> None:
    assert named_packages("\ufeffsix\n") == {"six"}


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("Because nmupy was not found in the package registry and you require nmupy", "spelt right"),
        ("Because there is no version of torch==2.3.1+cu121 and you require it, unsatisfiable.", "matrix.yml names"),
        ("Because there is no version of six==99.0 and ... are unsatisfiable.", "change one of the requirements"),
        ("Because docopt==0.6.2 has no usable wheels ... unsatisfiable", "take a version that has a wheel"),
        ("Failed to fetch: https://a.site/simple/six/: dns error", "MYRIAD_MIRROR_PYTHON"),
        ("Group `nosuch` is not defined in the project's `dependency-groups` table", "what they name is to be changed"),
    ],
)
def test_what_to_do_follows_from_uvs_words(told: str, words: str) -> None:
    assert words in advice(told)
