"""`make test` and `make test-full`: tests on a lab that is brought up for them, and taken down after them.

A lab that was up before is used and left up, so that a person can run the tests again and again on it.
Usage: python -m myriad.lab.testing [pytest's arguments]
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from myriad.lab.display import duration
from myriad.lab.state import LabPaths, clone_root, load_state

#: pytest's closing line, with its frame of equal signs or, with -q, without.
_CLOSING = re.compile(r"^=*\s?\d+ (passed|failed|skipped|deselected|errors?)\b.* in [\d.]+s")


#: What begins on nodes without a cluster. The upgrade makes an older one first.
_BARE = ("tests/integration", "tests/e2e/test_upgrade.py")
#: Exit code of a pytest that found no test.
_NO_TESTS = 5


def was_up(clone: Path) -> bool:
    """Whether this clone had a lab before: its last run got as far as a verdict."""
    state = load_state(LabPaths(clone))
    return state is not None and state.phases.get("site") is not None and state.phases["site"].ok


def run_tests(clone: Path, arguments: Sequence[str], beside: Sequence[str] = ()) -> list[tuple[int, str]]:
    """Run pytest, passing its output on, and meanwhile a second one, whose output comes when both have ended.

    Args:
        arguments: of the first.
        beside: of the second; none where this is empty.

    Returns:
        Exit code and closing line of each.
    """
    with tempfile.TemporaryFile("w+") as said:
        second = None
        if beside:
            print(shlex.join(["pytest", *beside]), "runs beside and is shown after", flush=True)
            second = subprocess.Popen(_pytest(beside), cwd=clone, stdout=said, stderr=subprocess.STDOUT)
        try:
            results = [_run_shown(clone, arguments)]
        finally:
            if second is not None:
                # Where Ctrl-C ended the first it reached the second too, which then cleans up after itself.
                second.wait()
                said.seek(0)
                output = said.read()
                print(shlex.join(["pytest", *beside]), output, sep="\n", flush=True)
        if second is not None:
            results.append((second.returncode, _closing_of(output.splitlines())))
    return results


def _call(argv: Sequence[str], clone: Path) -> int:
    """Exit code of a program. Ctrl-C reaches it too, and it gets the time to say where it stopped."""
    process = subprocess.Popen(argv, cwd=clone)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.wait()
        raise


def _pytest(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "pytest", *arguments]


def _run_shown(clone: Path, arguments: Sequence[str]) -> tuple[int, str]:
    print(shlex.join(["pytest", *arguments]), flush=True)
    lines = []
    with subprocess.Popen(_pytest(arguments), cwd=clone, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdout is not None  # noqa: S101 (PIPE was asked for; narrows the type)
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return process.returncode, _closing_of(lines)


def _closing_of(lines: Iterable[str]) -> str:
    return next((line.strip() for line in reversed(list(lines)) if _CLOSING.search(line)), "")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run when.

    Attributes:
        options: of every pytest.
        engine: those that need an engine and bare nodes.
        api: those that need an API server of plain processes, which the bundle of those nodes has: beside the first.
        lab: those that need the whole lab.
    """

    options: list[str]
    engine: list[str]
    api: list[str]
    lab: list[str]


def split(arguments: Sequence[str]) -> Plan:
    """Sort pytest's arguments by what the tests need."""
    paths = [argument for argument in arguments if argument.startswith("tests/")]
    engine = [path for path in paths if path.startswith(_BARE)]
    api = [path for path in paths if path.startswith("tests/api")]
    return Plan(
        options=[argument for argument in arguments if argument not in paths],
        engine=engine,
        api=api,
        lab=[path for path in paths if path not in engine and path not in api],
    )


def main(arguments: Sequence[str]) -> int:
    """Tests that need an engine, lab up, tests that need the lab, lab down; pytest's closing line comes last.

    The first kind runs beside bare nodes: a cluster that only waits takes a third of two cores from them.
    """
    clone = clone_root()
    before = was_up(clone)
    program = [str(Path(sys.executable).with_name("myriad"))]
    plan = split(arguments)
    first, beside = (plan.engine, plan.api) if plan.engine else (plan.api, [])
    started = time.monotonic()
    codes: list[int] = []
    closings: list[str] = []
    try:
        for paths, more, flags in ((first, beside, ["--nodes-only"]), (plan.lab, [], [])):
            if not paths:
                continue
            code = _call([*program, "lab", "up", *flags], clone)
            if code != 0:
                print(f"the lab did not come up (exit {code}); {' '.join(paths)} did not run", flush=True)
                codes.append(code)
                break
            second = [*plan.options, *more] if more else []
            for ran, (code, closing) in zip(
                (paths, more), run_tests(clone, [*plan.options, *paths], second), strict=False
            ):
                codes.append(code)
                closings.append(closing or f"no test of {' '.join(ran)} ran")
    except KeyboardInterrupt:
        codes.append(130)
    if before:
        print("the lab was up before and stays up; make lab-down removes it", flush=True)
    else:
        _call([*program, "lab", "down"], clone)
    print(f"lab and tests together: {duration(time.monotonic() - started)}", flush=True)
    print("\n".join(closings) or "no test ran", flush=True)
    # With -k or a file's name some groups have no test to run; that is an error only where none has.
    judged = [code for code in codes if code != _NO_TESTS] or codes
    return next((code for code in judged if code), 0 if codes else 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
