"""Who asks, and which namespaces that person may see.

The cluster decides both: a token is reviewed by the API server (TokenReview), and a namespace is shown to whoever may
list Kueue's Workloads in it (SubjectAccessReview). A proxy that has logged people in by OIDC may say who they are if
it proves by a shared secret that it is the proxy. docs/adr/0037-who-sees-what-on-the-page.md.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from myriad.errors import InputError, MyriadError
from myriad.kube.client import Api
from myriad.kube.kinds import ACCESS_REVIEWS, LOCAL_QUEUES, TOKEN_REVIEWS, WORKLOADS, Resource
from myriad.scheduler.cache import Cache
from myriad.scheduler.settings import Settings

Json = dict[str, Any]
MODES = ("off", "token", "proxy")
T = TypeVar("T")

AUDIENCE = "myriad.dev/page"
"""Tokens made for the page alone (`kubectl create token NAME --audience myriad.dev/page`) open nothing else."""
COOKIE = "myriad_token"
TOKEN_HEADER = "x-myriad-token"  # noqa: S105 - a header's name
"""For requests through the API server's service proxy, which keeps the header Authorization to itself."""
PROXY_SECRET_HEADER = "x-myriad-proxy-secret"  # noqa: S105 - a header's name


MOST_TOKEN_BYTES = 8192
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=:-]{8,8192}")
_LEAST_SECRET_BYTES = 32
_REVIEW_S = 60.0
REFUSED_S = 10.0
_REMEMBERED = 2048


class Denied(MyriadError):
    """The request is not answered.

    Attributes:
        status: 401 = say who you are, 403 = you may not, 503 = it could not be checked.
    """

    def __init__(self, status: int, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


@dataclass(frozen=True, slots=True)
class User:
    """Who asks, as the API server knows them."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Scope:
    """What may be shown.

    Attributes:
        everything: the caller may list Workloads of the whole cluster.
        namespaces: otherwise, those in which the caller may.
        user: for the page's head; empty where nobody has to log in.
    """

    everything: bool
    namespaces: frozenset[str] = frozenset()
    user: str = ""

    def sees(self, namespace: str) -> bool:
        """Whether objects of a namespace may be shown."""
        return self.everything or namespace in self.namespaces

    @property
    def key(self) -> Hashable:
        """Equal for two callers who see the same."""
        return "*" if self.everything else self.namespaces


EVERYTHING = Scope(everything=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthSettings:
    """How callers say who they are.

    Attributes:
        mode: "off" nobody is asked, everything is shown; "token" a Kubernetes token; "proxy" a token, or the word of a
            proxy that proves itself.
        user_header, groups_header: where the proxy writes who it is (groups separated by commas).
        user_prefix, groups_prefix: put before the proxy's names, as the API server does with those of OIDC.
        proxy_secret: a file with the secret that the proxy sends in X-Myriad-Proxy-Secret.
    """

    mode: str = "token"
    user_header: str = "x-forwarded-user"
    groups_header: str = "x-forwarded-groups"
    user_prefix: str = "oidc:"
    groups_prefix: str = "oidc:"
    proxy_secret: Path | None = None

    def secret(self) -> bytes:
        """The proxy's secret. Raises InputError where the file is missing or too short to be one."""
        where = "MYRIAD_SCHEDULER_AUTH_PROXY_SECRET"
        if self.proxy_secret is None:
            raise InputError(
                "auth is proxy, but no file with the proxy's secret is named",
                where=where,
                hint="mount a Secret of 32 random bytes or more and name its file; the proxy sends them in "
                "X-Myriad-Proxy-Secret",
            )
        try:
            secret = self.proxy_secret.read_bytes().strip()
        except OSError as error:
            raise InputError(
                f"the proxy's secret cannot be read: {error.strerror}", where=str(self.proxy_secret)
            ) from error
        if len(secret) < _LEAST_SECRET_BYTES:
            raise InputError(
                f"the proxy's secret has {len(secret)} bytes, {_LEAST_SECRET_BYTES} are the least",
                where=str(self.proxy_secret),
                hint="head -c 32 /dev/urandom | base64",
            )
        return secret


@dataclass
class _Remembered(Generic[T]):
    """Answers of the API server for a short time, the least recently asked forgotten first. Safe across threads."""

    clock: Callable[[], float]
    most: int = _REMEMBERED
    _kept: OrderedDict[Hashable, tuple[float, T]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Hashable) -> T | None:
        with self._lock:
            found = self._kept.get(key)
            if found is None or self.clock() >= found[0]:
                return None
            self._kept.move_to_end(key)
            return found[1]

    def put(self, key: Hashable, value: T, *, for_s: float) -> None:
        with self._lock:
            self._kept[key] = (self.clock() + for_s, value)
            self._kept.move_to_end(key)
            while len(self._kept) > self.most:
                self._kept.popitem(last=False)


class Gatekeeper:
    """Says who asks and what they may see.

    Args:
        api: the extension's own client; it may create TokenReviews and SubjectAccessReviews.
        settings: how callers say who they are.
        namespaces: namespaces that hold anything to show.
        clock: monotonic seconds.

    Raises:
        InputError: the settings cannot work.
    """

    def __init__(
        self,
        api: Api,
        settings: AuthSettings,
        *,
        namespaces: Callable[[], Iterable[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if settings.mode not in MODES:
            raise InputError(
                f"{settings.mode!r} is no way to log in",
                where="MYRIAD_SCHEDULER_AUTH",
                hint=f"one of {', '.join(MODES)}",
            )
        self._secret = settings.secret() if settings.mode == "proxy" else b""
        self._api = api
        self._settings = settings
        self._namespaces = namespaces
        self._users: _Remembered[User] = _Remembered(clock)
        # Apart from the users, whom a flood of made-up tokens would push out.
        self._refused: _Remembered[bool] = _Remembered(clock)
        self._rights: _Remembered[bool] = _Remembered(clock, most=65536)
        self._pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="access-review")

    @property
    def open(self) -> bool:
        """Whether nobody has to log in."""
        return self._settings.mode == "off"

    # Who

    def user_of(self, headers: Sequence[tuple[bytes, bytes]]) -> User:
        """Who sends a request with these headers. Raises Denied."""
        if self._settings.mode == "proxy":
            found = self._user_of_proxy(headers)
            if found is not None:
                return found
        token = token_of(headers)
        if not token:
            raise Denied(
                401,
                "no token came with the request",
                hint="log in on the page, or send the header `Authorization: Bearer TOKEN`; "
                f"`kubectl create token NAME -n NAMESPACE --audience {AUDIENCE}` makes one",
            )
        return self.review(token)

    def review(self, token: str) -> User:
        """The owner of a token. Raises Denied."""
        if not _TOKEN.fullmatch(token):
            raise Denied(401, "the token is none: it holds characters that no token has, or is too short or too long")
        # A token is never kept, only its digest.
        key = hashlib.sha256(token.encode()).digest()
        user = self._users.get(key)
        if user is not None:
            return user
        if not self._refused.get(key):
            user = self._ask_who(token)
            if user is not None:
                self._users.put(key, user, for_s=_REVIEW_S)
                return user
            # A page that stays open with a token that has run out asks again every few seconds.
            self._refused.put(key, True, for_s=REFUSED_S)
        raise Denied(401, "the cluster does not know this token, or it has run out", hint="make a new one")

    def _ask_who(self, token: str) -> User | None:
        # First as a token for the page alone, then as one for the API server itself.
        for audiences in ([AUDIENCE], []):
            spec: Json = {"token": token, **({"audiences": audiences} if audiences else {})}
            status = self._create(TOKEN_REVIEWS, spec)
            if status.get("authenticated") and (not audiences or AUDIENCE in (status.get("audiences") or [])):
                found = status.get("user") or {}
                extra = tuple(sorted((k, tuple(v or ())) for k, v in (found.get("extra") or {}).items()))
                return User(
                    str(found.get("username") or ""),
                    tuple(found.get("groups") or ()),
                    str(found.get("uid") or ""),
                    extra,
                )
        return None

    def _user_of_proxy(self, headers: Sequence[tuple[bytes, bytes]]) -> User | None:
        settings = self._settings
        names = _values(headers, settings.user_header)
        groups = _values(headers, settings.groups_header)
        secrets = _values(headers, PROXY_SECRET_HEADER)
        if not names and not groups and not secrets:
            return None
        if len(secrets) != 1 or not hmac.compare_digest(secrets[0].strip(), self._secret):
            raise Denied(
                403,
                f"the request names a user in {settings.user_header}, but does not come from the configured proxy",
                hint="the proxy sends its secret in X-Myriad-Proxy-Secret and removes these headers from what it gets",
            )
        if len(names) != 1 or len(groups) > 1:
            raise Denied(
                403, f"the proxy must send {settings.user_header} once and {settings.groups_header} at most once"
            )
        try:
            name = names[0].decode("utf-8").strip()
            listed = [g.strip() for g in groups[0].decode("utf-8").split(",")] if groups else []
        except UnicodeDecodeError as error:
            raise Denied(403, "the proxy's user or groups are no UTF-8") from error
        user = User(
            settings.user_prefix + name,
            (*(settings.groups_prefix + g for g in listed if g), "system:authenticated"),
        )
        reserved = [n for n in (user.name, *user.groups[:-1]) if n.startswith("system:")]
        if not name or reserved:
            raise Denied(403, f"the proxy may not name {reserved[0] if reserved else 'an empty user'}")
        return user

    # What

    def scope_of(self, user: User) -> Scope:
        """What a user may see. Raises Denied where it could not be checked."""
        if self._may_list(user, ""):
            return Scope(everything=True, user=user.name)
        names = sorted(set(self._namespaces()))
        allowed = self._pool.map(lambda name: self._may_list(user, name), names)
        return Scope(
            everything=False,
            namespaces=frozenset(n for n, may in zip(names, allowed, strict=True) if may),
            user=user.name,
        )

    def may_get(self, user: User, path: str) -> bool:
        """Whether a user may get a path that is no object, such as `/metrics` (as kube components ask)."""
        return self._may(user, "path", path, {"nonResourceAttributes": {"path": path, "verb": "get"}})

    def _may_list(self, user: User, namespace: str) -> bool:
        attributes = {
            "group": WORKLOADS.group,
            "resource": WORKLOADS.plural,
            "verb": "list",
            **({"namespace": namespace} if namespace else {}),
        }
        return self._may(user, "list", namespace, {"resourceAttributes": attributes})

    def _may(self, user: User, verb: str, what: str, attributes: Json) -> bool:
        key = (user, verb, what)
        known = self._rights.get(key)
        if known is not None:
            return known
        spec: Json = {
            "user": user.name,
            "groups": list(user.groups),
            "uid": user.uid,
            "extra": {k: list(v) for k, v in user.extra},
            **attributes,
        }
        status = self._create(ACCESS_REVIEWS, spec)
        allowed = status.get("allowed") is True and status.get("denied") is not True
        # A right that was just given should be seen soon; one that was taken, within the minute.
        self._rights.put(key, allowed, for_s=_REVIEW_S if allowed else REFUSED_S)
        return allowed

    def _create(self, resource: Resource, spec: Json) -> Json:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {}, "spec": spec}
        try:
            answer = self._api.create(resource, body)
        except MyriadError as error:
            # Without an answer nobody is let in; the API server's own words are for the log, not for a stranger.
            raise Denied(
                503,
                f"the API server did not answer a {resource.kind}",
                hint="may the extension's service account create it? `kubectl auth can-i create "
                f"{resource.plural}.{resource.group} --as system:serviceaccount:myriad-system:myriad-scheduler`",
            ) from error
        status: Mapping[str, Any] = answer.get("status") or {}
        return dict(status)


def gate_of(api: Api, settings: Settings, cache: Cache) -> Gatekeeper:
    """The gatekeeper that the settings ask for. Raises InputError where they cannot work."""
    wanted = AuthSettings(
        mode=settings.auth,
        user_header=settings.auth_user_header,
        groups_header=settings.auth_groups_header,
        user_prefix=settings.auth_user_prefix,
        groups_prefix=settings.auth_groups_prefix,
        proxy_secret=Path(settings.auth_proxy_secret) if settings.auth_proxy_secret else None,
    )

    def namespaces() -> set[str]:
        queues = {str(q["metadata"]["namespace"]) for q in cache.listing(LOCAL_QUEUES)}
        return queues | {view.gang.namespace for view in cache.views()}

    return Gatekeeper(api, wanted, namespaces=namespaces)


def token_of(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """The token of a request: Authorization, then our own header, then the page's cookie; "" where there is none."""
    for value in _values(headers, "authorization"):
        scheme, _, token = value.decode("latin-1").strip().partition(" ")
        if scheme.lower() == "bearer":
            return token.strip()
    for value in _values(headers, TOKEN_HEADER):
        return value.decode("latin-1").strip()
    for value in _values(headers, "cookie"):
        for part in value.decode("latin-1").split(";"):
            name, _, token = part.strip().partition("=")
            if name == COOKIE:
                return token.strip()
    return ""


def _values(headers: Sequence[tuple[bytes, bytes]], name: str) -> list[bytes]:
    wanted = name.lower().encode("latin-1")
    return [value for key, value in headers if key.lower() == wanted]
