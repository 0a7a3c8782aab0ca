"""Tokens and rights as a real API server judges them: TokenReview and SubjectAccessReview, with the extension's own."""

from __future__ import annotations

import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import apiserver
from apiserver import ControlPlane

from myriad.bench.page_serve import Served, serve
from myriad.bench.page_world import fill
from myriad.kube.client import Api, connect
from myriad.kube.kinds import Resource
from myriad.scheduler.web import auth
from myriad.scheduler.web.auth import AUDIENCE, AuthSettings

Json = dict[str, Any]

pytestmark = apiserver.AT_HAND

ACCOUNT = "system:serviceaccount:myriad-system:myriad-scheduler"
USERS = ("ann", "bob", "boss", "eve", "scraper", ACCOUNT)


def role(name: str, rules: list[Json], users: list[str], namespace: str = "") -> list[Json]:
    """A role and its binding; of the cluster without a namespace."""
    kind = "Role" if namespace else "ClusterRole"
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    group = "rbac.authorization.k8s.io"
    subjects = [{"kind": "User", "name": user, "apiGroup": group} for user in users]
    return [
        {"apiVersion": f"{group}/v1", "kind": kind, "metadata": metadata, "rules": rules},
        {"apiVersion": f"{group}/v1", "kind": f"{kind}Binding", "metadata": metadata, "subjects": subjects,
         "roleRef": {"apiGroup": group, "kind": kind, "name": name}},
    ]  # fmt: skip


LIST = {"apiGroups": ["kueue.x-k8s.io"], "resources": ["workloads"], "verbs": ["list"]}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    work = tmp_path_factory.mktemp("web") / "plane"
    with apiserver.api_server(work, users=USERS, namespaces=["vision", "speech", "myriad-system"]) as made:
        reviews = [
            {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
            {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
            {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list"]},
            {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
        ]
        made.apply(
            [
                *role("extension", reviews, [ACCOUNT]),
                *role("readers", [LIST], ["ann"], "vision"),
                *role("bosses", [LIST], ["boss"]),
                *role("scrapers", [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}], ["scraper"]),
                {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "viewer", "namespace": "vision"}},
            ]
        )
        yield made


@pytest.fixture(scope="module")
def served(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The server with the rights of the extension's account and nothing more."""
    api = connect(plane.kubeconfig_for(ACCOUNT), in_cluster=False)
    with serve(tmp_path_factory.mktemp("served"), api=api, auth=AuthSettings(mode="token")) as found:
        fill(found.cache, nodes=32, teams=2, waiting=6)
        yield found


def teams(served: Served, token: str) -> list[str]:
    answer = httpx.get(served.url + "/v1/quota", headers={"Authorization": f"Bearer {token}"}, timeout=20)
    assert answer.status_code == 200, answer.text
    return [q["team"] for q in answer.json()["queues"]]


def status(served: Served, path: str, token: str) -> int:
    return httpx.get(served.url + path, headers={"Authorization": f"Bearer {token}"}, timeout=20).status_code


def test_each_sees_what_rbac_allows(plane: ControlPlane, served: Served) -> None:
    assert teams(served, plane.tokens["ann"]) == ["vision"]
    assert teams(served, plane.tokens["bob"]) == []
    assert sorted(teams(served, plane.tokens["boss"])) == ["speech", "vision"]
    jobs = {v.gang.namespace: v.gang.name for v in served.cache.views()}
    for user, seen in (("ann", {"vision"}), ("bob", set()), ("boss", {"vision", "speech"})):
        for namespace, job in jobs.items():
            expected = 200 if namespace in seen else 403
            assert status(served, f"/v1/why/{namespace}/{job}", plane.tokens[user]) == expected, (user, namespace)
    assert status(served, "/v1/decisions/tail", plane.tokens["ann"]) == 403
    assert status(served, "/metrics", plane.tokens["scraper"]) == 200
    assert status(served, "/metrics", plane.tokens["ann"]) == 403
    assert status(served, "/v1/quota", "no-such-token") == 401


def token_request(api: Api, audience: str) -> str:
    body = {"spec": {"audiences": [audience] if audience else [], "expirationSeconds": 600}}
    path = Resource("", "v1", "serviceaccounts/viewer/token", "TokenRequest")
    return str(api.create(path, body, namespace="vision")["status"]["token"])


def test_a_token_for_the_page_alone_opens_nothing_else(plane: ControlPlane, served: Served) -> None:
    admin = connect(plane.kubeconfig, in_cluster=False)
    account = {"kind": "ServiceAccount", "name": "viewer", "namespace": "vision"}
    bound = role("viewer", [LIST], [], "speech")
    bound[1]["subjects"] = [account]
    plane.apply(bound)
    token = token_request(admin, AUDIENCE)
    assert teams(served, token) == ["speech"]
    headers = {"Authorization": f"Bearer {token}"}
    trust = ssl.create_default_context(cafile=plane.ca)
    refused = httpx.get(f"{plane.url}/api/v1/namespaces", headers=headers, verify=trust)
    assert refused.status_code == 401, "the API server does not take it"
    assert status(served, "/v1/quota", token_request(admin, "somebody.else")) == 401, "nor does the page take others'"
    assert status(served, "/v1/quota", token_request(admin, "")) == 200, "one for the API server is good too"
    admin.close()


def test_a_right_that_was_given_is_seen_soon(
    plane: ControlPlane, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "REFUSED_S", 1.0)
    assert teams(served, plane.tokens["eve"]) == []
    plane.apply(role("eves", [LIST], ["eve"], "speech"))
    deadline = time.monotonic() + 15
    while teams(served, plane.tokens["eve"]) != ["speech"]:
        assert time.monotonic() < deadline, "a refusal is remembered for a short time only"
        time.sleep(0.2)


def test_an_extension_without_the_right_to_review_lets_nobody_in(plane: ControlPlane, tmp_path: Path) -> None:
    api = connect(plane.kubeconfig_for("bob"), in_cluster=False)
    with serve(tmp_path, api=api, auth=AuthSettings(mode="token")) as found:
        answer = httpx.get(found.url + "/v1/quota", headers={"Authorization": f"Bearer {plane.tokens['boss']}"})
        assert answer.status_code == 503 and "kubectl auth can-i create tokenreviews" in answer.json()["hint"]
        assert httpx.get(found.url + "/healthz").status_code == 200
