"""`images/node-*/image.yml`: what a node image holds, for whom it is, and how long each stage may take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from myriad.errors import InputError
from myriad.fleet.catalog import CATALOG
from myriad.fleet.names import did_you_mean

ROLES = ("node_base", "gpu_driver", "container_runtime", "gpu_toolkit", "kubernetes_node")
"""Roles whose install half may go into an image, in the order of a site run."""

TARGETS = ("qemu", "amazon-ebs", "googlecompute", "azure-arm")
"""Packer builders that the template knows. Bare metal takes the qemu target's disk, raw or as a tar."""

_Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]
_Package = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]+$")]
_Seconds = Annotated[int, Field(gt=0, le=86400)]


def _text(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f'{value} is a number to YAML, which drops zeros; write it in quotes: "{value}"')
    return value


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Driver(_Model):
    """The GPU driver of the image.

    Attributes:
        channel: whose packages, as in role gpu_driver.
        models: GPU models that the image is for; they decide between the open and the proprietary module.
        module: `auto`, or one of the two.
    """

    channel: Literal["distribution", "vendor"] = "distribution"
    models: tuple[str, ...] = Field(min_length=1)
    module: Literal["auto", "open", "proprietary"] = "auto"

    @model_validator(mode="after")
    def _known(self) -> Self:
        for model in self.models:
            if model not in CATALOG:
                raise ValueError(f'"{model}" is no GPU model of the catalog{did_you_mean(model, CATALOG)}')
        return self


class Disk(_Model):
    """The disk. `size_gb` is what the first boot finds (10**9 bytes); it grows with the machine's own disk."""

    size_gb: Annotated[int, Field(ge=3, le=2000)] = 8


class Deadlines(_Model):
    """Seconds that a stage of a packer build may take before it counts as hanging. Ten times as long as it takes under
    emulation on two slow cores, so a build that is merely slow is not cut off."""

    start: _Seconds = 600
    ssh: _Seconds = 900
    provision: _Seconds = 1200
    shutdown: _Seconds = 240
    finish: _Seconds = 900


class Qemu(_Model):
    """The target that is built, booted and proven here. `accelerator` auto takes KVM only where it was seen to work."""

    memory_mb: Annotated[int, Field(ge=1024)] = 2048
    cpus: Annotated[int, Field(ge=1, le=64)] = 2
    accelerator: Literal["auto", "kvm", "tcg"] = "auto"
    formats: tuple[Literal["qcow2", "raw", "tar"], ...] = ("qcow2",)


class Amazon(_Model):
    """An AMI, built on an instance from Debian's own image; the provisioning playbook runs over ssh."""

    region: str
    instance_type: str = "m6i.xlarge"
    source_ami_owner: Annotated[str, BeforeValidator(_text), Field(pattern=r"^\d{12}$|^self$")]
    source_ami_name: str
    encrypted: bool = True


class Google(_Model):
    """An image of Compute Engine."""

    project_id: str
    zone: str
    machine_type: str = "n2-standard-4"
    source_image: str
    source_image_project_id: str


class Azure(_Model):
    """A managed image of Azure."""

    subscription_id: str
    location: str
    resource_group: str
    vm_size: str = "Standard_D4s_v5"
    publisher: str
    offer: str
    sku: Annotated[str, BeforeValidator(_text)]


class Targets(_Model):
    """What packer builds. Credentials are never written here: every builder takes them from its environment."""

    qemu: Qemu = Qemu()
    amazon_ebs: Amazon | None = Field(None, alias="amazon-ebs")
    googlecompute: Google | None = None
    azure_arm: Azure | None = Field(None, alias="azure-arm")

    @property
    def names(self) -> list[str]:
        """Those that are described, as packer calls their builders."""
        return [name for name in TARGETS if getattr(self, name.replace("-", "_")) is not None]


class NodeImage(_Model):
    """A node image.

    Attributes:
        name: its name; also names the folder of what is built.
        kernel: release that it boots, as `uname -r` prints it. The GPU driver's module is built for it.
        packages: Debian packages beside those of the roles.
        roles: roles whose install half goes in.
        role_vars: their variables, where the defaults do not serve.
        images: images of the bundle that the container runtime has from the start, pinned; by repository.
        budget_mb: the most that the compressed disk may have (10**6 bytes).
        explained: paths (with `*`) that may differ between two builds, each with the reason.
    """

    name: _Name
    title: str
    distribution: Literal["debian12"] = "debian12"
    kernel: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+-[A-Za-z0-9.+-]+$")]
    packages: tuple[_Package, ...] = ()
    roles: tuple[str, ...] = ROLES
    role_vars: dict[str, Any] = Field(default_factory=dict)
    driver: Driver | None = None
    images: tuple[str, ...] = ("pause",)
    disk: Disk = Disk()
    deadlines_s: Deadlines = Deadlines()
    targets: Targets = Targets()
    budget_mb: Annotated[int, Field(gt=0)]
    explained: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for role in self.roles:
            if role not in ROLES:
                raise ValueError(f'roles: "{role}" has no part in a node image{did_you_mean(role, ROLES)}')
        if list(self.roles) != [role for role in ROLES if role in self.roles]:
            raise ValueError(f"roles: write them once each, in the order of a site run: {', '.join(ROLES)}")
        if ("gpu_driver" in self.roles) != (self.driver is not None):
            raise ValueError("driver: give it with the role gpu_driver, and only with it")
        if self.images and "container_runtime" not in self.roles:
            raise ValueError("images: there is no container runtime for them; add the role container_runtime")
        for name in self.role_vars:
            if not any(name.startswith(f"{role}_") for role in self.roles):
                raise ValueError(f'role_vars: "{name}" belongs to none of the roles {", ".join(self.roles)}')
        for path, reason in self.explained.items():
            if not path.startswith("/") or len(reason.split()) < 3:
                raise ValueError(f'explained: "{path}" needs a path from / on and a reason in words')
        return self


def load_node_image(folder: Path) -> NodeImage:
    """Read and check `image.yml`.

    Raises:
        InputError: it is missing, is no YAML, or says something that is not allowed; all of it is reported together.
    """
    path = folder / "image.yml"
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            "there is no image.yml", where=str(folder), hint="name a folder of images/, as images/node-debian12"
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"not YAML: {error}", where=str(path)) from error
    if isinstance(value, dict) and "entrypoint" in value:
        raise InputError(
            "this is the image of a container, not of a node", where=str(path), hint="myriad image build makes it"
        )
    try:
        return NodeImage.model_validate(value)
    except ValidationError as error:
        lines = [
            f"{'.'.join(str(part) for part in one['loc']) or 'image.yml'}: {one['msg'].removeprefix('Value error, ')}"
            for one in error.errors()
        ]
        raise InputError("; ".join(lines), where=str(path)) from error
