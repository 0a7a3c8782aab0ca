"""The client: pages, watches, patches, and sentences for what goes wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from myriad.kube import client
from myriad.kube.client import Api, ApiError, ClusterUnreachableError, connect
from myriad.kube.kinds import NODES, PODS, WORKLOADS
from myriad.kube.watch import Watch


class Server:
    """Answers requests from a script; keeps what was asked."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []
        self.answers: list[Any] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if self.answers else {}
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def api(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setattr(client.time, "sleep", lambda _: None)
    made = Api("https://k8s.test", transport=httpx.MockTransport(server), headers=lambda: {"Authorization": "Bearer t"})
    yield made
    made.close()


def status(code: int, reason: str, message: str, **headers: str) -> httpx.Response:
    return httpx.Response(code, json={"kind": "Status", "reason": reason, "message": message}, headers=headers)


def test_paths_follow_group_and_scope() -> None:
    assert NODES.path(None, "n") == "/api/v1/nodes/n"
    assert PODS.path("ns", "p", "status") == "/api/v1/namespaces/ns/pods/p/status"
    assert WORKLOADS.path() == "/apis/kueue.x-k8s.io/v1beta2/workloads"
    assert WORKLOADS.api_version == "kueue.x-k8s.io/v1beta2"


def test_a_list_is_fetched_in_pages_from_one_version(server: Server, api: Api) -> None:
    server.answers = [
        {"metadata": {"resourceVersion": "7", "continue": "next"}, "items": [{"a": 1}]},
        {"metadata": {"resourceVersion": "7"}, "items": [{"a": 2}]},
    ]
    items, version = api.list(PODS, labels="x=y", fields="spec.nodeName=n")
    assert (items, version) == ([{"a": 1}, {"a": 2}], "7")
    assert server.requests[1].url.params["continue"] == "next"
    assert server.requests[0].url.params["labelSelector"] == "x=y"
    assert server.requests[0].headers["Authorization"] == "Bearer t"


def test_a_patch_names_its_kind_and_manager(server: Server, api: Api) -> None:
    api.patch(WORKLOADS, "w", {"a": 1}, kind="apply", namespace="ns", subresource="status", force=True)
    api.patch(NODES, "n", [{"op": "test"}], kind="json", field_manager="agent")
    first, second = server.requests
    assert first.headers["Content-Type"] == "application/apply-patch+yaml"
    assert first.url.params["force"] == "true" and first.url.params["fieldManager"] == "myriad-scheduler"
    assert second.headers["Content-Type"] == "application/json-patch+json" and "force" not in second.url.params


@pytest.mark.parametrize(
    ("code", "reason", "property_"),
    [(409, "Conflict", "is_conflict"), (404, "NotFound", "is_not_found"), (410, "Expired", "is_gone")],
)
def test_an_error_says_what_the_server_said(server: Server, api: Api, code: int, reason: str, property_: str) -> None:
    server.answers = [status(code, reason, "because")]
    with pytest.raises(ApiError, match=f"{code} {reason}: because") as caught:
        api.get(PODS, "p", namespace="ns")
    assert getattr(caught.value, property_)
    assert caught.value.where == "GET /api/v1/namespaces/ns/pods/p"


def test_refused_credentials_say_what_to_look_at(server: Server, api: Api) -> None:
    server.answers = [status(403, "Forbidden", "no")]
    with pytest.raises(ApiError, match="role bindings"):
        api.get(PODS, "p", namespace="ns")


def test_what_is_no_api_server_is_a_sentence(server: Server, api: Api) -> None:
    """A login page of a proxy, or an answer that cannot be unpacked: threads that ask catch what is said with words."""
    server.answers = [httpx.Response(200, text="<html>Log in</html>", headers={"Content-Type": "text/html"})]
    with pytest.raises(ClusterUnreachableError, match=r"text/html that is no JSON, so it is no API server"):
        api.get(PODS, "p", namespace="ns")
    server.answers = [httpx.DecodingError("not gzip")]
    with pytest.raises(ClusterUnreachableError, match="DecodingError"):
        api.get(PODS, "p", namespace="ns")


def test_what_does_not_exist_is_none_or_fine(server: Server, api: Api) -> None:
    server.answers = [status(404, "NotFound", "x"), status(404, "NotFound", "x")]
    assert api.find(PODS, "p", namespace="ns") is None
    api.delete(PODS, "p", namespace="ns")


def test_an_overloaded_server_is_asked_again(server: Server, api: Api) -> None:
    server.answers = [status(429, "TooManyRequests", "slow down", **{"Retry-After": "1"}), {"ok": True}]
    assert api.patch(NODES, "n", {}) == {"ok": True}


def test_a_read_is_repeated_and_a_write_is_not(server: Server, api: Api) -> None:
    server.answers = [httpx.ConnectError("refused"), {"ok": True}]
    assert api.get(NODES, "n") == {"ok": True}
    server.answers = [httpx.ConnectError("refused")]
    with pytest.raises(ClusterUnreachableError, match=r"(?s)no answer from https://k8s.test.*make lab"):
        api.patch(NODES, "n", {})


def watch_body(*events: Any) -> httpx.Response:
    return httpx.Response(200, content=b"".join(json.dumps(e).encode() + b"\n" for e in events))


def change(kind: str, name: str, version: str) -> Any:
    return {"type": kind, "object": {"metadata": {"name": name, "resourceVersion": version}}}


def test_a_watch_gives_changes_and_ends_with_an_error(server: Server, api: Api) -> None:
    gone = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}
    server.answers = [watch_body(change("ADDED", "a", "5"), change("BOOKMARK", "", "9"), gone)]
    seen = []
    with pytest.raises(ApiError) as caught:
        for event in api.watch(PODS, resource_version="4"):
            seen.append((event.type, event.resource_version))
    assert seen == [("ADDED", "5"), ("BOOKMARK", "9")] and caught.value.is_gone
    assert server.requests[0].url.params["resourceVersion"] == "4"


class Recorder:
    def __init__(self, stop: threading.Event, ends: int) -> None:
        self.calls: list[Any] = []
        self._stop, self._ends = stop, ends

    def _note(self, call: Any) -> None:
        self.calls.append(call)
        if len(self.calls) >= self._ends:
            self._stop.set()

    def replace(self, items: list[Any]) -> None:
        self._note(("replace", [i["metadata"]["name"] for i in items]))

    def upsert(self, obj: Any) -> None:
        if obj["metadata"]["name"] == "poison":
            raise ValueError("cannot be read")
        self._note(("upsert", obj["metadata"]["name"]))

    def remove(self, obj: Any) -> None:
        self._note(("remove", obj["metadata"]["name"]))


def listing(version: str, *names: str) -> Any:
    return {"metadata": {"resourceVersion": version}, "items": [{"metadata": {"name": n}} for n in names]}


def follow(api: Api, ends: int) -> tuple[Recorder, Watch, list[float]]:
    stop = threading.Event()
    handler = Recorder(stop, ends)
    waits: list[float] = []
    watch = Watch(api, PODS, handler, stop=stop, sleep=waits.append)
    watch.run()
    return handler, watch, waits


def test_a_watch_that_is_too_old_lists_again(server: Server, api: Api) -> None:
    deleted = watch_body(change("DELETED", "b", "10"))
    server.answers = [listing("1", "a"), status(410, "Expired", "too old"), listing("9", "b"), deleted]
    handler, watch, waits = follow(api, 3)
    assert handler.calls == [("replace", ["a"]), ("replace", ["b"]), ("remove", "b")]
    assert watch.relists == 2 and waits == [] and watch.synced.is_set()


def test_a_lost_connection_goes_on_from_where_it_was(server: Server, api: Api) -> None:
    server.answers = [
        listing("1", "a"),
        watch_body(change("ADDED", "b", "5")),
        httpx.ReadError("reset"),
        watch_body(change("MODIFIED", "b", "6")),
    ]
    handler, watch, waits = follow(api, 3)
    assert handler.calls == [("replace", ["a"]), ("upsert", "b"), ("upsert", "b")]
    assert server.requests[-1].url.params["resourceVersion"] == "5"
    assert len(waits) == 1 and watch.lost_for_s == 0.0


def test_a_kind_that_is_not_served_yet_is_asked_for_again(server: Server, api: Api) -> None:
    server.answers = [status(404, "NotFound", "no such kind"), listing("1", "a")]
    handler, _, waits = follow(api, 1)
    assert handler.calls == [("replace", ["a"])] and len(waits) == 1


def test_a_change_that_cannot_be_applied_ends_in_a_fresh_listing(server: Server, api: Api) -> None:
    server.answers = [listing("1", "a"), watch_body(change("ADDED", "poison", "2")), listing("3", "b")]
    handler, watch, _ = follow(api, 2)
    assert handler.calls == [("replace", ["a"]), ("replace", ["b"])] and watch.relists == 2


def test_no_kubeconfig_is_a_sentence_and_never_the_one_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with pytest.raises(ClusterUnreachableError, match=r"\.lab/env"):
        connect()


@pytest.mark.parametrize("text", [None, "a: [", "kind: Config\n", ""])
def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ClusterUnreachableError, match=str(path)):
        connect(path)


def test_a_kubeconfigs_token_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "config"
    entry = {"cluster": {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": True}, "name": "x"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [entry],
        "users": [{"name": "x", "user": {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(document))
    made = connect(path)
    assert made.base_url == "https://127.0.0.1:1" and dict(made.headers()) == {"Authorization": "Bearer secret"}
    made.close()


def test_a_rotated_token_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    token = client._TokenFile(path, max_age_s=0)
    assert token()["Authorization"] == "Bearer one"
    path.write_text("two\n")
    assert token()["Authorization"] == "Bearer two"
