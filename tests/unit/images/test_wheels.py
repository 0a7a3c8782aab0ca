"""Locks, the file of a release that fits, what installing a wheel writes, and how a layer hides an older one."""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from myriad.errors import InputError, MyriadError
from myriad.images.installed import BasePackages, Installed, of_wheels, whiteouts
from myriad.images.lock import named_packages, requirements_digest
from myriad.images.wheels import (
    Locked,
    OpenWheel,
    Scheme,
    Wheel,
    debian_scheme,
    parse_lock,
    rank,
    read_lock,
    supported_tags,
    write_lock,
)

HEX = "a" * 64
SITE = "usr/local/lib/python3.11/dist-packages"


def test_a_lock_says_versions_hashes_and_files() -> None:
    wheels = [Wheel("six", "1.17.0", "six-1.17.0-py2.py3-none-any.whl", HEX, 11050)]
    text = write_lock(wheels, header=["Made by a test"])
    assert parse_lock(text, where="x") == [
        Locked("six", "1.17.0", (HEX,), "six-1.17.0-py2.py3-none-any.whl", 11050),
    ]


def test_a_lock_of_another_tool_is_read_as_well() -> None:
    text = (
        f"# pip-compile\n--index-url https://example.com/simple\nNumPy[extra]==2.4.6 ; python_version < '3.12' \\\n"
        f"    --hash=sha256:{HEX} \\\n    --hash=sha256:{'b' * 64}  # via x\n"
        f"numpy==2.5.5 ; python_version >= '3.12' --hash=sha256:{HEX}\n"
    )
    assert parse_lock(text, where="x") == [Locked("numpy", "2.4.6", (HEX, "b" * 64))]
    assert [one.version for one in parse_lock(text, where="x", python="3.12")] == ["2.5.5"]


@pytest.mark.parametrize(
    "text",
    [
        f"six==1.0 \\\n    --hash=sha256:{HEX} \\\n",
        f"six==1.0 \\\n    --hash=sha256:{HEX} \\",
        f"\ufeffsix==1.0 --hash=sha256:{HEX}",
        f"-i https://a.site/simple\n--trusted-host a.site\n--pre\nsix==1.0 --hash=sha256:{HEX}",
    ],
)
def test_no_package_is_lost_at_the_edges_of_a_lock(text: str) -> None:
    assert parse_lock(text, where="x") == [Locked("six", "1.0", (HEX,))]


def test_a_lock_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "requirements.lock").write_bytes(b"six==1.0\xff\xfe")
    with pytest.raises(InputError, match="cannot be read"):
        read_lock(tmp_path / "requirements.lock")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("six==1.0", "six==1.0 has no --hash=sha256"),
        ("six>=1.0 --hash=sha256:" + HEX, "has no exact version"),
        ("six==1.0 --hash=md5:" + "a" * 32, "has no --hash=sha256"),
        ("git+https://example.com/x.git", "has no exact version"),
        (f"six==1.0 --hash=sha256:{HEX}\nSix==1.1 --hash=sha256:{HEX}", "six stands there twice"),
        (f"six==1.* --hash=sha256:{HEX}", "has no exact version"),
        (f"six===1.0 --hash=sha256:{HEX}", "has no exact version"),
        (f"six==latest --hash=sha256:{HEX}", "has no exact version"),
        ("-r other.txt", "line 1: '-r other.txt' leads to packages of elsewhere"),
        ("--requirement other.txt", "leads to packages of elsewhere"),
        ("--constraint=other.txt", "leads to packages of elsewhere"),
        ("--editable=.", "leads to packages of elsewhere"),
        ("six==1.0 \\", "six==1.0 has no --hash=sha256"),
    ],
)
def test_what_is_not_locked_is_refused(line: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_lock(line, where="requirements.lock")
    assert sentence in caught.value.message
    assert "only wheels with hashes are built in" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("filename", "fits"),
    [
        ("a-1-cp311-cp311-manylinux_2_28_x86_64.whl", True),
        ("a-1-cp39-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", True),
        ("a-1-py3-none-any.whl", True),
        ("a-1-cp312-cp312-manylinux_2_28_x86_64.whl", False),
        ("a-1-cp311-cp311-manylinux_2_39_x86_64.whl", False),
        ("a-1-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("a-1-cp311-cp311-manylinux_2_28_aarch64.whl", False),
        ("a-1-cp311-cp311-win_amd64.whl", False),
        ("a-1.tar.gz", False),
    ],
)
def test_a_wheel_fits_python_processor_and_glibc(filename: str, fits: bool) -> None:
    assert (rank(filename, supported_tags("3.11")) is not None) is fits


def test_compiled_for_this_python_is_better_than_for_any() -> None:
    tags = supported_tags("3.11")
    special, plain = rank("a-1-cp311-cp311-manylinux_2_17_x86_64.whl", tags), rank("a-1-py3-none-any.whl", tags)
    assert special is not None and plain is not None and special < plain


def make_wheel(folder: Path, name: str, version: str, files: dict[str, bytes], *, executable: str = "") -> Wheel:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    whole = {f"{info}/METADATA": f"Name: {name}\nVersion: {version}\n".encode(), f"{info}/RECORD": b"", **files}
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in whole.items():
            item = zipfile.ZipInfo(member)
            item.external_attr = (0o755 if member == executable else 0o600) << 16
            archive.writestr(item, data)
    return Wheel(name, version, path.name, hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size)


def installed(
    folder: Path, wheel: Wheel, scheme: Scheme | None = None, exclude: tuple[str, ...] = ()
) -> dict[str, tuple[int, bytes]]:
    opened = OpenWheel(folder / wheel.filename, wheel, scheme or debian_scheme(), exclude=exclude)
    found = {}
    for entry in opened.entries():
        assert entry.content is not None
        with entry.content() as file:
            found[entry.path] = (entry.mode, file.read())
    opened.close()
    return found


def test_installing_writes_what_pip_writes(tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path,
        "tool",
        "1.0",
        {
            "tool/__init__.py": b"x = 1\n",
            "tool/bin/helper": b"#!/bin/sh\n",
            "tool/__pycache__/x.pyc": b"",
            "tool-1.0.dist-info/entry_points.txt": b"[console_scripts]\ntool = tool.cli:main.run [extra]\n",
            "tool-1.0.data/scripts/old": b"#!python\nimport tool\n",
            "tool-1.0.data/data/share/tool/a": b"a",
            "tool-1.0.data/purelib/more.py": b"",
            "tool-1.0.data/headers/tool.h": b"",
        },
        executable="tool/bin/helper",
    )
    found = installed(tmp_path, wheel)
    assert found["usr/local/bin/old"] == (0o755, b"#!/usr/bin/python3\nimport tool\n")
    assert b"from tool.cli import main\n" in found["usr/local/bin/tool"][1]
    assert found["usr/local/bin/tool"][1].endswith(b"sys.exit(main.run())\n")
    assert found[f"{SITE}/tool/bin/helper"][0] == 0o755
    assert found[f"{SITE}/tool/__init__.py"][0] == 0o644
    assert "usr/local/share/tool/a" in found and f"{SITE}/more.py" in found
    assert "usr/local/include/python3.11/tool/tool.h" in found
    assert not [path for path in found if path.endswith(".pyc")]
    record = found[f"{SITE}/tool-1.0.dist-info/RECORD"][1].decode().splitlines()
    value = base64.urlsafe_b64encode(hashlib.sha256(found["usr/local/bin/tool"][1]).digest()).rstrip(b"=").decode()
    assert f"../../../bin/tool,sha256={value},{len(found['usr/local/bin/tool'][1])}" in record
    assert len(record) == len(found)


def test_a_lean_image_gets_no_programs_and_no_records(tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path,
        "tool",
        "1.0",
        {
            "tool/__init__.py": b"",
            "tool/__init__.pyi": b"",
            "tool/tests/test_x.py": b"",
            "tool-1.0.dist-info/entry_points.txt": b"[console_scripts]\ntool = tool:main\n",
            "tool-1.0.data/scripts/old": b"#!python\n",
        },
    )
    lean = Scheme("opt/site", "opt", "/usr/bin/python3", "3.11", lean=True)
    assert sorted(installed(tmp_path, wheel, lean, exclude=("*/tests/*",))) == [
        "opt/site/tool-1.0.dist-info/METADATA",
        "opt/site/tool-1.0.dist-info/entry_points.txt",
        "opt/site/tool/__init__.py",
    ]


@pytest.mark.parametrize("member", ["../etc/passwd", "tool-1.0.data/scripts/../../x", "tool-1.0.data/other/x"])
def test_a_wheel_that_writes_elsewhere_is_refused(tmp_path: Path, member: str) -> None:
    wheel = make_wheel(tmp_path, "tool", "1.0", {member: b""})
    with pytest.raises(MyriadError, match="no place for a wheel"):
        installed(tmp_path, wheel)


def test_what_is_no_wheel_is_named(tmp_path: Path) -> None:
    (tmp_path / "x-1-py3-none-any.whl").write_bytes(os.urandom(100))
    wheel = Wheel("x", "1", "x-1-py3-none-any.whl", HEX, 100)
    with pytest.raises(MyriadError, match="is no wheel"):
        installed(tmp_path, wheel)


def test_a_package_is_hidden_file_by_file_where_others_share_its_folders(tmp_path: Path) -> None:
    old = Installed(
        "a", "1", SITE, (f"{SITE}/a/x.py", f"{SITE}/a/sub/y.py", f"{SITE}/a-1.dist-info/METADATA", f"{SITE}/ns/a.py")
    )
    other = Installed("b", "1", SITE, (f"{SITE}/ns/b.py",))
    base = BasePackages({"a": old, "b": other}, frozenset(old.files) | frozenset(other.files))
    new = [f"{SITE}/a/x.py", f"{SITE}/a-2.dist-info/METADATA"]
    assert [entry.path for entry in whiteouts(old, base, new)] == [
        f"{SITE}/.wh.a-1.dist-info",
        f"{SITE}/a/.wh.sub",
        f"{SITE}/ns/.wh.a.py",
    ]


def test_the_packages_of_a_built_image_have_their_bytecode(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "tool", "1.0", {"tool/__init__.py": b""})
    opened = OpenWheel(tmp_path / wheel.filename, wheel, debian_scheme())
    base = of_wheels([opened], SITE, "3.11")
    opened.close()
    assert f"{SITE}/tool/__pycache__/__init__.cpython-311.pyc" in base.found["tool"].files
    assert base.differ("tool", "1.1") and not base.differ("tool", "1.0") and not base.differ("other", "1")
    assert base.python == ("usr/local", "3.11")


def test_requirements_are_compared_by_what_they_want() -> None:
    assert requirements_digest("a\n# b\n\nc  # d\n") == requirements_digest("a\nc")
    assert requirements_digest("a") != requirements_digest("a>1")
    assert named_packages("NumPy>=2\n# x\n-r other\nb[c]==1 ; python_version > '3'\ngit+https://x\n") == {"numpy", "b"}
