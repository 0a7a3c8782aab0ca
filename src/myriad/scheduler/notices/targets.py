"""Where notices go: webhooks and apprise addresses that the site's policy names for a team.

An address often holds a password or token, so it lives in a Secret, is kept out of every text and log, and is shown by
the target's name alone.
"""

from __future__ import annotations

import base64
import binascii
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from myriad.errors import MyriadError
from myriad.kube.client import Api
from myriad.kube.kinds import SECRETS
from myriad.scheduler.policy import NotifyTarget

Json = dict[str, Any]
Kind = Literal["webhook", "apprise"]

_FRESH_S = 60.0


class TargetError(MyriadError):
    """A notify target cannot be used as it is described."""


@dataclass(frozen=True, slots=True)
class Address:
    """A target that can be sent to. Its text says the name only.

    Attributes:
        name: as the policy calls it.
        kind: how it is spoken to.
        url: the webhook's address, or apprise's.
        key: signs what a webhook gets; empty: it gets no signature.
    """

    name: str
    kind: Kind
    url: str = field(repr=False)
    key: bytes = field(default=b"", repr=False)


def address_of(name: str, target: NotifyTarget, secret: Callable[[str, str], bytes]) -> Address:
    """The address of a target.

    A webhook has `url` (and a Secret with the key that signs), or a Secret alone: then that holds the address, or a
    JSON object with `url` and `key`. Apprise has a Secret, or `url` for an address without a password.

    Args:
        name: of the target.
        target: as the policy describes it.
        secret: reads a value: `(name of the Secret, key)`.

    Raises:
        TargetError: it says too little, or the wrong thing. The text names the target and never the address.
    """
    where = f"notify target {name}"
    url, key = target.url, b""
    if target.secret_name:
        value = secret(target.secret_name, target.secret_key).strip()
        if not value:
            raise TargetError(
                "its Secret holds nothing under that key",
                where=where,
                hint=f"fill {target.secret_name}/{target.secret_key}",
            )
        if url and target.kind == "webhook":
            key = value
        else:
            url, key = _unpack(value, where)
    if not url:
        raise TargetError("it has neither url nor secret", where=where, hint="name one of them in notify_targets")
    if target.kind == "webhook" and not _is_http(url):
        raise TargetError(
            "its address is not one of http or https",
            where=where,
            hint="a webhook is called by http(s)://HOST/PATH",
        )
    return Address(name, target.kind, url, key)


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _unpack(value: bytes, where: str) -> tuple[str, bytes]:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise TargetError("its Secret holds no text", where=where, hint="put the address into it") from None
    if not text.startswith("{"):
        return text, b""
    try:
        body = json.loads(text)
        return str(body["url"]), str(body.get("key") or "").encode()
    except (ValueError, KeyError, TypeError, AttributeError):
        raise TargetError(
            "its Secret holds a JSON object without url", where=where, hint='write {"url": "...", "key": "..."}'
        ) from None


class Addresses:
    """Addresses by name; Secrets are read again after a minute, so a rotated one is used soon.

    Args:
        api: reads the Secrets.
        targets: the policy's notify_targets, as they are now.
        namespace: where the Secrets are.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        api: Api,
        targets: Callable[[], Mapping[str, NotifyTarget]],
        *,
        namespace: str = "myriad-system",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._targets = targets
        self._namespace = namespace
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[float, bytes]] = {}

    def __call__(self, name: str) -> Address:
        """Raises TargetError where the policy does not know the name or what it names is not there."""
        target = self._targets().get(name)
        if target is None:
            raise TargetError(
                "the policy has no such target", where=f"notify target {name}", hint="add it to notify_targets"
            )
        return address_of(name, target, lambda secret, key: self._secret(name, secret, key))

    def _secret(self, target: str, name: str, key: str) -> bytes:
        known = self._known.get((name, key))
        if known and self._clock() - known[0] < _FRESH_S:
            return known[1]
        body = self._api.find(SECRETS, name, namespace=self._namespace)
        text = ((body or {}).get("data") or {}).get(key)
        if text is None:
            what = f"Secret {name} has no key {key}" if body else f"there is no Secret {name}"
            raise TargetError(
                f"{what} in namespace {self._namespace}",
                where=f"notify target {target}",
                hint=f"kubectl -n {self._namespace} create secret generic {name} --from-file={key}=FILE",
            )
        try:
            value = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            value = b""
        self._known[name, key] = (self._clock(), value)
        return value
