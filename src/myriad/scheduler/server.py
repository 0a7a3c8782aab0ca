"""The HTTP side: health, metrics, and the same answers as the command line. Reads only; both replicas serve."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from myriad.errors import MyriadError
from myriad.kube.client import Api
from myriad.scheduler.cache import Cache
from myriad.scheduler.evidence import gather
from myriad.scheduler.inquiry import queue_report, status_report, why_job
from myriad.scheduler.metrics import Metrics
from myriad.scheduler.page import render
from myriad.scheduler.records import RecordBook

_MOST_RECORDS = 1000


@dataclass(frozen=True, slots=True)
class Parts:
    """What the server shows.

    Attributes:
        not_ready: kinds of objects that the cache does not follow yet.
        faults: what is broken in this process; empty = healthy.
        leader: identity of the replica that writes, and whether it is this one.
    """

    api: Api
    cache: Cache
    decisions: RecordBook
    metrics: Metrics
    not_ready: Callable[[], list[str]]
    faults: Callable[[], list[str]]
    leader: Callable[[], tuple[str, bool]]


def build_app(parts: Parts) -> Starlette:
    """The application. Handlers are plain functions: Starlette runs them in worker threads."""

    def healthz(_: Request) -> Response:
        faults = parts.faults()
        return PlainTextResponse("\n".join(faults) or "ok", status_code=503 if faults else 200)

    def readyz(_: Request) -> Response:
        missing = parts.not_ready()
        text = f"the cache does not follow yet: {', '.join(missing)}" if missing else "ok"
        return PlainTextResponse(text, status_code=503 if missing else 200)

    def metrics(_: Request) -> Response:
        parts.metrics.in_step.set(0 if parts.not_ready() else 1)
        return Response(generate_latest(parts.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    def status(_: Request) -> Response:
        return JSONResponse(_status())

    def _status() -> dict[str, Any]:
        holder, mine = parts.leader()
        return {
            "extension": {"leader": holder, "this_replica_leads": mine, "cache_behind": parts.not_ready()},
            **status_report(parts.cache),
        }

    def queue(request: Request) -> Response:
        return JSONResponse(queue_report(parts.cache, request.query_params.get("team", "")))

    def why(request: Request) -> Response:
        namespace, job = request.path_params["namespace"], request.path_params["job"]
        answer = why_job(parts.cache, namespace, job, evidence=gather(parts.api, namespace, job))
        if answer is None:
            raise HTTPException(404, f"no job {job} is known in namespace {namespace}")
        return JSONResponse({**answer.as_dict(), "text": answer.text()})

    def decisions(request: Request) -> Response:
        params = request.query_params
        namespace, _, name = params.get("job", "").rpartition("/")
        try:
            limit = min(int(params.get("limit", "200")), _MOST_RECORDS)
        except ValueError:
            raise HTTPException(400, f"limit={params['limit']!r} is not a number") from None
        records = parts.decisions.read(
            name=name or None,
            namespace=namespace or None,
            uid=params.get("uid"),
            since=params.get("since"),
            limit=max(1, limit),
        )
        return JSONResponse([r.as_dict() for r in records])

    def tail(request: Request) -> Response:
        params = request.query_params
        after = params.get("after", "0")
        return JSONResponse(parts.decisions.tail(params.get("epoch", ""), int(after) if after.isdigit() else 0))

    def page(_: Request) -> Response:
        newest = [r.as_dict() for r in parts.decisions.newest(20)]
        html = render(_status(), queue_report(parts.cache), newest)
        headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
        return HTMLResponse(html, headers=headers)

    async def failed(_: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            return JSONResponse({"error": error.detail}, status_code=error.status_code)
        return JSONResponse({"error": str(error)}, status_code=502)

    handlers: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
        HTTPException: failed,
        MyriadError: failed,
    }
    return Starlette(
        routes=[
            Route("/", page),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
            Route("/v1/status", status),
            Route("/v1/queue", queue),
            Route("/v1/decisions", decisions),
            Route("/v1/decisions/tail", tail),
            Route("/v1/why/{namespace}/{job}", why),
        ],
        exception_handlers=handlers,
    )
