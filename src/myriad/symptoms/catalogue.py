"""The catalogue of symptoms and the search in it: text in, cause and next command out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

PLACEHOLDERS = {"node": "NODE", "inventory": "INVENTORY", "pod": "POD", "namespace": "NAMESPACE"}
"""What a cause or a command may name of the place, and what stands there while the caller does not say."""

LONGEST_TEXT = 100_000
"""Characters that are searched, from the end of the text: a log's last words are the ones that matter."""

LONGEST_LINE = 4_000
"""Characters of a line that are searched, so that one endless line cannot hold a run up."""


class Symptom(BaseModel):
    """One entry of the catalogue.

    Attributes:
        id: stable name, for programs (`driver-library-mismatch`).
        patterns: regular expressions, searched line by line and case-insensitively unless they say otherwise. A named
            group may be used in `cause` and `next`.
        cause: one sentence: what is wrong.
        next: commands or steps, in order; the first is the one to print where there is room for one.
        where: where it appears: gpu, container, apt, kernel, runtime, kubelet, kubeadm, etcd, image, host, ssh.
        source: a link to the documentation or report that says so.
        case: ids of the test cases that it covers.
        over: ids of symptoms that it is more specific than: where both are found, it wins.
        general: what is true of many causes; it answers only where nothing more specific does.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    patterns: tuple[str, ...] = Field(min_length=1)
    cause: str
    next: tuple[str, ...] = Field(min_length=1)
    where: tuple[str, ...] = Field(min_length=1)
    source: str = Field(pattern=r"^https://")
    case: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    general: bool = False

    @field_validator("patterns")
    @classmethod
    def _compile(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
        return patterns

    @model_validator(mode="after")
    def _names(self) -> Symptom:
        for pattern in self.patterns:
            groups = {*re.compile(pattern).groupindex, *PLACEHOLDERS}
            for text in (self.cause, *self.next):
                unknown = set(re.findall(r"{(\w+)}", text)) - groups
                if unknown:
                    raise ValueError(f"{self.id}: {pattern!r} does not give {', '.join(sorted(unknown))}")
        return self


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a text means.

    Attributes:
        id: the symptom's id.
        cause: what is wrong, as a sentence without a full stop.
        next: commands or steps, the first one first.
        where: where such a symptom appears.
        source: a link to who says so.
        line: the line of the text that shows it.
    """

    id: str
    cause: str
    next: tuple[str, ...]
    where: tuple[str, ...]
    source: str
    line: str

    def sentence(self) -> str:
        """Cause and next step in one line, for a message that has one."""
        return f"{self.cause}; next: {self.next[0]}"

    def text(self) -> str:
        """Cause and every step, one a line."""
        return "\n".join([f"cause  {self.cause}", *(f"next   {step}" for step in self.next)])

    def as_dict(self) -> dict[str, Any]:
        """The same for `--json` and for the filter: plain types only."""
        return {
            "id": self.id,
            "cause": self.cause,
            "next": list(self.next),
            "where": list(self.where),
            "source": self.source,
            "line": self.line,
        }


class Catalogue:
    """Symptoms, searched together.

    Raises:
        ValueError: when an id stands twice or `over` names an id that does not exist.
    """

    def __init__(self, symptoms: Sequence[Symptom]) -> None:
        self.symptoms = {symptom.id: symptom for symptom in symptoms}
        if len(self.symptoms) != len(symptoms):
            raise ValueError("an id stands twice in the catalogue")
        for symptom in symptoms:
            for other in symptom.over:
                if other not in self.symptoms:
                    raise ValueError(f"{symptom.id} is over {other}, which does not exist")
        self._compiled = [
            (symptom, [re.compile(pattern, re.IGNORECASE | re.MULTILINE) for pattern in symptom.patterns])
            for symptom in symptoms
        ]

    def diagnose_all(self, text: str, context: Mapping[str, str] | None = None) -> list[Diagnosis]:
        """Every symptom that the text shows, the one to act on first in front.

        A symptom that is named by another's `over`, and a general one beside a specific one, are left out. Of the
        rest those of the caller's `where` come first, then what the text says first: a log's first complaint is
        nearer to the cause than what follows from it.

        Args:
            text: a message, an output or the end of a log.
            context: where the text comes from: `where` (prefers such entries), and `node`, `inventory`, `pod`,
                `namespace` for the commands.
        """
        context = context or {}
        text = "\n".join(line[:LONGEST_LINE] for line in text[-LONGEST_TEXT:].splitlines())
        found: dict[str, tuple[int, re.Match[str]]] = {}
        for symptom, patterns in self._compiled:
            matches = [match for match in (pattern.search(text) for pattern in patterns) if match]
            if matches:
                first = min(matches, key=lambda match: match.start())
                found[symptom.id] = (first.start(), first)
        beaten = {other for name in found for other in self.symptoms[name].over}
        left = {name: hit for name, hit in found.items() if name not in beaten}
        if any(not self.symptoms[name].general for name in left):
            left = {name: hit for name, hit in left.items() if not self.symptoms[name].general}
        wanted = context.get("where")
        order = sorted(left, key=lambda name: (wanted not in self.symptoms[name].where, left[name][0], name))
        return [_diagnosis(self.symptoms[name], left[name][1], text, context) for name in order]

    def diagnose(self, text: str, context: Mapping[str, str] | None = None) -> Diagnosis | None:
        """The symptom to act on first; None where the text shows none that is known."""
        found = self.diagnose_all(text, context)
        return found[0] if found else None


def _diagnosis(symptom: Symptom, match: re.Match[str], text: str, context: Mapping[str, str]) -> Diagnosis:
    start = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.start())
    known = {name: str(context.get(name) or default) for name, default in PLACEHOLDERS.items()}
    known |= {name: value.strip() for name, value in match.groupdict().items() if value}

    def filled(template: str) -> str:
        return re.sub(r"{(\w+)}", lambda found: known.get(found[1], found[1].upper()), template)

    return Diagnosis(
        id=symptom.id,
        cause=filled(symptom.cause),
        next=tuple(filled(step) for step in symptom.next),
        where=symptom.where,
        source=symptom.source,
        line=text[start : end if end >= 0 else None].strip(),
    )


@lru_cache(maxsize=1)
def catalogue() -> Catalogue:
    """The catalogue that comes with Myriad, read once."""
    text = resources.files("myriad.symptoms").joinpath("catalogue.yml").read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return Catalogue([Symptom.model_validate(entry) for entry in yaml.load(text, Loader=loader)])  # noqa: S506 - a safe loader


def diagnose_all(text: str, context: Mapping[str, str] | None = None) -> list[Diagnosis]:
    """Every symptom that the text shows (`Catalogue.diagnose_all` of the own catalogue)."""
    return catalogue().diagnose_all(text, context)


def diagnose(text: str, context: Mapping[str, str] | None = None) -> Diagnosis | None:
    """The symptom of a text to act on first, or None (`Catalogue.diagnose` of the own catalogue)."""
    return catalogue().diagnose(text, context)
