"""Fill a site's registry from a bundle: images by tag, single files as blobs that nodes fetch by digest.

Speaks the OCI distribution protocol (https://github.com/opencontainers/distribution-spec, 1.1). Only what the registry
lacks is sent. Single files become blobs of the repository `artifacts`, named by one artifact manifest that is tagged
`bundle-<digest>`: garbage collection keeps what a tagged manifest names, so registry and file server are one program.
A node fetches a file at `GET /v2/artifacts/blobs/sha256:<hex>`.
"""

from __future__ import annotations

import hashlib
import json
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urljoin

import httpx

from myriad.errors import MyriadError
from myriad.stack.bundle import Blob, Bundle, ImageEntry

FILES_REPOSITORY = "artifacts"
_OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
_ARTIFACT_TYPE = "application/vnd.myriad.bundle.v1"
_EMPTY = b"{}"
_CHUNK_BYTES = 1 << 20
_ATTEMPTS = 3
_READ_TIMEOUT_S = 120.0
_CONNECT_TIMEOUT_S = 10.0

OnSent = Callable[[str, int], None]


class PushError(MyriadError):
    """The registry does not answer, or refuses something."""


class _SilentError(PushError):
    """The registry does not answer at all."""


@dataclass(frozen=True, kw_only=True)
class PushResult:
    """What a push did, or in a dry run would do.

    Attributes:
        sent: names: files by name, images by ref, in the bundle's order.
        sent_bytes: bytes of blobs that were sent.
        present: files and images that were there already, with all their blobs.
        answered: False after a dry run against a registry that is not up yet: everything would be sent.
    """

    sent: list[str] = field(default_factory=list)
    sent_bytes: int = 0
    present: int = 0
    answered: bool = True


@dataclass(frozen=True)
class _Item:
    """One blob in one repository, and the file or image that it belongs to."""

    repository: str
    name: str
    blob: Blob
    content: bytes | None = None


def _nobody(name: str, size: int) -> None:
    """An OnSent that reports to nobody."""


def push_bundle(
    bundle_dir: Path,
    registry_url: str,
    *,
    dry_run: bool = False,
    parallel: int = 4,
    on_sent: OnSent = _nobody,
    client: httpx.Client | None = None,
    ca: str = "",
    credentials: tuple[str, str] | None = None,
) -> PushResult:
    """Bring a registry to hold everything that a bundle holds.

    Args:
        bundle_dir: the bundle's directory.
        registry_url: `http://host:port` of the registry; without a scheme http is meant.
        dry_run: only look. A registry that does not answer is no error then: it may be the same run that brings it up.
        parallel: uploads at once.
        on_sent: told the name and bytes of every blob that was sent.
        client: an HTTP client; one without proxies when None, since the registry is the site's own.
        ca: certificates that vouch for the registry, in PEM; the system's when empty.
        credentials: user and password of who publishes.

    Raises:
        PushError: the registry does not answer or refuses; what was sent stays, and a rerun goes on from there.
        InputError, BundleError: there is no bundle, or a blob is missing from it.
    """
    bundle = Bundle.load(bundle_dir)
    base = registry_url if "://" in registry_url else f"{'https' if ca else 'http'}://{registry_url}"
    timeout = httpx.Timeout(_READ_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
    http = client or httpx.Client(timeout=timeout, trust_env=False, verify=tls_context(ca), auth=credentials)
    try:
        return _Pusher(bundle, http, base.rstrip("/"), dry_run, parallel, on_sent).push()
    finally:
        if client is None:
            http.close()


def tls_context(ca: str) -> ssl.SSLContext:
    """Trust for the site's registry: these certificates alone, or the system's where none are given.

    Raises:
        PushError: they are no certificates.
    """
    try:
        return ssl.create_default_context(cadata=ca or None)
    except (ssl.SSLError, ValueError) as error:
        raise PushError(f"what should vouch for the registry is no certificate in PEM: {error}") from error


def files_manifest(bundle: Bundle) -> bytes:
    """The artifact manifest that names a bundle's single files."""
    return json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": _OCI_MANIFEST,
            "artifactType": _ARTIFACT_TYPE,
            "config": {"mediaType": _EMPTY_TYPE, "digest": f"sha256:{_sha256(_EMPTY)}", "size": len(_EMPTY)},
            "layers": [
                {
                    "mediaType": entry.media_type,
                    "digest": f"sha256:{entry.sha256}",
                    "size": entry.size,
                    "annotations": {
                        "org.opencontainers.image.title": entry.name,
                        "org.opencontainers.image.version": entry.version,
                    },
                }
                for entry in bundle.manifest.files
            ],
        },
        separators=(",", ":"),
    ).encode()


def files_tag(bundle: Bundle) -> str:
    """The tag of the artifact manifest in the repository `artifacts`."""
    return f"bundle-{bundle.digest}"


class _Pusher:
    def __init__(
        self, bundle: Bundle, http: httpx.Client, base: str, dry_run: bool, parallel: int, on_sent: OnSent
    ) -> None:
        self._bundle = bundle
        self._http = http
        self._base = base
        self._dry_run = dry_run
        self._parallel = parallel
        self._on_sent = on_sent

    def push(self) -> PushResult:
        items = list(self._items())
        names = [entry.name for entry in self._bundle.manifest.files]
        names += [entry.ref for entry in self._bundle.manifest.images]
        try:
            self._request("GET", f"{self._base}/v2/", ok=(200,))
        except _SilentError:
            if not self._dry_run:
                raise
            everything = [*names, f"{FILES_REPOSITORY}:{files_tag(self._bundle)}"]
            return PushResult(sent=everything, sent_bytes=sum(item.blob.size for item in items), answered=False)
        with ThreadPoolExecutor(max_workers=self._parallel) as pool:
            there = list(pool.map(self._has_blob, items))
            missing = [item for item, present in zip(items, there, strict=True) if not present]
            if not self._dry_run:
                # The largest first, so that no worker is left with a long one at the end.
                list(pool.map(self._upload, sorted(missing, key=lambda item: -item.blob.size)))
            changed = {item.name for item in missing}
            manifests = [self._files_item(), *map(self._image_item, self._bundle.manifest.images)]
            stale = [
                item for item, ok in zip(manifests, pool.map(self._has_manifest, manifests), strict=True) if not ok
            ]
        if not self._dry_run:
            for repository, tag, body, media_type, _ in stale:
                url = f"{self._base}/v2/{repository}/manifests/{tag}"
                self._request("PUT", url, ok=(201,), content=body, headers={"Content-Type": media_type})
        changed |= {name for _, _, _, _, name in stale}
        sent = [name for name in names if name in changed]
        if files_tag(self._bundle) in changed:
            sent.append(f"{FILES_REPOSITORY}:{files_tag(self._bundle)}")
        return PushResult(
            sent=sent,
            sent_bytes=sum(item.blob.size for item in missing),
            present=sum(name not in changed for name in names),
        )

    def _items(self) -> Iterator[_Item]:
        seen: set[tuple[str, str]] = set()
        empty = Blob(sha256=_sha256(_EMPTY), size=len(_EMPTY), media_type=_EMPTY_TYPE)
        yield _Item(FILES_REPOSITORY, files_tag(self._bundle), empty, _EMPTY)
        for entry in self._bundle.manifest.files:
            blob = Blob(sha256=entry.sha256, size=entry.size, media_type=entry.media_type)
            yield _Item(FILES_REPOSITORY, entry.name, blob)
        for image in self._bundle.manifest.images:
            for blob in image.blobs:
                if (image.repo, blob.sha256) not in seen:
                    seen.add((image.repo, blob.sha256))
                    yield _Item(image.repo, image.ref, blob)

    def _files_item(self) -> tuple[str, str, bytes, str, str]:
        tag = files_tag(self._bundle)
        return FILES_REPOSITORY, tag, files_manifest(self._bundle), _OCI_MANIFEST, tag

    def _image_item(self, image: ImageEntry) -> tuple[str, str, bytes, str, str]:
        return image.repo, image.tag, self._read(image.digest), image.media_type, image.ref

    def _has_blob(self, item: _Item) -> bool:
        url = f"{self._base}/v2/{item.repository}/blobs/sha256:{item.blob.sha256}"
        return self._request("HEAD", url, ok=(200, 404)).status_code == 200

    def _has_manifest(self, item: tuple[str, str, bytes, str, str]) -> bool:
        repository, tag, body, media_type, _ = item
        url = f"{self._base}/v2/{repository}/manifests/{tag}"
        response = self._request("HEAD", url, ok=(200, 404), headers={"Accept": media_type})
        found: str | None = response.headers.get("Docker-Content-Digest")
        return found == f"sha256:{_sha256(body)}"

    def _upload(self, item: _Item) -> None:
        digest = f"sha256:{item.blob.sha256}"
        where = f"{self._base}/v2/{item.repository}/blobs/uploads/"
        started = self._request("POST", where, ok=(202,))
        target = httpx.URL(urljoin(where, started.headers.get("Location", ""))).copy_add_param("digest", digest)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(item.blob.size)}
        self._request("PUT", str(target), ok=(201,), headers=headers, body=lambda: self._content(item), restart=where)
        self._on_sent(item.name, item.blob.size)

    def _content(self, item: _Item) -> Iterator[bytes]:
        if item.content is not None:
            yield item.content
            return
        path = self._bundle.path(item.blob.sha256)
        if not path.is_file():
            raise PushError(
                f"the bundle lacks a blob of {item.name}", where=str(path), hint="run `myriad bundle verify` on it"
            )
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                yield chunk

    def _read(self, digest: str) -> bytes:
        path = self._bundle.path(digest)
        if not path.is_file():
            raise PushError("the bundle lacks a manifest", where=str(path), hint="run `myriad bundle verify` on it")
        return path.read_bytes()

    def _request(
        self,
        method: str,
        url: str,
        *,
        ok: tuple[int, ...],
        content: bytes | None = None,
        body: Callable[[], Iterator[bytes]] | None = None,
        headers: dict[str, str] | None = None,
        restart: str | None = None,
    ) -> httpx.Response:
        """One request, tried again on a broken connection or a 5xx; an upload (`restart`) begins anew each time."""
        reason, silent = "", True
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(0.5 * attempt)
            target = url
            try:
                if attempt and restart is not None:
                    begun = self._http.post(restart)
                    query = httpx.URL(url).params.get("digest")
                    location = httpx.URL(urljoin(restart, begun.headers.get("Location", "")))
                    target = str(location.copy_set_param("digest", query))
                response = self._http.request(
                    method, target, content=body() if body is not None else content, headers=headers
                )
            except httpx.TransportError as error:
                reason = f"{type(error).__name__}: {error}"
                continue
            silent = False
            if response.status_code in ok:
                return response
            reason = f"it answers {response.status_code} {response.text[:300]}".strip()
            if response.status_code < 500:
                break
        raise (_SilentError if silent else PushError)(
            f"the registry failed a {method}: {reason}",
            where=url,
            hint="is the registry running? see the role `registry`",
        )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
