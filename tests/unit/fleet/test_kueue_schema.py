"""What is rendered is what Kueue's own CRDs accept. The CRDs come from Kueue's Go module in the cache."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from myriad.fleet import check, objects_for_cluster_policy
from myriad.fleet.objects import KUEUE_API
from myriad.inventory import read_inventory

EXAMPLE = Path(__file__).parents[3] / "inventories" / "example"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "myriad"
CRDS = CACHE / "go" / "mod" / "sigs.k8s.io" / "kueue@v0.17.0" / "charts" / "kueue" / "templates" / "crd"

pytestmark = pytest.mark.skipif(
    not CRDS.is_dir(), reason=f"Kueue's Go module is not in the cache ({CRDS}); myriad bundle build fetches it"
)


@cache
def validator(kind: str) -> Draft202012Validator:
    """Validator of a kind in the served version; keys that the API server would drop are errors."""
    group, version = KUEUE_API.split("/")
    plural = {"Topology": "topologies"}.get(kind, f"{kind.lower()}{'es' if kind.endswith('Class') else 's'}")
    text = (CRDS / f"{group}_{plural}.yaml").read_text(encoding="utf-8")
    # The files are helm templates behind a licence; the schema itself has no template in it.
    text = text[text.index("apiVersion:") :]
    crd = yaml.safe_load("\n".join(line for line in text.splitlines() if "{{" not in line))
    (served,) = (item for item in crd["spec"]["versions"] if item["name"] == version)
    return Draft202012Validator(closed(served["schema"]["openAPIV3Schema"], is_root=True))


def closed(schema: Any, *, is_root: bool = False) -> Any:
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value) for key, value in schema.items() if key != "properties"}
    if "properties" in schema:
        result["properties"] = {key: closed(value) for key, value in schema["properties"].items()}
        if schema.get("type") == "object" and not schema.get("x-kubernetes-preserve-unknown-fields"):
            result.setdefault("additionalProperties", False)
    if is_root:
        result["properties"]["metadata"] = {"type": "object", "required": ["name"]}
    return result


def faults(item: dict[str, Any]) -> list[str]:
    return [
        f"{item['kind']} {item['metadata']['name']} {fault.json_path}: {fault.message}"
        for fault in validator(item["kind"]).iter_errors(item)
    ]


def rendered() -> list[dict[str, Any]]:
    return [
        item
        for item in objects_for_cluster_policy(check(read_inventory(EXAMPLE)).fleet)
        if item["apiVersion"] == KUEUE_API
    ]


def test_every_kueue_object_of_the_example_fits_its_schema() -> None:
    items = rendered()
    assert {item["kind"] for item in items} == {
        "ClusterQueue",
        "Cohort",
        "LocalQueue",
        "ResourceFlavor",
        "Topology",
        "WorkloadPriorityClass",
    }
    assert [fault for item in items for fault in faults(item)] == []


def test_the_schema_would_refuse_a_wrong_object() -> None:
    (queue, *_) = (item for item in rendered() if item["kind"] == "ClusterQueue")
    queue["spec"]["cohort"] = queue["spec"].pop("cohortName")  # the name of v1beta1
    queue["spec"]["preemption"]["withinClusterQueue"] = "Sometimes"
    assert len(faults(queue)) == 2
