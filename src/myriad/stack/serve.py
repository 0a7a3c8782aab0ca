"""`myriad bundle serve`: a bundle over HTTP, read-only, from where it lies. Nothing is unpacked or copied.

One small server instead of three programs, because all of it is "this path is that blob": the read half of the OCI
distribution protocol (images by tag and digest, and single files as blobs of `artifacts`, as the site's registry has
them), an apt repository under /apt, a simple index of wheels under /wheels, files by name under /files. Whoever
fetches checks digests: containerd, apt, uv and the module `artifacts` all do. The site's registry at scale is the role
`registry`; this one feeds what comes before it, or instead of it at a small site.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from packaging.utils import canonicalize_name

from myriad.errors import MyriadError
from myriad.stack.bundle import Bundle, manifest_bytes
from myriad.stack.bundle_offline import package_path
from myriad.stack.bundle_wheels import simple_index
from myriad.stack.push import FILES_REPOSITORY, files_manifest, files_tag

_OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_OCI_INDEX = "application/vnd.oci.image.index.v1+json"
_BLOB = "application/octet-stream"
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
OnRequest = Callable[[str, str, int, str], None]


@dataclass(frozen=True)
class Answer:
    """What a path is: bytes, or a file. `digest` is `sha256:<hex>` where the protocol wants it in a header."""

    media_type: str
    body: bytes = b""
    file: Path | None = None
    digest: str = ""
    status: HTTPStatus = HTTPStatus.OK
    location: str = ""


class Site:
    """What a bundle answers on which path. Holds no connection, so that it is tested by value.

    Args:
        bundle: the bundle, a directory.
    """

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        manifest = bundle.manifest
        self._artifacts = files_manifest(bundle)
        self._paths: dict[str, tuple[str, str]] = {}  # path -> (sha256, media type)
        for entry in manifest.files:
            self._paths[f"files/{entry.name}"] = (entry.sha256, entry.media_type)
        for package in manifest.packages:
            self._paths[f"apt/{package_path(package)}"] = (package.sha256, "application/vnd.debian.binary-package")
        for served in manifest.served:
            self._paths[served.path] = (served.sha256, "text/plain; charset=utf-8")
        for wheel in manifest.wheels:
            self._paths[f"wheels/files/{wheel.filename}"] = (wheel.sha256, _BLOB)
        self._wheels = simple_index(manifest.wheels)
        self._repositories: dict[str, set[str]] = {FILES_REPOSITORY: {entry.sha256 for entry in manifest.files}}
        self._tags: dict[str, dict[str, str]] = {}
        self._manifests: dict[tuple[str, str], str] = {}  # (repository, hex) -> media type
        for image in manifest.images:
            digest = image.digest.removeprefix("sha256:")
            self._repositories.setdefault(image.repo, set()).update({digest, *(blob.sha256 for blob in image.blobs)})
            self._tags.setdefault(image.repo, {})[image.tag] = digest
            self._manifests[image.repo, digest] = image.media_type

    def answer(self, path: str) -> Answer:
        """The answer to a GET or HEAD of a path (without query)."""
        clean = unquote(path).lstrip("/")
        if clean in ("", "index.html"):
            return Answer("text/plain; charset=utf-8", self._overview().encode())
        if clean == "v2" or clean.startswith("v2/"):
            return self._registry(clean[3:].strip("/"))
        if clean == "bundle.yml":
            return Answer("text/yaml; charset=utf-8", manifest_bytes(self.bundle.manifest))
        if clean == "apt/myriad-bundle.asc" and self.bundle.manifest.apt and self.bundle.manifest.apt.key:
            return Answer("application/pgp-keys", self.bundle.manifest.apt.key.encode())
        if clean.startswith("wheels/simple"):
            return self._simple(clean.removeprefix("wheels/simple"))
        if clean in self._paths:
            digest, media_type = self._paths[clean]
            return Answer(media_type, file=self.bundle.path(digest))
        return Answer("text/plain; charset=utf-8", b"not in this bundle\n", status=HTTPStatus.NOT_FOUND)

    def _overview(self) -> str:
        manifest = self.bundle.manifest
        return (
            f"Myriad bundle {self.bundle.digest[:12]} ({manifest.arch}), lock {manifest.lock_sha256[:12]}\n"
            f"/v2/            {len(self._tags)} image repositories, {len(manifest.files)} files by digest\n"
            f"/apt            {len(manifest.packages)} packages\n"
            f"/wheels/simple  {len(manifest.wheels)} wheels\n"
            f"/files          files by name\n"
            f"/bundle.yml     the manifest\n"
        )

    def _registry(self, rest: str) -> Answer:
        if not rest:
            return Answer("application/json", b"{}")
        if rest == "_catalog":
            return _json({"repositories": sorted(self._repositories)})
        for marker, find in (
            ("/manifests/", self._manifest),
            ("/blobs/", self._blob),
            ("/tags/", self._tag_list),
            ("/referrers/", self._referrers),
        ):
            repository, found, reference = rest.rpartition(marker)
            if found:
                if repository not in self._repositories:
                    return _error("NAME_UNKNOWN", f"no repository {repository} in this bundle")
                return find(repository, reference)
        return _error("UNSUPPORTED", "only manifests, blobs, tags and referrers are served")

    def _manifest(self, repository: str, reference: str) -> Answer:
        if repository == FILES_REPOSITORY:
            digest = _sha256(self._artifacts)
            if reference in (files_tag(self.bundle), f"sha256:{digest}"):
                return Answer(_OCI_MANIFEST, self._artifacts, digest=f"sha256:{digest}")
        digest = self._tags.get(repository, {}).get(reference, reference.removeprefix("sha256:"))
        media_type = self._manifests.get((repository, digest))
        if media_type is None:
            return _error("MANIFEST_UNKNOWN", f"no manifest {reference} of {repository} in this bundle")
        return Answer(media_type, file=self.bundle.path(digest), digest=f"sha256:{digest}")

    def _blob(self, repository: str, reference: str) -> Answer:
        digest = reference.removeprefix("sha256:")
        if digest not in self._repositories[repository]:
            return _error("BLOB_UNKNOWN", f"no blob {reference} of {repository} in this bundle")
        return Answer(_BLOB, file=self.bundle.path(digest), digest=f"sha256:{digest}")

    def _tag_list(self, repository: str, reference: str) -> Answer:
        if reference != "list":
            return _error("UNSUPPORTED", "tags are listed under /tags/list")
        tags = [files_tag(self.bundle)] if repository == FILES_REPOSITORY else sorted(self._tags.get(repository, {}))
        return _json({"name": repository, "tags": tags})

    def _referrers(self, repository: str, reference: str) -> Answer:
        body = {"schemaVersion": 2, "mediaType": _OCI_INDEX, "manifests": []}
        return Answer(_OCI_INDEX, json.dumps(body).encode())

    def _simple(self, rest: str) -> Answer:
        name = rest.strip("/")
        if not name:
            links = "".join(f'<a href="{project}/">{project}</a>\n' for project in self._wheels)
            return _page(links)
        if not rest.endswith("/"):
            return Answer("text/plain", status=HTTPStatus.MOVED_PERMANENTLY, location=f"/wheels/simple/{quote(name)}/")
        entries = self._wheels.get(canonicalize_name(name))
        if entries is None:
            return Answer("text/plain; charset=utf-8", b"no such project here\n", status=HTTPStatus.NOT_FOUND)
        links = "".join(
            f'<a href="/wheels/files/{quote(entry.filename)}#sha256={entry.sha256}">{html.escape(entry.filename)}</a>\n'
            for entry in entries
        )
        return _page(links)

    def whole(self) -> list[str]:
        """Names of what should be served and does not lie in the bundle, or has another size."""
        return [
            name
            for name, blob in self.bundle.blobs()
            if not (path := self.bundle.path(blob.sha256)).is_file() or path.stat().st_size != blob.size
        ]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _json(value: Any) -> Answer:
    return Answer("application/json", json.dumps(value).encode())


def _page(links: str) -> Answer:
    head = '<!DOCTYPE html>\n<html><head><meta name="pypi:repository-version" content="1.0"></head><body>\n'
    return Answer("text/html; charset=utf-8", f"{head}{links}</body></html>\n".encode())


def _error(code: str, message: str) -> Answer:
    body = {"errors": [{"code": code, "message": message, "detail": None}]}
    return Answer("application/json", json.dumps(body).encode(), status=HTTPStatus.NOT_FOUND)


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = "myriad-bundle"
    sys_version = ""
    timeout = 120
    site: Site
    on_request: OnRequest

    def do_GET(self) -> None:
        self._answer(send_body=True)

    def do_HEAD(self) -> None:
        self._answer(send_body=False)

    def _refuse(self) -> None:
        body = b'{"errors":[{"code":"DENIED","message":"this server only reads","detail":null}]}'
        self.close_connection = True  # a body that was announced is not read
        self._head(HTTPStatus.METHOD_NOT_ALLOWED, "application/json", len(body), {"Allow": "GET, HEAD"})
        self.wfile.write(body)

    do_POST = do_PUT = do_PATCH = do_DELETE = _refuse

    def _answer(self, *, send_body: bool) -> None:
        answer = self.site.answer(urlsplit(self.path).path)
        headers = {"Docker-Distribution-API-Version": "registry/2.0"} if self.path.startswith("/v2") else {}
        if answer.digest:
            headers |= {"Docker-Content-Digest": answer.digest, "ETag": f'"{answer.digest}"'}
        if answer.location:
            headers["Location"] = answer.location
        if answer.file is None:
            self._head(answer.status, answer.media_type, len(answer.body), headers)
            if send_body:
                self.wfile.write(answer.body)
            return
        try:
            stream = answer.file.open("rb")
        except OSError as error:
            body = f"{answer.file.name}: {error.strerror}; `myriad bundle verify` names what is missing\n".encode()
            self._head(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", len(body), headers)
            if send_body:
                self.wfile.write(body)
            return
        with stream:
            size = answer.file.stat().st_size
            span = self._span(size)
            if span is None:
                headers["Content-Range"] = f"bytes */{size}"
                self._head(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "text/plain", 0, headers)
                return
            start, end = span
            status = answer.status
            headers["Accept-Ranges"] = "bytes"
            if (start, end) != (0, size):
                status = HTTPStatus.PARTIAL_CONTENT
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
            self._head(status, answer.media_type, end - start, headers)
            if send_body and end > start:
                self.wfile.flush()
                self.connection.sendfile(stream, start, end - start)

    def _span(self, size: int) -> tuple[int, int] | None:
        """First byte and the one after the last that are asked for; None where the file has none of them."""
        match = _RANGE.fullmatch(self.headers.get("Range", "").strip())
        if match is None or match.group(0) == "bytes=-":
            return 0, size  # no range, or one that may be passed over
        first, last = match.groups()
        if not first:
            return (max(0, size - int(last)), size) if int(last) else None
        start, end = int(first), min(size, int(last) + 1) if last else size
        return (start, end) if start < end else None

    def _head(self, status: HTTPStatus, media_type: str, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        status = code.value if isinstance(code, HTTPStatus) else int(code) if str(code).isdigit() else 0
        type(self).on_request(self.client_address[0], self.command or "", status, self.path)

    def log_message(self, format: str, *args: Any) -> None:
        """Broken connections of clients are theirs to tell."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle is no fault of this server; anything else keeps its traceback."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Server6(_Server):
    address_family = socket.AF_INET6


class BundleServer:
    """The server on one address. `with` starts and stops it; `serve_forever` blocks.

    Args:
        bundle: the bundle.
        address: host or IP to listen on.
        port: 0 takes a free one.
        tls: certificate chain and key files; plain HTTP when None.
        on_request: told client, method, status and path of each request, from any thread.

    Raises:
        MyriadError: the address cannot be listened on, or the certificate cannot be used.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        address: str = "127.0.0.1",
        port: int = 0,
        tls: tuple[Path, Path] | None = None,
        on_request: OnRequest = lambda client, method, status, path: None,
    ) -> None:
        self.site = Site(bundle)
        handler = type("Handler", (_Handler,), {"site": self.site, "on_request": staticmethod(on_request)})
        kind = _Server6 if ":" in address else _Server
        try:
            self._server: _Server = kind((address, port), handler)
        except (OSError, OverflowError) as error:
            raise MyriadError(
                f"cannot be listened on: {getattr(error, 'strerror', None) or error}",
                where=f"{address}:{port}",
                hint="choose an address of this machine and a free port: --listen ADDRESS:PORT",
            ) from error
        self._scheme = "http"
        if tls is not None:
            self._encrypt(*tls)
        self._thread: threading.Thread | None = None

    def _encrypt(self, certificate: Path, key: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            self._server.server_close()
            raise MyriadError(f"the certificate and its key cannot be used: {error}", where=str(certificate)) from error
        # The handshake is left to the connection's own thread: a client that never speaks must not hold up others.
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._scheme = "https"

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    def url(self, host: str) -> str:
        """Its address as clients write it."""
        return f"{self._scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    def serve_forever(self) -> None:
        """Answer until `stop`, in this thread."""
        self._server.serve_forever(poll_interval=0.2)

    def stop(self) -> None:
        """Stop answering and let go of the port."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._thread = None
        self._server.server_close()

    def __enter__(self) -> BundleServer:
        self._thread = threading.Thread(target=self.serve_forever, name="bundle-server", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.stop()


def advice(site: Site, url: str) -> list[tuple[str, str]]:
    """What nodes and the controller have to be given to use this server: (where, line) pairs."""
    manifest = site.bundle.manifest
    lines = [("description", f"site_bundle: {site.bundle.directory.resolve()}")]
    if manifest.apt is not None:
        lines.append(("description", f"site_apt_repository: {url}/apt"))
    if manifest.files:
        lines.append(("files by digest", f"{url}/v2/{FILES_REPOSITORY}/blobs/sha256:..."))
    if manifest.images:
        lines.append(("images", f"{url}  (as a further entry of site_registry_endpoints)"))
    if manifest.wheels:
        lines.append(("controller", f"MYRIAD_MIRROR_PYTHON={url}/wheels/simple make env"))
    return lines
