"""Runs a playbook of the image against its tree, or against a guest that was booted from it."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from myriad.errors import MyriadError
from myriad.nodeimage.chroot import around_tree, environment
from myriad.nodeimage.definition import NodeImage
from myriad.nodeimage.tools import run
from myriad.runs import RunResult, parse, result_of

HOST = "image"


@dataclass(frozen=True)
class Site:
    """What the playbook needs of a site.

    Attributes:
        bundle: the bundle's directory.
        registry: address of the registry that holds it, as the host reaches it.
    """

    bundle: Path
    registry: str


def variables(image: NodeImage, site: Site) -> dict[str, Any]:
    """Variables of the roles: what the image says, and where the build gets things."""
    values: dict[str, Any] = {
        "node_image_roles": list(image.roles),
        "site_bundle": str(site.bundle),
        "site_registry_endpoints": [site.registry],
        "site_node_registries": [site.registry],
        # It joins nothing: what a node is told of its cluster belongs to the site.
        "kubernetes_node_join_enabled": False,
        "kubernetes_node_labels": {},
        "kubernetes_node_taints": [],
        "myriad_pools": {},
        "site_api_endpoint": "127.0.0.1:6443",
        "site_token_host": HOST,
    }
    if image.driver is not None:
        values |= {
            "gpu_driver_channel": image.driver.channel,
            "gpu_driver_existing": "replace",
            "gpu_driver_kernel": image.kernel,
            "gpu_driver_load_modules": False,
            "gpu_driver_models": list(image.driver.models),
            "gpu_driver_module": image.driver.module,
        }
    return values | image.role_vars


def provision_tree(
    image: NodeImage,
    folder: Path,
    tree: Path,
    site: Site,
    *,
    epoch: int,
    log: Path,
    apt_cache: Path,
    on_line: Callable[[str], None],
) -> RunResult:
    """Run `provision.yml` of the image's folder inside the tree, with the connection for change roots."""
    host = {"ansible_connection": "community.general.chroot", "ansible_host": str(tree)}
    inventory = {"all": {"hosts": {HOST: host}}}
    return play(
        folder / "provision.yml",
        inventory,
        variables(image, site),
        log=log,
        on_line=on_line,
        wrap=lambda command: around_tree(tree, command, apt_cache=apt_cache),
        env=environment(epoch) | {"PATH": f"{Path(ansible_playbook()).parent}:{os.environ.get('PATH', '')}"},
    )


def play(
    playbook: Path,
    inventory: Mapping[str, Any],
    extra: Mapping[str, Any],
    *,
    log: Path,
    on_line: Callable[[str], None],
    wrap: Callable[[list[str]], list[str]] = list,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 4 * 3600,
    arguments: tuple[str, ...] = (),
) -> RunResult:
    """Run a playbook on an inventory that is given as a document; its events become a result.

    Raises:
        MyriadError: a task failed; with its role, name and sentence.
    """
    if not playbook.is_file():
        raise MyriadError("the playbook of the image is missing", where=str(playbook))
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="play-", dir=log.parent) as folder:
        scratch = Path(folder)
        (scratch / "hosts.yml").write_text(yaml.safe_dump(dict(inventory)), encoding="utf-8")
        (scratch / "extra.json").write_text(json.dumps(dict(extra)), encoding="utf-8")
        events = scratch / "events.jsonl"
        command = [ansible_playbook(), str(playbook), "-i", str(scratch / "hosts.yml")]
        command += ["--extra-vars", f"@{scratch / 'extra.json'}", *arguments]
        failure = None
        try:
            run(
                wrap(command),
                what=f"{playbook.name} failed",
                log=log,
                on_line=on_line,
                timeout_s=timeout_s,
                cwd=repository_of(playbook),
                env={**(env or {}), "MYRIAD_EVENTS": str(events), "ANSIBLE_STDOUT_CALLBACK": "myriad.gpu.progress"},
            )
        except MyriadError as error:
            failure = error
        result = result_of(parse(events.read_text(encoding="utf-8").splitlines() if events.is_file() else []))
    broken = [
        f"{host.name}: {role + ': ' if role else ''}{task}: {sentence}"
        for host in result.hosts.values()
        for role, task, sentence in host.failures
    ]
    broken += [f"{host.name}: {host.unreachable}" for host in result.hosts.values() if host.unreachable]
    if broken:
        raise MyriadError("\n".join(broken), where=str(log), hint="put right what it names and build again")
    if failure is not None:
        raise failure
    return result


def ansible_playbook() -> str:
    """The ansible-playbook of this Python environment; another one would not know the collection."""
    program = Path(sys.executable).with_name("ansible-playbook")
    if not program.exists():
        raise MyriadError(
            "ansible-playbook is not in this Python environment", where=str(program.parent), hint="make env in a clone"
        )
    return str(program)


def repository_of(playbook: Path) -> Path:
    """The checkout that a playbook belongs to: its ansible.cfg must be read."""
    for parent in playbook.resolve().parents:
        if (parent / "ansible.cfg").is_file():
            return parent
    return playbook.resolve().parent
