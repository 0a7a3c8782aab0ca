"""`python -m myriad.lint` writes docs/lint.md from the rules; `--check` says whether it is current."""

from __future__ import annotations

import sys
from pathlib import Path

import myriad.lint  # noqa: F401  registers the rules
from myriad.lint.report import DOCUMENT, document


def main(arguments: list[str]) -> int:
    """Write or check the document below the current folder."""
    path = Path(DOCUMENT)
    text = document()
    if arguments == ["--check"]:
        current = path.exists() and path.read_text() == text
        if not current:
            sys.stderr.write(f"{DOCUMENT} is out of date: run `python -m myriad.lint`\n")
        return 0 if current else 1
    path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
