"""Corrections of what was charged: asked for as ConfigMaps of Myriad's namespace, written down by the leader.

Who may correct is who may create ConfigMaps there. Who did is what the API server knows: an admission policy (role
scheduler_extension) refuses a correction whose `who` is not the user of the request, and changes to one that is there.
The extension itself takes no writes, so a correction needs no replica in particular and waits while none runs.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from myriad.errors import InputError
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import CONFIG_MAPS
from myriad.scheduler.ledger.store import Correction, LedgerError, Store
from myriad.scheduler.policy import SitePolicy

log = logging.getLogger("myriad.ledger")

Json = dict[str, Any]

LABEL = "myriad.dev/ledger-correction"
"""`new`, then `recorded` or `refused`."""
SAID = "myriad.dev/ledger-said"
"""Annotation: why it was refused."""
PREFIX = "ledger-correction-"
MOST_HOURS = 100_000_000
_MOST_WORDS = 500


def document(correction: Correction, *, name: str, namespace: str) -> Json:
    """The ConfigMap that asks for a correction; its uid becomes the correction's."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": {LABEL: "new"}},
        "immutable": True,
        "data": {
            "team": correction.team,
            "pool": correction.pool,
            "project": correction.project,
            "gpu_seconds": str(correction.gpu_seconds),
            "at": datetime.fromtimestamp(correction.at, UTC).isoformat(),
            "who": correction.who,
            "why": correction.why,
        },
    }


def gpu_seconds(hours: str) -> int:
    """Signed hours as a person writes them (`-96`, `+12.5`) in GPU-seconds.

    Raises:
        InputError: it is no such number, 0, or beyond what any site has.
    """
    try:
        seconds = Decimal(hours) * 3600
        if not seconds.is_finite() or not 0 < abs(seconds) <= MOST_HOURS * 3600:
            raise InvalidOperation
    except InvalidOperation as error:
        raise InputError(
            f'"{hours}" is no number of GPU-hours to correct by', hint="-96 gives 96 hours back, 12.5 charges them"
        ) from error
    whole = int(seconds.to_integral_value())
    if not whole:
        raise InputError(f'"{hours}" is less than a second', hint="GPU-hours, such as -0.5")
    return whole


def check(team: str, pool: str, project: str, why: str, policy: SitePolicy) -> None:
    """Raises InputError where nobody of the site is meant, or no reason is given."""
    if team not in policy.teams:
        raise InputError(f'no team is called "{team}"', hint=f"there are {', '.join(sorted(policy.teams)) or 'none'}")
    if pool not in policy.pools:
        raise InputError(f'no pool is called "{pool}"', hint=f"there are {', '.join(sorted(policy.pools)) or 'none'}")
    if project and not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", project):
        raise InputError(f'"{project}" is no project', hint="the value of the label myriad.dev/project")
    if not 1 <= len(why.strip()) <= _MOST_WORDS or not why.isprintable():
        raise InputError(f"a correction needs a reason of one line, {_MOST_WORDS} characters at most")


def read(body: Json, policy: SitePolicy, *, now: int) -> Correction:
    """The correction that a ConfigMap asks for.

    Raises:
        InputError: it is none.
    """
    data: Mapping[str, str] = body.get("data") or {}
    team, pool, project, why = (str(data.get(name) or "") for name in ("team", "pool", "project", "why"))
    check(team, pool, project, why, policy)
    try:
        amount = int(str(data.get("gpu_seconds") or ""))
        at = int(datetime.fromisoformat(str(data.get("at") or "")).timestamp())
    except (ValueError, OverflowError) as error:
        raise InputError("its amount or its time is none") from error
    if not 0 < abs(amount) <= MOST_HOURS * 3600:
        raise InputError("its amount is 0, or beyond what any site has")
    if at > now + 60:
        raise InputError("its time is still to come")
    return Correction(str(body["metadata"]["uid"]), at, team, pool, project, amount, str(data.get("who") or ""), why)


class Correcting:
    """An observer: writes what is asked for, once, and says on the ConfigMap that it did.

    The ConfigMaps stay: a ledger that was lost with its volume gets its corrections back.

    Args:
        api: reads and marks the ConfigMaps.
        store: the ledger.
        policy: the site's rules.
        namespace: where corrections are asked for.
        clock, wall: monotonic seconds and seconds since the epoch.
    """

    name = "corrections"
    interval_s = 5.0
    _EVERYTHING_S = 3600.0

    def __init__(
        self,
        *,
        api: Api,
        store: Store,
        policy: Callable[[], SitePolicy],
        namespace: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._store = store
        self._policy = policy
        self._namespace = namespace
        self._clock = clock
        self._wall = wall
        self._last = float("-inf")
        self._all_at = float("-inf")

    def step(self) -> None:
        """Look for new ones; once an hour, and first of all, at all of them."""
        now = self._clock()
        if now - self._last < self.interval_s:
            return
        self._last = now
        everything = now - self._all_at >= self._EVERYTHING_S
        states = "in (new,recorded)" if everything else "in (new)"
        for body in self._api.list(CONFIG_MAPS, namespace=self._namespace, labels=f"{LABEL} {states}")[0]:
            self._take(body)
        if everything:
            self._all_at = now

    def _take(self, body: Json) -> None:
        known = (body["metadata"].get("labels") or {}).get(LABEL) == "recorded"
        try:
            correction = read(body, self._policy(), now=int(self._wall()))
            self._store.correct(correction)
        except InputError as error:
            if not known:
                self._mark(body, "refused", f"{error.message}{f' ({error.hint})' if error.hint else ''}")
            return
        except LedgerError as error:
            if error.refused:
                self._mark(body, "refused", error.message)
                return
            raise
        if not known:
            log.info("corrected by %s: %s", correction.who, correction)
            self._mark(body, "recorded", "")

    def _mark(self, body: Json, state: str, said: str) -> None:
        metadata: Json = {"labels": {LABEL: state}, "annotations": {SAID: said or None}}
        try:
            self._api.patch(CONFIG_MAPS, body["metadata"]["name"], {"metadata": metadata}, namespace=self._namespace)
        except ApiError as error:
            # It is gone, or the right is missing: it is written once however often it is read.
            log.info("correction %s: %s", body["metadata"]["name"], error)
