"""The answers of the JSON API: every route under /v1, each with its inputs, its rule and the shape of its answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from myriad.kube.client import Api
from myriad.kube.kinds import WORKLOADS
from myriad.scheduler.cache import Cache
from myriad.scheduler.evidence import gather
from myriad.scheduler.facts import Eta
from myriad.scheduler.inquiry import status_report, why_job
from myriad.scheduler.model import DecisionRecord
from myriad.scheduler.objects import WorkloadView
from myriad.scheduler.protecting import report as protected
from myriad.scheduler.queue_view import eta_of, published_etas, queue_report
from myriad.scheduler.quota_view import Balance, quota_report
from myriad.scheduler.records import RecordBook
from myriad.scheduler.web import rows
from myriad.scheduler.web.auth import Scope
from myriad.scheduler.web.endpoint import NAME, NAMESPACE, TIME, Ask, Endpoint, Param, Rule
from myriad.scheduler.web.reports import Reports
from myriad.scheduler.web.scope import OTHERS, ScopedCache

Json = dict[str, Any]

MOST_RECORDS = 1000
MOST_IN_MEMORY = 5000

TEAM = Param("team", "the name of a team", example="vision", default="")
JOB_IN_PATH = Param("job", "the name of a job", path=True, example="train")
NAMESPACE_IN_PATH = Param("namespace", "the name of a namespace", NAMESPACE, 63, path=True, example="vision")
JOB = Param(
    "job", "a job as NAMESPACE/NAME or NAME", rf"(({NAMESPACE})?/)?{NAME}", 320, default="", example="vision/train"
)
LIMIT = Param("limit", "how many records, the newest", "", 4, least=1, most=MOST_RECORDS, default=200, example="50")
SINCE = Param("since", "a time in UTC", TIME, 40, default="", example="2026-01-31T12:00:00Z")
UID = Param("uid", "the uid of a Workload", r"[0-9A-Za-z-]{1,64}", 64, default="", example="0b5f-...")
HASH = Param("hash", "a hash of inputs", r"sha256:[0-9a-f]{64}", 71, default="", example="sha256:...")
EPOCH = Param("epoch", "what an earlier answer named", r"[0-9a-f]{1,64}", 64, default="", example="8f3a")
AFTER = Param("after", "what an earlier answer named as next", "", 18, least=0, most=10**17, default=0, example="0")

ROW: Json = {"type": "object", "additionalProperties": True}
ROWS: Json = {"type": "array", "items": ROW}


def answer(data: Any, status: int = 200) -> Response:
    """A JSON answer. Numbers of numpy become numbers; nothing is kept by anybody on the way."""
    text = json.dumps(data, separators=(",", ":"), default=int, ensure_ascii=False)
    return Response(text, status, {"Cache-Control": "no-store"}, "application/json")


def missing(what: str) -> HTTPException:
    """404: there is no such thing, or the caller may not see it; which of the two is not said."""
    return HTTPException(404, what)


@dataclass(frozen=True)
class Source:
    """What is known, as one caller may see it.

    Attributes:
        whole: the cluster.
        decisions: the decision records.
        not_ready: kinds of objects that the cache does not follow yet.
        leader: identity of the replica that writes, and whether it is this one.
        evictions: records of evictions, oldest first (`notices.facts.Eviction` as mappings).
        inputs: what a decision was made on, by its hash.
        hours: GPU-hours by team and pool, of the ledger.
        ledger: how far the ledger is behind; empty where there is none.
        shadow: the extension observes and decides nothing.
        brake: its evictions and taints wait while many nodes are silent.
    """

    api: Api
    whole: Cache
    decisions: RecordBook
    not_ready: Callable[[], list[str]]
    leader: Callable[[], tuple[str, bool]]
    evictions: Callable[[], list[Json]] = list
    inputs: Callable[[str], Json | None] = lambda _: None
    hours: Callable[[], Mapping[tuple[str, str], Balance]] = dict
    ledger: Callable[[], Json] = dict
    shadow: bool = False
    brake: bool = True
    reports: Reports = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reports", Reports(lambda: self.whole.version))

    def cache(self, scope: Scope) -> Cache:
        """The cluster for a scope."""
        return self.whole if scope.everything else ScopedCache(self.whole, scope)

    def status(self, cache: Cache) -> Json:
        """The status report and the state of the extension."""
        holder, mine = self.leader()
        report = status_report(cache)
        ledger = self.ledger()
        if isinstance(cache, ScopedCache):
            seen = cache.seen_queues()
            report["queues_not_steered"] = [q for q in report["queues_not_steered"] if q in seen]
            # Where the database stands, and what it says, is for those who run it.
            ledger = {k: v for k, v in ledger.items() if k in ("queued", "lag_s", "error_since")}
        extension = {
            "leader": holder,
            "this_replica_leads": mine,
            "shadow": self.shadow,
            "brake": self.brake,
            "cache_behind": self.not_ready(),
            "ledger": ledger,
        }
        return {"extension": extension, **report}

    def queues(
        self, cache: Cache, scope: Scope, team: str = "", *, patience_s: float | None = None
    ) -> tuple[list[Json], Json]:
        """Queues that the caller may see, and the totals of the others."""
        report = self.reports.get(scope.key, lambda: _queue_report(cache), patience_s=patience_s)
        return rows.reduced([q for q in report if not team or q["team"] == team], scope)

    def quotas(self, cache: Cache, team: str = "") -> Json:
        """Quota by team and pool with GPU-hours, and the pools' capacity (`quota_view.quota_report`)."""
        report = quota_report(cache, team, balances=self.hours())
        mine = [row for row in report["quotas"] if not (isinstance(cache, ScopedCache) and row["team"] == OTHERS)]
        return {"quotas": mine, "pools": report["pools"]}

    def records(self, cache: Cache, scope: Scope, **query: Any) -> list[Json]:
        """Decision records of namespaces that the caller may see, oldest first."""
        limit = query.pop("limit")
        found = [r for r in self.decisions.read(**query) if scope.sees(r.namespace)]
        return [self._shown(cache, r) for r in found[-limit:]]

    def newest(self, cache: Cache, scope: Scope, limit: int) -> list[Json]:
        """The newest of them that are in memory, oldest of them first."""
        found = [r for r in self.decisions.newest(MOST_IN_MEMORY) if scope.sees(r.namespace)]
        return [self._shown(cache, r) for r in found[-limit:]]

    def preemptions(
        self, scope: Scope, *, namespace: str = "", name: str = "", since: str = "", limit: int
    ) -> list[Json]:
        """Evictions of jobs that the caller may see, oldest first."""
        found = [
            row
            for row in rows.preemption_rows(self.evictions(), scope)
            if (not namespace or row["victim"]["namespace"] == namespace)
            and (not name or row["victim"]["job"] == name)
            and row["at"] >= since
        ]
        return found[-limit:]

    @staticmethod
    def _shown(cache: Cache, record: DecisionRecord) -> Json:
        body = record.as_dict()
        if isinstance(cache, ScopedCache):
            # A record was written by one who sees everything.
            body.pop("extra", None)
            if "reason" in body:
                body["reason"] = cache.scrub(body["reason"])
        return body

    def job(self, cache: Cache, scope: Scope, namespace: str, job: str) -> Json:
        """Everything about one job. Raises HTTPException 404."""
        evidence = gather(self.api, namespace, job)
        found = why_job(cache, namespace, job, evidence=evidence, eta=_eta(cache))
        if found is None:
            raise missing(f"no job {job} is known in namespace {namespace}")
        records = self.records(cache, scope, name=job, namespace=namespace, limit=50)
        view = cache.view_of_job(namespace, job)
        body = cache.object(WORKLOADS, view.key) if view else None
        nodes: dict[str, int] = {}
        for by_node in (cache.pods_of(view) or view.assignment or {}).values() if view else ():
            for node, pods in by_node.items():
                nodes[node] = nodes.get(node, 0) + pods
        return {
            "namespace": namespace,
            "job": job,
            "why": {**found.as_dict(), "text": found.text(), "title": found.title},
            "queue": cache.cluster_queue_of(view) if view else "",
            "size": view.gang.size() if view else "",
            "gpus": view.gang.gpus if view else 0,
            "priority": view.gang.priority if view else 0,
            "nodes": nodes,
            "timeline": rows.timeline(body, records),
            "decisions": records,
            "preemptions": self.preemptions(scope, namespace=namespace, name=job, limit=50),
        }

    def documents(self, cache: Cache, scope: Scope) -> dict[str, Json]:
        """All sections of the stream for a scope."""
        report, others = self.queues(cache, scope)
        status = self.status(cache)
        nodes = rows.node_rows(cache)
        decisions = {f"{r['time']} {r['event']} {r['namespace']}/{r['name']}": r for r in self.newest(cache, scope, 50)}
        totals = {k: v for k, v in status.items() if k not in ("nodes", "fits_now")}
        return {
            "totals": {"status": totals, "others": others, "map": rows.map_totals(nodes), "fits": status["fits_now"]},
            "quotas": rows.quota_rows(report),
            "jobs": rows.job_rows(cache, report),
            "nodes": nodes,
            "decisions": decisions,
        }


def _queue_report(cache: Cache) -> list[Json]:
    """The queues, with the estimates that the leader has put on the Workloads: none is made for a request."""
    now = datetime.now(UTC)
    return queue_report(cache, now=now, etas=published_etas(cache, now=now))


def _eta(cache: Cache) -> Callable[[WorkloadView], Eta | None]:
    return lambda view: eta_of(cache, view, now=datetime.now(UTC))


def fields(*names: str, **more: Json) -> Json:
    """The schema of an object with these fields, some of them of a shape of their own."""
    return {"type": "object", "required": list(names), "properties": more, "additionalProperties": True}


def endpoints(source: Source) -> list[Endpoint]:
    """The routes of the API."""

    def status(ask: Ask) -> Response:
        return answer(source.status(ask.cache))

    def queue(ask: Ask) -> Response:
        return answer(source.queues(ask.cache, ask.scope, ask.text("team"))[0])

    def quota(ask: Ask) -> Response:
        report, others = source.queues(ask.cache, ask.scope, ask.text("team"))
        found = source.quotas(ask.cache, ask.text("team"))
        return answer({"queues": list(rows.quota_rows(report).values()), "others": others, **found})

    def cluster_map(ask: Ask) -> Response:
        nodes = rows.node_rows(ask.cache)
        return answer({"levels": list(ask.cache.levels), "totals": rows.map_totals(nodes), "nodes": nodes})

    def why(ask: Ask) -> Response:
        namespace, job = ask.text("namespace"), ask.text("job")
        found = why_job(ask.cache, namespace, job, evidence=gather(source.api, namespace, job), eta=_eta(ask.cache))
        if found is None:
            raise missing(f"no job {job} is known in namespace {namespace}")
        return answer({**found.as_dict(), "text": found.text()})

    def job(ask: Ask) -> Response:
        return answer(source.job(ask.cache, ask.scope, ask.text("namespace"), ask.text("job")))

    def decisions(ask: Ask) -> Response:
        namespace, _, name = ask.text("job").rpartition("/")
        return answer(
            source.records(
                ask.cache,
                ask.scope,
                name=name or None,
                namespace=namespace or None,
                uid=ask.text("uid") or None,
                since=ask.text("since") or None,
                limit=ask.number("limit"),
            )
        )

    def inputs(ask: Ask) -> Response:
        found = source.inputs(ask.text("hash"))
        if found is None:
            raise missing("these inputs are not kept (any more)")
        return answer(found)

    def preemptions(ask: Ask) -> Response:
        namespace, _, name = ask.text("job").rpartition("/")
        limit, since = ask.number("limit"), ask.text("since")
        return answer(source.preemptions(ask.scope, namespace=namespace, name=name, since=since, limit=limit))

    def protections(ask: Ask) -> Response:
        return answer(protected(ask.cache, now=time.time()))

    def tail(ask: Ask) -> Response:
        return answer(source.decisions.tail(ask.text("epoch"), ask.number("after")))

    text = {"type": "string"}
    number = {"type": "integer"}
    return [
        Endpoint(
            path="/v1/status",
            rule=Rule.REDUCED,
            answer=status,
            about="Nodes, what fits now, and whether gangs are steered.",
            returns=fields("extension", "nodes", "nodes_total", "fits_now", nodes=ROWS, nodes_total=number),
        ),
        Endpoint(
            path="/v1/queue",
            rule=Rule.REDUCED,
            answer=queue,
            about="Queues with what waits in order, with the reason, and what holds quota.",
            params=(TEAM,),
            returns={"type": "array", "items": fields("cluster_queue", "team", "pool", "waiting", "running")},
        ),
        Endpoint(
            path="/v1/quota",
            rule=Rule.REDUCED,
            answer=quota,
            about="Quota, use, borrowing and GPU-hours by team and pool, and what the pools' hardware can honour; of "
            "queues that may not be seen, the totals.",
            params=(TEAM,),
            returns=fields("queues", "others", "quotas", "pools", queues=ROWS, others=ROW, quotas=ROWS, pools=ROWS),
        ),
        Endpoint(
            path="/v1/map",
            rule=Rule.REDUCED,
            answer=cluster_map,
            about="Every GPU node: place, state, GPUs by state, and who holds them.",
            returns=fields("levels", "totals", "nodes", levels={"type": "array", "items": text}, nodes=ROW),
        ),
        Endpoint(
            path="/v1/why/{namespace}/{job}",
            rule=Rule.NAMESPACE,
            answer=why,
            about="Why a job waits: the first cause, with numbers and what would unblock it.",
            params=(NAMESPACE_IN_PATH, JOB_IN_PATH),
            returns=fields("job", "state", "first_cause", "lines", "text", first_cause=text, text=text),
            misses=True,
        ),
        Endpoint(
            path="/v1/jobs/{namespace}/{job}",
            rule=Rule.NAMESPACE,
            answer=job,
            about="A job: why, timeline, nodes, decisions.",
            params=(NAMESPACE_IN_PATH, JOB_IN_PATH),
            returns=fields("namespace", "job", "why", "timeline", "nodes", "decisions", timeline=ROWS, decisions=ROWS),
            misses=True,
        ),
        Endpoint(
            path="/v1/decisions",
            rule=Rule.REDUCED,
            answer=decisions,
            about="Decision records, oldest first.",
            params=(JOB, UID, SINCE, LIMIT),
            returns={"type": "array", "items": fields("time", "event", "name")},
        ),
        Endpoint(
            path="/v1/decisions/inputs",
            rule=Rule.CLUSTER,
            answer=inputs,
            about="The state that a decision was made on, by the hash in its record; `myriad replay` reads it.",
            params=(HASH,),
            returns=ROW,
            misses=True,
        ),
        Endpoint(
            path="/v1/preemptions",
            rule=Rule.REDUCED,
            answer=preemptions,
            about="Evictions, oldest first: of whom, for whom, by which policy, until when, what was at risk.",
            params=(JOB, SINCE, LIMIT),
            returns={"type": "array", "items": fields("id", "at", "victim", "preemptor")},
        ),
        Endpoint(
            path="/v1/protections",
            rule=Rule.REDUCED,
            answer=protections,
            about="Domains that are reserved for a gang that has waited too long.",
            returns={"type": "array", "items": fields("uid", "job", "nodes", "sentence")},
        ),
        Endpoint(
            path="/v1/decisions/tail",
            rule=Rule.CLUSTER,
            answer=tail,
            about="Records after a position of this process; replicas copy from one another by it.",
            params=(EPOCH, AFTER),
            returns=fields("epoch", "next", "records", epoch=text, next=number, records=ROWS),
        ),
    ]
