"""A small OCI registry in memory: enough of the distribution protocol to push to and to pull from."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_BLOB = re.compile(r"/v2/(.+)/blobs/(sha256:[0-9a-f]{64})")
_UPLOAD = re.compile(r"/v2/(.+)/blobs/uploads/([^?]*)(?:\?digest=(.+))?")
_MANIFEST = re.compile(r"/v2/(.+)/manifests/([^?]+)")


class MemoryRegistry:
    """Holds blobs and manifests by repository.

    Attributes:
        blobs: (repository, digest) -> bytes.
        manifests: (repository, tag or digest) -> (bytes, media type).
        uploads: digests in the order in which they arrived.
        fail_uploads: how many uploads to answer with 503 first.
        token: when set, every request must carry it as a bearer token, which /token hands out.
    """

    def __init__(self) -> None:
        self.blobs: dict[tuple[str, str], bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[bytes, str]] = {}
        self.uploads: list[str] = []
        self.fail_uploads = 0
        self.token = ""
        self.scopes: list[str] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                owner.handle(self)

            do_HEAD = do_POST = do_PUT = do_GET

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        if request.path.startswith("/token"):
            self.scopes.append(request.path)
            _answer(request, 200, json.dumps({"token": self.token}).encode())
        elif self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            challenge = f'Bearer realm="{self.url}/token",service="here"'
            _answer(request, 401, headers={"WWW-Authenticate": challenge})
        elif request.path == "/v2/":
            _answer(request, 200)
        elif match := _UPLOAD.fullmatch(request.path):
            self._upload(request, match[1], match[3], body)
        elif match := _BLOB.fullmatch(request.path):
            blob = self.blobs.get((match[1], match[2]))
            _answer(request, 404 if blob is None else 200, blob or b"")
        elif match := _MANIFEST.fullmatch(request.path):
            self._manifest(request, match[1], match[2], body)
        else:
            _answer(request, 404)

    def _upload(self, request: BaseHTTPRequestHandler, repository: str, digest: str | None, body: bytes) -> None:
        if request.command == "POST":
            _answer(request, 202, headers={"Location": f"/v2/{repository}/blobs/uploads/session"})
        elif self.fail_uploads:
            self.fail_uploads -= 1
            _answer(request, 503)
        else:
            digest = (digest or "").replace("%3A", ":")
            good = digest == f"sha256:{hashlib.sha256(body).hexdigest()}"
            if good:
                self.blobs[repository, digest] = body
                self.uploads.append(digest)
            _answer(request, 201 if good else 400, b"" if good else b"digest invalid")

    def _manifest(self, request: BaseHTTPRequestHandler, repository: str, reference: str, body: bytes) -> None:
        if request.command == "PUT":
            value = json.loads(body)
            parts = [value["config"], *value["layers"]]
            missing = [part["digest"] for part in parts if (repository, part["digest"]) not in self.blobs]
            if missing:
                _answer(request, 400, f"blob unknown: {missing}".encode())
                return
            digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
            stored = (body, request.headers["Content-Type"])
            self.manifests[repository, reference] = self.manifests[repository, digest] = stored
            _answer(request, 201)
            return
        found = self.manifests.get((repository, reference))
        if found is None:
            _answer(request, 404)
            return
        digest = f"sha256:{hashlib.sha256(found[0]).hexdigest()}"
        _answer(request, 200, found[0], {"Docker-Content-Digest": digest, "Content-Type": found[1]})


def _answer(
    request: BaseHTTPRequestHandler, status: int, body: bytes = b"", headers: dict[str, str] | None = None
) -> None:
    request.send_response(status)
    for name, value in (headers or {}).items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)
