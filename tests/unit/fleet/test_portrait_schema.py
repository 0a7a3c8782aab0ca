"""The custom resource keeps every field of every machine, and its specs follow from the description."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from myriad.fleet import check
from myriad.fleet.portrait import LabelSet, Spec
from myriad.fleet.portrait_schema import custom_resource_definition, structural
from myriad.fleet.portrait_spec import node_portraits, portrait_specs
from myriad.inventory import read_inventory
from myriad.roles import load_yaml

ROOT = Path(__file__).parents[3]
CRD = custom_resource_definition()
PROPERTIES = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
MACHINES = sorted((ROOT / "tests/fixtures/machines").glob("*/expected.yml"))
KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "object": (dict,),
    "array": (list,),
}  # fmt: skip


def dropped(document: Any, schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """What an API server would prune or refuse."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    kind = schema["type"]
    if not isinstance(document, KINDS[kind]) or (kind in ("integer", "number") and isinstance(document, bool)):
        yield f"{path}: {document!r} is no {kind}"
    elif "enum" in schema and document not in schema["enum"]:
        yield f"{path}: {document!r} is none of {schema['enum']}"
    elif kind == "array":
        for place, item in enumerate(document):
            yield from dropped(item, schema["items"], f"{path}[{place}]")
    elif kind == "object":
        for key, value in document.items():
            inner = schema.get("properties", {}).get(key) or schema.get("additionalProperties")
            if inner is None:
                yield f"{path}.{key} is not in the schema"
            else:
                yield from dropped(value, inner, f"{path}.{key}")


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.parent.name)
def test_no_field_of_a_machine_is_pruned(path: Path) -> None:
    assert list(dropped(yaml.safe_load(path.read_text())["portrait"], PROPERTIES["status"])) == []


def test_the_walk_finds_what_is_wrong() -> None:
    assert list(dropped({"gpus": [{"index": "0", "colour": "red", "vendor": "3dfx"}]}, PROPERTIES["status"])) == [
        ".gpus[0].index: '0' is no integer",
        ".gpus[0].colour is not in the schema",
        ".gpus[0].vendor: '3dfx' is none of ['nvidia', 'ascend']",
    ]


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for key in ("properties",):
            for inner in schema.get(key, {}).values():
                yield from nodes(inner)
        for key in ("items", "additionalProperties"):
            yield from nodes(schema.get(key))


def test_the_schema_is_structural() -> None:
    for part in ("spec", "status"):
        for schema in nodes(PROPERTIES[part]):
            assert schema.get("type") or schema.get("x-kubernetes-preserve-unknown-fields")
            assert not {"$ref", "anyOf", "title", "default", "const"} & schema.keys()
            # An object has named properties or open ones, never both.
            assert not ("properties" in schema and "additionalProperties" in schema)
    with pytest.raises(ValueError, match="no structural schema"):
        structural({"anyOf": [{"type": "object"}, {"type": "array"}]})


def test_tables_show_the_summary() -> None:
    version = CRD["spec"]["versions"][0]
    assert version["subresources"] == {"status": {}} and CRD["spec"]["scope"] == "Cluster"
    assert [column["name"] for column in version["additionalPrinterColumns"]] == [
        "GPUs", "Model", "Driver", "Gate", "Age"
    ]  # fmt: skip
    for column in version["additionalPrinterColumns"][:4]:
        *path, last = column["jsonPath"].split(".")[1:]
        place = PROPERTIES
        for step in path:
            place = place[step]["properties"]
        assert last in place


def test_every_gpu_node_of_a_site_of_10000_gpus_gets_its_spec() -> None:
    fleet = check(read_inventory(str(ROOT / "inventories" / "example"))).fleet
    specs = portrait_specs(fleet)
    assert len(specs) == 1250 and "cp1" not in specs
    objects = node_portraits(
        specs, versions={"driver": "580.126.20"}, registry="registry.example", images={"h100": ["i@sha256:1"]},
        taints=[{"key": "example.com/gpus", "effect": "NoSchedule"}], label_sets=["own", "gfd"], zone_level=1,
    )  # fmt: skip
    one = next(item for item in objects if item["metadata"]["name"] == "gpu0001")
    assert list(dropped(one["spec"], PROPERTIES["spec"])) == []
    spec = Spec.model_validate(one["spec"])
    assert spec.expected.gpus == 8 and spec.expected.location and spec.labels["myriad.dev/pool"] == "h100"
    assert spec.expected.versions.driver == "580.126.20" and spec.expected.images == ("i@sha256:1",)
    assert spec.expected.resources == {"nvidia.com/gpu": 8}
    assert spec.labelling.sets == ("own", "gfd") and spec.taints[0].key == "example.com/gpus"


def test_a_vocabulary_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="sets"):
        node_portraits({"n": Spec().document()}, label_sets=["all"])


def test_the_role_offers_the_vocabularies_that_there_are() -> None:
    path = ROOT / "roles/node_portrait/meta/argument_specs.yml"
    options = load_yaml(path)["argument_specs"]["main"]["options"]
    assert tuple(options["node_portrait_label_sets"]["choices"]) == get_args(LabelSet)


@pytest.mark.parametrize("name", ["lab", "molecule"])
def test_the_inventories_here_give_specs_that_fit(name: str) -> None:
    for spec in portrait_specs(check(read_inventory(str(ROOT / "inventories" / name))).fleet).values():
        assert list(dropped(spec, PROPERTIES["spec"])) == []
