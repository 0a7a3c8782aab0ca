"""The page's own files: a style sheet and two scripts, read once. Nothing else can be asked for by name."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).with_name("static")
_MEDIA = {
    "style.css": "text/css",
    "app.js": "text/javascript",
    "map.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


@cache
def _files() -> dict[str, bytes]:
    return {name: (_FOLDER / name).read_bytes() for name in _MEDIA}


def find(name: str) -> tuple[bytes, str] | None:
    """A file's bytes and media type; None where there is none of that name."""
    return (_files()[name], _MEDIA[name]) if name in _MEDIA else None


@cache
def version() -> str:
    """Changes with the content of the files, so that a browser never shows old ones."""
    digest = hashlib.sha256()
    for name, body in sorted(_files().items()):
        digest.update(name.encode() + body)
    return digest.hexdigest()[:16]
