"""What a requirements file may ask for in an image, and what to do where uv finds no solution. Pure.

A lock names wheels of an index by version and hash, and is known to be stale by the text of this one file. So what
leads to another file, or to code that no index holds, is refused before anything is resolved.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.utils import canonicalize_name

from myriad.errors import InputError

_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^]]*\])?")
_ELSEWHERE = re.compile(r"(-r|-c|--requirement|--constraint)([\s=]|$)")
_NO_INDEX = re.compile(
    r"(-e|--editable)([\s=]|$)|(git|hg|svn|bzr)\+|(https?|file|ssh):|[./~]|\S+\.(whl|zip|tar\.gz)(\s|$)|"
    r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(\[[^]]*\])?\s*@"
)
_PASSWORD = re.compile(r"https?://(?!git@)[^\s/@]+@")
_HASH = re.compile(r"--hash[=\s]sha256:([0-9a-f]{64})(?![0-9a-f])")
_ANY_HASH = re.compile(r"--hash[=\s]")
_NETWORK = ("Failed to fetch", "error sending request", "dns error", "timed out", "Connection refused", "connect error")


def lines_of(text: str) -> Iterator[tuple[int, str]]:
    """Requirements with the number of their line; continued lines are joined, comments are gone."""
    joined, first = "", 0
    for number, raw in enumerate([*text.removeprefix("\ufeff").splitlines(), ""], start=1):
        line = re.sub(r"(^|\s)#.*$", "", raw).strip()
        first = first if joined else number
        joined = f"{joined} {line}".strip()
        if joined.endswith("\\"):
            joined = joined.removesuffix("\\").strip()
            continue
        if joined:
            yield first, joined
        joined = ""


def check_requirements(text: str, *, where: str) -> None:
    """Refuse what no lock can hold; all of it together.

    Raises:
        InputError: a line leads to another file, to code that no index holds, keeps a password, or has half a hash.
    """
    problems = []
    for number, line in lines_of(text):
        shown = f"line {number}: {line[:80]!r}"
        if _PASSWORD.search(line):
            # The line is not repeated: it would stand in logs.
            problems.append(f"line {number} keeps a password in the address of an index: ~/.netrc is its place")
        elif _ELSEWHERE.match(line):
            problems.append(f"{shown} leads to another file, whose changes no lock would notice: write its lines here")
        elif _NO_INDEX.match(line):
            problems.append(
                f"{shown} is no package of an index: build a wheel of it, put it on your index, and write NAME==VERSION"
            )
        elif len(_ANY_HASH.findall(line)) > len(_HASH.findall(line)):
            problems.append(f"line {number}: a hash is sha256: and 64 hexadecimal digits")
    if problems:
        raise InputError(
            "; ".join(problems), where=where, hint="images are made of wheels from an index, by version and hash"
        )


def wanted_hashes(text: str) -> dict[str, frozenset[str]]:
    """sha256 (hex) of the files that requirements allow, by normalised name; only of packages that name some."""
    found: dict[str, frozenset[str]] = {}
    for _, line in lines_of(text):
        hashes, name = frozenset(_HASH.findall(line)), _NAME.match(line)
        if hashes and name:
            found[str(canonicalize_name(name[1]))] = hashes
    return found


def advice(told: str) -> str:
    """What to do next where uv failed, from its own words."""
    if any(word in told for word in _NETWORK):
        return "an index that is not reached is replaced by MYRIAD_MIRROR_PYTHON or UV_DEFAULT_INDEX"
    if re.search(r"there (is|are) no versions? of \S+?\+(cu|cpu|rocm|xpu)", told):
        return (
            "builds for one CUDA are on an index of their own, which matrix.yml names; the usual one has no +cu or +cpu"
        )
    if "was not found in the package registry" in told:
        return "see whether the name is spelt right; your own index is set by MYRIAD_MIRROR_PYTHON or UV_DEFAULT_INDEX"
    if "no usable wheels" in told or "no wheels with a matching" in told:
        return "take a version that has a wheel for this Python and processor: nothing is compiled into images"
    if "unsatisfiable" in told:
        return "change one of the requirements that it names"
    return "the words above are uv's; what they name is to be changed"
