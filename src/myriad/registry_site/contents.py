"""What a registry holds, read over its API, and the deletion of manifests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx

from myriad.errors import MyriadError, UnreachableError
from myriad.registry_site.retention import Entry
from myriad.stack.push import tls_context

_ACCEPT = ", ".join(
    (
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    )
)
_PAGE = 500


class ContentsError(MyriadError):
    """The registry cannot be read, or does not delete."""


class Contents:
    """One registry.

    Args:
        url: `http://host:port` or `https://host:port`.
        ca: certificates that vouch for it, in PEM; the system's when empty.
        credentials: user and password.
    """

    def __init__(self, url: str, *, ca: str = "", credentials: tuple[str, str] | None = None) -> None:
        self.url = url.rstrip("/")
        self._http = httpx.Client(
            base_url=self.url, timeout=60, trust_env=False, auth=credentials, verify=tls_context(ca)
        )

    def __enter__(self) -> Contents:
        return self

    def __exit__(self, *details: object) -> None:
        self._http.close()

    def entries(self, *, parallel: int = 8) -> list[Entry]:
        """Every manifest that a tag or an index reaches.

        Raises:
            UnreachableError: nobody answers.
            ContentsError: something cannot be read; a plan from half of the truth would delete too much or too little.
        """
        found: list[Entry] = []
        with ThreadPoolExecutor(max_workers=parallel) as pool:
            for entries in pool.map(self._repository, self._paged("/v2/_catalog", "repositories")):
                found += entries
        return sorted(found, key=lambda entry: (entry.repo, entry.tags, entry.digest))

    def delete(self, entry: Entry) -> bool:
        """Delete a manifest with its tags. Returns False where it was gone already."""
        answer = self._send("DELETE", f"/v2/{entry.repo}/manifests/{entry.digest}")
        if answer.status_code == 404:
            return False
        if answer.status_code == 405:
            raise ContentsError(
                "the registry does not delete", where=self.url, hint="storage.delete.enabled in its configuration"
            )
        if answer.status_code != 202:
            raise ContentsError(
                f"the registry answers {answer.status_code} {answer.text[:200]}", where=f"{self.url} {entry.names}"
            )
        return True

    def _repository(self, repo: str) -> list[Entry]:
        tags: dict[str, list[str]] = {}
        for tag in self._paged(f"/v2/{repo}/tags/list", "tags"):
            digest = self._digest(repo, tag)
            if digest:  # a tag that went meanwhile
                tags.setdefault(digest, []).append(tag)
        found: dict[str, Entry] = {}
        pending = list(tags)
        while pending:
            digest = pending.pop()
            if digest in found:
                continue
            entry = self._entry(repo, digest, tuple(sorted(tags.get(digest, []))))
            if entry is not None:
                found[digest] = entry
                pending += entry.children
        return list(found.values())

    def _digest(self, repo: str, tag: str) -> str:
        answer = self._send("HEAD", f"/v2/{repo}/manifests/{tag}")
        if answer.status_code == 404:
            return ""
        digest = answer.headers.get("Docker-Content-Digest", "")
        if answer.status_code != 200 or not digest:
            raise ContentsError(f"answers {answer.status_code} without a digest", where=f"{self.url} {repo}:{tag}")
        return str(digest)

    def _entry(self, repo: str, digest: str, tags: tuple[str, ...]) -> Entry | None:
        answer = self._send("GET", f"/v2/{repo}/manifests/{digest}")
        if answer.status_code == 404:
            return None  # an index may name images of other architectures that nobody pushed
        if answer.status_code != 200:
            raise ContentsError(f"answers {answer.status_code}", where=f"{self.url} {repo}@{digest}")
        value = self._json(answer)
        parts = [value["config"]] if isinstance(value.get("config"), dict) else []
        parts += value.get("layers") or []
        blobs = {str(part["digest"]): int(part.get("size", 0)) for part in parts}
        return Entry(
            repo=repo,
            digest=digest,
            tags=tags,
            children=tuple(str(item["digest"]) for item in value.get("manifests") or []),
            subject=str((value.get("subject") or {}).get("digest", "")),
            blobs=blobs | {digest: len(answer.content)},
        )

    def _paged(self, path: str, key: str) -> Iterator[str]:
        """Names of a listing, over all its pages."""
        target = f"{path}?n={_PAGE}"
        while target:
            answer = self._send("GET", target)
            if answer.status_code == 404:
                return  # a repository whose last tag was deleted
            if answer.status_code != 200:
                hint = "give --credentials USER:FILE" if answer.status_code == 401 else None
                raise ContentsError(f"answers {answer.status_code}", where=f"{self.url}{path}", hint=hint)
            yield from self._json(answer).get(key) or []
            following = answer.links.get("next", {}).get("url", "")
            target = urljoin(f"{self.url}{path}", following).removeprefix(self.url) if following else ""

    def _json(self, answer: httpx.Response) -> dict[str, Any]:
        try:
            value = json.loads(answer.content)
        except ValueError as error:
            raise ContentsError("sent something that is no JSON", where=str(answer.url)) from error
        if not isinstance(value, dict):
            raise ContentsError("sent something else than an object", where=str(answer.url))
        return value

    def _send(self, method: str, path: str) -> httpx.Response:
        try:
            return self._http.request(method, path, headers={"Accept": _ACCEPT})
        except httpx.TransportError as error:
            raise UnreachableError(
                f"the registry does not answer: {error}",
                where=self.url,
                hint="--ca names who vouches for it; is the service myriad-registry running there?",
            ) from error


def read_ca(path: Path | None) -> str:
    """The certificates of a file; empty for none. Raises MyriadError."""
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MyriadError(f"cannot be read: {error}", where=str(path)) from error
