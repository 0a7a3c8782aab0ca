"""Puts a description on disk: all of it or nothing, never over something that is there, and only one that validates."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from myriad.errors import InputError, MyriadError
from myriad.fleet import Checked, check
from myriad.inventory import read_inventory
from myriad.onboard.describe import Description


def refuse_existing(out: Path) -> None:
    """Raise InputError where something stands at `out`, or it cannot be made; an empty folder is nothing."""
    above = next((folder for folder in out.parents if folder.exists() or folder.is_symlink()), None)
    if above is not None and not above.is_dir():
        raise InputError(f"cannot be made: {above} is no folder", where=str(out), hint="give --out another folder")
    if above is not None and not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"cannot be made: no right to write in {above}", where=str(out), hint="give --out another one")
    if out.is_dir() and os.access(out, os.R_OK) and not any(out.iterdir()):
        return
    if out.exists() or out.is_symlink():
        raise InputError(
            "exists already, and nothing is written over it",
            where=str(out),
            hint="give --out a folder that does not exist, or move this one away",
        )


def write(description: Description, out: Path) -> Checked:
    """Write the files, check them as `myriad validate` does, and give them their name by one rename.

    Returns:
        What the check said; it has no errors.

    Raises:
        InputError: `out` exists, or cannot be made.
        MyriadError: the description has errors, which is a fault of Myriad: it is shown, and nothing is left.
    """
    refuse_existing(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}", where=str(out), hint="give --out another folder"
        ) from error
    try:
        for name, text in description.files.items():
            path = made / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        checked = check(read_inventory(made))
        if checked.errors:
            wrong = "\n".join(f"  {problem.subject} {problem.message}" for problem in checked.errors[:10])
            raise MyriadError(
                f"what was found does not make a description that validates; nothing was written\n{wrong}",
                where=str(out),
                hint="this is a fault of Myriad: report it with these lines",
            )
        made.chmod(0o755)
        made.rename(out)
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}", where=str(out), hint="give --out another folder"
        ) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return checked
