"""`images/<name>/proof.yml`: what a proof lets pass, each with a reason and an end.

It stands beside image.yml and not in it: an exception changes what is accepted, never what is built.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from myriad.errors import InputError
from myriad.fleet.names import did_you_mean
from myriad.images.definition_errors import problems_of, read_yaml, report
from myriad.images.proof_types import Finding, Outcome

FILE = "proof.yml"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_Reason = Annotated[
    str, Field(min_length=10, description="why it is accepted, as a sentence of at least 10 characters")
]


def _day(value: Any) -> Any:
    if isinstance(value, str):
        return date.fromisoformat(value)
    return value


_Until = Annotated[date, BeforeValidator(_day), Field(description="last day on which it holds, such as 2027-03-31")]


RULES = (
    "archs", "base", "budget", "config", "cuda", "driver-libraries", "env-versions", "gpu", "integrity", "leftovers",
    "libraries", "loaded", "loaded-archs", "loaded-once", "one-copy", "pins", "require-cuda", "run", "secrets",
    "setuid", "smoke", "wheels",
)  # fmt: skip
"""The checks of a proof by the names that `myriad image verify` prints."""


class Exempt(_Model):
    """A finding of a check that is accepted for a time."""

    rule: str = Field(pattern=r"^[a-z][a-z-]+$", description="name of the check, as `myriad image verify` prints it")
    path: str = Field("*", min_length=1, description="where it is found; * spans folders")
    reason: _Reason
    until: _Until

    @field_validator("rule")
    @classmethod
    def _is_a_check(cls, value: str) -> str:
        if value not in RULES:
            raise ValueError(f'"{value}" is no check of a proof{did_you_mean(value, RULES)}')
        return value


class ExemptVulnerability(_Model):
    """A vulnerability that is accepted for a time."""

    id: str = Field(pattern=r"^[A-Z]+-[\w-]+$", description="its id or an alias, such as CVE-2026-1234")
    package: str = Field("*", min_length=1, description="the package that it is accepted in")
    reason: _Reason
    until: _Until


class ProofRules(_Model):
    """The file."""

    exceptions: tuple[Exempt, ...] = Field((), description="findings that are accepted: {rule, path, reason, until}")
    vulnerabilities: tuple[ExemptVulnerability, ...] = Field(
        (), description="vulnerabilities that are accepted: {id, package, reason, until}"
    )
    package_budgets_mb: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict, description="most that a package may weigh unpacked, MB (10**6 bytes) by name"
    )


def load_rules(folder: Path) -> ProofRules:
    """Read `proof.yml` of an image's folder; no file is no exceptions.

    Raises:
        InputError: it says something that is not allowed; all of it is reported together.
    """
    path = folder / FILE
    if not path.is_file():
        return ProofRules()
    value, problems = read_yaml(path, hint="a mapping of exceptions, vulnerabilities and package_budgets_mb")
    try:
        rules = ProofRules.model_validate(value if value is not None else {})
    except ValidationError as error:
        problems += problems_of(error, ProofRules)
        rules = ProofRules()
    if problems:
        raise InputError(report(problems), where=str(path), hint="each exception: {rule, path, reason, until}")
    return rules


class _Lapsing(Protocol):
    @property
    def reason(self) -> str: ...
    @property
    def until(self) -> date: ...


def lapsed(rule: _Lapsing, today: date) -> bool:
    """Whether an exception no longer holds."""
    return today > rule.until


@dataclass(frozen=True, slots=True)
class Applied:
    """Outcomes after exceptions: what is left, what was accepted with its exception, and exceptions nothing needs."""

    outcomes: tuple[Outcome, ...]
    accepted: tuple[tuple[Finding, Exempt], ...]
    unused: tuple[Exempt, ...]


def apply_rules(outcomes: Iterable[Outcome], rules: ProofRules, today: date) -> Applied:
    """Take accepted findings out; one whose exception has ended comes back and says so."""
    accepted: list[tuple[Finding, Exempt]] = []
    used: set[int] = set()
    left = []
    for outcome in outcomes:
        kept = []
        for finding in outcome.findings:
            fitting = [
                (number, one)
                for number, one in enumerate(rules.exceptions)
                if one.rule == finding.rule and fnmatchcase(finding.where, one.path)
            ]
            used |= {number for number, _one in fitting}
            holding = [one for _number, one in fitting if not lapsed(one, today)]
            if holding and finding.severity == "error":
                accepted.append((finding, holding[0]))
            elif fitting and finding.severity == "error":
                ended = fitting[0][1]
                kept.append(replace(finding, what=f"{finding.what} {lapsed_words(ended)}"))
            else:
                kept.append(finding)
        left.append(replace(outcome, findings=tuple(kept)))
    unused = tuple(one for number, one in enumerate(rules.exceptions) if number not in used)
    return Applied(tuple(left), tuple(accepted), unused)


def lapsed_words(rule: _Lapsing) -> str:
    """How a finding says that its exception has ended."""
    return f'(accepted until {rule.until.isoformat()} because "{rule.reason}"; that has ended)'
