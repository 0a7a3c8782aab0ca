"""A small client for the Kubernetes API: raw JSON in, raw JSON out.

Credentials, TLS and exec plugins of a kubeconfig are read by the `kubernetes` package; requests go
through httpx. Inside a pod neither kubeconfig nor that package is needed (its import costs 0.7 s of
one core, which two replicas and an agent on every node would pay at start): the service account's
token and CA are two files.

Blocking calls and threads, not asyncio: a watch is a thread that sleeps in `recv`, the planner is
CPU-bound and would hold up an event loop (and with it the health probes), and everything else reads
top to bottom. `Api` may be shared between threads.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import httpx

from myriad.errors import MyriadError
from myriad.kube.contexts import answering
from myriad.kube.kinds import EVENTS, PODS, Resource

Json = dict[str, Any]
PatchKind = Literal["merge", "json", "apply", "strategic"]
Texts = Mapping[str, str] | None

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
FIELD_MANAGER = "myriad-scheduler"

_PATCH_TYPES: dict[str, str] = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    # JSON is YAML; the API server reads apply patches only under this type.
    "apply": "application/apply-patch+yaml",
}
_PAGE = 500
_CONNECT_TIMEOUT_S = 10.0
_READ_TIMEOUT_S = 60.0
_ATTEMPTS = 4


class ApiError(MyriadError):
    """The API server answered with an error.

    Attributes:
        status: the HTTP status code.
        reason: the API's own short reason, such as `Conflict`.
    """

    def __init__(self, status: int, reason: str, message: str, *, where: str) -> None:
        hint = None
        if status in (401, 403):
            hint = "the credentials in use may not do this: look at the kubeconfig's user or the role bindings"
        super().__init__(f"the API server answered {status} {reason}: {message}", where=where, hint=hint)
        self.status = status
        self.reason = reason

    @property
    def is_conflict(self) -> bool:
        """Somebody else changed the object since it was read (or it exists already)."""
        return self.status == 409

    @property
    def is_not_found(self) -> bool:
        """The object, or its kind, does not exist."""
        return self.status == 404

    @property
    def is_gone(self) -> bool:
        """The resourceVersion is too old: list again."""
        return self.status == 410


class ClusterUnreachableError(MyriadError):
    """No API server answers where the kubeconfig or the pod's environment says it is."""


class KubeconfigError(ClusterUnreachableError):
    """The kubeconfig that was named is none: wrong input, where a cluster that does not answer is a failure."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One line of a watch.

    Attributes:
        type: ADDED, MODIFIED, DELETED or BOOKMARK.
        object: the object as sent; a bookmark carries only a resourceVersion.
    """

    type: str
    object: Json

    @property
    def resource_version(self) -> str:
        """The version to go on from."""
        return str(self.object["metadata"]["resourceVersion"])


class Api:
    """Calls to one API server.

    Args:
        base_url: scheme, host and port.
        verify: a TLS context, or False for an endpoint whose kubeconfig says insecure-skip-tls-verify.
        headers: called before each request, so that a rotated token is used as soon as it is there.
        source: where the address came from, for messages.
        transport: replaces the network in tests.
    """

    def __init__(
        self,
        base_url: str,
        *,
        verify: ssl.SSLContext | bool = True,
        headers: Callable[[], Mapping[str, str]] = dict,
        source: str = "the API server",
        proxy: str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.source = source
        self.headers = headers
        # A dead peer (a lost node, a control plane that moved) must not leave a watch silent for ever.
        keepalive = [
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
        ]
        self._client = httpx.Client(
            base_url=self.base_url,
            timeout=httpx.Timeout(_READ_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S, pool=_READ_TIMEOUT_S),
            transport=transport
            or httpx.HTTPTransport(
                verify=verify,
                proxy=proxy,
                socket_options=keepalive,
                limits=httpx.Limits(max_connections=64, max_keepalive_connections=32),
            ),
            headers={"Accept": "application/json", "User-Agent": "myriad"},
        )

    def close(self) -> None:
        """Close all connections, watches included."""
        self._client.close()

    # Reading

    def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> Json:
        """One object. Raises ApiError (404 when it is not there)."""
        return self._json("GET", resource.path(namespace, name))

    def find(self, resource: Resource, name: str, *, namespace: str | None = None) -> Json | None:
        """One object, or None where it does not exist."""
        try:
            return self.get(resource, name, namespace=namespace)
        except ApiError as error:
            if error.is_not_found:
                return None
            raise

    def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
    ) -> tuple[list[Json], str]:
        """All objects and the resourceVersion to watch from, fetched in pages."""
        items: list[Json] = []
        params = _selectors(labels, fields) | {"limit": str(_PAGE)}
        while True:
            page = self._json("GET", resource.path(namespace), params=params)
            items.extend(page.get("items") or [])
            metadata = page.get("metadata") or {}
            token = metadata.get("continue")
            if not token:
                return items, str(metadata.get("resourceVersion", ""))
            params["continue"] = token

    def watch(
        self,
        resource: Resource,
        *,
        resource_version: str,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
        timeout_s: int = 240,
        opened: Callable[[], None] = lambda: None,
    ) -> Iterator[WatchEvent]:
        """Changes after `resource_version`, until the server ends the watch (about `timeout_s`).

        `opened` is called once the server has accepted the watch, before anything has changed.

        Raises ApiError with status 410 when the version is too old, ClusterUnreachableError when the
        connection is lost.
        """
        params = _selectors(labels, fields) | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_s),
        }
        path = resource.path(namespace)
        # An idle watch sends a bookmark about once a minute; nothing at all for longer is a dead connection.
        timeout = httpx.Timeout(_CONNECT_TIMEOUT_S, read=timeout_s + 15.0, pool=_READ_TIMEOUT_S)
        with (
            self._reaching(),
            self._client.stream("GET", path, params=params, headers=dict(self.headers()), timeout=timeout) as response,
        ):
            if response.status_code != 200:
                response.read()
                raise _error(response, f"watch {path}")
            opened()
            for line in _lines(response):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise ApiError(
                        int(status.get("code") or 500),
                        str(status.get("reason") or "Error"),
                        str(status.get("message") or "the watch ended with an error"),
                        where=f"watch {path}",
                    )
                yield WatchEvent(type=event["type"], object=event["object"])

    def get_raw(self, path: str, *, params: Texts = None, accept: str = "", headers: Texts = None) -> Json:
        """The JSON document at any path, such as a service through the API server's proxy; in the form of `accept`."""
        return self._json("GET", path, params=params, accept=accept, more=headers)

    # Writing

    def create(self, resource: Resource, body: Json, *, namespace: str | None = None, dry_run: bool = False) -> Json:
        """Create an object; 409 when it exists. A dry run is judged by the server and leaves nothing."""
        return self._json("POST", resource.path(namespace), params={"dryRun": "All"} if dry_run else None, body=body)

    def replace(self, resource: Resource, name: str, body: Json, *, namespace: str | None = None) -> Json:
        """Replace an object; its `metadata.resourceVersion` guards against a change in between."""
        return self._json("PUT", resource.path(namespace, name), body=body)

    def delete(self, resource: Resource, name: str, *, namespace: str | None = None, now: bool = False) -> None:
        """Delete an object; one that is gone already is fine. `now` waits for no grace period of a pod."""
        # What it owns goes in the background: the API's own default for Jobs leaves their pods behind.
        body = {"propagationPolicy": "Background", **({"gracePeriodSeconds": 0} if now else {})}
        try:
            self._json("DELETE", resource.path(namespace, name), body=body)
        except ApiError as error:
            if not error.is_not_found:
                raise

    def patch(
        self,
        resource: Resource,
        name: str,
        body: Json | Sequence[Json],
        *,
        kind: PatchKind = "merge",
        namespace: str | None = None,
        subresource: str | None = None,
        field_manager: str = FIELD_MANAGER,
        force: bool = False,
    ) -> Json:
        """Change part of an object.

        A `metadata.resourceVersion` inside the body makes the API server refuse (409) the change when the
        object has moved on. `apply` sends fields that `field_manager` then owns; `force` takes them over.
        """
        params = {"fieldManager": field_manager}
        if kind == "apply":
            params["force"] = "true" if force else "false"
        return self._json(
            "PATCH",
            resource.path(namespace, name, subresource),
            params=params,
            body=body,
            content_type=_PATCH_TYPES[kind],
        )

    def evict(self, pod: str, *, namespace: str, dry_run: bool = False, uid: str = "") -> None:
        """Ask a pod to leave its node, as its PodDisruptionBudgets allow.

        Args:
            pod: its name.
            namespace: its namespace.
            dry_run: only ask whether it would be allowed.
            uid: refuse (409) where the name has come to mean another pod.

        Raises:
            ApiError: 429 where a budget forbids it now, 404 where it is gone.
        """
        options: Json = {"dryRun": ["All"]} if dry_run else {}
        if uid:
            options["preconditions"] = {"uid": uid}
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
            **({"deleteOptions": options} if options else {}),
        }
        self._json("POST", PODS.path(namespace, pod, "eviction"), body=body)

    def create_event(
        self, about: Json, *, reason: str, message: str, type_: str = "Normal", component: str = "myriad-scheduler"
    ) -> None:
        """Write a Kubernetes Event about an object (its kind, apiVersion and metadata must be in it)."""
        metadata = about["metadata"]
        namespace = metadata.get("namespace") or "default"
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.create(
            EVENTS,
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": f"{metadata['name'][:200]}.{uuid.uuid4().hex[:16]}", "namespace": namespace},
                "involvedObject": {
                    "apiVersion": about["apiVersion"],
                    "kind": about["kind"],
                    "name": metadata["name"],
                    "uid": metadata.get("uid", ""),
                    **({"namespace": metadata["namespace"]} if metadata.get("namespace") else {}),
                },
                "reason": reason,
                "message": message[:1020],
                "type": type_,
                "source": {"component": component},
                "reportingComponent": component,
                "reportingInstance": os.environ.get("POD_NAME", socket.gethostname()),
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
            },
            namespace=namespace,
        )

    # Plumbing

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except httpx.RequestError as error:
            raise ClusterUnreachableError(
                f"no answer from {self.base_url} ({type(error).__name__}: {error})",
                where=self.source,
                hint="is the cluster running? For the lab: `make lab`, then `. .lab/env` in this shell",
            ) from error

    def _document(self, response: httpx.Response) -> Json:
        try:
            document: Json = json.loads(response.content) if response.content else {}
        except ValueError as error:
            kind = response.headers.get("Content-Type", "something without a type")
            raise ClusterUnreachableError(
                f"{self.base_url} answers with {kind} that is no JSON, so it is no API server",
                where=self.source,
                hint="does a proxy or a login page stand between? look at $HTTPS_PROXY, $NO_PROXY and the kubeconfig",
            ) from error
        return document

    def _json(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "",
        more: Texts = None,
    ) -> Json:
        content = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        attempt = 0
        while True:
            attempt += 1
            headers = {**self.headers(), **(more or {}), **({"Accept": accept} if accept else {})}
            if content is not None:
                headers["Content-Type"] = content_type
            with self._reaching():
                try:
                    response = self._client.request(method, path, params=params, content=content, headers=headers)
                except (httpx.ConnectError, httpx.ConnectTimeout, httpx.RemoteProtocolError):
                    # Nothing reached the server, or it closed an idle connection under us. A read may be repeated
                    # at will; a write only if it cannot have been carried out.
                    if method != "GET" or attempt >= _ATTEMPTS:
                        raise
                    time.sleep(0.2 * attempt)
                    continue
            # 429 and 503 with Retry-After say: not done, come back (API priority and fairness, start-up).
            retry_after = response.headers.get("Retry-After")
            if response.status_code in (429, 503) and retry_after and attempt < _ATTEMPTS:
                time.sleep(min(_seconds(retry_after), 10.0))
                continue
            if response.is_success:
                return self._document(response)
            raise _error(response, f"{method} {path}")


def connect(kubeconfig: str | Path | None = None, *, in_cluster: bool | None = None) -> Api:
    """A client for the cluster that the caller means.

    Args:
        kubeconfig: a file; None takes $KUBECONFIG.
        in_cluster: True uses the pod's service account; None does so when there is no kubeconfig and the
            process runs in a pod.

    Raises:
        KubeconfigError: neither is there, or the file cannot be used.
    """
    path = str(kubeconfig) if kubeconfig else os.environ.get("KUBECONFIG", "")
    if in_cluster or (in_cluster is None and not path and (SERVICE_ACCOUNT / "token").exists()):
        return _in_cluster()
    if not path:
        raise KubeconfigError(
            "no cluster is named: $KUBECONFIG is empty",
            hint="for the lab: `. .lab/env` in this shell; else export KUBECONFIG=FILE "
            "(~/.kube/config is never read unless you name it)",
        )
    return _from_kubeconfig(path)


def _in_cluster() -> Api:
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (SERVICE_ACCOUNT / "token").exists():
        raise ClusterUnreachableError(
            "this process does not run in a pod with a service account", hint="name a kubeconfig instead"
        )
    if ":" in host:
        host = f"[{host}]"
    token = _TokenFile(SERVICE_ACCOUNT / "token")
    context = ssl.create_default_context(cafile=str(SERVICE_ACCOUNT / "ca.crt"))
    return Api(f"https://{host}:{port}", verify=context, headers=token, source="the pod's service account")


def _from_kubeconfig(path: str) -> Api:
    # Imported here: 0.7 s that a pod need not pay.
    import yaml
    from kubernetes.client import Configuration
    from kubernetes.config import ConfigException, kube_config

    if not Path(path).exists() and os.pathsep not in path:
        raise KubeconfigError(
            "there is no such kubeconfig",
            where=path,
            hint="`kubectl --kubeconfig FILE get nodes` has to work; for the lab: `. .lab/env` names it",
        )
    configuration = Configuration()
    configuration.api_key = {}
    try:
        kube_config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=path, context=answering(path), client_configuration=configuration, persist_config=False
        )
    except (ConfigException, OSError, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        # The loader trusts the file's shape; a file of another shape fails in any of these ways.
        raise KubeconfigError(
            f"the kubeconfig cannot be used: {' '.join(str(error).split())}",
            where=path,
            hint="`kubectl --kubeconfig FILE get nodes` has to work; for the lab: `. .lab/env` names it",
        ) from error

    try:
        verify = _verification(configuration)
    except (OSError, ValueError, TypeError) as error:
        # ssl.SSLError is an OSError: its text names OpenSSL's source and never the file.
        raise KubeconfigError(
            f"the kubeconfig's certificates cannot be used: {' '.join(str(error).split())}",
            where=path,
            hint="certificate-authority-data, client-certificate-data and client-key-data are PEM in base64, and the "
            "key is that of the certificate",
        ) from error

    def headers() -> Mapping[str, str]:
        if configuration.refresh_api_key_hook is not None:
            configuration.refresh_api_key_hook(configuration)
        found: dict[str, str] = {}
        token = configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        if token:
            found["Authorization"] = token
        elif configuration.username:
            found["Authorization"] = configuration.get_basic_auth_token() or ""
        return found

    return Api(configuration.host, verify=verify, headers=headers, source=path, proxy=configuration.proxy or None)


def _verification(configuration: Any) -> ssl.SSLContext | bool:
    verify: ssl.SSLContext | bool = False
    if configuration.verify_ssl:
        verify = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    elif configuration.cert_file:
        verify = ssl.create_default_context()
        verify.check_hostname = False
        verify.verify_mode = ssl.CERT_NONE
    if isinstance(verify, ssl.SSLContext) and configuration.cert_file:
        verify.load_cert_chain(configuration.cert_file, configuration.key_file)
    return verify


class _TokenFile:
    """The bearer token of a service account; the kubelet rotates the file about once an hour."""

    def __init__(self, path: Path, *, max_age_s: float = 60.0) -> None:
        self._path = path
        self._max_age_s = max_age_s
        self._read_at = float("-inf")
        self.headers: dict[str, str] = {}

    def __call__(self) -> Mapping[str, str]:
        now = time.monotonic()
        if now - self._read_at > self._max_age_s:
            self.headers = {"Authorization": f"Bearer {self._path.read_text().strip()}"}
            self._read_at = now
        return self.headers


def _lines(response: httpx.Response) -> Iterator[bytes]:
    """Lines of a streamed body as bytes; httpx's own iter_lines decodes and splits on more than newlines."""
    rest = b""
    for chunk in response.iter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line)
    if rest:
        yield rest


def _selectors(labels: str | None, fields: str | None) -> dict[str, str]:
    return ({"labelSelector": labels} if labels else {}) | ({"fieldSelector": fields} if fields else {})


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 1.0


def _error(response: httpx.Response, where: str) -> ApiError:
    try:
        status = json.loads(response.content)
    except ValueError:
        status = {}
    if not isinstance(status, dict):
        status = {}
    message = str(status.get("message") or response.text[:300] or response.reason_phrase)
    return ApiError(response.status_code, str(status.get("reason") or response.reason_phrase), message, where=where)
