"""`make test` and `make test-full`: tests on a lab that is brought up for them, and taken down after them.

A lab that was up before is used and left up, so that a person can run the tests again and again on it.
Usage: python -m myriad.lab.testing [pytest's arguments]
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from myriad.lab.display import duration
from myriad.lab.state import LabPaths, clone_root, load_state

#: pytest's closing line, with its frame of equal signs or, with -q, without.
_CLOSING = re.compile(r"^=*\s?\d+ (passed|failed|skipped|deselected|errors?)\b.* in [\d.]+s")


def was_up(clone: Path) -> bool:
    """Whether this clone had a lab before: its last run got as far as a verdict."""
    state = load_state(LabPaths(clone))
    return state is not None and state.phases.get("site") is not None and state.phases["site"].ok


def run_tests(clone: Path, arguments: Sequence[str]) -> tuple[int, str]:
    """Run pytest, passing its output on. Returns its exit code and its closing line."""
    argv = [sys.executable, "-m", "pytest", *arguments]
    print(shlex.join(["pytest", *arguments]), flush=True)
    closing = ""
    with subprocess.Popen(argv, cwd=clone, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdout is not None  # noqa: S101 (PIPE was asked for; narrows the type)
        for line in process.stdout:
            print(line, end="", flush=True)
            if _CLOSING.search(line):
                closing = line.strip()
    return process.returncode, closing


def split(arguments: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Options, the folders of tests that need an engine alone, and those that need the whole lab."""
    paths = [argument for argument in arguments if argument.startswith("tests/")]
    early = [path for path in paths if path.startswith("tests/integration")]
    return [argument for argument in arguments if argument not in paths], early, [p for p in paths if p not in early]


def main(arguments: Sequence[str]) -> int:
    """Tests that need an engine, lab up, tests that need the lab, lab down; pytest's closing line comes last.

    The first kind runs beside bare nodes: a cluster that only waits takes a third of two cores from them.
    """
    clone = clone_root()
    before = was_up(clone)
    program = [str(Path(sys.executable).with_name("myriad"))]
    options, early, late = split(arguments)
    started = time.monotonic()
    codes: list[int] = []
    closings: list[str] = []
    try:
        for paths, flags in ((early, ["--nodes-only"]), (late, [])):
            if not paths:
                continue
            up = subprocess.run([*program, "lab", "up", *flags], cwd=clone, check=False)
            if up.returncode != 0:
                print(f"the lab did not come up (exit {up.returncode}); {' '.join(paths)} did not run", flush=True)
                codes.append(up.returncode)
                break
            code, closing = run_tests(clone, [*options, *paths])
            codes.append(code)
            closings.append(closing or f"no test of {' '.join(paths)} ran")
    except KeyboardInterrupt:
        codes.append(130)
    if before:
        print("the lab was up before and stays up; make lab-down removes it", flush=True)
    else:
        subprocess.run([*program, "lab", "down"], cwd=clone, check=False)
    print(f"lab and tests together: {duration(time.monotonic() - started)}", flush=True)
    print("\n".join(closings) or "no test ran", flush=True)
    return next((code for code in codes if code), 0 if codes else 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
