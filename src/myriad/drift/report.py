"""Differences as people and pipelines read them. Pure.

The probes run as tasks of playbooks/drift.yml; what each found stands in the run's events (`drift` of a result). A
difference that many nodes share is one line: a thousand nodes with one package replaced are one finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from myriad.runs import result_of

CLUSTER = "cluster"
"""Where objects of the API stand."""

DRIFTED = 5
"""Exit code where anything differs."""

# Named one by one up to here; more are counted.
_NAMED = 6
_INPUTS = "the description, the lock, the bundle or Myriad itself changed since the last complete run"


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    """One item that is not as recorded or described.

    Attributes:
        where: the host, or `cluster`.
        role: the role that made it; "" where none did.
        kind: file, directory, artifact, unit, setting, kernel_module, package, hold, image, hostname, swap, check,
            static_pod, made, inputs, site (on hosts); object, field, stray, version, node (in the cluster).
        item: path, name or object.
        expected, found: what it should be and what it is, as short texts.
        by: who or what changed it, and when, as far as that is known.
    """

    where: str
    role: str
    kind: str
    item: str
    expected: str
    found: str
    by: str = ""

    @classmethod
    def of(cls, where: str, entry: Mapping[str, Any]) -> Difference:
        """A difference as a probe gives it."""
        texts = {name: str(entry.get(name) or "") for name in ("role", "kind", "item", "expected", "found", "by")}
        return cls(where, **texts)

    def words(self) -> str:
        """What it is, without where."""
        if self.kind == "inputs":
            return _INPUTS
        changed = f"{_short(self.expected)} -> {_short(self.found)}"
        if self.expected.startswith("sha256 ") and self.found.startswith("sha256 "):
            changed = f"content changed ({changed})"
        return f"{self.kind} {self.item}: {changed}" + (f"  ({self.by})" if self.by else "")


def _short(text: str) -> str:
    """A digest by its first digits, anything else as it is."""
    head, separator, digits = text.rpartition("sha256 ")
    return f"{head}{separator}{digits[:12]}" if separator and len(digits) == 64 else text or '""'


@dataclass(slots=True)
class Report:
    """What one look found.

    Attributes:
        nodes: hosts that were looked at.
        differences: sorted by where.
        unreachable: hosts that did not answer, with the reason.
        failures: hosts on which the look itself failed, with the reason.
        notes: what was found and is nobody's mistake (a cordon by hand).
        seconds: that the look took.
        cluster_compared: whether the cluster's objects were part of it (a limit may leave them out).
    """

    nodes: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    unreachable: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    cluster_compared: bool = True

    @property
    def exit_code(self) -> int:
        """0 nothing differs, 2 the look failed somewhere, 3 hosts unreachable, the rest agrees, 5 something differs."""
        if self.failures:
            return 2
        if self.differences:
            return DRIFTED
        return 3 if self.unreachable else 0

    @property
    def drifted(self) -> list[str]:
        """Hosts that differ."""
        return sorted({entry.where for entry in self.differences} - {CLUSTER})

    def lines(self, inventory: str = "INVENTORY") -> list[str]:
        """For people: what differs, grouped, then a sentence and the next command."""
        groups: dict[tuple[str, ...], list[Difference]] = {}
        for entry in self.differences:
            key = (entry.kind,) if entry.kind == "inputs" else (entry.kind, entry.item, entry.expected, entry.found)
            groups.setdefault(key, []).append(entry)
        rows = [(_names([entry.where for entry in same]), same[0].words()) for same in groups.values()]
        width = min(max((len(name) for name, _ in rows), default=0), 40)
        lines = [f"{name:<{width}}  {words}" for name, words in sorted(rows)]
        lines += [f"{name:<{width}}  not reached: {why}" for name, why in sorted(self.unreachable.items())]
        lines += [f"{name:<{width}}  the look failed: {why}" for name, why in sorted(self.failures.items())]
        lines += [f"note: {note}" for note in self.notes]
        lines.append(self.sentence())
        if self.differences:
            lines.append(f"next: {self.next_command(inventory)}")
        return lines

    def sentence(self) -> str:
        """One line."""
        nodes = "1 node" if len(self.nodes) == 1 else f"{len(self.nodes):,} nodes"
        objects = sum(entry.where == CLUSTER for entry in self.differences)
        differ = "1 differs" if len(self.drifted) == 1 else f"{len(self.drifted) or 'none'} differ"
        cluster = f"{objects} differences in the cluster" if objects != 1 else "1 difference in the cluster"
        if not objects:
            is_known = self.cluster_compared and CLUSTER not in self.failures
            cluster = "the cluster is as described" if is_known else "the cluster was not compared"
        missing = f", {len(self.unreachable)} not reached" if self.unreachable else ""
        return f"{nodes}, {differ}{missing}; {cluster}: {self.seconds:.0f} s"

    def next_command(self, inventory: str) -> str:
        """What brings the site back to the description."""
        hosts = self.drifted
        limited = hosts and not any(entry.where == CLUSTER for entry in self.differences) and len(hosts) <= 8
        return f"myriad site -i {inventory}" + (f" --limit {','.join(hosts)}" if limited else "")

    def as_dict(self) -> dict[str, Any]:
        """Plain types."""
        return {
            "exit_code": self.exit_code,
            "nodes": len(self.nodes),
            "cluster_compared": self.cluster_compared,
            "drifted": self.drifted,
            "differences": [asdict(entry) for entry in self.differences],
            "unreachable": dict(self.unreachable),
            "failures": dict(self.failures),
            "notes": list(self.notes),
            "seconds": round(self.seconds, 1),
        }


def _names(names: list[str]) -> str:
    unique = list(dict.fromkeys(names))
    if len(unique) <= _NAMED:
        return ",".join(unique)
    return f"{','.join(unique[:3])} and {len(unique) - 3:,} more"


def report_of(events: Iterable[Mapping[str, Any]]) -> Report:
    """The report of one run of playbooks/drift.yml, from its events."""
    rows = list(events)
    run = result_of(rows)
    found: set[Difference] = set()
    nodes: set[str] = set()
    notes: list[str] = []
    in_cluster: set[str] = set()
    sentences: list[str] = []
    for event in rows:
        if event.get("event") != "result":
            continue
        host, play = str(event.get("host") or ""), str(event.get("play") or "")
        is_cluster = play.startswith(CLUSTER)
        if is_cluster:
            in_cluster.add(host)
        elif host != "localhost":
            nodes.add(host)
        for entry in event.get("drift") or []:
            if isinstance(entry, Mapping):
                found.add(Difference.of(CLUSTER if is_cluster else host, entry))
            elif is_cluster:
                sentences.append(str(entry))
        notes += [str(note) for note in event.get("notes") or []]
    found |= _of_record(sentences, explained=any(entry.kind == "object" for entry in found))
    failures: dict[str, str] = {}
    for result in run.hosts.values():
        for _role, task, message in result.failures:
            where = CLUSTER if result.name in in_cluster or result.name == "localhost" else result.name
            failures.setdefault(where, f"{task}: {_first_words(message)}")
    if not run.is_finished:
        failures.setdefault(CLUSTER, "the run was broken off before its end; what it printed says why")
    unreachable = {
        result.name: " ".join(result.unreachable.split()) for result in run.hosts.values() if result.unreachable
    }
    if not (nodes or in_cluster or unreachable or failures):
        # A look at nothing finds nothing: for a pipeline that would read as "all is well".
        failures[CLUSTER] = "no host was looked at: the limit names none that Myriad manages"
    return Report(
        sorted(nodes), sorted(found), unreachable, failures, list(dict.fromkeys(notes)), run.seconds, bool(in_cluster)
    )


def _first_words(message: str) -> str:
    """The first line of a message, and the next where that only announces it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1])


def _of_record(sentences: Iterable[str], *, explained: bool) -> set[Difference]:
    """What the look at the cluster's record said; a kind that is not as applied is explained by its objects."""
    found = set()
    for text in sentences:
        if text.startswith("the description,"):
            found.add(Difference(CLUSTER, "", "inputs", "inputs", "", ""))
        elif not (text.endswith("not as applied") and explained):
            found.add(Difference(CLUSTER, "", "state", text, "as the last complete run left it", "changed since"))
    return found
