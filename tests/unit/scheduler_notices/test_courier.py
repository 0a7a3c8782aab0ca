"""Deliveries: signed, repeated with care, apart from each other, and without an address in any text."""

from __future__ import annotations

import base64
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from myriad.errors import MyriadError
from myriad.kube.kinds import SECRETS
from myriad.scheduler.notices.courier import Courier, Note, Passing, signature
from myriad.scheduler.notices.targets import Address, Addresses, TargetError
from myriad.scheduler.policy import NotifyTarget

HIDDEN = "hunter2"


class Site:
    """Webhooks by host: what each answers, and what it got."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Any]] = {}
        self.got: list[httpx.Request] = []
        self.lock = threading.Lock()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        with self.lock:
            self.got.append(request)
            answers = self.answers.get(request.url.host, [204])
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            answer()
            return httpx.Response(204)
        return httpx.Response(answer)

    def hosts(self) -> list[str]:
        with self.lock:
            return [r.url.host for r in self.got]


class Desk:
    """A courier with its surroundings."""

    def __init__(self, **options: Any) -> None:
        self.site = Site()
        self.facts: dict[tuple[str, str], dict[str, Any]] = {}
        self.sent: list[str] = []
        self.fail_notify: list[Exception] = []
        self.addresses = {
            name: Address(name, "apprise" if name == "mail" else "webhook", f"http://{name}/{HIDDEN}", b"key")
            for name in ("alive", "dead", "mail")
        }
        self.courier = Courier(
            address=self._address,
            record=self._record,
            client=httpx.Client(transport=httpx.MockTransport(self.site)),
            notifier=self._notify,
            backoff_s=0.01,
            **options,
        )

    def _address(self, name: str) -> Address:
        if name not in self.addresses:
            raise TargetError("the policy has no such target", where=f"notify target {name}")
        return self.addresses[name]

    def _record(self, identity: str, name: str, fact: dict[str, Any]) -> None:
        self.facts[identity, name] = fact

    def _notify(self, address: Address, note: Note) -> None:
        if self.fail_notify:
            raise self.fail_notify.pop(0)
        self.sent.append(note.text)

    def until(self, check: Callable[[], Any]) -> Any:
        for _ in range(500):
            if found := check():
                return found
            time.sleep(0.01)
        raise AssertionError(f"not within 5 s; facts: {self.facts}")


def note(identity: str = "n1", *, age_s: float = 0.0, begun: bool = False) -> Note:
    return Note(identity, "title", f"text of {identity}", {"id": identity}, time.time() - age_s, begun)


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.courier.close()


def test_a_webhook_gets_a_signed_document(desk: Desk) -> None:
    desk.courier.send("alive", note())
    fact = desk.until(lambda: desk.facts.get(("n1", "sent-alive")))
    assert fact["ok"] and fact["attempts"] == 1 and "error" not in fact
    (request,) = desk.site.got
    assert request.headers["Myriad-Notice"] == "n1" and request.content == b'{"id":"n1"}'
    assert request.headers["Myriad-Signature"] == signature(b"key", request.headers["Myriad-Timestamp"], b'{"id":"n1"}')


@pytest.mark.parametrize("failure", [500, 503, 429, 408, httpx.ConnectError("refused"), httpx.ReadTimeout("slow")])
def test_what_may_pass_is_tried_again(desk: Desk, failure: Any) -> None:
    desk.site.answers["alive"] = [failure, failure, 200]
    desk.courier.send("alive", note())
    fact = desk.until(lambda: desk.facts.get(("n1", "sent-alive")))
    assert fact["ok"] and fact["attempts"] == 3
    assert len({r.headers["Myriad-Notice"] for r in desk.site.got}) == 1


@pytest.mark.parametrize("status", [301, 302, 400, 401, 404, 410])
def test_what_will_not_pass_is_not_repeated(desk: Desk, status: int) -> None:
    desk.site.answers["alive"] = [status]
    desk.courier.send("alive", note())
    fact = desk.until(lambda: desk.facts.get(("n1", "sent-alive")))
    assert not fact["ok"] and fact["error"] == f"it answered {status}" and len(desk.site.got) == 1


def test_what_waits_already_is_taken_once(desk: Desk) -> None:
    held = threading.Event()
    desk.site.answers["alive"] = [lambda: held.wait(5), 204]
    for _ in range(3):
        desk.courier.send("alive", note("n1"))
        desk.courier.send("alive", note("n2"))
    held.set()
    desk.until(lambda: ("n2", "sent-alive") in desk.facts)
    assert [r.headers["Myriad-Notice"] for r in desk.site.got] == ["n1", "n2"]


def test_a_dead_webhook_holds_up_nobody_else(desk: Desk) -> None:
    held = threading.Event()
    desk.site.answers["dead"] = [lambda: held.wait(5)]
    try:
        for i in range(20):
            desk.courier.send("dead", note(f"d{i}"))
            desk.courier.send("alive", note(f"a{i}"))
        desk.until(lambda: all((f"a{i}", "sent-alive") in desk.facts for i in range(20)))
        assert not any(name == "sent-dead" for _, name in desk.facts) and desk.courier.waiting() == {"dead": 20}
    finally:
        held.set()


def test_a_target_that_comes_back_gets_everything_in_order(desk: Desk) -> None:
    desk.site.answers["alive"] = [503, 503, 503, 204]
    for i in range(5):
        desk.courier.send("alive", note(f"n{i}"))
    desk.until(lambda: all((f"n{i}", "sent-alive") in desk.facts for i in range(5)))
    delivered = [r.headers["Myriad-Notice"] for r in desk.site.got[3:]]
    assert delivered == [f"n{i}" for i in range(5)]


def test_the_deadline_ends_it_and_is_recorded(desk: Desk) -> None:
    desk.site.answers["dead"] = [httpx.ConnectError("refused")]
    desk.courier.send("dead", note(age_s=900.0))
    fact = desk.until(lambda: desk.facts.get(("n1", "sent-dead")))
    assert not fact["ok"] and "no answer (ConnectError)" in fact["error"] and "given up" in fact["error"]


def test_the_queue_of_a_target_is_bounded() -> None:
    desk = Desk(capacity=3)
    held = threading.Event()
    desk.site.answers["dead"] = [lambda: held.wait(5)]
    try:
        for i in range(6):
            desk.courier.send("dead", note(f"n{i}"))
            desk.until(lambda: "dead" in desk.site.hosts())
        assert desk.courier.waiting() == {"dead": 3}
        held.set()
        desk.until(lambda: sum(name == "sent-dead" for _, name in desk.facts) == 6)
        lost = [fact for fact in desk.facts.values() if not fact["ok"]]
        assert len(lost) == 3 and "3 notices wait for this target already" in lost[0]["error"]
    finally:
        held.set()
        desk.courier.close()


def test_who_leads_no_more_sends_no_more() -> None:
    leads = [True]
    desk = Desk(may_act=lambda: leads[0])
    desk.site.answers["alive"] = [503]
    try:
        desk.courier.send("alive", note())
        desk.until(lambda: desk.site.got)
        leads[0] = False
        desk.until(lambda: not any(t.name == "notify-alive" for t in threading.enumerate()))
        count = len(desk.site.got)
        leads[0], desk.site.answers["alive"] = True, [204]
        desk.courier.send("alive", note("n2"))
        desk.until(lambda: ("n2", "sent-alive") in desk.facts)
        # The other leader goes on with n1; this one does not, though it leads again.
        assert [r.headers["Myriad-Notice"] for r in desk.site.got[count:]] == ["n2"]
    finally:
        desk.courier.close()


def test_mail_is_begun_once(desk: Desk) -> None:
    desk.fail_notify = [Passing("apprise could not deliver it")]
    desk.courier.send("mail", note("n1"))
    desk.courier.send("mail", note("n2", begun=True))
    desk.until(lambda: ("n2", "sent-mail") in desk.facts)
    assert desk.sent == ["text of n1"] and ("n1", "begun-mail") in desk.facts
    assert "may have arrived" in desk.facts["n2", "sent-mail"]["error"]


def test_a_result_that_cannot_be_recorded_yet_is_not_lost() -> None:
    desk = Desk()
    failures: list[Exception] = [MyriadError("the API server is away"), ValueError("a proxy's page instead of JSON")]
    keep = desk._record

    def record(*fact: Any) -> None:
        if failures:
            raise failures.pop()
        keep(*fact)

    desk.courier.record = record
    desk.courier.send("alive", note())
    desk.until(lambda: ("n1", "sent-alive") in desk.facts)
    assert len(desk.site.got) == 1
    desk.courier.close()


def test_a_target_that_is_not_described_yet_is_waited_for(desk: Desk) -> None:
    address = desk.addresses.pop("alive")
    desk.courier.send("alive", note())
    time.sleep(0.05)
    desk.addresses["alive"] = address
    assert desk.until(lambda: desk.facts.get(("n1", "sent-alive")))["ok"]


def test_no_text_holds_an_address(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="myriad.notices")
    bad = Address("bad", "webhook", f"http://bad/{HIDDEN}", b"")
    desk.addresses["bad"] = bad
    desk.site.answers["dead"] = [httpx.ConnectError(f"cannot reach http://dead/{HIDDEN}")]
    desk.site.answers["bad"] = [httpx.InvalidURL(f"http://bad/{HIDDEN} is none")]
    for target in ("dead", "bad", "nobody"):
        desk.courier.send(target, note(target, age_s=899.0))
    desk.until(lambda: sum(name.startswith("sent-") for _, name in desk.facts) == 3)
    texts = [caplog.text, str(desk.facts), repr(bad), str(bad)]
    assert not any(HIDDEN in text for text in texts)
    assert [fact["ok"] for fact in desk.facts.values()] == [False] * 3, desk.facts


# Addresses


def webhook(url: str = "", held: str = "") -> NotifyTarget:
    name, _, key = held.partition("/")
    return NotifyTarget("webhook", url, name, key)


def _addresses(world: Any, **targets: NotifyTarget) -> Addresses:
    return Addresses(world.api, lambda: targets, clock=world.clock)


def _secret(world: Any, **values: str) -> None:
    data = {k: base64.b64encode(v.encode()).decode() for k, v in values.items()}
    world.api.put(SECRETS, {"metadata": {"name": "oncall", "namespace": "myriad-system"}, "data": data})


def test_addresses_in_the_forms_that_a_site_may_choose(world: Any) -> None:
    _secret(world, key="k", url="https://h/x\n", both='{"url": "https://h/y", "key": "k2"}', mail="mailto://u:p@h")
    known = _addresses(
        world,
        plain=webhook("http://h/p"),
        signed=webhook("http://h/s", "oncall/key"),
        hidden=webhook(held="oncall/url"),
        both=webhook(held="oncall/both"),
        mail=NotifyTarget("apprise", "", "oncall", "mail"),
    )
    found = {name: (known(name).url, known(name).key) for name in ("plain", "signed", "hidden", "both", "mail")}
    assert found == {
        "plain": ("http://h/p", b""),
        "signed": ("http://h/s", b"k"),
        "hidden": ("https://h/x", b""),
        "both": ("https://h/y", b"k2"),
        "mail": ("mailto://u:p@h", b""),
    }


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (webhook(), "neither url nor secret"),
        (webhook("ftp://h"), "not one of http or https"),
        (webhook("http://[x"), "not one of http or https"),
        (webhook("http:///x"), "not one of http or https"),
        (webhook(held="none/x"), "there is no Secret none"),
        (webhook(held="oncall/none"), "has no key none"),
        (webhook(held="oncall/json"), "without url"),
        (webhook(held="oncall/empty"), "holds nothing"),
    ],
)
def test_a_target_that_cannot_be_used_says_what_to_mend_and_no_secret(world: Any, target: Any, words: str) -> None:
    _secret(world, json=f'{{"uri": "{HIDDEN}"}}', empty=" ")
    with pytest.raises(TargetError) as caught:
        _addresses(world, x=target)("x")
    assert words in str(caught.value) and HIDDEN not in str(caught.value) and "notify target x" in str(caught.value)


def test_a_rotated_secret_is_used_after_a_minute(world: Any) -> None:
    known = _addresses(world, x=webhook(held="oncall/url"))
    _secret(world, url="http://old")
    assert known("x").url == "http://old"
    _secret(world, url="http://new")
    assert known("x").url == "http://old"
    world.wait(61)
    assert known("x").url == "http://new"
