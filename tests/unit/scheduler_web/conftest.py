"""A made-up cluster of two teams behind the real server, and an API server that reviews tokens as RBAC would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from myriad.bench.page_serve import NoCluster, Served, record, serve
from myriad.bench.page_world import fill, node
from myriad.kube.client import ApiError
from myriad.kube.kinds import CONFIG_MAPS, LOCAL_QUEUES, NODES, Resource
from myriad.scheduler.ledger.facts import Admission, Holding
from myriad.scheduler.ledger.store import Correction, Quota
from myriad.scheduler.web.auth import AUDIENCE, AuthSettings

Json = dict[str, Any]

TOKENS = {
    "vision-token": "vision-user",
    "admin-token-1": "admin",
    "nobody-token": "nobody",
    "scraper-token": "scraper",
    "robotics-token": "robotics-user",
}
MAY_LIST = {("vision-user", "vision"), ("admin", ""), ("oidc:ann", "vision"), ("robotics-user", "robotics")}
MAY_GET = {("scraper", "/metrics"), ("admin", "/metrics")}
SECRET = "s" * 40


class Reviewer(NoCluster):
    """Answers TokenReviews and SubjectAccessReviews from the tables above; can be made to hang up."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Json] = []
        self.broken = False

    def create(self, resource: Resource, body: Json, **_: Any) -> Json:
        if self.broken:
            raise ApiError(500, "InternalError", "etcd is away", where=resource.plural)
        spec = body["spec"]
        self.asked.append({"kind": resource.kind, **spec})
        if resource.kind == "TokenReview":
            user = TOKENS.get(spec["token"])
            if user is None or spec.get("audiences") == [AUDIENCE]:
                return {"status": {"authenticated": False}}
            groups = ["system:authenticated"]
            return {"status": {"authenticated": True, "user": {"username": user, "groups": groups}}}
        if "nonResourceAttributes" in spec:
            return {"status": {"allowed": (spec["user"], spec["nonResourceAttributes"]["path"]) in MAY_GET}}
        assert spec["resourceAttributes"]["resource"] == "workloads" and spec["resourceAttributes"]["verb"] == "list"
        return {"status": {"allowed": (spec["user"], spec["resourceAttributes"].get("namespace", "")) in MAY_LIST}}


@pytest.fixture(scope="module")
def reviewer() -> Reviewer:
    return Reviewer()


@pytest.fixture(scope="module")
def served(reviewer: Reviewer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The server with tokens; teams vision and speech have jobs that run and wait, and decision records."""
    with serve(tmp_path_factory.mktemp("web"), api=reviewer, auth=AuthSettings(mode="token")) as found:
        fill(found.cache, nodes=64, teams=2, waiting=12)
        for i, view in enumerate(found.cache.views()):
            others = next(v for v in found.cache.views() if v.gang.namespace != view.gang.namespace)
            record(
                found.book,
                i,
                view.gang.namespace,
                view.gang.name,
                reason=f"behind {others.gang.namespace}/{others.gang.name} of {others.gang.team}",
                extra={"others": others.gang.name},
            )
        for one in found.cache.views():
            other = next(v for v in found.cache.views() if v.gang.namespace != one.gang.namespace)
            victim, preemptor = ({"namespace": v.gang.namespace, "job": v.gang.name, "team": v.gang.team, "gpus": 8,
                                  "uid": v.gang.uid, "queue": v.cluster_queue} for v in (one, other))  # fmt: skip
            found.evictions.append(
                {"id": f"e-{one.gang.uid}", "at": "2026-01-01T00:00:00Z", "reason": "Preempted", "victim": victim,
                 "preemptor": preemptor, "message": f"for {other.gang.uid}", "policy": "InClusterQueue"}
            )  # fmt: skip
        mark = {"uid": "u", "workload": "speech/secret-gang-w", "job": "speech/secret-gang", "since": 1, "until": 2,
                "expires": 3}  # fmt: skip
        account(found)
        reserved = node(5, state="reserved")
        reserved["metadata"]["annotations"] = {"myriad.dev/reserved": json.dumps(mark)}
        reserved["spec"]["taints"] = [{"key": "myriad.dev/reserved", "value": "u", "effect": "NoSchedule"}]
        found.cache.upsert(NODES.plural, reserved)
        yield found


def account(found: Served) -> None:
    """Budgets of both teams, one of them used up, its queue held, and a charge of each job that has quota."""
    teams = {
        team: {"namespaces": [team], "gpu_hours": {"h100": {"budget": hours, "period": "year"}},
               "projects": {f"{team}-project": {"gpu_hours": {"h100": {"budget": 9}}}}}
        for team, hours in (("vision", 1_000_000), ("speech", 1))
    }  # fmt: skip
    rules = {"metadata": {"name": "myriad-policy", "namespace": "myriad-system"},
             "data": {"policy.json": json.dumps({"teams": teams})}}  # fmt: skip
    found.cache.upsert(CONFIG_MAPS.plural, rules)
    now = found.ledger.now()
    for team in teams:
        key = f"{team}/h100"
        queue = found.cache.object(LOCAL_QUEUES, key) or {}
        notes = {"myriad.dev/held-by": "budget", "myriad.dev/hold-reason": f"{team} has used up its hours"}
        found.cache.upsert(LOCAL_QUEUES.plural, {**queue, "metadata": {**queue["metadata"], "annotations": notes}})
        found.ledger.store.correct(Correction(team, now, team, "h100", "", -3600, f"{team}-owner", f"for {team}"))
        found.ledger.store.quota(Quota(f"{team}-h100", 0, team, "h100", "training", 256, 1))
    for view in found.cache.views():
        held = (Holding("h100", "h100", "nvidia.com/gpu", view.gang.gpus, 1),)
        gang, team = view.gang, view.gang.team
        found.ledger.store.write(
            [Admission(gang.uid, now - 7200, now - 7200, now - 9000, gang.namespace, view.workload, gang.name, "Job",
                       "", team, f"{team}-project", f"{team}-owner", f"{team}-h100", "h100", 0, "", None, held)]
        )  # fmt: skip


@pytest.fixture
def proxied(reviewer: Reviewer, tmp_path: Path) -> Iterator[Served]:
    """The server behind a proxy that logs people in."""
    (tmp_path / "secret").write_text(SECRET + "\n")
    auth = AuthSettings(mode="proxy", proxy_secret=tmp_path / "secret")
    with serve(tmp_path, api=reviewer, auth=auth) as found:
        fill(found.cache, nodes=8, teams=2, waiting=2)
        yield found
