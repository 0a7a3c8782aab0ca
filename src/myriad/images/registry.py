"""A client of the registry API: manifests and blobs by digest, tags, attached documents; pull, and push of what is
missing.

Speaks https://github.com/opencontainers/distribution-spec 1.1 with basic credentials or bearer tokens
(https://distribution.github.io/distribution/spec/auth/token/). A registry that has no referrers API gets the index
under the tag `sha256-<hex>` that the specification describes for it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urljoin

import httpx

from myriad.errors import InputError, MyriadError, UnreachableError
from myriad.images.oci import (
    MEDIA_TYPE_INDEX,
    MEDIA_TYPE_MANIFEST,
    BlobStore,
    Descriptor,
    Layout,
    canonical_json,
    sha256_digest,
)
from myriad.images.refs import DIGEST, REPO, TAG, Ref, parse_ref, stored_credentials

__all__ = ["Manifest", "Pushed", "Ref", "Registry", "RegistryError", "parse_ref", "stored_credentials"]

DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
INDEXES = (MEDIA_TYPE_INDEX, DOCKER_INDEX)
_ACCEPT = ", ".join((MEDIA_TYPE_MANIFEST, DOCKER_MANIFEST, *INDEXES))
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_MANIFEST_BYTES_MAX = 4 << 20
_CHUNK = 1 << 20
_ATTEMPTS = 3


class RegistryError(MyriadError):
    """A registry refuses something, or sends what it should not."""


class RegistryMissingError(RegistryError):
    """The registry answers, and does not have it."""


class RegistryDeniedError(RegistryError):
    """The registry wants other credentials, or these may not do that."""


class RegistryUnreachableError(UnreachableError):
    """The registry does not answer."""


class Manifest(NamedTuple):
    """A manifest or index as the registry has it. `digest` is that of `body`."""

    body: bytes
    media_type: str
    digest: str

    @property
    def value(self) -> dict[str, Any]:
        """Its JSON."""
        loaded: dict[str, Any] = json.loads(self.body)
        return loaded


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """What a push did.

    Attributes:
        digest: of the image's manifest.
        sent: blobs that were sent, by digest, with their bytes.
        mounted: blobs that the registry had in another repository of it.
        present: how many blobs were there.
        documents: attached manifests that were sent or there, by artifact type.
    """

    digest: str
    sent: dict[str, int] = field(default_factory=dict)
    mounted: list[str] = field(default_factory=list)
    present: int = 0
    documents: list[str] = field(default_factory=list)

    @property
    def sent_bytes(self) -> int:
        """Bytes of blobs that were sent."""
        return sum(self.sent.values())


OnBytes = Callable[[str, int, int], None]


def _nobody(digest: str, done: int, total: int) -> None:
    """An OnBytes that reports to nobody."""


class Registry:
    """One registry.

    Args:
        url: `https://host[:port]`, or `http://` for a registry without TLS; without a scheme https is meant, and http
            for this machine (localhost, 127.0.0.1).
        ca: file with certificates to trust besides the system's.
        credentials: (user, password or token); None asks without.
        client: an HTTP client that somebody else closes.
        parallel: transfers at once.
    """

    def __init__(
        self,
        url: str,
        *,
        ca: Path | None = None,
        credentials: tuple[str, str] | None = None,
        client: httpx.Client | None = None,
        parallel: int = 4,
    ) -> None:
        self.url = _with_scheme(url).rstrip("/")
        self._ca = ca
        self._credentials = credentials
        self._given = client
        self._client: httpx.Client | None = client
        self._parallel = parallel
        self._tokens: dict[str, str] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *details: object) -> None:
        if self._client is not None and self._given is None:
            self._client.close()
            self._client = None

    # --- reading ---

    def ping(self) -> None:
        """Raises RegistryUnreachableError, RegistryDeniedError or RegistryError unless the registry serves the API."""
        self._request("GET", "/v2/", ok=(200,))

    def manifest(self, repo: str, ref: str) -> Manifest:
        """A manifest or index by tag or digest; one by digest is checked.

        Raises:
            RegistryMissingError, RegistryDeniedError, RegistryUnreachableError, RegistryError.
        """
        response = self._request("GET", f"/v2/{repo}/manifests/{ref}", ok=(200,), headers={"Accept": _ACCEPT})
        body = response.content
        where = str(response.url)
        if len(body) > _MANIFEST_BYTES_MAX:
            raise RegistryError(f"the manifest is {len(body):,} bytes long", where=where)
        digest = sha256_digest(body)
        if DIGEST.fullmatch(ref) and digest != ref:
            raise RegistryError(f"the registry sent a manifest with {digest} for {ref}", where=where)
        media_type = response.headers.get("Content-Type", "").partition(";")[0].strip()
        try:
            media_type = json.loads(body).get("mediaType") or media_type
        except (ValueError, AttributeError) as error:
            raise RegistryError("the registry sent something that is no manifest", where=where) from error
        return Manifest(body, media_type, digest)

    def image_manifest(self, repo: str, ref: str, *, architecture: str = "amd64") -> Manifest:
        """Like `manifest`, but an index is followed to the manifest for linux on an architecture."""
        found = self.manifest(repo, ref)
        if found.media_type not in INDEXES:
            return found
        offered = found.value.get("manifests", [])
        for item in offered:
            platform = item.get("platform", {})
            if platform.get("architecture") == architecture and platform.get("os") == "linux":
                return self.manifest(repo, str(item["digest"]))
        names = sorted(
            {f"{one.get('platform', {}).get('os')}/{one.get('platform', {}).get('architecture')}" for one in offered}
        )
        raise RegistryMissingError(
            f"the image has no manifest for linux/{architecture} (it has {', '.join(names) or 'none'})",
            where=f"{self.url}/v2/{repo}/manifests/{ref}",
        )

    def digest_of(self, repo: str, ref: str) -> str | None:
        """The digest that a tag names now, or None where there is no such tag."""
        response = self._request("HEAD", f"/v2/{repo}/manifests/{ref}", ok=(200, 404), headers={"Accept": _ACCEPT})
        if response.status_code == 404:
            return None
        found = response.headers.get("Docker-Content-Digest", "")
        return found if DIGEST.fullmatch(found) else self.manifest(repo, ref).digest

    def has_blob(self, repo: str, digest: str) -> bool:
        """True if the repository has the blob."""
        return self._request("HEAD", f"/v2/{repo}/blobs/{digest}", ok=(200, 404)).status_code == 200

    def blob(self, repo: str, digest: str) -> Iterator[bytes]:
        """A blob in pieces; it is checked when the last one has come.

        Raises:
            RegistryError: it is not what its digest says, or the connection broke off; and as `manifest`.
        """
        path = f"/v2/{repo}/blobs/{digest}"
        found = hashlib.sha256()
        with self._stream(path) as response:
            try:
                for chunk in response.iter_raw(_CHUNK):
                    found.update(chunk)
                    yield chunk
            except httpx.TransportError as error:
                raise RegistryError(f"the connection broke off ({error})", where=self.url + path) from error
        if f"sha256:{found.hexdigest()}" != digest:
            raise RegistryError(f"the registry sent sha256:{found.hexdigest()} for {digest}", where=self.url + path)

    def fetch_blob(self, repo: str, digest: str, store: BlobStore, *, size: int | None = None) -> bool:
        """Bring a blob into a store; False if it was there. A broken connection is tried again from the start."""
        if store.has(digest, size=size):
            return False
        for attempt in range(_ATTEMPTS):
            try:
                with store.writer() as writer:
                    for chunk in self.blob(repo, digest):
                        writer.write(chunk)
                return True
            except (RegistryMissingError, RegistryDeniedError):
                raise
            except MyriadError:
                if attempt == _ATTEMPTS - 1:
                    raise
                time.sleep(0.5 * (attempt + 1))
        return True

    def referrers(self, repo: str, digest: str) -> list[Descriptor]:
        """The documents attached to a manifest: by the referrers API, or by the index under the tag `sha256-<hex>`."""
        response = self._request("GET", f"/v2/{repo}/referrers/{digest}", ok=(200, 404, 400, 405))
        if response.status_code == 200:
            body = response.content
        else:
            try:
                body = self.manifest(repo, digest.replace(":", "-")).body
            except RegistryMissingError:
                return []
        return [Descriptor.of(item) for item in json.loads(body).get("manifests", [])]

    # --- writing ---

    def push_layout(
        self,
        layout: Layout | Path,
        repo: str,
        tag: str = "",
        *,
        ref: str = "",
        mount_from: str = "",
        on_bytes: OnBytes = _nobody,
    ) -> Pushed:
        """Push an image of a layout with the documents attached to it. Only what the registry lacks is sent.

        Args:
            layout: the layout or its directory.
            repo: repository in the registry, such as `vision/my-train`.
            tag: name for it; without one it is reached by its digest alone.
            ref: which image of a layout that has several.
            mount_from: a repository of the same registry that has some of the layers already.
            on_bytes: told (digest, bytes sent, bytes in all) as blobs go out.

        Raises:
            InputError: no such image, or no such name for a repository or tag.
            RegistryUnreachableError, RegistryDeniedError, RegistryError.
        """
        if not REPO.fullmatch(repo):
            raise InputError(
                f'"{repo}" is no name of a repository', hint="lower case, digits and . _ - between, / for paths"
            )
        if tag and not TAG.fullmatch(tag):
            raise InputError(f'"{tag}" is no tag', hint="letters, digits, . _ -; 128 at most")
        source = layout if isinstance(layout, Layout) else Layout(layout)
        image = source.image(ref)
        manifests: list[tuple[bytes, str, str, str]] = [
            (source.read(image.manifest_digest), image.blobs[image.manifest_digest].media_type, tag, "")
        ]
        parts: dict[str, Descriptor] = {}
        for digest, blob in image.blobs.items():
            if digest != image.manifest_digest:
                parts[digest] = Descriptor(blob.media_type, digest, blob.size)
        signature = source.tagged(f"{image.manifest_digest.replace(':', '-')}.sig")
        attached = [*source.referrers(image.manifest_digest), *([signature] if signature is not None else [])]
        for entry in attached:
            body = source.read(entry.digest)
            value = json.loads(body)
            for item in (value["config"], *value.get("layers", ())):
                part = Descriptor.of(item)
                parts.setdefault(part.digest, part)
            subject = str(value.get("subject", {}).get("digest", ""))
            manifests.append((body, entry.media_type, entry.ref, subject))
        missing = [part.digest for part in parts.values() if not source.path(part.digest).is_file()]
        if missing:
            raise RegistryError(
                f"the layout lacks {len(missing)} of its blobs: {missing[0]}" + (", ..." if len(missing) > 1 else ""),
                where=str(source.root),
                hint="build or export the image again",
            )
        self.ping()
        sent: dict[str, int] = {}
        mounted: list[str] = []

        def one(part: Descriptor) -> None:
            if self.has_blob(repo, part.digest):
                return
            if self._push_blob(repo, part, source.path(part.digest), mount_from, on_bytes):
                sent[part.digest] = part.size
            else:
                mounted.append(part.digest)

        with ThreadPoolExecutor(max_workers=self._parallel) as pool:
            # The largest first, so that no worker is left with a long one at the end.
            list(pool.map(one, sorted(parts.values(), key=lambda part: -part.size)))
        for body, media_type, name, subject in manifests:
            self.push_manifest(repo, name or sha256_digest(body), body, media_type, subject=subject)
        return Pushed(
            digest=image.manifest_digest,
            sent=dict(sorted(sent.items())),
            mounted=sorted(mounted),
            present=len(parts) - len(sent) - len(mounted),
            documents=sorted(entry.artifact_type or entry.ref for entry in attached),
        )

    def push_manifest(self, repo: str, ref: str, body: bytes, media_type: str, *, subject: str = "") -> str:
        """Push a manifest under a tag or its digest; returns its digest.

        Args:
            subject: digest of the manifest that it is attached to; a registry without the referrers API then gets it
                added to the index of that name.
        """
        response = self._request(
            "PUT",
            f"/v2/{repo}/manifests/{ref}",
            ok=(201,),
            content=body,
            headers={"Content-Type": media_type},
            push=True,
        )
        digest = sha256_digest(body)
        if subject and "OCI-Subject" not in response.headers:
            self._add_referrer(repo, subject, body, media_type)
        return digest

    def _add_referrer(self, repo: str, subject: str, body: bytes, media_type: str) -> None:
        tag = subject.replace(":", "-")
        try:
            known = self.manifest(repo, tag).value.get("manifests", [])
        except RegistryMissingError:
            known = []
        value = json.loads(body)
        own = {
            "mediaType": media_type,
            "digest": sha256_digest(body),
            "size": len(body),
            "artifactType": value.get("artifactType") or value["config"]["mediaType"],
        }
        if value.get("annotations"):
            own["annotations"] = value["annotations"]
        if any(item["digest"] == own["digest"] for item in known):
            return
        index = {"schemaVersion": 2, "mediaType": MEDIA_TYPE_INDEX, "manifests": [*known, own]}
        self._request(
            "PUT",
            f"/v2/{repo}/manifests/{tag}",
            ok=(201,),
            content=canonical_json(index),
            headers={"Content-Type": MEDIA_TYPE_INDEX},
            push=True,
        )

    def _push_blob(self, repo: str, part: Descriptor, path: Path, mount_from: str, on_bytes: OnBytes) -> bool:
        """Upload a blob; False if the registry could mount it from another repository instead."""
        start = f"/v2/{repo}/blobs/uploads/"
        query = f"?mount={part.digest}&from={mount_from}" if mount_from else ""
        reason = ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(0.5 * attempt)
            begun = self._request("POST", start + (query if not attempt else ""), ok=(201, 202), push=True)
            if begun.status_code == 201:
                return False
            target = httpx.URL(urljoin(str(begun.url), begun.headers.get("Location", ""))).copy_add_param(
                "digest", part.digest
            )

            def content() -> Iterator[bytes]:
                done = 0
                with path.open("rb") as file:
                    while chunk := file.read(_CHUNK):
                        yield chunk
                        done += len(chunk)
                        on_bytes(part.digest, done, part.size)

            headers = {
                "Content-Type": "application/octet-stream",
                "Content-Length": str(part.size),
                **self._authorization(repo, push=True),
            }
            try:
                response = self._http().put(target, content=content(), headers=headers)
            except httpx.TransportError as error:
                reason = f"{type(error).__name__}: {error}"
                continue
            if response.status_code == 201:
                return True
            reason = _told(response)
            if response.status_code == 401:
                self._tokens.pop(self._key(repo, push=True), None)
            elif response.status_code < 500:
                break
        raise RegistryError(f"the upload of {part.digest} failed: {reason}", where=self.url + start)

    # --- requests ---

    def _http(self) -> httpx.Client:
        with self._lock:
            if self._client is None:
                context = ssl.create_default_context()
                if self._ca is not None:
                    try:
                        context.load_verify_locations(self._ca)
                    except (OSError, ssl.SSLError) as error:
                        raise InputError(f"holds no certificates ({error})", where=str(self._ca)) from error
                self._client = httpx.Client(
                    timeout=httpx.Timeout(120.0, connect=10.0), verify=context, trust_env=False, follow_redirects=True
                )
            return self._client

    def _request(
        self,
        method: str,
        path: str,
        *,
        ok: tuple[int, ...],
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        push: bool = False,
    ) -> httpx.Response:
        """One request, tried again on a broken connection or a 5xx; asks for a token when the registry wants one."""
        url, repo = self.url + path, _repo_of(path)
        reason, silent, asked = "", True, False
        attempt = 0
        while attempt < _ATTEMPTS:
            merged = {**(headers or {}), **self._authorization(repo, push=push)}
            try:
                response = self._http().request(method, url, content=content, headers=merged)
            except httpx.TransportError as error:
                reason = _connection(error)
                attempt += 1
                time.sleep(0.3 * attempt if attempt < _ATTEMPTS else 0)
                continue
            silent = False
            if response.status_code in ok:
                return response
            if response.status_code == 401 and not asked:
                asked = True
                self._authorize(response.headers.get("WWW-Authenticate", ""), repo, url, push=push)
                continue
            reason = _told(response)
            if response.status_code < 500:
                raise self._refused(response.status_code, method, url, reason)
            attempt += 1
            time.sleep(0.3 * attempt if attempt < _ATTEMPTS else 0)
        if silent:
            raise RegistryUnreachableError(
                f"the registry does not answer ({reason})", where=url, hint=_reach_hint(reason)
            )
        raise RegistryError(f"the registry failed a {method}: {reason}", where=url)

    def _stream(self, path: str) -> closing[httpx.Response]:
        url, repo = self.url + path, _repo_of(path)
        reason = ""
        for attempt in range(2):
            client = self._http()
            headers = {"Accept-Encoding": "identity", **self._authorization(repo, push=False)}
            try:
                response = client.send(client.build_request("GET", url, headers=headers), stream=True)
            except httpx.TransportError as error:
                reason = _connection(error)
                raise RegistryUnreachableError(
                    f"the registry does not answer ({reason})", where=url, hint=_reach_hint(reason)
                ) from error
            if response.status_code == 200:
                return closing(response)
            response.read()
            reason = _told(response)
            if response.status_code == 401 and attempt == 0:
                self._authorize(response.headers.get("WWW-Authenticate", ""), repo, url, push=False)
                continue
            raise self._refused(response.status_code, "GET", url, reason)
        raise RegistryDeniedError(f"the registry refuses: {reason}", where=url)

    def _refused(self, status: int, method: str, url: str, reason: str) -> MyriadError:
        if status == 404:
            return RegistryMissingError("the registry does not have it", where=url, hint=f"it says {reason}")
        if status in (401, 403):
            who = f"user {self._credentials[0]}" if self._credentials else "nobody (no credentials were given)"
            return RegistryDeniedError(
                f"the registry refuses a {method} by {who}: {reason}",
                where=url,
                hint="give credentials: `docker login` keeps them in ~/.docker/config.json, which is read here",
            )
        return RegistryError(f"the registry refuses a {method}: {reason}", where=url)

    def _key(self, repo: str, *, push: bool) -> str:
        return f"{repo} {'push' if push else 'pull'}"

    def _authorization(self, repo: str, *, push: bool) -> dict[str, str]:
        value = self._tokens.get(self._key(repo, push=push))
        return {"Authorization": value} if value else {}

    def _authorize(self, challenge: str, repo: str, url: str, *, push: bool) -> None:
        scheme = challenge.partition(" ")[0].lower()
        if scheme == "basic":
            if self._credentials is None:
                raise self._refused(401, "request", url, "it wants a user and a password")
            secret = base64.b64encode(":".join(self._credentials).encode()).decode()
            self._tokens[self._key(repo, push=push)] = f"Basic {secret}"
            return
        parameters = dict(_CHALLENGE.findall(challenge))
        if scheme != "bearer" or "realm" not in parameters:
            raise RegistryDeniedError(
                f"the registry wants credentials of a kind that is not known: {challenge!r}", where=url
            )
        query = {"scope": f"repository:{repo}:{'pull,push' if push else 'pull'}"} if repo else {}
        if "service" in parameters:
            query["service"] = parameters["service"]
        try:
            answer = self._http().get(parameters["realm"], params=query, auth=self._credentials)
            answer.raise_for_status()
            body = answer.json()
            self._tokens[self._key(repo, push=push)] = f"Bearer {body.get('token') or body['access_token']}"
        except (httpx.HTTPError, ValueError, KeyError) as error:
            raise RegistryDeniedError(
                f"the registry gave no token ({error})",
                where=parameters["realm"],
                hint="check the user and the password or token",
            ) from error


def _with_scheme(url: str) -> str:
    if "://" in url:
        return url
    host = url.partition("/")[0].rpartition(":")[0] or url.partition("/")[0]
    return f"{'http' if host in ('localhost', '127.0.0.1', '[::1]') else 'https'}://{url}"


def _repo_of(path: str) -> str:
    match = re.match(r"/v2/(.+?)/(manifests|blobs|referrers|tags)/", path)
    return match[1] if match else ""


def _told(response: httpx.Response) -> str:
    """A status and, where the registry explains it, its own words."""
    try:
        errors = response.json()["errors"]
        words = "; ".join(f"{one.get('code', '')} {one.get('message', '')}".strip() for one in errors)
    except (ValueError, KeyError, TypeError, AttributeError, httpx.ResponseNotRead):
        words = ""
    return f"{response.status_code} {words}".strip()


def _connection(error: httpx.TransportError) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _reach_hint(reason: str) -> str:
    if "CERTIFICATE" in reason.upper():
        return "its certificate is not trusted here: give the site's CA with --ca FILE"
    if "SSL" in reason.upper() or "RECORD" in reason.upper():
        return "it may serve plain HTTP: write http:// before its name"
    return "is it running, and is the name right?"
