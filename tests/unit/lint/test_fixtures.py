"""Each trap as a broken file with its whole expected output, and its corrected twin, in which nothing is found.

`python tests/unit/lint/test_fixtures.py` writes the expected outputs anew; read the difference before you commit it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from myriad.cli.lint import read_paths, with_configurations
from myriad.lint import RULES, Finding, findings, report, scene_of

ROOT = Path(__file__).parents[3]
FIXTURES = Path("tests/fixtures/lint")
#: Kinds of which a fixture holds every object there is, as a cluster does.
SURE = {"claim-not-found": ["PersistentVolumeClaim"]}
NAMES = sorted(path.name for path in (ROOT / FIXTURES).iterdir() if path.is_dir())
#: Files that show several traps at once.
SEVERAL = {"articles"}


def look(name: str, which: str) -> tuple[list[Finding], str]:
    """Findings of a fixture's file, and what the command prints."""
    documents, _ = read_paths([str(FIXTURES / name / f"{which}.yml")])
    found = findings(with_configurations(scene_of(documents, sure=SURE.get(name, []))))
    return found, "\n".join([*report.lines_of(found), report.verdict(found, len(documents))]) + "\n"


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("name", NAMES)
def test_a_broken_file_gives_exactly_its_output(name: str) -> None:
    found, text = look(name, "broken")
    assert text == (FIXTURES / name / "expected.txt").read_text()
    if name not in SEVERAL:
        assert {finding.rule for finding in found} == {name}


@pytest.mark.parametrize("name", NAMES)
def test_its_corrected_twin_is_clean(name: str) -> None:
    found, _ = look(name, "fixed")
    assert [(finding.rule, finding.where, finding.message) for finding in found] == []


def test_each_rule_has_a_fixture() -> None:
    assert set(RULES) == set(NAMES) - SEVERAL


if __name__ == "__main__":
    for each in NAMES:
        (FIXTURES / each / "expected.txt").write_text(look(each, "broken")[1])
