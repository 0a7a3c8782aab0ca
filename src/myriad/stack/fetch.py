"""Downloads by checksum: resumable, parallel, patient with slow servers, and never satisfied with another file.

A download lands in a partial file named after the expected sha256, so a later run of any process goes on where this
one stopped: with `Range` and `If-Range` on the validator (ETag or Last-Modified) that came with the first bytes. A
server that ignores Range, or whose file has changed, sends the whole file and the partial one is dropped.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from myriad.errors import MyriadError
from myriad.stack.settings import Settings
from myriad.stack.store import Store, plain_hex, sha256_of

Progress = Callable[[int, "int | None"], None]
_CHUNK_BYTES = 1 << 18


class FetchError(MyriadError):
    """A file could not be downloaded."""


class NotReachableError(FetchError):
    """The host does not answer: no route, no name, refused, or silent."""


class VanishedError(FetchError):
    """The host answers, and does not have this file (404 or 410). No other version is ever taken in its place."""


class ChecksumError(FetchError):
    """The whole file came, and it is not the one that the lock names."""


class TruncatedError(FetchError):
    """The body ended early, again and again."""


class SlowServerError(FetchError):
    """The server stopped sending for longer than the read timeout, again and again."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One file to download: its URL, the sha256 that it must have (hex), and its name for messages."""

    name: str
    url: str
    sha256: str


def _no_progress(done: int, total: int | None) -> None:
    """A Progress that reports to nobody."""


def make_client(settings: Settings) -> httpx.Client:
    """An HTTP client with the settings' proxies and timeouts. Proxies and NO_PROXY come from the mirror settings."""
    timeouts = settings.timeouts
    return httpx.Client(
        follow_redirects=True,
        timeout=httpx.Timeout(timeouts.read_s, connect=timeouts.connect_s),
        mounts=proxy_mounts(settings),
        trust_env=False,
        verify=_tls_context(),
    )


class LazyClient:
    """An HTTP client that is made when it is first needed, and closed by whoever made it.

    Args:
        settings: for a client of its own.
        client: a client that somebody else closes.
    """

    def __init__(self, settings: Settings, client: httpx.Client | None) -> None:
        self._settings = settings
        self._given = client
        self._own: httpx.Client | None = None
        self._lock = threading.Lock()

    def get(self) -> httpx.Client:
        """The client."""
        if self._given is not None:
            return self._given
        with self._lock:
            if self._own is None:
                self._own = make_client(self._settings)
            return self._own

    def close(self) -> None:
        """Close a client that was made here."""
        with self._lock:
            if self._own is not None:
                self._own.close()
                self._own = None


@functools.lru_cache(maxsize=1)  # reading the certificates takes longer than a request
def _tls_context() -> ssl.SSLContext:
    # The system's certificates (SSL_CERT_FILE included), not certifi's: a site's proxy has its own authority there.
    return ssl.create_default_context()


def proxy_mounts(settings: Settings) -> dict[str, httpx.BaseTransport | None]:
    """httpx mounts for HTTP_PROXY, HTTPS_PROXY and NO_PROXY of the mirror settings."""
    mirrors = settings.mirrors
    context = _tls_context()
    mounts: dict[str, httpx.BaseTransport | None] = {}
    for scheme, proxy in (("http://", mirrors.http_proxy), ("https://", mirrors.https_proxy)):
        if proxy:
            mounts[scheme] = httpx.HTTPTransport(proxy=proxy, verify=context)
    for host in filter(None, (part.strip() for part in (mirrors.no_proxy or "").split(","))):
        if host == "*":
            return {}
        pattern = f"*{host}" if host.startswith(".") else host
        mounts[f"all://{pattern}"] = None
    return mounts


class Fetcher:
    """Downloads into the store.

    Args:
        store: where finished files go.
        settings: mirrors, timeouts, retries, the folder of partial downloads.
        client: the HTTP client; made from the settings when None.
        wait: sleeps between retries, in seconds; tests pass their own.
    """

    def __init__(
        self,
        *,
        store: Store,
        settings: Settings,
        client: httpx.Client | None = None,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._settings = settings
        self._client = LazyClient(settings, client)
        self._wait = wait

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *details: object) -> None:
        self._client.close()

    def fetch(self, wanted: Wanted, *, progress: Progress = _no_progress) -> Path:
        """Download one file unless the store has it. Returns its path in the store.

        Raises:
            NotReachableError, VanishedError, ChecksumError, TruncatedError, SlowServerError, FetchError.
        """
        value = plain_hex(wanted.sha256)
        if self._store.has(value):
            return self._store.path(value)
        folder = self._settings.downloads
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{value}.part"
        with _locked(folder / f"{value}.lock"):
            if self._store.has(value):  # another process has just finished it
                return self._store.path(value)
            self._download(wanted.url, partial, progress, restart_on_mismatch=value)
            found = sha256_of(partial)
            if found != value:
                size = partial.stat().st_size
                _drop(partial)
                raise ChecksumError(
                    f"has sha256 {found} ({size} bytes), the lock has {value}",
                    where=f"{wanted.name} ({wanted.url})",
                    hint="it was not used; if the project really changed this file, record it with `myriad lock pin`",
                )
            self._store.put_file(partial, move=True)
            _drop(partial)
        return self._store.path(value)

    def fetch_all(
        self, files: Iterable[Wanted], *, progress: Callable[[Wanted, int, int | None], None] | None = None
    ) -> dict[str, Path]:
        """Download several files at once (settings.parallel). Returns name -> path. Raises the first failure."""

        def one(item: Wanted) -> tuple[str, Path]:
            def report(done: int, total: int | None) -> None:
                if progress is not None:
                    progress(item, done, total)

            return item.name, self.fetch(item, progress=report)

        with ThreadPoolExecutor(max_workers=self._settings.parallel) as pool:
            return dict(pool.map(one, files))

    def fetch_unpinned(self, url: str, *, progress: Progress = _no_progress) -> tuple[str, int]:
        """Download a file whose checksum is not known yet, for `lock pin`. Returns its sha256 and size."""
        folder = self._settings.downloads
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"unpinned-{hashlib.sha256(url.encode()).hexdigest()[:32]}.part"
        with _locked(partial.with_suffix(".lock")):
            self._download(url, partial, progress, restart_on_mismatch=None)
            size = partial.stat().st_size
            value = self._store.put_file(partial, move=True)
            _drop(partial)
        return value, size

    def _download(self, url: str, partial: Path, progress: Progress, *, restart_on_mismatch: str | None) -> None:
        """Bring `partial` to the whole length of the file at `url`, over a bounded number of attempts."""
        source = self._settings.mirrors.release_url(url)
        failure: FetchError | None = None
        attempts = self._settings.retries + 1
        for attempt in range(attempts):
            if attempt:
                self._wait(min(2.0 ** (attempt - 1), 10.0))
            try:
                self._attempt(source, partial, progress, expected=restart_on_mismatch)
                return
            except (TruncatedError, SlowServerError, NotReachableError, _RetryableStatusError) as error:
                failure = error
        assert failure is not None  # noqa: S101 (the loop ran at least once)
        raise failure

    def _attempt(self, url: str, partial: Path, progress: Progress, *, expected: str | None) -> None:
        have = partial.stat().st_size if partial.is_file() else 0
        validator = _read_validator(partial, url)
        headers = {"Accept-Encoding": "identity"}
        if have and validator:
            headers |= {"Range": f"bytes={have}-", "If-Range": validator}
        elif have:  # bytes that no validator vouches for
            _drop(partial)
            have = 0
        try:
            with self._client.get().stream("GET", url, headers=headers) as response:
                if response.status_code == 416:
                    # Nothing beyond what is here: either it is whole, or the file has become shorter.
                    if expected is not None and sha256_of(partial) == expected:
                        return
                    _drop(partial)
                    raise TruncatedError("the file has become shorter than what was fetched of it", where=url)
                self._check_status(response, url)
                resumed = response.status_code == 206
                if not resumed:
                    have = 0
                length = response.headers.get("Content-Length")
                total = have + int(length) if length is not None and length.isdigit() else None
                _write_validator(partial, url, response)
                with partial.open("ab" if resumed else "wb") as stream:
                    for chunk in response.iter_raw(_CHUNK_BYTES):
                        stream.write(chunk)
                        have += len(chunk)
                        progress(have, total)
                if total is not None and have < total:
                    raise TruncatedError(f"the body ended after {have} of {total} bytes", where=url)
        except httpx.ReadTimeout as error:
            raise SlowServerError(
                f"the server sent nothing for {self._settings.timeouts.read_s:.0f} s (after {have} bytes)",
                where=url,
                hint="what came is kept: run it again, and it goes on from there",
            ) from error
        except httpx.RemoteProtocolError as error:
            raise TruncatedError(
                f"the connection broke off after {have} bytes",
                where=url,
                hint="what came is kept: run it again, and it goes on from there",
            ) from error
        except httpx.TransportError as error:
            raise NotReachableError(
                f"{urlsplit(url).netloc} does not answer ({type(error).__name__}: {error})",
                where=url,
                hint="check MYRIAD_MIRROR_RELEASES, HTTPS_PROXY and NO_PROXY, or use a bundle",
            ) from error

    def _check_status(self, response: httpx.Response, url: str) -> None:
        code = response.status_code
        if code in (404, 410):
            raise VanishedError(
                f"the host answers {code}: it does not have this file",
                where=url,
                hint="a version that has vanished is never replaced by another; use a bundle that holds it, a mirror, "
                "or choose another version in the lock",
            )
        if code in (408, 425, 429) or code >= 500:
            raise _RetryableStatusError(f"the host answers {code}", where=url, hint="try again later, or use a mirror")
        if code not in (200, 206):
            raise FetchError(
                f"the host answers {code}", where=url, hint="check the URL, the mirror and its credentials"
            )


class _RetryableStatusError(FetchError):
    """A status that may pass: 429, 5xx."""


def _validator_path(partial: Path) -> Path:
    return partial.with_suffix(".validator")


def _read_validator(partial: Path, url: str) -> str | None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        record = json.loads(_validator_path(partial).read_text(encoding="utf-8"))
        if record.get("url") == url:
            return str(record["validator"])
    return None


def _write_validator(partial: Path, url: str, response: httpx.Response) -> None:
    etag = response.headers.get("ETag", "")
    # A weak ETag may stand for other bytes (RFC 9110, 13.1.5), so it cannot vouch for a range.
    validator = etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified")
    if validator:
        _validator_path(partial).write_text(json.dumps({"url": url, "validator": validator}), encoding="utf-8")
    else:
        _validator_path(partial).unlink(missing_ok=True)


def _drop(partial: Path) -> None:
    partial.unlink(missing_ok=True)
    _validator_path(partial).unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time downloads one file; the lock file goes with its holder."""
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


class Reachability:
    """Which hosts answer, asked once each and remembered: a quick HEAD with the probe timeout."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known: dict[str, str | None] = {}

    def reason_unreachable(self, url: str) -> str | None:
        """None when the host of `url` (or its mirror) answers anything at all, else a short reason.

        `oci://host/...` stands for a registry.
        """
        self.probe([url])
        return self._known[self._origin(url)]

    def probe(self, urls: Iterable[str]) -> None:
        """Ask all hosts of these URLs that have not been asked yet, at once; takes little longer than the timeout."""
        timeout = self._settings.timeouts.probe_s
        answers: dict[str, str | None] = {}
        # Daemon threads with a deadline of their own: looking up a name can hang for long, and no timeout ends that.
        threads = {
            origin: threading.Thread(target=self._ask, args=(origin, answers), daemon=True)
            for origin in {self._origin(url) for url in urls} - self._known.keys()
        }
        for thread in threads.values():
            thread.start()
        deadline = time.monotonic() + timeout + 1.0
        for origin, thread in threads.items():
            thread.join(max(0.0, deadline - time.monotonic()))
            silent = f"{urlsplit(origin).netloc} does not answer within {timeout:g} s"
            self._known[origin] = answers.get(origin, silent)

    def _origin(self, url: str) -> str:
        mirrors = self._settings.mirrors
        if url.startswith("oci://"):
            parts = urlsplit(mirrors.registry_url(urlsplit(url).netloc))
        else:
            parts = urlsplit(mirrors.release_url(url))
        return f"{parts.scheme}://{parts.netloc}"

    def _ask(self, origin: str, answers: dict[str, str | None]) -> None:
        timeout = self._settings.timeouts.probe_s
        host = urlsplit(origin).netloc
        try:
            with httpx.Client(
                timeout=timeout, mounts=proxy_mounts(self._settings), trust_env=False, verify=_tls_context()
            ) as client:
                client.head(origin + "/")
        except httpx.TimeoutException:
            answers[origin] = f"{host} does not answer within {timeout:g} s"
        except httpx.TransportError as error:
            answers[origin] = f"{host} is not reachable ({error})"
        else:
            answers[origin] = None
