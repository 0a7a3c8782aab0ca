"""Images from registries, by digest: resolve a tag once (`lock pin`), then take exactly those bytes.

Speaks the OCI distribution protocol with anonymous bearer tokens (https://distribution.github.io/distribution/spec/auth/token/).
Docker's own manifest types are accepted as well; an index is followed to the manifest of the wanted architecture.
"""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import closing
from typing import Any

import httpx

from myriad.stack.bundle import Blob, ImageEntry, Origin
from myriad.stack.fetch import (
    ChecksumError,
    FetchError,
    LazyClient,
    NotReachableError,
    SlowServerError,
    TruncatedError,
    VanishedError,
)
from myriad.stack.settings import Settings
from myriad.stack.store import Store, plain_hex

_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
# The registry that serves the images of docker.io.
_ALIASES = {"docker.io": "registry-1.docker.io"}
_MANIFEST_BYTES_MAX = 4 << 20


def split_ref(ref: str) -> tuple[str, str, str]:
    """`host/repo:tag` as (host, repo, tag). Raises FetchError when it is not of that form."""
    host, slash, rest = ref.partition("/")
    repo, colon, tag = rest.rpartition(":")
    if not slash or not colon or not repo or "/" in tag:
        raise FetchError(f"{ref!r} is not host/repository:tag")
    return host, repo, tag


class Puller:
    """Takes images from registries into the store.

    Args:
        store: where blobs go.
        settings: mirrors of registries, proxies, timeouts.
        client: the HTTP client; made from the settings when None.
    """

    def __init__(self, *, store: Store, settings: Settings, client: httpx.Client | None = None) -> None:
        self._store = store
        self._settings = settings
        self._client = LazyClient(settings, client)
        self._tokens: dict[str, str] = {}

    def __enter__(self) -> Puller:
        return self

    def __exit__(self, *details: object) -> None:
        self._client.close()

    def resolve(self, ref: str, *, arch: str) -> tuple[str, int]:
        """The digest (hex) and size in bytes of the manifest that a tag names for an architecture.

        Raises:
            NotReachableError, VanishedError, FetchError.
        """
        host, repo, tag = split_ref(ref)
        body, media_type = self._manifest(host, repo, tag)
        if media_type in _INDEXES:
            chosen = next(
                (
                    item
                    for item in json.loads(body).get("manifests", [])
                    if item.get("platform", {}).get("architecture") == arch
                    and item.get("platform", {}).get("os") == "linux"
                ),
                None,
            )
            if chosen is None:
                raise VanishedError(f"the image has no manifest for linux/{arch}", where=ref)
            return plain_hex(chosen["digest"]), int(chosen["size"])
        return hashlib.sha256(body).hexdigest(), len(body)

    def pull(self, ref: str, *, sha256: str, component: str, version: str, as_ref: str) -> ImageEntry:
        """Take an image by the digest of its manifest. Returns its entry for a bundle, under the name `as_ref`.

        Raises:
            ChecksumError: a blob is not what its digest says.
            NotReachableError, VanishedError, FetchError.
        """
        host, repo, _ = split_ref(ref)
        if self._store.has(sha256):
            body = self._store.read_bytes(sha256)
        else:
            body, _ = self._manifest(host, repo, f"sha256:{sha256}")
            found = hashlib.sha256(body).hexdigest()
            if found != sha256:
                raise ChecksumError(f"the manifest has sha256 {found}, the lock has {sha256}", where=ref)
            self._store.put_bytes(body)
        manifest: dict[str, Any] = json.loads(body)
        parts = [manifest["config"], *manifest["layers"]]
        for part in parts:
            self._blob(host, repo, plain_hex(part["digest"]))
        blobs = {
            plain_hex(part["digest"]): Blob(
                sha256=plain_hex(part["digest"]), size=part["size"], media_type=part["mediaType"]
            )
            for part in parts
        }
        return ImageEntry(
            ref=as_ref,
            component=component,
            version=version,
            digest=f"sha256:{sha256}",
            media_type=manifest.get("mediaType", _MANIFESTS[0]),
            size=len(body),
            blobs=list(blobs.values()),
            origin=Origin(source="upstream", ref=ref, digest=f"sha256:{sha256}"),
        )

    def _manifest(self, host: str, repo: str, reference: str) -> tuple[bytes, str]:
        accept = ", ".join((*_MANIFESTS, *_INDEXES))
        with self._stream(host, repo, f"manifests/{reference}", accept=accept) as response:
            body = response.read()
            if len(body) > _MANIFEST_BYTES_MAX:
                raise FetchError(f"the manifest is {len(body)} bytes long", where=str(response.url))
            return body, response.headers.get("Content-Type", "").partition(";")[0].strip()

    def _blob(self, host: str, repo: str, value: str) -> None:
        if self._store.has(value):
            return
        with self._stream(host, repo, f"blobs/sha256:{value}") as response, self._store.writer() as writer:
            try:
                for chunk in response.iter_raw(1 << 18):
                    writer.write(chunk)
            except httpx.TransportError as error:
                raise TruncatedError(f"the connection broke off ({error})", where=str(response.url)) from error
            if writer.sha256 != value:
                raise ChecksumError(f"the blob has sha256 {writer.sha256}, expected {value}", where=str(response.url))

    def _stream(self, host: str, repo: str, path: str, *, accept: str = "*/*") -> closing[httpx.Response]:
        base = self._settings.mirrors.registry_url(host)
        if base == f"https://{host}":  # no mirror
            base = f"https://{_ALIASES.get(host, host)}"
        url = f"{base.rstrip('/')}/v2/{repo}/{path}"
        return closing(self._open(url, repo, accept))

    def _open(self, url: str, repo: str, accept: str) -> httpx.Response:
        """A streaming response with status 200; asks for an anonymous token once when the registry wants one."""
        key = f"{httpx.URL(url).host} {repo}"
        for attempt in range(2):
            headers = {"Accept": accept, "Accept-Encoding": "identity"}
            if key in self._tokens:
                headers["Authorization"] = f"Bearer {self._tokens[key]}"
            try:
                client = self._client.get()
                response = client.send(client.build_request("GET", url, headers=headers), stream=True)
            except httpx.ReadTimeout as error:
                raise SlowServerError("the registry does not send", where=url) from error
            except httpx.TransportError as error:
                raise NotReachableError(
                    f"the registry does not answer ({error})", where=url, hint="set MYRIAD_MIRROR_REGISTRIES or a proxy"
                ) from error
            if response.status_code == 401 and attempt == 0:
                challenge = response.headers.get("WWW-Authenticate", "")
                response.close()
                self._tokens[key] = self._token(challenge, repo, url)
                continue
            if response.status_code == 200:
                return response
            response.close()
            if response.status_code == 404:
                raise VanishedError("the registry does not have it", where=url, hint="it is never replaced by another")
            raise FetchError(f"the registry answers {response.status_code}", where=url)
        raise FetchError("the registry wants credentials", where=url, hint="use a mirror that serves it without")

    def _token(self, challenge: str, repo: str, url: str) -> str:
        parameters = dict(_CHALLENGE.findall(challenge))
        if not challenge.lower().startswith("bearer") or "realm" not in parameters:
            raise FetchError("the registry wants credentials", where=url, hint="use a mirror that serves it without")
        query = {"scope": parameters.get("scope", f"repository:{repo}:pull")}
        if "service" in parameters:
            query["service"] = parameters["service"]
        try:
            answer = self._client.get().get(parameters["realm"], params=query)
            answer.raise_for_status()
            body = answer.json()
            return str(body.get("token") or body["access_token"])
        except (httpx.HTTPError, ValueError, KeyError) as error:
            raise FetchError(f"the registry gave no token ({error})", where=parameters["realm"]) from error
