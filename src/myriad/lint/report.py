"""Findings as text, the list of rules, and docs/lint.md made from it. Pure."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from myriad.lint.rule import RULES, SEVERITIES, Finding, Rule

DOCUMENT = "docs/lint.md"


def lines_of(findings: Sequence[Finding]) -> list[str]:
    """Two lines a finding: where, how bad, what will happen, and its rule; then what to change."""
    lines = []
    for finding in findings:
        subject = f"{finding.object} " if finding.object else ""
        lines.append(f"{finding.where}: {finding.severity}: {subject}{finding.message} [{finding.rule}]")
        lines.append(f"    change: {finding.change}")
    return lines


def verdict(findings: Sequence[Finding], objects: int) -> str:
    """The last line: `2 errors, 1 warning in 14 objects`."""
    counts = {s: sum(f.severity == s for f in findings) for s in SEVERITIES}
    parts = [f"{n} {s}{'' if n == 1 else 's'}" for s, n in counts.items() if n]
    looked = f"{objects:,} object{'' if objects == 1 else 's'}"
    return f"{', '.join(parts)} in {looked}" if parts else f"{looked}: nothing found"


def rule_lines() -> list[str]:
    """Every rule with what it looks at and where it comes from."""
    width = max(len(name) for name in RULES)
    lines = []
    for rule in RULES.values():
        lines.append(f"{rule.id:<{width}}  {rule.severity:<7}  {rule.title}")
        if rule.sources:
            lines.append(f"{'':<{width}}  {'':<7}  {', '.join(rule.sources)}")
    return lines


def rule_dicts() -> list[dict[str, object]]:
    """The same for `--json`."""
    return [
        {
            "rule": rule.id,
            "severity": rule.severity,
            "title": rule.title,
            "why": rule.why,
            "looks_at": rule.looks_at,
            "sources": list(rule.sources),
        }
        for rule in RULES.values()
    ]


_HEAD = """\
# What `myriad lint` finds

<!-- Made from the rules by `python -m myriad.lint`. Change those. -->

```
myriad lint                          the cluster of $KUBECONFIG, as far as these credentials may read
myriad lint FILE|DIR ...             files: YAML with any number of documents, JSON, `-` for standard input
myriad lint -i INVENTORY             what an inventory renders
myriad lint -i INVENTORY FILE ...    files, judged together with what an inventory renders
myriad lint --with-cluster FILE ...  files, judged together with what is in the cluster
myriad lint --rules                  this list
```

A finding says where it is (file and line of the key, or kind, namespace and name), what will happen, and what to
change. Exit code 0: no errors (with `--strict`: no warnings either); 4: errors; 1: wrong input, such as a file that is
no YAML or holds nothing; then nothing is judged. Names of rules are stable; `--rule` asks single ones and `--skip`
leaves some out.

An **error** will not work, or takes GPUs from others. A **warning** works until the day when it does not. A **note** is
worth knowing. What refers to something else (a queue, a priority class, a node) is only judged where such objects are
among what is looked at; ResourceFlavors and Topologies are expected beside the ClusterQueues that name them.

"""


def _title(rule: Rule) -> str:
    """What the module of a rule is about, from the first sentence of its docstring."""
    first = (sys.modules[rule.check.__module__].__doc__ or "").split(".")[0].removeprefix("Rules about ")
    return f"{first[:1].upper()}{first[1:]}"


def document() -> str:
    """The text of docs/lint.md."""
    groups: dict[str, list[Rule]] = {}
    for rule in RULES.values():
        groups.setdefault(_title(rule), []).append(rule)
    parts = [_HEAD]
    for title, rules in groups.items():
        parts.append(f"## {title}\n\n")
        for rule in rules:
            parts.append(f"### {rule.id}\n\n**{rule.severity}**: {rule.title}. Looks at {rule.looks_at}.\n\n")
            parts.append(f"{rule.why}\n\n")
            if rule.sources:
                parts.append(f"Sources: {', '.join(rule.sources)}\n\n")
    return "".join(parts).rstrip("\n") + "\n"
