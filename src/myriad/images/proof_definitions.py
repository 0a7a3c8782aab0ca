"""The one key of an image.yml by which a built image is recognised, read without judging the rest."""

from __future__ import annotations

from pathlib import Path

import yaml


def repo_of(folder: Path) -> str:
    """`repo` of a folder's image.yml; empty where it cannot be read: another image's mistake is not this one's."""
    try:
        value = yaml.safe_load((folder / "image.yml").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return ""
    return str(value.get("repo", "")) if isinstance(value, dict) else ""
