"""A follower's copy of the leader's ledger, where each replica has a SQLite file of its own.

Rows are only ever added and are the same whoever adds them, so what was added since the last look is all that has to
come over. Either replica answers then, and a failover keeps the account; a shared database needs none of this.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import httpx

from myriad.errors import MyriadError
from myriad.scheduler.ledger.facts import from_json, to_json
from myriad.scheduler.ledger.store import Correction, Quota, Store, Tail
from myriad.scheduler.records import Copier

log = logging.getLogger("myriad.ledger")

Json = dict[str, Any]
PATH = "/v1/ledger/tail"
_MOST_PAGES = 20


def as_json(tail: Tail) -> Json:
    """What one replica tells another."""
    return {
        "facts": [to_json(fact) for fact in tail.facts],
        "quotas": [asdict(quota) for quota in tail.quotas],
        "corrections": [asdict(correction) for correction in tail.corrections],
        "seen": tail.seen,
        "next": tail.following,
        "more": tail.more,
    }


def take(store: Store, document: Mapping[str, Any]) -> int:
    """Write what another replica told; how many rows were new.

    Raises:
        MyriadError: the database does not take it.
        KeyError, TypeError, ValueError: it is no such document.
    """
    written = store.write([from_json(fact) for fact in document["facts"]])
    added = written.admissions + written.endings
    added += sum(store.quota(Quota(**quota)) for quota in document["quotas"])
    added += sum(store.correct(Correction(**correction)) for correction in document["corrections"])
    if document["seen"] is not None:
        store.seen(int(document["seen"]))
    return added


class LedgerCopier(Copier):
    """Asks the leader for what is new in its ledger; arguments as `Copier`, and the store that takes it."""

    def __init__(self, *arguments: Any, store: Store, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._store = store

    def copy(self, leader: str) -> int:
        """Copy what is new; how many rows came."""
        added = 0
        try:
            if leader != self._leader or not self._address:
                self._address = self._find(leader)
                # Positions are of the leader's own clock: another one is asked for everything.
                self._leader, self._after = leader, 0
            for _ in range(_MOST_PAGES if self._address else 0):
                answer = self._client.get(
                    f"http://{self._address}:{self._port}{PATH}",
                    params={"after": str(self._after)},
                    headers=self._headers(),
                )
                answer.raise_for_status()
                document = answer.json()
                added += take(self._store, document)
                self._after = int(document["next"])
                if not document["more"]:
                    break
        except (httpx.HTTPError, MyriadError, ValueError, KeyError, TypeError) as error:
            # The leader may be just starting or going; the next round asks again.
            log.debug("no ledger from %s: %s", leader, error)
            self._address = ""
        return added
