"""What would fit, and what is wrong with the use of GPUs, over the API: the answers of `myriad fit` and `myriad
diagnose` for callers who may not read nodes and pods themselves."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

from starlette.responses import Response

from myriad.kube.client import Api
from myriad.scheduler.diagnose import Outside, report
from myriad.scheduler.diagnose.observer import read_outside
from myriad.scheduler.web.answers import ROWS, TEAM, answer, fields
from myriad.scheduler.web.auth import Scope
from myriad.scheduler.web.endpoint import Ask, Endpoint, Param, Rule
from myriad.scheduler.whatif import fit_report, fragmentation_report

Json = dict[str, Any]

NODES = Param("nodes", "pods of a gang, one a node", "", 6, least=1, most=100_000, example="64")
GPUS = Param("gpus", "GPUs of each pod", "", 4, least=1, most=1024, example="8")
POOL = Param("pool", "the name of a pool", default="", example="h100")
LEVEL = Param("level", "a topology level that all pods share", default="", example="rack")
PRIORITY = Param("priority", "nobody of a higher one is asked to leave", "", 10, least=0, most=2**31 - 1, example="500")
ABOUT = Param("about", "a job, node, pool or queue", r"[A-Za-z0-9][A-Za-z0-9./_-]*", 320, default="", example="gpu0012")

_GOOD_S = 30.0


class Surroundings:
    """What diagnoses need beside the cache, asked of the API server at most twice a minute."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._known = Outside()

    def seen_by(self, scope: Scope) -> Outside:
        """As a caller may see it."""
        with self._lock:
            if time.monotonic() - self._read_at >= _GOOD_S:
                self._known = read_outside(self._api)
                self._read_at = time.monotonic()
            known = self._known
        groups = known.pod_groups
        if groups is not None and not scope.everything:
            groups = [g for g in groups if scope.sees(str(g["metadata"].get("namespace") or ""))]
        return replace(known, pod_groups=groups)


def endpoints(api: Api) -> list[Endpoint]:
    """The routes."""
    outside = Surroundings(api)

    def fit(ask: Ask) -> Response:
        if "nodes" not in ask.values and "gpus" not in ask.values:
            return answer(fragmentation_report(ask.cache, ask.text("pool")))
        return answer(
            fit_report(
                ask.cache,
                nodes=ask.number("nodes"),
                gpus=ask.number("gpus"),
                pool=ask.text("pool"),
                team=ask.text("team"),
                level=ask.text("level"),
                priority=ask.number("priority") if "priority" in ask.values else None,
            )
        )

    def diagnose(ask: Ask) -> Response:
        found = report(ask.cache, outside.seen_by(ask.scope))
        return answer({"findings": [f.as_dict() for f in found if ask.text("about") in f.about]})

    return [
        Endpoint(
            path="/v1/fit",
            rule=Rule.REDUCED,
            answer=fit,
            about="The largest gang by tier; with nodes and gpus, where a gang goes, or who would have to leave.",
            params=(NODES, GPUS, POOL, TEAM, LEVEL, PRIORITY),
            returns={"type": "object", "additionalProperties": True},
        ),
        Endpoint(
            path="/v1/diagnose",
            rule=Rule.REDUCED,
            answer=diagnose,
            about="What is wrong with the use of GPUs now, what costs most first.",
            params=(ABOUT,),
            returns=fields("findings", findings=ROWS),
        ),
    ]
