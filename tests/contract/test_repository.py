"""Habits of the whole repository: code, command line, tests, documents."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main

from myriad.cli import build_app

ROOT = Path(__file__).parents[2]
MARKERS = {
    marker.split(":")[0].strip()
    for marker in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["markers"]
}
BUILTIN_MARKERS = {"parametrize", "skip", "skipif", "xfail", "usefixtures", "filterwarnings", "timeout"}
ADRS = sorted((ROOT / "docs" / "adr").glob("*.md"))


def tracked_files() -> list[Path]:
    """The files of the repository that git knows, without what is not text."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"this contract needs a git clone: {done.stderr.strip()}")
    paths = [ROOT / name for name in done.stdout.split("\0") if name]
    return [path for path in paths if path.is_file() and b"\0" not in path.read_bytes()[:4096]]


def verbs() -> list[tuple[str, Any]]:
    """Every command of the command line with its words, those of groups too."""

    def walk(prefix: str, command: Any) -> list[tuple[str, Any]]:
        if not hasattr(command, "commands"):
            return [(prefix, command)]
        return [row for name, inner in command.commands.items() for row in walk(f"{prefix} {name}".strip(), inner)]

    return walk("", typer.main.get_command(build_app()))


VERBS = verbs()


def test_there_are_verbs() -> None:
    assert {"validate", "render", "status", "why", "queue"} <= {name for name, _ in VERBS}


@pytest.mark.parametrize(("name", "command"), VERBS, ids=[name for name, _ in VERBS])
def test_a_verb_has_help_and_json(name: str, command: Any) -> None:
    assert command.help and len(command.help) > 10, f"myriad {name} has no help"
    options = {option for parameter in command.params for option in parameter.opts}
    assert "--json" in options, f"myriad {name} has no --json"
    silent = [
        parameter.name
        for parameter in command.params
        if parameter.param_type_name == "option" and not parameter.help and parameter.name != "help"
    ]
    assert silent == [], f"options of myriad {name} without help"


@pytest.mark.parametrize("name", [name for name, _ in VERBS])
def test_operations_tell_what_a_verb_touches(name: str) -> None:
    rows = [line for line in (ROOT / "docs" / "operations.md").read_text().splitlines() if line.startswith("|")]
    assert any(f"`myriad {name}" in row for row in rows), f"docs/operations.md has no row for myriad {name}"


def test_no_file_of_the_source_is_longer_than_600_lines() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {count}"
        for folder in ("src", "plugins")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (count := len(path.read_text().splitlines())) > 600
    ]
    assert long == []


def test_nothing_is_left_to_do_in_the_source() -> None:
    words = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "X" * 3 + r"\b", "NotImplemented" + "Error")))
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("src", "plugins", "roles", "playbooks", "tests")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".py", ".yml", ".j2"} and path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if words.search(line)
    ]
    assert found == []


def test_pure_modules_stay_pure() -> None:
    program = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([str(program), "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_secret_and_no_path_of_a_machine_is_tracked() -> None:
    patterns = {
        "a private key": re.compile("-----BEGIN [A-Z ]*PRIVATE " + "KEY-----"),
        "a token": re.compile(r"\b(ghp_[A-Za-z0-9]{30}|glpat-[\w-]{20}|AKIA[A-Z0-9]{16}|xox[bp]-[\w-]{20})"),
        "a home folder": re.compile(r"(?<![\w.])/(home|Users)/(?!\$|<|\{|USER|(?:user|ada|ops)/)[a-z]\w+/"),
        "a folder of one machine": re.compile(r"(?<![\w.~-])/(work|scratch)/"),
    }
    found = [
        f"{path.relative_to(ROOT)}: {what}: {match.group()}"
        for path in tracked_files()
        for what, pattern in patterns.items()
        for match in [pattern.search(path.read_text(errors="replace"))]
        if match and path != Path(__file__)
    ]
    assert found == []


def test_marks_of_tests_are_known_and_skips_have_reasons() -> None:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text()
        unknown = set(re.findall(r"pytest\.mark\.(\w+)", text)) - MARKERS - BUILTIN_MARKERS
        assert not unknown, f"{path.relative_to(ROOT)}: {sorted(unknown)}"
        for match in re.finditer(r"pytest\.mark\.skip(if)?\b(?P<rest>[^\n]*)", text):
            assert "reason" in text[match.start() : match.start() + 300], (
                f"{path.relative_to(ROOT)}: a skip without a reason"
            )


def makefile_targets() -> list[str]:
    return re.findall(r"^([a-z][\w-]*):(?!=)", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


def test_make_help_lists_every_target() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    targets = makefile_targets()
    assert {"lab", "lab-down", "lab-clean", "test", "test-full", "check", "help"} <= set(targets)
    assert [target for target in targets if not re.search(rf"(^|\s){re.escape(target)}\s", done.stdout)] == []


def test_readme_shows_both_commands_on_its_first_screen() -> None:
    screen = (ROOT / "README.md").read_text().splitlines()[:30]
    assert any("make lab" in line for line in screen)
    assert any("make test" in line for line in screen)


def test_decisions_are_numbered_without_gap() -> None:
    assert [int(path.name[:4]) for path in ADRS] == list(range(1, len(ADRS) + 1))
    assert len(ADRS) >= 9


@pytest.mark.parametrize("path", ADRS, ids=lambda path: path.stem)
def test_a_decision_says_why_what_and_at_what_price(path: Path) -> None:
    text = path.read_text()
    assert re.match(rf"# {path.name[:4]} \w", text), "the title is the number and a sentence"
    headings = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert headings[:2] == ["Why", "Decision"]
    assert "Consequences" in headings
    assert len(text.splitlines()) <= 80, "half a page"


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "roles").glob("*/README.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
            if "://" not in target and not (path.parent / target).exists():
                broken.append(f"{path.relative_to(ROOT)}: {target}")
    assert broken == []


def test_every_excuse_of_the_lint_is_for_a_file_that_exists_and_has_a_reason() -> None:
    lines = (ROOT / ".ansible-lint-ignore").read_text().splitlines()
    excuses = [line.split()[0] for line in lines if line and not line.startswith("#")]
    assert [name for name in excuses if not (ROOT / name).exists()] == []
    assert len([line for line in lines if line.startswith("#")]) >= 2
    # It grows with the playbooks, whose plays are phases; an excuse of another rule would need a reason of its own.
    assert {tuple(line.split()[1:]) for line in lines if line and not line.startswith("#")} == {("name[casing]",)}
    assert {str(Path(name).parent) for name in excuses} == {"playbooks"}
