"""Follows one kind of object: list once, then apply each change, for as long as the process runs."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Protocol

from myriad.errors import MyriadError
from myriad.kube.client import Api, ApiError, Json
from myriad.kube.kinds import Resource

log = logging.getLogger("myriad.watch")

_BACKOFF_FIRST_S = 0.25
_BACKOFF_MOST_S = 5.0


class Handler(Protocol):
    """Receives a kind's objects. Called from the watch's own thread only."""

    def replace(self, items: list[Json]) -> None:
        """The whole truth: whatever is not in `items` is gone."""

    def upsert(self, obj: Json) -> None:
        """An object was added or changed."""

    def remove(self, obj: Json) -> None:
        """An object is gone."""


class Watch(threading.Thread):
    """A thread that keeps a handler in step with the API server.

    A lost connection goes on from the last version seen; a version that the server no longer has (410) lists
    again. A kind that is not served yet (404) is asked for until it is.

    Args:
        api: the client; may be shared.
        resource: the kind to follow.
        handler: receives the objects.
        stop: ends the thread (after the current read, so threads are daemons).
        labels, fields, namespace: narrow what is followed.
        sleep: replaces waiting in tests.
    """

    def __init__(
        self,
        api: Api,
        resource: Resource,
        handler: Handler,
        *,
        stop: threading.Event,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        super().__init__(name=f"watch-{resource.plural}", daemon=True)
        self.resource = resource
        self.synced = threading.Event()
        self.relists = 0
        self._api = api
        self._handler = handler
        self._stopping = stop
        self._namespace = namespace
        self._labels = labels
        self._fields = fields
        self._sleep = sleep or stop.wait
        self._lost_at: float | None = None

    @property
    def lost_for_s(self) -> float:
        """Seconds since the stream broke without having been restored; 0 while it is in step."""
        lost_at = self._lost_at
        return 0.0 if lost_at is None else time.monotonic() - lost_at

    def run(self) -> None:
        """List and watch until stopped."""
        backoff = _BACKOFF_FIRST_S
        version = ""
        while not self._stopping.is_set():
            try:
                if not version:
                    items, version = self._api.list(
                        self.resource, namespace=self._namespace, labels=self._labels, fields=self._fields
                    )
                    self._handler.replace(items)
                    self.relists += 1
                    self.synced.set()
                    continue
                for event in self._api.watch(
                    self.resource,
                    resource_version=version,
                    namespace=self._namespace,
                    labels=self._labels,
                    fields=self._fields,
                    opened=self._found,
                ):
                    backoff = _BACKOFF_FIRST_S
                    version = event.resource_version
                    if event.type in ("ADDED", "MODIFIED"):
                        self._handler.upsert(event.object)
                    elif event.type == "DELETED":
                        self._handler.remove(event.object)
                    if self._stopping.is_set():
                        return
                # The server ends every watch after its time; that is no loss.
            except MyriadError as error:
                if self._stopping.is_set():
                    return
                if isinstance(error, ApiError) and error.is_gone:
                    version = ""
                    continue
                log.warning("%s: %s; trying again in %.1f s", self.resource.plural, error.message, backoff)
                backoff = self._wait(backoff)
            except Exception:
                # A fault in the handler must neither end the thread in silence nor leave half a change applied.
                log.exception(
                    "%s: a change could not be applied; listing again in %.1f s", self.resource.plural, backoff
                )
                version = ""
                backoff = self._wait(backoff)

    def _found(self) -> None:
        self._lost_at = None

    def _wait(self, backoff: float) -> float:
        self._lost_at = self._lost_at or time.monotonic()
        self._sleep(backoff * (0.5 + random.random()))  # noqa: S311 - jitter, not a secret
        return min(backoff * 2, _BACKOFF_MOST_S)
