"""The page's own files are where they are needed."""

from __future__ import annotations

from pathlib import Path

import myriad
from myriad.images.closure import needed_files
from myriad.scheduler.web import assets


def test_the_image_of_the_extension_holds_them() -> None:
    root = Path(myriad.__file__).parents[1]
    held = {path.name for path in needed_files(root, ["myriad.scheduler"]) if path.parent.name == "static"}
    assert held == {"style.css", "app.js", "map.js", "icon.svg"}
    assert all(assets.find(name) for name in held)


def test_nothing_else_is_found_by_name() -> None:
    for name in ("", ".", "..", "../assets.py", "style.css/", "STYLE.CSS", "app.js\0"):
        assert assets.find(name) is None


def test_nothing_comes_from_elsewhere() -> None:
    """No address of another site, no inline style, and nothing that the policy would have to allow."""
    for name in ("style.css", "app.js", "map.js"):
        body, _ = assets.find(name) or (b"", "")
        text = body.decode()
        assert "http://" not in text and "https://" not in text and "@import" not in text and "url(" not in text
        assert "innerHTML" not in text and "eval(" not in text and "document.write" not in text
