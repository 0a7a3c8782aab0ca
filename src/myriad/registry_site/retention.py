"""What may leave a site's registry: nothing that a lock, the description, a node or a workload still names.

Pure: what the registry holds and what is named go in, a plan comes out. An index keeps its images, an image keeps the
documents that are attached to it (signature, SBOM, provenance). A manifest is deleted by its digest, which takes every
tag of it in that repository: so one kept tag keeps them all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_DOCUMENT_TAG = re.compile(r"sha256-(?P<hex>[0-9a-f]{64})(\..+)?")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One manifest or index of a repository.

    Attributes:
        repo: repository.
        digest: `sha256:<hex>`.
        tags: that name it; empty for one that only an index or a digest reaches.
        children: digests of the manifests of an index.
        subject: digest of the image that it is attached to; empty for an image.
        blobs: bytes by digest: its own, its config and layers.
    """

    repo: str
    digest: str
    tags: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    subject: str = ""
    blobs: Mapping[str, int] = field(default_factory=dict)

    @property
    def names(self) -> str:
        """As people read it: `repo:tag, tag`, or `repo@sha256:<12>`."""
        return f"{self.repo}:{', '.join(self.tags)}" if self.tags else f"{self.repo}@{self.digest[:19]}"


@dataclass
class Named:
    """What is still named, and by whom.

    Attributes:
        digests: digest -> by whom.
        refs: `repo:tag` -> by whom.
        repos: repository, or its last part -> by whom; keeps every tag of it.
    """

    digests: dict[str, str] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    repos: dict[str, str] = field(default_factory=dict)

    def add_text(self, text: str, by: str) -> None:
        """Take in any reference: `registry/repo:tag@sha256:...`, `repo:tag`, `repo`, a digest."""
        found = _DIGEST.search(text)
        if found:
            self.digests.setdefault(found.group(0), by)
            text = text[: found.start()].rstrip("@")
        text = text.strip()
        if not text:
            return
        last = text.rpartition("/")[2]
        name, colon, tag = last.partition(":")
        repo = f"{text[: len(text) - len(last)]}{name}"
        if colon and tag:
            self.refs.setdefault(f"{repo}:{tag}", by)
        elif not found:
            # No tag and no digest: whatever is meant, all of it stays.
            self.repos.setdefault(repo, by)

    def why(self, entry: Entry) -> str:
        """By whom an entry is named; empty where by nobody."""
        if entry.digest in self.digests:
            return self.digests[entry.digest]
        for known, by in self.refs.items():
            repo, _, tag = known.rpartition(":")
            if tag in entry.tags and _same_repo(repo, entry.repo):
                return by
        for repo, by in self.repos.items():
            if _same_repo(repo, entry.repo) or repo == entry.repo.rpartition("/")[2]:
                return by
        return ""


def _same_repo(named: str, repo: str) -> bool:
    """A reference may begin with the registry's name, under whatever name it was reached."""
    return named == repo or named.endswith(f"/{repo}")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run would do.

    Attributes:
        keep: (entry, why).
        delete: entries that nobody names.
        freed_bytes: of blobs that only deleted manifests hold, as far as the registry tells.
    """

    keep: Sequence[tuple[Entry, str]]
    delete: Sequence[Entry]
    freed_bytes: int


def plan(entries: Iterable[Entry], named: Named, *, protected: Sequence[str] = ("teams/",)) -> Plan:
    """Decide about every entry.

    Args:
        entries: all that the registry holds.
        named: what is named.
        protected: prefixes of repositories that are left alone altogether.
    """
    everything = list(entries)
    reasons: dict[tuple[str, str], str] = {}
    for entry in everything:
        why = next((f"below {prefix}" for prefix in protected if entry.repo.startswith(prefix)), "")
        why = why or named.why(entry)
        if why:
            reasons[entry.repo, entry.digest] = why
    # Until nothing is added: an index keeps its images, an image its documents, a document of a document as well.
    known = {(entry.repo, entry.digest): entry for entry in everything}
    grew = True
    while grew:
        grew = False
        for entry in everything:
            key = (entry.repo, entry.digest)
            if key in reasons:
                for child in entry.children:
                    if (entry.repo, child) in known and (entry.repo, child) not in reasons:
                        reasons[entry.repo, child] = f"part of {entry.names}"
                        grew = True
                continue
            for subject in _subjects(entry):
                if (entry.repo, subject) in reasons:
                    reasons[key] = f"attached to {known[entry.repo, subject].names}"
                    grew = True
                    break
    keep = [(entry, reasons[entry.repo, entry.digest]) for entry in everything if (entry.repo, entry.digest) in reasons]
    delete = [entry for entry in everything if (entry.repo, entry.digest) not in reasons]
    held = {digest for entry, _ in keep for digest in entry.blobs}
    freed = {digest: size for entry in delete for digest, size in entry.blobs.items() if digest not in held}
    return Plan(keep=keep, delete=delete, freed_bytes=sum(freed.values()))


def _subjects(entry: Entry) -> list[str]:
    """The images that an entry is a document of: by its subject, or by the tag that cosign and the fallback use."""
    found = [entry.subject] if entry.subject else []
    for tag in entry.tags:
        match = _DOCUMENT_TAG.fullmatch(tag)
        if match:
            found.append(f"sha256:{match.group('hex')}")
    return found
