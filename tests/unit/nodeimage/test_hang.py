"""Why a build did not end: every cause on what machines, packer and QEMU really printed.

The files of tests/fixtures/nodeimage are what `evidence.json` held after builds that were broken on purpose
(tests/integration/nodeimage/test_hangs.py with MYRIAD_RECORD), shortened at the front only. A file is named after its
cause; what follows two dashes tells several of one cause apart.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from myriad.nodeimage.hang import Evidence, classify, keep, load, rules

FIXTURES = sorted((Path(__file__).parents[2] / "fixtures" / "nodeimage").glob("*.json"))


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_what_was_recorded_is_classified(path: Path) -> None:
    cause = classify(load(path))
    assert cause.name == path.stem.partition("--")[0]
    assert cause.hint


def test_every_record_is_of_a_cause_that_there_is() -> None:
    recorded = {path.stem.partition("--")[0] for path in FIXTURES}
    assert {"accelerator", "killed", "port"} <= recorded <= {rule.name for rule in rules()}


def test_a_sentence_says_where_how_long_and_what_was_said() -> None:
    evidence = Evidence("ssh", late=True, seconds=312.4, console=("[  OK  ] Reached target Multi-User System.",))
    assert classify(evidence).sentence == (
        "hangs in stage ssh (312 s): the machine is up, but no ssh answers: [ OK ] Reached target Multi-User System."
    )


@pytest.mark.parametrize(
    ("stage", "name"),
    [("start", "start"), ("ssh", "no-ssh"), ("provision", "provision"), ("shutdown", "shutdown"), ("finish", "finish")],
)
def test_without_any_word_the_stage_is_the_cause(stage: str, name: str) -> None:
    cause = classify(Evidence(stage, late=True, seconds=9))
    assert cause.name == name
    assert cause.sentence.startswith(f"hangs in stage {stage} (9 s): ")


def test_a_failure_without_a_known_word_quotes_packer() -> None:
    cause = classify(Evidence("provision", errors=("Error: something new",)))
    assert cause.sentence == "failed in stage provision (0 s): packer failed: Error: something new"


def test_words_of_another_stage_do_not_count() -> None:
    evidence = Evidence("shutdown", late=True, console=("[FAILED] Failed to start ssh.service",))
    assert classify(evidence).name == "shutdown"


def test_what_a_machine_says_of_itself_comes_before_what_was_waited_for() -> None:
    both = Evidence(
        "ssh",
        late=True,
        errors=("ssh: handshake failed: ssh: unable to authenticate, attempted methods [none publickey]",),
        console=("ci-info: no authorized SSH keys", "Cloud-init v. 22.4.2 finished. Datasource DataSourceNone."),
    )
    assert classify(both).name == "no-seed"
    assert classify(replace(both, console=())).name == "ssh-key"


def test_evidence_is_kept_and_read_again(tmp_path: Path) -> None:
    evidence = Evidence("ssh", True, 1.5, ("e",), ("s",), ("c",), ("l",))
    keep(evidence, tmp_path / "evidence.json")
    assert load(tmp_path / "evidence.json") == evidence


def test_every_rule_is_whole() -> None:
    names = [rule.name for rule in rules()]
    assert len(names) == len(set(names))
    for rule in rules():
        assert set(rule.stages) <= {"start", "ssh", "provision", "shutdown", "finish"}
        assert set(rule.where) <= {"errors", "said", "console", "log"}
        assert rule.sentence and rule.hint
