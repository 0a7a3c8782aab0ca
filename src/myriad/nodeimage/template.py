"""Renders the packer template of a node image. Pure: what it gets is what it writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2

from myriad.errors import InputError
from myriad.nodeimage.definition import NodeImage

TEMPLATE = "node.pkr.hcl.j2"
#: Where packer from 1.7 on gets builders that older ones carry.
PLUGINS: Mapping[str, Mapping[str, str]] = {
    "qemu": {"source": "github.com/hashicorp/qemu", "version": ">= 1.1.0"},
    "amazon-ebs": {"source": "github.com/hashicorp/amazon", "version": ">= 1.3.0"},
    "googlecompute": {"source": "github.com/hashicorp/googlecompute", "version": ">= 1.1.0"},
    "azure-arm": {"source": "github.com/hashicorp/azure", "version": ">= 2.1.0"},
    "ansible": {"source": "github.com/hashicorp/ansible", "version": ">= 1.1.0"},
}
_ROOT = "sudo sh -c '{{ .Vars }} sh {{ .Path }}'"
_AS_ROOT = "{{ .Vars }} sh {{ .Path }}"


@dataclass(frozen=True)
class QemuFiles:
    """Files and settings of the qemu target.

    Attributes:
        disk: the disk that is booted; packer works on a copy.
        output: folder that packer makes for the result.
        key: private key of the build's seed.
        accelerator: kvm or tcg.
        arguments: further options of QEMU, as pairs.
        packer_manifest: where packer's manifest post-processor writes.
    """

    disk: Path
    output: Path
    key: Path
    accelerator: str
    packer_manifest: Path
    arguments: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class CloudFiles:
    """Files that the ansible provisioner of the cloud targets gets: playbook, variables, ansible.cfg."""

    playbook: Path
    variables: Path
    config: Path


@dataclass(frozen=True)
class Inputs:
    """What a template is rendered with, beside the image."""

    targets: Sequence[str]
    packer_version: tuple[int, int, int]
    epoch: int
    stamp: str
    check: Path
    hygiene: Path
    qemu: QemuFiles | None = None
    cloud: CloudFiles | None = None
    cloud_packages: Sequence[str] = field(default=())


def hcl(value: Any) -> str:
    """A value as HCL writes it; `${` and `%{` of a text stay text."""
    return json.dumps(value, default=str).replace("${", "$${").replace("%{", "%%{")


def render(folder: Path, image: NodeImage, inputs: Inputs) -> str:
    """The template of an image for some of its targets.

    Raises:
        InputError: the template is missing or wrong; with its line.
    """
    path = folder / TEMPLATE
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 (HCL, not HTML; every value passes the filter hcl)
    )
    environment.filters["hcl"] = hcl
    wanted = [*inputs.targets, *(["ansible"] if set(inputs.targets) != {"qemu"} else [])]
    try:
        template = environment.from_string(path.read_text(encoding="utf-8"))
        return template.render(
            image=image,
            targets=list(inputs.targets),
            packer_version=inputs.packer_version,
            plugins={PLUGINS[name]["source"].rsplit("/", 1)[1]: PLUGINS[name] for name in wanted},
            epoch=inputs.epoch,
            stamp=inputs.stamp,
            check=str(inputs.check),
            hygiene=str(inputs.hygiene),
            qemu=inputs.qemu,
            cloud=inputs.cloud,
            cloud_packages=list(inputs.cloud_packages),
            execute=_AS_ROOT if list(inputs.targets) == ["qemu"] else _ROOT,
        )
    except FileNotFoundError:
        raise InputError("the image has no packer template", where=str(path)) from None
    except jinja2.TemplateError as error:
        line = f":{error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise InputError(f"the packer template cannot be rendered: {error}", where=f"{path}{line}") from error
