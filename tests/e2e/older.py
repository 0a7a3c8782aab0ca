"""The lock with the Kubernetes of one minor before, from which the lab is upgraded to the real one."""

from __future__ import annotations

import re
from pathlib import Path

VERSION = "1.34.4"
H1 = "h1:Yy6R4QB8C9kJPp25GFqEvX5XQwY5qzKeqD0Xx6oAcmk="


def older_lock(lock: Path, out: Path) -> Path:
    """Write a lock whose only difference is Kubernetes, built from its Go module."""
    text = lock.read_text(encoding="utf-8")
    begin = text.index("\n  kubernetes:\n")
    end = re.compile(r"\n  [a-z]").search(text, begin + 3)
    assert end is not None
    part = text[begin : end.start()]
    found = re.search(r"version: (\d+)\.(\d+)\.(\d+)", part)
    assert found is not None
    old_minor, new_minor = found[2], VERSION.split(".")[1]
    part = part.replace(found[0], f"version: {VERSION}", 1)
    part = part.replace(f"version: v{found[1]}.{old_minor}.{found[3]}", f"version: v{VERSION}")
    part = part.replace(f"staging: v0.{old_minor}.{found[3]}", f"staging: v0.{VERSION.partition('.')[2]}")
    part = part.replace(f"gitMinor={old_minor}", f"gitMinor={new_minor}")
    part = re.sub(r"h1: h1:\S+", f"h1: {H1}", part)
    # Sums of release files and of linked modules are those of the real lock's version.
    part = re.sub(r"\b[0-9a-f]{64}\b", "open", part)
    out.write_text(text[:begin] + part + text[end.start() :], encoding="utf-8")
    return out
