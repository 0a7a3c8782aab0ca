"""The packer template: what is rendered is what packer reads, for every target and for old and new versions."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from myriad.errors import InputError, MyriadError
from myriad.nodeimage import hygiene, packer
from myriad.nodeimage.build import cloud_inputs, qemu_arguments
from myriad.nodeimage.definition import NodeImage, load_node_image
from myriad.nodeimage.seed import make_key
from myriad.nodeimage.template import Inputs, QemuFiles, hcl, render
from myriad.nodeimage.tools import which

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "images" / "node-debian12"
IMAGE = load_node_image(FOLDER)
OLD, NEW = (1, 6, 6), (1, 11, 0)
needs_packer = pytest.mark.skipif(which("packer") is None, reason="apt-get install packer")


def qemu(folder: Path, version: tuple[int, int, int] = OLD) -> Inputs:
    for name in ("disk.qcow2", "key"):
        (folder / name).write_bytes(b"")
    files = QemuFiles(
        disk=folder / "disk.qcow2",
        output=folder / "out",
        key=folder / "key",
        accelerator="tcg",
        packer_manifest=folder / "packer.json",
        arguments=qemu_arguments(IMAGE.name, folder / "out", folder / "seed.img", folder / "console"),
    )
    check, seal = FOLDER / "check.sh", Path(hygiene.__file__)
    return Inputs(["qemu"], version, epoch=7, stamp="abc", check=check, hygiene=seal, qemu=files)


def clouds(folder: Path, version: tuple[int, int, int] = OLD) -> Inputs:
    variables = folder / "variables.json"
    variables.write_text("{}")
    return cloud_inputs(IMAGE, FOLDER, variables, 7, version)


def blocks(text: str, kind: str) -> list[str]:
    return re.findall(rf'^{kind} "([^"]+)"', text, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("plain", '"plain"'),
        ('a "quote" and \\', '"a \\"quote\\" and \\\\"'),
        ("${file('/etc/shadow')}", "\"$${file('/etc/shadow')}\""),
        ("%{ if true }", '"%%{ if true }"'),
        (True, "true"),
        (["a", "b"], '["a", "b"]'),
        (Path("/tmp/x"), '"/tmp/x"'),
    ],
)
def test_a_value_cannot_become_an_expression(value: object, written: str) -> None:
    assert hcl(value) == written


def test_the_qemu_target_boots_the_disk_checks_it_and_seals_it_last(tmp_path: Path) -> None:
    text = render(FOLDER, IMAGE, qemu(tmp_path))
    assert blocks(text, "source") == ["qemu"]
    assert blocks(text, "  provisioner") == ["file", "file", "shell", "shell"]
    steps = [text.index(word) for word in ("sh /tmp/check.sh 6.1.0-57-amd64", "--root / --epoch 7", "post-processor")]
    assert steps == sorted(steps)
    assert f"file:{tmp_path}/console" in text


def test_every_described_cloud_has_its_builder_and_runs_the_image_s_playbook(tmp_path: Path) -> None:
    text = render(FOLDER, IMAGE, clouds(tmp_path))
    assert blocks(text, "source") == ["amazon-ebs", "googlecompute", "azure-arm"]
    assert f'playbook_file    = "{FOLDER}/provision.yml"' in text
    assert "linux-headers-6.1.0-57-amd64" in text
    assert text.index("provision.yml") < text.index("/tmp/check.sh 6") < text.index("--epoch 7")
    assert not re.search(r"(secret|password|token|access_key)", text), "credentials come from the environment"


def test_plugins_are_required_where_packer_knows_the_word(tmp_path: Path) -> None:
    assert "required_plugins" not in render(FOLDER, IMAGE, qemu(tmp_path, OLD))
    new = render(FOLDER, IMAGE, clouds(tmp_path, NEW))
    assert re.findall(r"source  = \"([^\"]+)\"", new) == [
        "github.com/hashicorp/amazon",
        "github.com/hashicorp/googlecompute",
        "github.com/hashicorp/azure",
        "github.com/hashicorp/ansible",
    ]
    assert 'source_image_project_id = ["debian-cloud"]' in new


@needs_packer
def test_packer_accepts_the_qemu_target(tmp_path: Path) -> None:
    path = tmp_path / "node.pkr.hcl"
    inputs = replace(qemu(tmp_path), packer_version=packer.version())
    make_key(tmp_path / "keys").private.rename(tmp_path / "key")
    path.write_text(render(FOLDER, IMAGE, inputs))
    packer.validate(path, syntax_only=packer.version() >= (1, 10, 0))


@needs_packer
@pytest.mark.parametrize("target", ["amazon-ebs", "googlecompute", "azure-arm"])
def test_packer_accepts_the_syntax_of_every_cloud(tmp_path: Path, target: str) -> None:
    path = tmp_path / "node.pkr.hcl"
    path.write_text(render(FOLDER, IMAGE, replace(clouds(tmp_path), targets=[target], packer_version=packer.version())))
    packer.validate(path, syntax_only=True)


@needs_packer
def test_packer_s_refusal_is_told_with_its_words(tmp_path: Path) -> None:
    path = tmp_path / "node.pkr.hcl"
    path.write_text(render(FOLDER, IMAGE, qemu(tmp_path)).replace('source "qemu" "node"', 'source "qemo" "node"'))
    with pytest.raises(MyriadError, match=r"packer refuses the template: .*qemo"):
        packer.validate(path)


def test_a_template_that_is_missing_or_wrong_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no packer template"):
        render(tmp_path, IMAGE, qemu(tmp_path))
    shutil.copy(FOLDER / "node.pkr.hcl.j2", tmp_path)
    (tmp_path / "node.pkr.hcl.j2").write_text("a\n{% if %}\n")
    with pytest.raises(InputError, match=r"node.pkr.hcl.j2:2: the packer template cannot be rendered"):
        render(tmp_path, IMAGE, qemu(tmp_path))
    (tmp_path / "node.pkr.hcl.j2").write_text("{{ image.kernal }}")
    with pytest.raises(InputError, match="kernal"):
        render(tmp_path, IMAGE, qemu(tmp_path))


def test_an_image_without_clouds_renders_none(tmp_path: Path) -> None:
    image = NodeImage.model_validate(
        {**IMAGE.model_dump(by_alias=True), "targets": {"qemu": IMAGE.targets.qemu.model_dump()}}
    )
    assert image.targets.names == ["qemu"]
    assert cloud_inputs(image, FOLDER, tmp_path / "v.json", 7, OLD).targets == []
