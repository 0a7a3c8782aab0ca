"""image.yml of node images: what is accepted, and the sentence for what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from myriad.errors import InputError
from myriad.nodeimage.definition import NodeImage, load_node_image

ROOT = Path(__file__).parents[3]
MINIMAL: dict[str, Any] = {
    "name": "node-test",
    "title": "A node",
    "kernel": "6.1.0-57-amd64",
    "roles": ["node_base", "container_runtime"],
    "budget_mb": 900,
}


def written(folder: Path, **changes: Any) -> Path:
    value = {key: one for key, one in {**MINIMAL, **changes}.items() if one is not None}
    (folder / "image.yml").write_text(yaml.safe_dump(value))
    return folder


def refusal(folder: Path, **changes: Any) -> str:
    with pytest.raises(InputError) as caught:
        load_node_image(written(folder, **changes))
    return str(caught.value)


@pytest.mark.parametrize("folder", sorted((ROOT / "images").glob("node-*")), ids=lambda path: path.name)
def test_the_images_of_the_repository_are_right_and_complete(folder: Path) -> None:
    image = load_node_image(folder)
    assert image.name == folder.name
    for name in ("node.pkr.hcl.j2", "provision.yml", "configure.yml", "check.sh"):
        assert (folder / name).is_file()


def test_a_minimal_definition_is_enough(tmp_path: Path) -> None:
    image = load_node_image(written(tmp_path))
    assert image.images == ("pause",)
    assert image.targets.names == ["qemu"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"kernel": 6.1}, "kernel"),
        ({"kernel": "latest"}, "kernel"),
        ({"budget_mb": 0}, "budget_mb"),
        ({"budget_mb": None}, "budget_mb: Field required"),
        ({"disk": {"size_gb": 1}}, "disk.size_gb"),
        ({"roles": ["node_bas"]}, 'did you mean "node_base"'),
        ({"roles": ["container_runtime", "node_base"]}, "in the order of a site run"),
        ({"roles": ["node_base", "node_base"]}, "once each"),
        ({"roles": ["node_base"]}, "there is no container runtime for them"),
        ({"roles": ["node_base", "gpu_driver", "container_runtime"]}, "give it with the role gpu_driver"),
        ({"driver": {"models": ["L40S"]}}, "give it with the role gpu_driver"),
        ({"role_vars": {"kueue_replicas": 2}}, '"kueue_replicas" belongs to none of the roles'),
        ({"explained": {"etc/hosts": "changes every time"}}, "needs a path from / on"),
        ({"explained": {"/etc/hosts": "because"}}, "a reason in words"),
        ({"images": "pause"}, "images"),
        ({"tagets": {}}, "tagets: Extra inputs are not permitted"),
        ({"packages": ["curl; rm -rf /"]}, "packages.0"),
        ({"name": "Node 1"}, "name"),
        ({"deadlines_s": {"ssh": -1}}, "deadlines_s.ssh"),
        ({"targets": {"amazon-ebs": {"region": "eu-central-1"}}}, "targets.amazon-ebs.source_ami_owner"),
        (
            {"targets": {"amazon-ebs": {"region": "x", "source_ami_name": "d", "source_ami_owner": 136693071363}}},
            "write it in quotes",
        ),
    ],
)
def test_wrong_input_is_named_with_its_key(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(tmp_path, **changes)


def test_a_model_that_nobody_makes_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    roles = ["node_base", "gpu_driver", "container_runtime"]
    said = refusal(tmp_path, roles=roles, driver={"models": ["H100-SXM-80GB"]})
    assert '"H100-SXM-80GB" is no GPU model of the catalog; did you mean "H100-SXM5-80GB"?' in said


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    said = refusal(tmp_path, kernel="x", budget_mb="big")
    assert "kernel" in said
    assert "budget_mb" in said


def test_a_missing_file_and_one_that_is_no_yaml_are_input_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no image.yml"):
        load_node_image(tmp_path)
    (tmp_path / "image.yml").write_text("name: [")
    with pytest.raises(InputError, match="not YAML"):
        load_node_image(tmp_path)
    (tmp_path / "image.yml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not YAML"):
        load_node_image(tmp_path)


def test_the_image_of_a_container_is_not_taken_for_one_of_a_node() -> None:
    with pytest.raises(InputError, match="the image of a container, not of a node"):
        load_node_image(ROOT / "images" / "gang-check")


def test_the_definition_stands_by_itself() -> None:
    image = NodeImage.model_validate(MINIMAL)
    assert NodeImage.model_validate(image.model_dump(by_alias=True)) == image
