"""`make test` and `make test-full`: tests on a lab that is brought up for them, and taken down after them.

A lab that was up before is used and left up, so that a person can run the tests again and again on it.
Usage: python -m myriad.lab.testing [pytest's arguments]
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from myriad.lab.display import duration
from myriad.lab.state import LabPaths, clone_root, load_state


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
            if line.startswith("=") and " in " in line:
                closing = line.strip()
    return process.returncode, closing


def main(arguments: Sequence[str]) -> int:
    """Lab up, tests, lab down; pytest's closing line comes last."""
    clone = clone_root()
    before = was_up(clone)
    program = [str(Path(sys.executable).with_name("myriad"))]
    started = time.monotonic()
    code, closing = 1, ""
    try:
        up = subprocess.run([*program, "lab", "up"], cwd=clone, check=False)
        if up.returncode != 0:
            print(f"the lab did not come up (exit {up.returncode}); the tests did not run", flush=True)
            code = up.returncode
        else:
            code, closing = run_tests(clone, arguments)
    except KeyboardInterrupt:
        code = 130
    if before:
        print("the lab was up before and stays up; make lab-down removes it", flush=True)
    else:
        subprocess.run([*program, "lab", "down"], cwd=clone, check=False)
    print(f"{closing or 'no test ran'}\nlab and tests together: {duration(time.monotonic() - started)}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
