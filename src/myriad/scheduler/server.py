"""The HTTP side: health, metrics, the API under /v1, the live stream and the page. Reads only; both replicas serve.

Every route is an `Endpoint` with a rule of access (`web.endpoint`), except those of `OPEN_ROUTES`, which say nothing of
the cluster. Answers are made in worker threads, a few at a time, so that the event loop is always free for health.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qs

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from myriad.errors import InputError, MyriadError
from myriad.kube.client import Api
from myriad.scheduler import page
from myriad.scheduler.cache import Cache
from myriad.scheduler.metrics import Metrics
from myriad.scheduler.records import RecordBook
from myriad.scheduler.settings import own_version
from myriad.scheduler.web import accounts, answers, assets, rows, whatif
from myriad.scheduler.web.accounts import Accounts
from myriad.scheduler.web.auth import (
    COOKIE,
    EVERYTHING,
    MOST_TOKEN_BYTES,
    Denied,
    Gatekeeper,
    Scope,
    User,
)
from myriad.scheduler.web.endpoint import Ask, Endpoint, Param, Rule, openapi
from myriad.scheduler.web.limits import (
    CONNECTIONS,
    HEADERS_MAX_BYTES,
    KEEP_ALIVE_S,
    GuardedProtocol,
    Limits,
)
from myriad.scheduler.web.reports import PATIENCE_S
from myriad.scheduler.web.state_metrics import StateCollector
from myriad.scheduler.web.stream import SECTIONS, Documents, Hub, TooManyStreams

log = logging.getLogger("myriad.web")

T = TypeVar("T")

WORKERS = 8
"""Answers that are made at the same time."""
WAITING = 64
"""Requests that wait for a worker; further ones are told to come back."""
TURN_S = 10.0
COOKIE_S = 8 * 3600
_MOST_COOKIE_BYTES = 3800

STREAM = "/v1/stream"
OPEN_ROUTES = frozenset({"/login", "/logout", "/static/{name}", "/openapi.json"})
"""Routes besides the endpoints; none says anything of the cluster."""

_SECTION = "|".join(SECTIONS)
SECTIONS_PARAM = Param(
    "sections", "sections of the stream, separated by commas", rf"({_SECTION})(,({_SECTION})){{0,9}}", 80,
    default=",".join(SECTIONS), example="quotas,jobs",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parts:
    """What the server shows.

    Attributes:
        gate: says who asks and what they may see.
        not_ready: kinds of objects that the cache does not follow yet.
        faults: what is broken in this process; empty = healthy.
        leader: identity of the replica that writes, and whether it is this one.
        evictions: records of evictions, oldest first.
        inputs: what a decision was made on, by its hash.
        accounts: GPU-hours, where this process keeps a ledger.
        shadow: the extension observes and decides nothing.
        brake: its evictions and taints wait while many nodes are silent.
    """

    api: Api
    cache: Cache
    decisions: RecordBook
    metrics: Metrics
    gate: Gatekeeper
    not_ready: Callable[[], list[str]]
    faults: Callable[[], list[str]]
    leader: Callable[[], tuple[str, bool]]
    evictions: Callable[[], list[dict[str, Any]]] = list
    inputs: Callable[[str], dict[str, Any] | None] = lambda _: None
    accounts: Accounts = field(default_factory=lambda: Accounts(None))
    shadow: bool = False
    brake: bool = True


class Busy(MyriadError):
    """More requests at once than are served."""


class Server:
    """The routes and what they share."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.source = answers.Source(
            parts.api,
            parts.cache,
            parts.decisions,
            parts.not_ready,
            parts.leader,
            parts.evictions,
            parts.inputs,
            parts.accounts.hours,
            parts.accounts.state,
            shadow=parts.shadow,
            brake=parts.brake,
        )
        self.hub = Hub(self._documents, lambda seen, timeout_s: parts.cache.wait(seen, timeout_s=timeout_s))
        self._workers = ThreadPoolExecutor(max_workers=WORKERS, thread_name_prefix="answer")
        self._reviews = ThreadPoolExecutor(max_workers=WORKERS, thread_name_prefix="review")
        self._scopes: dict[Any, Cache] = {}
        self._waiting = 0
        parts.metrics.registry.register(
            StateCollector(
                parts.cache,
                report=lambda: self.source.reports.last(EVERYTHING.key),
                stream=self.hub.snapshot,
                leads=lambda: parts.leader()[1],
            )
        )
        parts.metrics.follow(parts.api)
        self.endpoints = self._endpoints()
        self.description = openapi(self.endpoints, version=own_version())

    def _documents(self, scope: Scope) -> Documents:
        cache = self._cache(scope)
        return {**self.source.documents(cache, scope), "budgets": self.parts.accounts.rows(cache)}

    # Threads

    async def _in_thread(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        if self._waiting >= WAITING:
            raise Busy(f"{WAITING} requests wait for an answer already", hint="ask again in a moment")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work)
        finally:
            self._waiting -= 1

    # Who

    def _scope(self, request: Request, rule: Rule, namespace: str) -> Scope:
        """What the caller may see. Raises Denied where the rule refuses the caller."""
        if self.parts.gate.open:
            return EVERYTHING
        user = self.parts.gate.user_of(request.scope["headers"])
        if rule is Rule.METRICS and self.parts.gate.may_get(user, "/metrics"):
            return Scope(everything=False, user=user.name)
        scope = self.parts.gate.scope_of(user)
        if rule is Rule.NAMESPACE and not scope.sees(namespace):
            raise Denied(403, f"you may not list workloads.kueue.x-k8s.io in namespace {namespace}")
        if rule in (Rule.CLUSTER, Rule.METRICS) and not scope.everything:
            raise Denied(403, "this needs the right to list workloads.kueue.x-k8s.io in all namespaces")
        return scope

    def _cache(self, scope: Scope) -> Cache:
        """One scoped cache for all who see the same: what follows from the state is made once for them."""
        if scope.everything:
            return self.parts.cache
        found = self._scopes.get(scope.key)
        if found is None:
            if len(self._scopes) >= 256:
                self._scopes.clear()
            found = self._scopes[scope.key] = self.source.cache(scope)
        return found

    # Routes

    def _endpoints(self) -> list[Endpoint]:
        parts, source = self.parts, self.source

        def healthz(_: Ask) -> Response:
            faults = parts.faults()
            return PlainTextResponse("\n".join(faults) or "ok", status_code=503 if faults else 200)

        def readyz(_: Ask) -> Response:
            behind = parts.not_ready()
            text = f"the cache does not follow yet: {', '.join(behind)}" if behind else "ok"
            return PlainTextResponse(text, status_code=503 if behind else 200)

        def metrics(_: Ask) -> Response:
            parts.metrics.in_step.set(0 if parts.not_ready() else 1)
            return Response(generate_latest(parts.metrics.registry), media_type=CONTENT_TYPE_LATEST)

        def shown(view: str, data: dict[str, Any], ask: Ask) -> Response:
            frame = page.Frame(
                root=ask.root, user=ask.scope.user, can_log_out=not parts.gate.open, assets=assets.version()
            )
            return HTMLResponse(page.render(view, data, frame), headers={"Cache-Control": "no-store"})

        def overview(ask: Ask) -> Response:
            report, others = source.queues(ask.cache, ask.scope, patience_s=PATIENCE_S)
            data = {"status": source.status(ask.cache), "report": report, "others": others}
            return shown("queue", {**data, "accounts": parts.accounts.shown(ask.cache)}, ask)

        def cluster_map(ask: Ask) -> Response:
            nodes = rows.node_rows(ask.cache)
            data = {"status": source.status(ask.cache), "nodes": nodes, "totals": rows.map_totals(nodes)}
            return shown("map", {**data, "levels": list(ask.cache.levels)}, ask)

        def job(ask: Ask) -> Response:
            return shown("job", source.job(ask.cache, ask.scope, ask.text("namespace"), ask.text("job")), ask)

        def decisions(ask: Ask) -> Response:
            namespace, _, name = ask.text("job").rpartition("/")
            query = {"name": name or None, "namespace": namespace or None, "since": ask.text("since") or None}
            if any(query.values()):
                records = source.records(ask.cache, ask.scope, limit=ask.number("limit"), **query)
            else:
                records = source.newest(ask.cache, ask.scope, ask.number("limit"))
            return shown("decisions", {"records": records, "job": ask.text("job")}, ask)

        def preemptions(ask: Ask) -> Response:
            namespace, _, name = ask.text("job").rpartition("/")
            query = {"namespace": namespace, "name": name, "since": ask.text("since")}
            evictions = source.preemptions(ask.scope, limit=ask.number("limit"), **query)
            return shown("preemptions", {"evictions": evictions, "job": ask.text("job")}, ask)

        html = "text/html"
        return [
            Endpoint(path="/healthz", rule=Rule.OPEN, answer=healthz, about="Whether this replica is well.",
                     media="text/plain", light=True),
            Endpoint(path="/readyz", rule=Rule.OPEN, answer=readyz, about="Whether this replica follows the cluster.",
                     media="text/plain", light=True),
            Endpoint(path="/metrics", rule=Rule.METRICS, answer=metrics, about="Metrics for Prometheus.",
                     media="text/plain"),
            Endpoint(path="/", rule=Rule.REDUCED, answer=overview, about="The page: queue and quotas.", media=html),
            Endpoint(path="/map", rule=Rule.REDUCED, answer=cluster_map, about="The page: cluster map.", media=html),
            Endpoint(path="/jobs/{namespace}/{job}", rule=Rule.NAMESPACE, answer=job, about="The page: one job.",
                     params=(answers.NAMESPACE_IN_PATH, answers.JOB_IN_PATH), media=html, misses=True),
            Endpoint(path="/decisions", rule=Rule.REDUCED, answer=decisions, about="The page: decision records.",
                     params=(answers.JOB, answers.SINCE, answers.LIMIT), media=html),
            Endpoint(path="/preemptions", rule=Rule.REDUCED, answer=preemptions, about="The page: preemptions.",
                     params=(answers.JOB, answers.SINCE, answers.LIMIT), media=html),
            *answers.endpoints(source),
            *accounts.endpoints(parts.accounts),
            *whatif.endpoints(parts.api),
            Endpoint(path=STREAM, rule=Rule.REDUCED, answer=lambda _: Response(), about="What changes, as it changes.",
                     params=(SECTIONS_PARAM,), media="text/event-stream"),
        ]  # fmt: skip

    def route(self, endpoint: Endpoint) -> Route:
        """The route of an endpoint."""

        async def serve(request: Request) -> Response:
            begun = time.monotonic()
            try:
                response = await self._serve(endpoint, request)
            except (MyriadError, HTTPException) as error:
                response = self._refused(endpoint, request, error)
            if not endpoint.light:
                took = self.parts.metrics.requests.labels(endpoint.path, str(response.status_code))
                took.observe(time.monotonic() - begun)
            return response

        return Route(endpoint.path, serve, methods=["GET"], name=endpoint.path)

    async def _serve(self, endpoint: Endpoint, request: Request) -> Response:
        values = endpoint.read(request.path_params, request.query_params.multi_items())
        if endpoint.light:
            return endpoint.answer(Ask(self.parts.cache, EVERYTHING, values))
        namespace = str(values.get("namespace", ""))
        find = functools.partial(self._scope, request, endpoint.rule, namespace)
        # Reviews have threads of their own: an API server that hangs takes the answers' threads from nobody.
        scope = EVERYTHING if self.parts.gate.open else await self._in_thread(self._reviews, find)
        if endpoint.path == STREAM:
            return await self._stream(request, scope, str(values["sections"]))

        def make() -> Response:
            return endpoint.answer(Ask(self._cache(scope), scope, values, root=_root(request)))

        return await self._in_thread(self._workers, make)

    async def _stream(self, request: Request, scope: Scope, sections: str) -> Response:
        async def recheck() -> Scope:
            if self.parts.gate.open:
                return EVERYTHING
            return await self._in_thread(self._reviews, functools.partial(self._scope, request, Rule.REDUCED, ""))

        last = request.headers.get("last-event-id", "")[:64]
        events: AsyncIterator[bytes] = await self.hub.follow(scope, frozenset(sections.split(",")), last, recheck)
        # No proxy on the way may gather events before it passes them on.
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)

    def _refused(self, endpoint: Endpoint, request: Request, error: MyriadError | HTTPException) -> Response:
        status, message, hint = 502, str(error), ""
        headers = {"Cache-Control": "no-store"}
        if isinstance(error, HTTPException):
            status, message = error.status_code, error.detail
        elif isinstance(error, Denied):
            status, message, hint = error.status, error.message, error.hint or ""
        elif isinstance(error, InputError):
            status, message = 400, str(error)
        elif isinstance(error, (Busy, TooManyStreams)):
            status, message, hint = 503, error.message, error.hint or ""
        if status == 401:
            headers["WWW-Authenticate"] = 'Bearer realm="myriad"'
        if status == 503:
            headers["Retry-After"] = "2"
        if endpoint.media == "text/html" and "text/html" in request.headers.get("accept", ""):
            frame = page.Frame(root=_root(request), can_log_out=status == 403, assets=assets.version())
            text = page.login("", frame) if status == 401 else page.problem(status, message, hint, frame)
            return HTMLResponse(text, status, headers)
        response = answers.answer({"error": message, **({"hint": hint} if hint else {})}, status)
        response.headers.update(headers)
        return response

    # Open routes

    async def login(self, request: Request) -> Response:
        """The form, and what it sends: the token becomes a cookie that no script can read."""
        frame = page.Frame(root="", assets=assets.version())
        if request.method != "POST":
            return HTMLResponse(page.login("", frame), headers={"Cache-Control": "no-store"})
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return HTMLResponse(page.problem(403, "the form was sent from another site", "", frame), 403)
        try:
            form = parse_qs((await request.body()).decode("utf-8"), max_num_fields=8, strict_parsing=False)
        except (UnicodeDecodeError, ValueError):
            return HTMLResponse(page.login("The form could not be read.", frame), 400)
        except ClientDisconnect:
            return Response(status_code=400)
        token = "".join(form.get("token", [""])[0].split())
        try:
            if len(token) > min(_MOST_COOKIE_BYTES, MOST_TOKEN_BYTES):
                raise Denied(401, "The token is too long for a cookie; send it as a header instead (see the API).")
            if not self.parts.gate.open:
                review: Callable[[], User] = functools.partial(self.parts.gate.review, token)
                await self._in_thread(self._reviews, review)
        except MyriadError as error:
            status = error.status if isinstance(error, Denied) else 503
            return HTMLResponse(page.login(error.message, frame), status, {"Cache-Control": "no-store"})
        response = Response(status_code=303, headers={"Location": "./", "Cache-Control": "no-store"})
        self._set_cookie(request, response, token, COOKIE_S)
        return response

    async def logout(self, request: Request) -> Response:
        """Forget the cookie."""
        response = Response(status_code=303, headers={"Location": "login", "Cache-Control": "no-store"})
        self._set_cookie(request, response, "", 0)
        return response

    @staticmethod
    def _set_cookie(request: Request, response: Response, value: str, age_s: int) -> None:
        # Without a path it is the folder of /login: it holds behind a proxy that puts the page below a prefix too.
        secure = "; Secure" if request.url.scheme == "https" else ""
        cookie = f"{COOKIE}={value}; Max-Age={age_s}; HttpOnly; SameSite=Strict{secure}"
        response.headers.append("Set-Cookie", cookie)

    async def static(self, request: Request) -> Response:
        """A file of the page: one of a fixed few, by name."""
        found = assets.find(request.path_params["name"])
        if found is None:
            return answers.answer({"error": "there is no such file"}, 404)
        body, media = found
        fresh = {"ETag": f'"{assets.version()}"', "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == fresh["ETag"]:
            return Response(status_code=304, headers=fresh)
        return Response(body, media_type=media, headers=fresh)

    async def openapi(self, _: Request) -> Response:
        """The description of the API."""
        return answers.answer(self.description)


def _root(request: Request) -> str:
    """How a page of this depth reaches the top; relative, so that it holds below any prefix."""
    return "../" * max(0, request.url.path.count("/") - 1) if request.url.path != "/" else ""


async def _failed(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    text = error.detail if isinstance(error, HTTPException) else "the answer could not be made; the log says why"
    response = answers.answer({"error": text}, status)
    if isinstance(error, HTTPException) and error.headers:
        response.headers.update(error.headers)
    return response


def uvicorn_config(app: Starlette, *, port: int, host: str = "0.0.0.0") -> uvicorn.Config:  # noqa: S104
    """How the application is served: on every interface of the pod, where the Service and the probes come in."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        http=GuardedProtocol,
        server_header=False,
        # A client's word about whom it speaks for is taken by nobody here: see web.auth.
        proxy_headers=False,
        h11_max_incomplete_event_size=HEADERS_MAX_BYTES,
        timeout_keep_alive=KEEP_ALIVE_S,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=2,
    )


def build_app(parts: Parts) -> Starlette:
    """The application. `app.state.server` is the Server behind it."""
    server = Server(parts)
    handlers: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {HTTPException: _failed, 500: _failed}
    app = Starlette(
        routes=[
            *(server.route(endpoint) for endpoint in server.endpoints),
            Route("/login", server.login, methods=["GET", "POST"]),
            Route("/logout", server.logout, methods=["POST"]),
            Route("/static/{name}", server.static, methods=["GET"]),
            Route("/openapi.json", server.openapi, methods=["GET"]),
        ],
        exception_handlers=handlers,
        middleware=[Middleware(Limits, streams=frozenset({STREAM}))],
    )
    app.router.redirect_slashes = False
    app.state.server = server
    return app
