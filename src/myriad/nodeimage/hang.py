"""Why the building of an image did not end: a cause from what packer, the console and the log say. Pure.

The same symptom, "Waiting for SSH", has a dozen causes; which one it is stands on the machine's console. The rules of
`hang.yml` are asked in order: what a machine says about itself comes before what was only waited for in vain.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Evidence:
    """What is known about a build that failed or hung.

    Attributes:
        stage: where it was: start, ssh, provision, shutdown, finish.
        late: it did not end in the time that the stage has.
        seconds: how long it was in that stage.
        errors: what packer called an error.
        said: packer's last lines.
        console: the machine's serial console.
        log: packer's own log.
    """

    stage: str
    late: bool = False
    seconds: float = 0.0
    errors: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    console: tuple[str, ...] = ()
    log: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cause:
    """A class of failure, in a word for programs and a sentence for people, and what to do."""

    name: str
    sentence: str
    hint: str


@dataclass(frozen=True)
class Rule:
    """A rule of `hang.yml`."""

    name: str
    stages: tuple[str, ...]
    where: tuple[str, ...]
    words: re.Pattern[str]
    sentence: str
    hint: str


@functools.cache
def rules() -> tuple[Rule, ...]:
    """The rules, in the order in which they are asked."""
    text = (resources.files("myriad.nodeimage") / "hang.yml").read_text(encoding="utf-8")
    return tuple(
        Rule(
            name=one["name"],
            stages=tuple(one["stages"]),
            where=tuple(one["where"]),
            words=re.compile("|".join(f"(?:{words})" for words in one["words"])),
            sentence=one["sentence"],
            hint=one["hint"],
        )
        for one in yaml.safe_load(text)
    )


# Nothing more precise was said: what was waited for, by stage.
_WAITED = {
    "start": ("start", "packer does not come to start the machine", "its log tells what it waits for"),
    "ssh": ("no-ssh", "no ssh answered", "the console tells how far it came; it is empty before the boot loader"),
    "provision": ("provision", "a step inside the machine does not end", "packer's last lines name the step"),
    "shutdown": ("shutdown", "the machine does not turn itself off", "the console names the unit that is waited for"),
    "finish": ("finish", "the disk is not written", "is the build machine's disk full or slow?"),
}


def keep(evidence: Evidence, path: Path) -> None:
    """Write evidence down, for a report: what a cause was concluded from, in a form that `load` reads."""
    path.write_text(json.dumps(asdict(evidence), indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> Evidence:
    """Evidence that was kept."""
    value = json.loads(path.read_text(encoding="utf-8"))
    fields: dict[str, Any] = {key: tuple(one) if isinstance(one, list) else one for key, one in value.items()}
    return Evidence(**fields)


def classify(evidence: Evidence) -> Cause:
    """The cause that the evidence supports best; its sentence says where, after how long, and quotes what was said."""
    # QEMU's words count where the machine never came up, the machine's own everywhere else.
    for rule in rules():
        if evidence.stage not in rule.stages:
            continue
        found = _search(rule, evidence)
        if found is not None:
            return Cause(rule.name, f"{_where(evidence)}: {rule.sentence}{_quoted(found)}", rule.hint)
    if evidence.late or evidence.stage == "ssh":
        name, sentence, hint = _WAITED[evidence.stage]
        last = next((line for line in reversed(evidence.console or evidence.said) if line.strip()), "")
        return Cause(name, f"{_where(evidence)}: {sentence}{_quoted(last)}", hint)
    said = evidence.errors or evidence.said
    return Cause(
        "failed", f"{_where(evidence)}: packer failed{_quoted(said[-1] if said else '')}", "its log tells more"
    )


def _search(rule: Rule, evidence: Evidence) -> str | None:
    for source in rule.where:
        for text in reversed(getattr(evidence, source)):
            for line in reversed(text.splitlines()):
                match = rule.words.search(line)
                if match:
                    return match.groupdict().get("said") or line.strip()
    return None


def _where(evidence: Evidence) -> str:
    verb = "hangs in" if evidence.late else "failed in"
    return f"{verb} stage {evidence.stage} ({evidence.seconds:.0f} s)"


def _quoted(text: str) -> str:
    text = " ".join(text.split())
    return f": {text[:300]}" if text else ""
