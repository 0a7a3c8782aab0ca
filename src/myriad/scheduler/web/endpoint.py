"""Routes as declarations: path, inputs, rule of access, answer. The application and its OpenAPI description are both
made from them, so neither can have what the other lacks, and a route without a rule cannot be written. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from starlette.responses import Response

from myriad.errors import InputError
from myriad.scheduler.cache import Cache
from myriad.scheduler.web.auth import Scope

Json = dict[str, Any]

NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
"""Names of Kubernetes objects (RFC 1123 subdomain)."""
NAMESPACE = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
TIME = r"\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|\+00:00)?)?"


class Rule(Enum):
    """Who is answered.

    OPEN: anybody; nothing of any namespace is said. NAMESPACE: the path names a namespace, and only those who may list
    its Workloads are answered. REDUCED: everybody who is logged in, each over the cluster as that person may see it.
    CLUSTER: those who may list Workloads of the whole cluster. METRICS: those, and who may get `/metrics`.
    """

    OPEN = "open"
    NAMESPACE = "namespace"
    REDUCED = "reduced"
    CLUSTER = "cluster"
    METRICS = "metrics"


@dataclass(frozen=True, slots=True)
class Param:
    """An input of a route.

    Attributes:
        name: in the path or the query.
        about: what it means, for the description.
        pattern: what the whole text must match; "" = digits (an integer between `least` and `most`).
        length: the longest text.
        default: what counts where the query does not name it; None = left out.
    """

    name: str
    about: str
    pattern: str = NAME
    length: int = 253
    least: int = 0
    most: int = 0
    default: str | int | None = None
    path: bool = False
    example: str = ""

    @property
    def is_number(self) -> bool:
        """Whether it is an integer."""
        return not self.pattern

    def read(self, text: str) -> str | int:
        """The value. Raises InputError that names the parameter."""
        where = f"parameter {self.name}"
        if len(text) > self.length:
            raise InputError(f"it has {len(text)} characters, {self.length} are the most", where=where)
        if self.is_number:
            if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII) or not self.least <= int(text) <= self.most:
                raise InputError(f"a whole number from {self.least} to {self.most} is expected", where=where)
            return int(text)
        if not re.fullmatch(self.pattern, text, re.ASCII):
            raise InputError(f"it does not look like {self.about}", where=where, hint=f"such as {self.example}")
        return text

    def describe(self) -> Json:
        """The parameter in OpenAPI's words."""
        schema: Json = (
            {"type": "integer", "minimum": self.least, "maximum": self.most}
            if self.is_number
            else {"type": "string", "pattern": f"^{self.pattern}$", "maxLength": self.length}
        )
        if self.default is not None:
            schema["default"] = self.default
        return {
            "name": self.name,
            "in": "path" if self.path else "query",
            "required": self.path,
            "description": self.about,
            "schema": schema,
        }


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that may be answered.

    Attributes:
        cache: the cluster as the caller may see it.
        scope: what that is.
        values: the inputs, read and checked.
        root: what a relative link of the page begins with, "" or "../" as often as needed.
    """

    cache: Cache
    scope: Scope
    values: Mapping[str, str | int]
    root: str = ""

    def text(self, name: str) -> str:
        """A text input, "" where it is left out."""
        return str(self.values.get(name, ""))

    def number(self, name: str) -> int:
        """A number input."""
        return int(self.values.get(name, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A route.

    Attributes:
        path: with `{name}` for inputs in the path.
        rule: who is answered.
        answer: makes the response; runs in a worker thread.
        about: one sentence for the description.
        params: the inputs; any other is refused.
        returns: JSON schema of a good answer, for `application/json`.
        media: what it answers with.
        light: answered without a worker thread's turn (health: it must never stand in line).
        misses: whether it can answer 404.
    """

    path: str
    rule: Rule
    answer: Callable[[Ask], Response]
    about: str
    params: tuple[Param, ...] = ()
    returns: Json = field(default_factory=dict)
    media: str = "application/json"
    light: bool = False
    misses: bool = False

    def __post_init__(self) -> None:
        named = set(re.findall(r"{(\w+)}", self.path))
        declared = {p.name for p in self.params if p.path}
        if named != declared:
            raise InputError(f"the path names {sorted(named)}, the inputs are {sorted(declared)}", where=self.path)
        if self.rule is Rule.NAMESPACE and "namespace" not in named:
            raise InputError("the rule asks for a namespace that the path does not name", where=self.path)

    def read(self, path: Mapping[str, str], query: Iterable[tuple[str, str]]) -> dict[str, str | int]:
        """All inputs of a request. Raises InputError for the first that is wrong, unknown or given twice."""
        known = {p.name: p for p in self.params}
        given: dict[str, str] = dict(path)
        for name, text in query:
            if name not in known or known[name].path:
                names = ", ".join(p.name for p in self.params if not p.path) or "none"
                raise InputError(f"there is no parameter {name[:40]!r}", where=self.path, hint=f"there are: {names}")
            if name in given:
                raise InputError("it is given twice", where=f"parameter {name}")
            given[name] = text
        values: dict[str, str | int] = {p.name: p.default for p in self.params if p.default is not None}
        for name, text in given.items():
            if text or known[name].path:
                values[name] = known[name].read(text)
        return values


_ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}, "hint": {"type": "string"}},
}


def openapi(endpoints: Sequence[Endpoint], *, version: str) -> Json:
    """The OpenAPI 3.1 description of the routes."""
    paths: Json = {}
    for endpoint in endpoints:
        paths[endpoint.path] = {"get": _operation(endpoint)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Myriad scheduler extension",
            "version": version,
            "description": "Reads only. A caller sees namespaces whose Workloads (kueue.x-k8s.io) that caller may "
            "list; of the rest, numbers without names.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "A Kubernetes token."},
                "header": {"type": "apiKey", "in": "header", "name": "X-Myriad-Token"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "myriad_token"},
            },
        },
    }


def _operation(endpoint: Endpoint) -> Json:
    schema: Json = endpoint.returns or {}
    content = {endpoint.media: {"schema": schema} if endpoint.media == "application/json" else {}}
    refused = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    texts = {"400": "The inputs are wrong.", "503": "Not now: too much at once, or the API server does not answer."}
    if endpoint.rule is not Rule.OPEN:
        texts |= {"401": "No token, or one that the cluster does not know.", "403": "Not allowed."}
    if endpoint.misses:
        texts["404"] = "Nothing of that name is known or may be seen."
    page = endpoint.media == "text/html"
    responses: Json = {"200": {"description": "The answer.", "content": content}}
    for status, text in sorted(texts.items()):
        responses[status] = {"description": text, "content": {**refused, **({"text/html": {}} if page else {})}}
    if endpoint.light:
        responses["503"] = {"description": "Not well; the text says why.", "content": {"text/plain": {}}}
    name = re.sub(r"\W+", "_", endpoint.path).strip("_") or "overview"
    found: Json = {
        "operationId": name,
        "summary": endpoint.about,
        "parameters": [p.describe() for p in endpoint.params],
        "responses": responses,
    }
    if endpoint.rule is Rule.OPEN:
        found["security"] = []
    else:
        found["security"] = [{"bearer": []}, {"header": []}, {"cookie": []}]
    return found
