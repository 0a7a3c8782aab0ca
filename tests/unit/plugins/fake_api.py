"""An API server of a few hundred lines for tests: discovery, lists by label, server-side apply with owners, dry run.

It keeps what matters for ``myriad.kube.apply``: fields that a manager no longer applies are removed, a field of another
manager conflicts, a write that changes nothing keeps the resourceVersion, kinds appear when their CRD is applied,
a webhook may not answer yet.
"""

from __future__ import annotations

import copy
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]

BUILT_IN = {
    "v1": [
        ("namespaces", "Namespace", False),
        ("nodes", "Node", False),
        ("configmaps", "ConfigMap", True),
        ("secrets", "Secret", True),
        ("services", "Service", True),
        ("pods", "Pod", True),
    ],
    "apps/v1": [("deployments", "Deployment", True), ("daemonsets", "DaemonSet", True)],
    "apiextensions.k8s.io/v1": [("customresourcedefinitions", "CustomResourceDefinition", False)],
    "admissionregistration.k8s.io/v1": [("validatingwebhookconfigurations", "ValidatingWebhookConfiguration", False)],
}


def leaves(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Fields by path; a list is one field."""
    if isinstance(value, dict) and value:
        found: dict[tuple[str, ...], Any] = {}
        for key, item in value.items():
            found.update(leaves(item, (*path, key)))
        return found
    return {path: value}


def put(target: Json, path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        target = target.setdefault(key, {})
    target[path[-1]] = copy.deepcopy(value)


def drop(target: Json, path: tuple[str, ...]) -> None:
    chain = [target]
    for key in path[:-1]:
        if not isinstance(chain[-1].get(key), dict):
            return
        chain.append(chain[-1][key])
    chain[-1].pop(path[-1], None)
    for parent, key in zip(reversed(chain[:-1]), reversed(path[:-1]), strict=True):
        if parent[key] == {}:
            del parent[key]


class FakeApi:
    """State and counters; ``url`` once it runs."""

    def __init__(self) -> None:
        self.kinds: dict[str, list[tuple[str, str, bool]]] = copy.deepcopy(BUILT_IN)
        self.objects: dict[tuple[str, str, str], Json] = {}
        self.owners: dict[tuple[str, str, str], dict[str, set[tuple[str, ...]]]] = {}
        self.requests: list[tuple[str, str]] = []
        self.webhook_down: set[str] = set()
        self.webhook_failures_left = 0
        self.version = 0
        self.lock = threading.RLock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> FakeApi:
        self.thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def count(self, method: str) -> int:
        return sum(1 for found, _path in self.requests if found == method)

    def get(self, plural: str, name: str, namespace: str = "") -> Json | None:
        return self.objects.get((plural, namespace, name))

    def seed(self, api_version: str, plural: str, obj: Json, manager: str = "kubelet") -> None:
        namespace = obj["metadata"].get("namespace", "")
        obj = {"apiVersion": api_version, **copy.deepcopy(obj)}
        self._apply(plural, namespace, obj["metadata"]["name"], obj, manager, force=True, dry_run=False)

    # --- the server ------------------------------------------------------------------------------------------------

    def _handler(fake) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_words: object) -> None:
                return

            def answer(self, status: int, document: Json) -> None:
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def handle_any(self) -> None:
                parts = urlsplit(self.path)
                query = {key: values[0] for key, values in parse_qs(parts.query).items()}
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                with fake.lock:
                    fake.requests.append((self.command, parts.path))
                    status, document = fake._route(self.command, parts.path, query, body)
                self.answer(status, document)

            do_GET = do_PATCH = do_DELETE = handle_any

        return Handler

    def _route(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Json]:
        found = re.match(r"/api(?:s/(?P<group>[^/]+))?/(?P<version>v[^/]+)(?P<rest>/.*)?$", path)
        if not found:
            return failure(404, "NotFound", path)
        group, version = found["group"], found["version"]
        api_version = f"{group}/{version}" if group else version
        if api_version not in self.kinds:
            return failure(404, "NotFound", "the server could not find the requested resource")
        rest = [part for part in (found["rest"] or "").split("/") if part]
        if not rest:
            resources = [
                {"name": plural, "kind": kind, "namespaced": namespaced}
                for plural, kind, namespaced in self.kinds[api_version]
            ]
            return 200, {"kind": "APIResourceList", "resources": resources}
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        plural, name = rest[0], rest[1] if len(rest) > 1 else None
        if method == "GET" and name is None:
            return 200, self._list(plural, namespace, query.get("labelSelector", ""))
        key = (plural, namespace, str(name))
        if method == "PATCH":
            return self._patch(plural, namespace, str(name), body, query)
        if key not in self.objects:
            return failure(404, "NotFound", f'{plural} "{name}" not found')
        if method == "DELETE":
            del self.objects[key]
            self.owners.pop(key, None)
            return 200, {"kind": "Status", "status": "Success"}
        return 200, self.objects[key]

    def _list(self, plural: str, namespace: str, selector: str) -> Json:
        wanted = dict(part.split("=") for part in selector.split(",") if "=" in part)
        present = [part for part in selector.split(",") if part and "=" not in part]
        items = []
        for (other, place, _name), obj in sorted(self.objects.items()):
            labels = obj["metadata"].get("labels") or {}
            listed = other == plural and (not namespace or place == namespace)
            fits = all(labels.get(key) == value for key, value in wanted.items()) and all(
                key in labels for key in present
            )
            if listed and fits:
                items.append({key: value for key, value in obj.items() if key not in ("kind", "apiVersion")})
        return {"kind": "List", "metadata": {"resourceVersion": str(self.version)}, "items": items}

    def _patch(self, plural: str, namespace: str, name: str, body: Json, query: dict[str, str]) -> tuple[int, Json]:
        if namespace and ("namespaces", "", namespace) not in self.objects and namespace != "default":
            return failure(404, "NotFound", f'namespaces "{namespace}" not found')
        if plural in self.webhook_down:
            if self.webhook_failures_left > 0:
                self.webhook_failures_left -= 1
                if self.webhook_failures_left == 0:
                    self.webhook_down.discard(plural)
            return failure(500, "InternalError", 'failed calling webhook "v.kueue.x-k8s.io": connection refused')
        return self._apply(
            plural,
            namespace,
            name,
            body,
            query["fieldManager"],
            force=query.get("force") == "true",
            dry_run=query.get("dryRun") == "All",
        )

    def _apply(
        self, plural: str, namespace: str, name: str, body: Json, manager: str, *, force: bool, dry_run: bool
    ) -> tuple[int, Json]:
        key = (plural, namespace, name)
        live = copy.deepcopy(self.objects.get(key))
        owners = copy.deepcopy(self.owners.get(key, {}))
        wanted = leaves({field: value for field, value in body.items() if field not in ("apiVersion", "kind")})
        wanted.pop(("metadata", "name"), None)
        wanted.pop(("metadata", "namespace"), None)
        status = 200
        if live is None:
            status = 201
            metadata = {"name": name, "uid": f"uid-{plural}-{name}", "generation": 1}
            if namespace:
                metadata["namespace"] = namespace
            live = {"apiVersion": body["apiVersion"], "kind": body["kind"], "metadata": metadata}
        before = copy.deepcopy(live)
        current = leaves(live)
        for other, paths in owners.items():
            clashes = [
                path for path in wanted if other != manager and path in paths and current.get(path) != wanted[path]
            ]
            if clashes and not force:
                return failure(409, "Conflict", f'conflict with "{other}": .{".".join(clashes[0])}')
            for path in clashes:
                paths.discard(path)
        for path in owners.get(manager, set()) - set(wanted):
            if not any(path in paths for other, paths in owners.items() if other != manager):
                drop(live, path)
        for path, value in wanted.items():
            put(live, path, value)
        owners[manager] = set(wanted)
        self._defaults(plural, live)
        if live != before or status == 201:
            live["metadata"]["resourceVersion"] = str(self.version + 1)
        live["metadata"]["managedFields"] = [
            {
                "manager": other,
                "operation": "Apply",
                "fieldsType": "FieldsV1",
                "fieldsV1": {"f:" + "/".join(path): {} for path in sorted(owners[other])},
            }
            for other in sorted(owners)
        ]
        if not dry_run:
            if live != before:
                self.version += 1
            self.objects[key] = live
            self.owners[key] = owners
            if plural == "customresourcedefinitions":
                self._serve(live)
        return status, live

    def _defaults(self, plural: str, live: Json) -> None:
        if plural == "deployments":
            live.setdefault("spec", {}).setdefault("progressDeadlineSeconds", 600)
            live["status"] = {"observedGeneration": 1, "updatedReplicas": 1, "availableReplicas": 1}
        if plural == "customresourcedefinitions":
            live["status"] = {"conditions": [{"type": "Established", "status": "True"}]}

    def _serve(self, crd: Json) -> None:
        names = crd["spec"]["names"]
        for version in crd["spec"]["versions"]:
            entry = (names["plural"], names["kind"], crd["spec"]["scope"] == "Namespaced")
            kinds = self.kinds.setdefault(f"{crd['spec']['group']}/{version['name']}", [])
            if entry not in kinds:
                kinds.append(entry)


def failure(status: int, reason: str, message: str) -> tuple[int, Json]:
    return status, {"kind": "Status", "status": "Failure", "code": status, "reason": reason, "message": message}
