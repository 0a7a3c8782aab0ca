"""The extension's HTTP side over a made-up cluster, on a free port of this machine."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from myriad.errors import MyriadError
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import Resource
from myriad.scheduler.cache import Cache
from myriad.scheduler.decisions import DecisionLog
from myriad.scheduler.ledger.book import Ledger
from myriad.scheduler.metrics import Metrics
from myriad.scheduler.model import DecisionRecord
from myriad.scheduler.records import RecordBook
from myriad.scheduler.server import Parts, build_app, uvicorn_config
from myriad.scheduler.web.accounts import Accounts
from myriad.scheduler.web.auth import AuthSettings, Gatekeeper

Json = dict[str, Any]


class NoCluster(Api):
    """An API server that has nothing beyond the cache and reviews no token."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1", source="no cluster")

    def find(self, resource: Resource, name: str, *, namespace: str | None = None) -> Json | None:
        """Nothing is found."""
        return None

    def list(self, resource: Resource, **_: Any) -> tuple[list[Json], str]:
        """Nothing is listed."""
        return [], "1"

    def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> Json:
        """Nothing is found."""
        raise ApiError(404, "NotFound", f"{name} not found", where=resource.plural)


@dataclass
class Served:
    """A server that runs.

    Attributes:
        url: where it answers.
        cache: what it shows; changes are followed.
        server: `app.state.server` of it.
        evictions: records that it shows; may be added to.
        ledger: GPU-hours that it shows; empty at first.
    """

    url: str
    cache: Cache
    book: RecordBook
    server: Any
    evictions: list[Json]
    ledger: Ledger


@contextlib.contextmanager
def serve(
    folder: Path, *, api: Api | None = None, auth: AuthSettings | None = None, cache: Cache | None = None
) -> Iterator[Served]:
    """Serve the page over a cache that the caller fills.

    Args:
        folder: for the decision log.
        api: reviews tokens and knows jobs; one that knows nothing by default.
        auth: how callers log in; nobody has to by default.
        cache: what is shown; an empty one by default.
    """
    cache = cache or Cache(check_name="myriad")
    api = api or NoCluster()
    log = DecisionLog(folder / "decisions.jsonl", fsync="never")
    book = RecordBook(log)
    gate = Gatekeeper(
        api,
        auth or AuthSettings(mode="off"),
        namespaces=lambda: {view.gang.namespace for view in cache.views()},
    )
    evictions: list[Json] = []
    ledger = Ledger(f"sqlite:///{folder / 'ledger.db'}", policy=cache.policy)
    app = build_app(
        Parts(
            api=api,
            cache=cache,
            decisions=book,
            metrics=Metrics(),
            gate=gate,
            not_ready=list,
            faults=list,
            leader=lambda: ("myriad-scheduler-0", True),
            evictions=lambda: evictions,
            accounts=Accounts(ledger),
        )
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    server = uvicorn.Server(uvicorn_config(app, port=port, host="127.0.0.1"))
    thread = threading.Thread(target=server.run, name="http", daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while not server.started:
            if time.monotonic() > deadline or not thread.is_alive():
                raise MyriadError("the server did not start", where=f"127.0.0.1:{port}")
            time.sleep(0.02)
        yield Served(f"http://127.0.0.1:{port}", cache, book, app.state.server, evictions, ledger)
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        ledger.store.close()
        log.close()
        api.close()


def record(book: RecordBook, second: int, namespace: str, name: str, **more: Any) -> None:
    """A decision record at a second of the first minutes of 2026."""
    stamp = f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}.000Z"
    book.append(
        DecisionRecord(
            time=stamp, event="planned", uid=f"uid-{namespace}-{name}", namespace=namespace, name=name, **more
        )
    )
