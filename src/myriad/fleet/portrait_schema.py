"""Schemas that follow from the portrait's models: the published JSON schema, and the CRD with its structural schema.

Both are generated (`python -m myriad.docs`) and checked by a contract test; nobody edits them. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import Field

from myriad.fleet.portrait import Document, Fact, Portrait, Spec
from myriad.kube.kinds import NODE_PORTRAITS

Json = dict[str, Any]

SCHEMA_FILE = "docs/schema/node-portrait.json"
CRD_FILE = "roles/node_portrait/files/nodeportraits.yaml"
SCHEMA_ID = "https://myriad.dev/schema/node-portrait.json"


class Answer(Document):
    """What `myriad portrait NODE --json` prints.

    Attributes:
        node: the node.
        trusted: whether the portrait may be relied on.
        reason: why not; empty where it may.
        portrait: what was found.
        labels: labels that follow from it.
        facts: each fact of the portrait with its source and the time since when it is so.
    """

    node: str
    trusted: bool
    reason: str = ""
    portrait: Portrait | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    facts: tuple[Fact, ...] = ()


def published_schema() -> Json:
    """JSON schema of `Answer`. Readers must pass over fields that they do not know: newer agents write more."""
    schema = Answer.model_json_schema(by_alias=True, mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID, **schema}


def schema_text() -> str:
    """The published schema as it stands in its file."""
    return json.dumps(published_schema(), indent=2, sort_keys=False) + "\n"


def custom_resource_definition() -> Json:
    """The CustomResourceDefinition of NodePortrait."""
    columns = (
        ("GPUs", "integer", ".status.summary.gpus"),
        ("Model", "string", ".status.summary.model"),
        ("Driver", "string", ".status.summary.driver"),
        ("Gate", "string", ".status.summary.gate"),
        ("Age", "date", ".metadata.creationTimestamp"),
    )
    kind = NODE_PORTRAITS.kind
    properties = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": structural(Spec.model_json_schema(by_alias=True, mode="serialization")),
        "status": structural(Portrait.model_json_schema(by_alias=True, mode="serialization")),
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{NODE_PORTRAITS.plural}.{NODE_PORTRAITS.group}"},
        "spec": {
            "group": NODE_PORTRAITS.group,
            "scope": "Cluster",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": NODE_PORTRAITS.plural,
                "singular": kind.lower(),
            },
            "versions": [
                {
                    "name": NODE_PORTRAITS.version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path} for name, kind, path in columns
                    ],
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
                }
            ],
        },
    }


def crd_text() -> str:
    """The CRD as it stands in its file."""
    head = "---\n# Made from src/myriad/fleet/portrait.py by `python -m myriad.docs`. Change that.\n"
    return head + yaml.safe_dump(custom_resource_definition(), sort_keys=False, indent=2)


def structural(schema: Mapping[str, Any]) -> Json:
    """A JSON schema as the API server takes it: no references, no titles, "or null" without the null.

    https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema
    Nothing is required and defaults stay away: the agent writes whole documents, and an older object has to stay
    readable.
    """
    return _plain(schema, schema.get("$defs", {}))


def _plain(schema: Mapping[str, Any], known: Mapping[str, Any]) -> Json:
    if "$ref" in schema:
        return _plain(known[schema["$ref"].rpartition("/")[2]], known)
    if "anyOf" in schema:
        kinds = [one for one in schema["anyOf"] if one.get("type") != "null"]
        if len(kinds) == 1:
            return _plain(kinds[0], known)
        if all(one.get("type") in ("string", "integer", "number") for one in kinds):
            return {"x-kubernetes-preserve-unknown-fields": True}
        raise ValueError(f"no structural schema for {schema}")
    plain: Json = {}
    if "const" in schema:
        return {"type": "string", "enum": [schema["const"]]}
    for key in ("type", "enum", "minimum"):
        if key in schema:
            plain[key] = schema[key]
    if plain.get("type") == "object":
        if "properties" in schema:
            plain["properties"] = {name: _plain(one, known) for name, one in schema["properties"].items()}
        elif isinstance(schema.get("additionalProperties"), Mapping):
            plain["additionalProperties"] = _plain(schema["additionalProperties"], known)
    elif plain.get("type") == "array":
        plain["items"] = _plain(schema["items"], known)
    return plain
