"""Who sees what: every route, for every kind of caller."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from myriad.bench.page_serve import NoCluster, Served, serve
from myriad.bench.page_world import fill
from myriad.errors import InputError
from myriad.kube.kinds import CONFIG_MAPS
from myriad.scheduler.cache import Cache
from myriad.scheduler.ledger.store import LedgerError
from myriad.scheduler.metrics import Metrics
from myriad.scheduler.server import OPEN_ROUTES, STREAM, Parts, build_app
from myriad.scheduler.web.auth import COOKIE, EVERYTHING, REFUSED_S, AuthSettings, Denied, Gatekeeper, Scope
from myriad.scheduler.web.endpoint import Endpoint, Rule
from myriad.scheduler.web.scope import ScopedCache

_PARTS = Parts(
    api=NoCluster(),
    cache=Cache(check_name="myriad"),
    decisions=None,  # type: ignore[arg-type]
    metrics=Metrics(),
    gate=Gatekeeper(NoCluster(), AuthSettings(mode="off"), namespaces=list),
    not_ready=list,
    faults=list,
    leader=lambda: ("", False),
)
ROUTES = [route for route in build_app(_PARTS).routes if isinstance(route, Route)]
RULES = {e.path: e.rule for e in build_app(_PARTS).state.server.endpoints}
GUARDED = [path for path, rule in RULES.items() if rule is not Rule.OPEN]


HTTP = httpx.Client(timeout=20)
"""One for all: making a client reads every certificate of the machine."""


@pytest.fixture(scope="module", autouse=True)
def _one_client(served: Served) -> Iterator[None]:
    yield
    # Before the server ends, so that it has nobody to wait for.
    HTTP.close()


def get(served: Served, path: str, token: str = "", **headers: str) -> httpx.Response:
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return HTTP.get(served.url + path, headers=headers)


def body_of(served: Served, path: str, token: str) -> tuple[int, str]:
    """Status and everything that comes; of the stream, what comes first."""
    if not path.startswith(STREAM):
        answer = get(served, path, token, Accept="text/html,application/json")
        return answer.status_code, answer.text + str(answer.headers)
    text = ""
    with HTTP.stream("GET", served.url + path, headers={"X-Myriad-Token": token}) as answer:
        for piece in answer.iter_text():
            text += piece
            if answer.status_code != 200 or "event: decisions" in text:
                break
        return answer.status_code, text


def secrets_of(served: Served, namespace: str) -> set[str]:
    """Every name that only somebody with a right on the namespace may see."""
    names = {namespace, "secret-gang", "secret-gang-w"} if namespace == "speech" else {namespace}
    names |= {f"{namespace}-owner", f"{namespace}-project"}
    for view in served.cache.views():
        if view.gang.namespace == namespace:
            names |= {view.gang.name, view.workload, view.gang.uid}
    return names


def fillings(path: str, served: Served) -> list[str]:
    """A route's path with jobs of both teams in it."""
    if "{" not in path:
        return [path]
    found = []
    for view in served.cache.views()[:6] + served.cache.views()[-6:]:
        found.append(path.replace("{namespace}", view.gang.namespace).replace("{job}", view.gang.name))
    # A job of one's own name in the other's namespace, and the other way round.
    names = {v.gang.namespace: v.gang.name for v in served.cache.views()}
    found.append(path.replace("{namespace}", "speech").replace("{job}", names["vision"]))
    found.append(path.replace("{namespace}", "vision").replace("{job}", names["speech"]))
    return found


def test_every_route_has_a_rule() -> None:
    """A new route is an Endpoint, which has a rule, or it is named among the open ones."""
    assert {r.path for r in ROUTES} == set(RULES) | OPEN_ROUTES
    assert {path for path, rule in RULES.items() if rule is Rule.OPEN} == {"/healthz", "/readyz"}
    for route in ROUTES:
        if "{namespace}" in route.path:
            assert RULES[route.path] is Rule.NAMESPACE, route.path


@pytest.mark.parametrize("path", sorted(r.path for r in ROUTES))
def test_a_user_gets_nothing_of_a_namespace_without_a_right_on_it(path: str, served: Served) -> None:
    hidden = secrets_of(served, "speech")
    assert len(hidden) > 10
    for asked in fillings(path, served):
        for query in ("", "?team=speech", "?job=speech/x", "?job=" + sorted(hidden)[0], "?limit=1000", "?by=job"):
            status, text = body_of(served, asked + query, "vision-token")
            # What the caller sent may come back in an error; nothing else may.
            told = (
                text.replace(asked, "").replace("in namespace speech", "").replace(query.partition("=")[2] or "?", "")
            )
            if status == 404:
                told = re.sub(r"no job \S+ is known", "", told)
            words = set(re.findall(r"[A-Za-z0-9][\w.-]*", told)) - ({"speech"} if "speech" in query else set())
            assert not hidden & words, f"{asked}{query} ({status}) says {sorted(hidden & words)}"
            assert "speech-h100" not in told


@pytest.mark.parametrize("path", GUARDED)
def test_without_a_token_nothing_is_said(path: str, served: Served) -> None:
    for asked in fillings(path, served)[:3]:
        for token in ("", "unknown-token"):
            status, text = body_of(served, asked, token)
            assert status == 401, asked
            for name in secrets_of(served, "speech") | secrets_of(served, "vision"):
                assert name not in text.replace("vision/train", "").replace(asked, ""), asked
        answer = get(served, asked)
        assert answer.headers["WWW-Authenticate"].startswith("Bearer") and "gpu00" not in answer.text


@pytest.mark.parametrize("path", GUARDED)
def test_a_user_with_no_namespace_sees_numbers_only(path: str, served: Served) -> None:
    hidden = secrets_of(served, "speech") | secrets_of(served, "vision")
    for asked in fillings(path, served)[:4]:
        status, text = body_of(served, asked, "nobody-token")
        assert status in ((403,) if RULES[path] in (Rule.NAMESPACE, Rule.CLUSTER, Rule.METRICS) else (200,))
        told = text.replace(asked, "").replace("in namespace speech", "").replace("in namespace vision", "")
        assert not hidden & set(re.findall(r"[A-Za-z0-9][\w.-]*", told)), asked


def test_numbers_stay_true_for_whoever_sees_a_part(served: Served) -> None:
    whole = get(served, "/v1/quota", "admin-token-1").json()
    part = get(served, "/v1/quota", "vision-token").json()
    assert len(whole["queues"]) == 2 and whole["others"]["queues"] == 0
    (mine,) = part["queues"]
    assert mine == next(q for q in whole["queues"] if q["team"] == "vision")
    theirs = next(q for q in whole["queues"] if q["team"] == "speech")
    assert part["others"]["used_gpus"] == theirs["used_gpus"] > 0
    assert part["others"]["waiting"] == theirs["waiting"] and part["others"]["queues"] == 1
    for path in ("/v1/map", "/v1/status"):
        one, other = (get(served, path, t).json() for t in ("admin-token-1", "vision-token"))
        key = "totals" if path == "/v1/map" else "gpus_used"
        assert one[key] == other[key]
    held = [r for r in get(served, "/v1/map", "vision-token").json()["nodes"].values() if r["used"]]
    assert any("a job of another team" in r["jobs"] for r in held)


def test_an_own_job_is_explained_and_one_elsewhere_is_refused_whether_it_exists_or_not(served: Served) -> None:
    mine = next(v for v in served.cache.views() if v.gang.namespace == "vision" and v.waiting)
    theirs = next(v for v in served.cache.views() if v.gang.namespace == "speech")
    assert get(served, f"/v1/why/vision/{mine.gang.name}", "vision-token").json()["first_cause"]
    there = get(served, f"/v1/why/speech/{theirs.gang.name}", "vision-token")
    nowhere = get(served, "/v1/why/speech/does-not-exist", "vision-token")
    assert there.status_code == nowhere.status_code == 403 and there.json() == nowhere.json()
    records = get(served, "/v1/decisions?limit=1000", "vision-token").json()
    assert records and {r["namespace"] for r in records} == {"vision"}
    assert all("(another team's)" in r["reason"] and "extra" not in r for r in records)


def test_reservations_and_evictions_are_told_with_names_to_whoever_may_see_them(served: Served) -> None:
    (whole,), (part,) = (get(served, "/v1/protections", t).json() for t in ("admin-token-1", "vision-token"))
    assert whole["job"] == "speech/secret-gang" and part["job"] == "a job of another team"
    assert whole["nodes"] == part["nodes"] == ["gpu0006"]
    mine = get(served, "/v1/preemptions", "vision-token").json()
    assert mine and all(e["victim"]["namespace"] == "vision" for e in mine)
    assert all(e["preemptor"]["job"] == "a job of another team" for e in mine)
    assert len(get(served, "/v1/preemptions?limit=1000", "admin-token-1").json()) == len(served.evictions)


def test_metrics_are_for_whoever_may_get_them(served: Served) -> None:
    assert get(served, "/metrics", "scraper-token").status_code == 200
    assert get(served, "/metrics", "admin-token-1").status_code == 200
    assert get(served, "/metrics", "vision-token").status_code == 403
    assert get(served, "/v1/decisions/tail", "vision-token").status_code == 403
    assert get(served, "/v1/decisions/tail", "admin-token-1").status_code == 200
    assert get(served, "/healthz").status_code == get(served, "/readyz").status_code == 200


def test_an_api_server_that_fails_lets_nobody_in(served: Served, reviewer: Any) -> None:
    reviewer.broken = True
    try:
        answer = get(served, "/v1/queue", "another-token-x")
    finally:
        reviewer.broken = False
    assert answer.status_code == 503 and "TokenReview" in answer.json()["error"] and "etcd" not in answer.text
    assert get(served, "/v1/queue", "vision-token").status_code == 200


def test_reviews_are_remembered_for_a_short_time(reviewer: Any) -> None:
    now = [0.0]
    gate = Gatekeeper(reviewer, AuthSettings(), namespaces=lambda: ["vision", "speech"], clock=lambda: now[0])
    headers = [(b"authorization", b"Bearer vision-token")]
    reviewer.asked.clear()
    for _ in range(5):
        assert gate.scope_of(gate.user_of(headers)) == Scope(False, frozenset({"vision"}), "vision-user")
    first = len(reviewer.asked)
    assert first == 5, "two TokenReviews (page, API server), three access reviews"
    now[0] = 61.0
    gate.scope_of(gate.user_of(headers))
    assert len(reviewer.asked) == 2 * first


def test_a_token_that_was_refused_is_not_reviewed_at_every_request(reviewer: Any) -> None:
    now = [0.0]
    gate = Gatekeeper(reviewer, AuthSettings(), namespaces=list, clock=lambda: now[0])
    reviewer.asked.clear()
    for second in range(int(3 * REFUSED_S)):
        now[0] = float(second)
        with pytest.raises(Denied, match="does not know this token"):
            gate.user_of([(b"authorization", b"Bearer has-run-out")])
    assert len(reviewer.asked) == 3 * 2, "for the page and for the API server, every 10 s"


def test_the_form_keeps_the_token_where_no_script_reads_it(served: Served) -> None:
    with httpx.Client(base_url=served.url) as browser:
        first = browser.get("/", headers={"Accept": "text/html"})
        assert first.status_code == 401 and '<form method="post" action="login"' in first.text
        wrong = browser.post("/login", data={"token": "not-a-token"})
        assert wrong.status_code == 401 and 'role="alert"' in wrong.text and "set-cookie" not in wrong.headers
        entered = browser.post("/login", data={"token": " vision-\ntoken "})
        cookie = entered.headers["set-cookie"]
        assert entered.status_code == 303 and "HttpOnly" in cookie and "SameSite=Strict" in cookie
        assert browser.cookies[COOKIE] == "vision-token"
        page = browser.get("/")
        assert page.status_code == 200 and "vision-user" in page.text
        foreign = browser.post("/login", data={"token": "vision-token"}, headers={"Sec-Fetch-Site": "cross-site"})
        assert foreign.status_code == 403 and "set-cookie" not in foreign.headers
        assert "Max-Age=0" in browser.post("/logout", headers={"Content-Length": "0"}).headers["set-cookie"]
        huge = browser.post("/login", data={"token": "x" * 5000})
        assert huge.status_code == 401 and "too long for a cookie" in huge.text


def test_a_header_of_ours_passes_the_api_servers_proxy(served: Served) -> None:
    assert get(served, "/v1/queue", **{"X-Myriad-Token": "vision-token"}).status_code == 200


PROXY = {"X-Forwarded-User": "ann", "X-Myriad-Proxy-Secret": "s" * 40}


def test_a_proxys_word_counts_with_its_secret_only(proxied: Served) -> None:
    assert get(proxied, "/v1/quota", **PROXY).json()["queues"][0]["team"] == "vision"
    for spoiled in (
        {"X-Myriad-Proxy-Secret": "t" * 40},
        {"X-Myriad-Proxy-Secret": ""},
        {"X-Forwarded-User": ""},
    ):
        answer = get(proxied, "/v1/quota", **{**PROXY, **spoiled})
        assert answer.status_code == 403, spoiled
    bare = get(proxied, "/v1/quota", **{"X-Forwarded-User": "ann"})
    assert bare.status_code == 403 and "configured proxy" in bare.json()["error"]
    # A token goes on working beside the proxy: for Prometheus and the other replica.
    assert get(proxied, "/v1/decisions/tail", "admin-token-1").status_code == 200
    assert get(proxied, "/v1/quota").status_code == 401


def test_a_proxy_cannot_name_two_users_or_bring_a_users_token_into_play(proxied: Served) -> None:
    twice = [("X-Forwarded-User", "ann"), ("X-Forwarded-User", "bob"), ("X-Myriad-Proxy-Secret", "s" * 40)]
    assert HTTP.get(proxied.url + "/v1/quota", headers=twice).status_code == 403
    spoofed = get(proxied, "/v1/quota", "admin-token-1", **{"X-Forwarded-User": "admin"})
    assert spoofed.status_code == 403, "a token does not make the header true"


def test_without_a_proxy_its_headers_mean_nothing(served: Served) -> None:
    assert get(served, "/v1/quota", **PROXY).status_code == 401


def test_a_proxy_may_not_name_system_users(tmp_path: Path, reviewer: Any) -> None:
    (tmp_path / "secret").write_text("s" * 40)
    auth = AuthSettings(mode="proxy", proxy_secret=tmp_path / "secret", user_prefix="", groups_prefix="")
    with serve(tmp_path, api=reviewer, auth=auth) as found:
        fill(found.cache, nodes=8, teams=2, waiting=0)
        admin = {**PROXY, "X-Forwarded-User": "system:admin"}
        masters = {**PROXY, "X-Forwarded-Groups": "people,system:masters"}
        assert get(found, "/v1/quota", **admin).status_code == 403
        assert "system:masters" in get(found, "/v1/quota", **masters).json()["error"]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"mode": "none"}, "no way to log in"),
        ({"mode": "proxy"}, "no file with the proxy's secret"),
        ({"mode": "proxy", "proxy_secret": Path("/nowhere/secret")}, "cannot be read"),
        ({"mode": "proxy", "proxy_secret": Path("/proc/self/comm")}, "32 are the least"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_start(settings: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        Gatekeeper(NoCluster(), AuthSettings(**settings), namespaces=list)


FEEDS = {"out_of_step", "wait"}
"""Of following the API server, not of what is there."""


def test_a_question_that_a_scoped_cache_does_not_know_is_refused() -> None:
    """Whatever is added to Cache must be answered for a scope too; until it is, it raises instead of telling."""
    whole = Cache(check_name="myriad")
    fill(whole, nodes=8, teams=2, waiting=2)
    scoped = ScopedCache(whole, Scope(False, frozenset({"vision"})))
    answered = {n for n in vars(ScopedCache) if not n.startswith("_")} | {"lock", "check_name"}
    for name in dir(Cache):
        if name.startswith("_") or name in answered or name in {"follow", "replace", "upsert", "remove"} | FEEDS:
            continue
        needed = len(inspect.signature(getattr(Cache, name)).parameters) - 1
        with pytest.raises(AttributeError):
            getattr(scoped, name)(*[None] * needed)


def test_an_endpoint_cannot_be_declared_without_its_namespace() -> None:
    with pytest.raises(InputError, match="does not name"):
        Endpoint(path="/v1/x", rule=Rule.NAMESPACE, answer=lambda _: None, about="")  # type: ignore[arg-type,return-value]


def test_gpu_hours_of_a_team_are_for_whoever_sees_one_of_its_namespaces(served: Served) -> None:
    whole, part, none = (
        get(served, "/v1/budgets", t).json() for t in ("admin-token-1", "vision-token", "nobody-token")
    )
    assert len(whole["budgets"]) == 4 and whole["others"] == 0
    assert {b["team"] for b in part["budgets"]} == {"vision"} and part["others"] == 2
    assert none["budgets"] == [] and none["others"] == 4
    mine, theirs = (
        next(b for b in whole["budgets"] if b["team"] == t and not b["project"]) for t in ("vision", "speech")
    )
    assert mine["state"] == "ok" and mine["left_h"] < 1_000_000 and mine["held"] == ["vision/h100"]
    assert theirs["state"] == "used_up" and "has used up its 1 GPU-hours of" in theirs["sentence"]
    quota = get(served, "/v1/quota", "vision-token").json()
    (row,) = quota["quotas"]
    assert row["team"] == "vision" and row["gpu_hours"]["budget"] == 1_000_000 and quota["pools"]


def test_a_report_is_whole_for_one_and_reduced_for_another(served: Served) -> None:
    whole, part = (get(served, "/v1/report?by=job", t).json() for t in ("admin-token-1", "vision-token"))
    assert {r["team"] for r in whole["rows"]} == {"vision", "speech"} and whole["others"] == {"teams": 0, "used_h": 0}
    (mine,) = part["rows"]
    assert mine["used_h"] == next(r for r in whole["rows"] if r["team"] == "vision")["used_h"] > 0
    assert part["others"]["teams"] == 1 and part["others"]["used_h"] > 0
    assert {d["team"] for d in part["details"]} == {"vision"} and len(part["details"]) > 3
    assert [c["who"] for c in part["corrections"]] == ["vision-owner"]
    assert get(served, "/v1/report?period=2026-13", "vision-token").status_code == 400
    assert get(served, "/v1/report?by=password", "vision-token").status_code == 400


def test_what_fits_and_what_is_wrong_over_the_api(served: Served) -> None:
    view, gang = (get(served, "/v1/fit" + q, "vision-token").json() for q in ("", "?nodes=2&gpus=8"))
    assert view["pools"][0]["largest_gang"] and gang["fits"] in ("now", "not_now")
    assert get(served, "/v1/fit?nodes=2", "vision-token").status_code == 400
    assert isinstance(get(served, "/v1/diagnose", "vision-token").json()["findings"], list)


def test_the_page_shows_the_budgets_of_whoever_looks(served: Served) -> None:
    whole, part, none = (
        get(served, "/", t, Accept="text/html").text for t in ("admin-token-1", "vision-token", "nobody-token")
    )
    assert whole.count('<tr data-key="vision//h100">') == whole.count('<tr data-key="speech//h100">') == 1
    assert "<strong class=bad>used up: </strong>speech has used up its 1 GPU-hours" in whole
    assert "held: speech/h100" in whole
    assert '<tr data-key="vision//h100">' in part and "speech" not in part
    assert 'id="budgets"' not in none


def test_budgets_are_live_and_as_reduced_as_the_page(served: Served) -> None:
    teams = Scope(False, frozenset({"vision"}), "vision-user")
    whole, part = (served.server._documents(scope)["budgets"] for scope in (EVERYTHING, teams))
    assert {"vision//h100", "speech//h100"} < set(whole) and whole["speech//h100"]["held"] == ["speech/h100"]
    assert part and {row["team"] for row in part.values()} == {"vision"}
    before = whole["vision//h100"]
    assert before["used_h"] == round(before["used_h"], 1)
    assert served.server._documents(Scope(False, frozenset(), "nobody"))["budgets"] == {}


def test_a_new_budget_is_there_at_once(served: Served) -> None:
    accounts = served.server.parts.accounts
    before = set(accounts.rows(served.cache))
    rules = served.cache.object(CONFIG_MAPS, "myriad-system/myriad-policy")
    assert rules is not None
    policy = json.loads(rules["data"]["policy.json"])
    policy["teams"]["vision"]["projects"]["later"] = {"gpu_hours": {"h100": {"budget": 9}}}
    served.cache.upsert(CONFIG_MAPS.plural, {**rules, "data": {"policy.json": json.dumps(policy)}})
    try:
        assert set(accounts.rows(served.cache)) - before == {"vision/later/h100"}
    finally:
        served.cache.upsert(CONFIG_MAPS.plural, rules)


def test_a_ledger_that_is_away_leaves_the_last_budgets_on_the_page(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = served.server.parts.accounts
    known = accounts.rows(served.cache)
    asked: list[float] = []

    def away(_: Any) -> Any:
        asked.append(1.0)
        raise LedgerError("its database does not answer")

    monkeypatch.setattr(accounts, "_all", away)
    monkeypatch.setattr(accounts, "_silent_at", float("-inf"))
    assert known and accounts.rows(served.cache) == known
    assert accounts.rows(served.cache) == known and len(asked) == 1, "what else is live does not wait for it"
