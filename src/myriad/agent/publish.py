"""Writes the portrait where it differs from the one that stands, and the Lease that says somebody is looking."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from myriad.fleet.portrait import LEASE_NAMESPACE, LEASE_PREFIX, Portrait
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import LEASES, NODE_PORTRAITS

log = logging.getLogger("myriad.agent")

Json = dict[str, Any]

FIELD_MANAGER = "myriad-agent"
BURST = 10
REFILL_S = 60.0
"""A portrait that changes all the time is written BURST times and then once in REFILL_S: the newest is never lost."""


class Publisher:
    """The object and the Lease of one node.

    Args:
        api: the client.
        node: the Node's name.
        namespace: of the Lease.
        lease_s: how long a renewal lasts.
        now, monotonic: the time of day, and seconds for waits.
    """

    def __init__(
        self,
        api: Api,
        node: str,
        *,
        namespace: str = LEASE_NAMESPACE,
        lease_s: int = 40,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._node = node
        self._namespace = namespace
        self._lease_s = lease_s
        self._now = now
        self._monotonic = monotonic
        self._tokens = float(BURST)
        self._counted_at = monotonic()
        self._renewed_at = float("-inf")
        self._echo: tuple[Json, Any] | None = None

    def publish(self, portrait: Portrait, standing: Json | None) -> Json | None:
        """Write the status where it differs from `standing`, the object as last seen. Returns the object as written."""
        document = portrait.document()
        stands = None if standing is None else standing.get("status")
        # An older schema of the cluster may drop a field; what it made of the same document is no difference.
        if stands == document or (self._echo is not None and self._echo == (document, stands)):
            return None
        if not self._may_write():
            return None
        # The whole status at once: a merge would keep what is no longer there. Nobody else writes it.
        body = [{"op": "add", "path": "/status", "value": document}]
        written = self._api.patch(
            NODE_PORTRAITS, self._node, body, kind="json", subresource="status", field_manager=FIELD_MANAGER
        )
        self._tokens -= 1
        self._echo = (document, written.get("status"))
        return written

    def _may_write(self) -> bool:
        clock = self._monotonic()
        self._tokens = min(float(BURST), self._tokens + (clock - self._counted_at) / REFILL_S)
        self._counted_at = clock
        return self._tokens >= 1

    def renew(self, owner: Json | None = None) -> bool:
        """Renew the Lease when it is due; made when it is not there. True when a request was sent.

        Args:
            owner: the NodePortrait, with which the Lease goes.
        """
        if self._monotonic() - self._renewed_at < self._lease_s:
            return False
        name = f"{LEASE_PREFIX}{self._node}"
        spec = {
            "holderIdentity": self._node,
            "leaseDurationSeconds": self._lease_s,
            "renewTime": self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        try:
            self._api.patch(LEASES, name, {"spec": spec}, namespace=self._namespace, field_manager=FIELD_MANAGER)
        except ApiError as error:
            if not error.is_not_found:
                raise
            metadata: Json = {"name": name, "namespace": self._namespace}
            if owner is not None:
                metadata["ownerReferences"] = [
                    {
                        "apiVersion": NODE_PORTRAITS.api_version,
                        "kind": NODE_PORTRAITS.kind,
                        "name": owner["metadata"]["name"],
                        "uid": owner["metadata"]["uid"],
                    }
                ]
            body = {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": metadata, "spec": spec}
            self._api.create(LEASES, body, namespace=self._namespace)
        self._renewed_at = self._monotonic()
        return True
