"""Who still names what is in a registry: bundle and lock, description, nodes (their runtimes themselves), workloads.

Each source is asked in full or the whole answer is refused: a node that cannot be asked may hold exactly the image that
would be deleted.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from myriad.errors import InputError, UnreachableError
from myriad.fleet.source import RawInventory
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import (
    CRON_JOBS,
    DAEMON_SETS,
    DEPLOYMENTS,
    JOB_SETS,
    JOBS,
    PODS,
    PYTORCH_JOBS,
    REPLICA_SETS,
    STATEFUL_SETS,
    VOLCANO_JOBS,
    WORKLOADS,
)
from myriad.registry_site.retention import Named
from myriad.stack.bundle import Bundle
from myriad.stack.lock import Lock
from myriad.stack.push import FILES_REPOSITORY, files_tag

CRICTL = "/usr/local/bin/crictl --timeout 20s images -o json"
#: Kinds whose templates name images that no node may have pulled yet.
TEMPLATED = (PODS, JOBS, CRON_JOBS, DEPLOYMENTS, DAEMON_SETS, STATEFUL_SETS, REPLICA_SETS)
#: Not in every cluster; where they are they count too.
OPTIONAL = (PYTORCH_JOBS, VOLCANO_JOBS, JOB_SETS, WORKLOADS)


def name_bundle(named: Named, bundle: Bundle) -> None:
    """The images and the files of a bundle."""
    for image in bundle.manifest.images:
        named.digests.setdefault(image.digest, f"bundle {bundle.digest[:12]}")
        named.refs.setdefault(image.ref, f"bundle {bundle.digest[:12]}")
    named.refs.setdefault(f"{FILES_REPOSITORY}:{files_tag(bundle)}", f"bundle {bundle.digest[:12]}")


def name_lock(named: Named, lock: Lock) -> None:
    """The images of a lock by tag, and those that it takes from elsewhere by digest."""
    for name, component in lock.components.items():
        for repo, image in component.images.items():
            named.refs.setdefault(f"{repo}:{image.tag.format(version=component.version)}", f"lock, {name}")
        for repo, upstream in component.upstream_images.items():
            for pin in upstream.sha256.values():
                named.digests.setdefault(f"sha256:{pin}", f"lock, {name}")
            tag = upstream.ref.format(version=component.version).rpartition(":")[2]
            named.refs.setdefault(f"{repo}:{tag}", f"lock, {name}")


def name_description(named: Named, inventory: RawInventory) -> None:
    """What the description says: `myriad_images`, and any digest that stands in any variable.

    Raises:
        InputError: the inventory cannot be read in full.
    """
    if not inventory.complete:
        raise InputError(
            "the inventory cannot be read in full, so what it names is not known",
            where=inventory.name,
            hint="`myriad validate` tells what is wrong with it",
        )
    for key, value in _variables(inventory):
        for text in _strings(value):
            if key == "myriad_images" or "@sha256:" in text:
                named.add_text(text, f"description, {key}")


def _variables(inventory: RawInventory) -> Iterator[tuple[str, Any]]:
    yield from inventory.variables.items()
    for group in inventory.groups.values():
        yield from group.variables.items()
    for host in inventory.hosts.values():
        yield from host.variables.items()
    yield from ((setting.name, setting.value) for setting in inventory.settings)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)


def crictl_answers(program: str, inventory: Path, pattern: str, without: Iterable[str]) -> dict[str, str]:
    """What the runtime of every host says that it has, asked through Ansible.

    Args:
        program: the `ansible` of this environment.
        inventory: of the site.
        pattern: hosts, as Ansible takes them.
        without: hosts that are left out on the operator's word.

    Raises:
        UnreachableError: a host cannot be asked; names all of them.
    """
    limit = ":".join([pattern, *(f"!{host}" for host in without)])
    with tempfile.TemporaryDirectory(prefix="myriad-crictl-") as folder:
        command = [program, limit, "-i", str(inventory), "-m", "ansible.builtin.command", "-a", CRICTL, "-t", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        answers, silent = {}, {}
        for path in sorted(Path(folder).iterdir()):
            try:
                value = json.loads(path.read_text(encoding="utf-8"))
            except ValueError:
                value = {}
            if value.get("rc") == 0:
                answers[path.name] = str(value.get("stdout", ""))
            else:
                silent[path.name] = str(value.get("msg") or value.get("stderr") or "no answer").strip()
    if silent:
        lines = "\n".join(f"  {host}: {text.splitlines()[0]}" for host, text in silent.items())
        raise UnreachableError(
            f"{len(silent)} hosts cannot be asked which images they have:\n{lines}",
            where=str(inventory),
            hint="bring them back, or leave them out on your word: --without HOST",
        )
    if not answers:
        text = (done.stderr or done.stdout).strip().splitlines()
        raise UnreachableError(
            f"no host was asked which images it has{f': {text[-1]}' if text else ''}", where=f"{inventory}, {limit}"
        )
    return answers


def name_nodes(named: Named, answers: Mapping[str, str], registry: str) -> int:
    """What the nodes have, by digest and by tag.

    Args:
        named: is added to.
        answers: of `crictl images -o json`, by host.
        registry: the name that references carry.

    Returns:
        How many images all nodes have together.

    Raises:
        InputError: an answer that is none.
    """
    count = 0
    for host, text in answers.items():
        try:
            images = json.loads(text)["images"]
            references = [str(name) for image in images for name in _references(image)]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"its runtime's list of images cannot be read: {error}", where=host) from error
        count += len(images)
        for reference in references:
            named.add_text(reference.removeprefix(f"{registry}/"), f"node {host}")
    return count


def _references(image: Mapping[str, Any]) -> list[str]:
    names = [*(image.get("repoDigests") or []), *(image.get("repoTags") or [])]
    return [name for name in names if "<none>" not in name]


def name_workloads(named: Named, api: Api, registry: str) -> int:
    """What workloads of the cluster name, running or not. Returns how many objects were read.

    Raises:
        ApiError: a kind cannot be read; ClusterUnreachableError: nobody answers.
    """
    count = 0
    for resource in (*TEMPLATED, *OPTIONAL):
        try:
            objects = api.list(resource)[0]
        except ApiError as error:
            if resource in OPTIONAL and error.is_not_found:
                continue
            raise
        count += len(objects)
        for item in objects:
            meta = item.get("metadata", {})
            by = f"{resource.kind} {meta.get('namespace', '')}/{meta.get('name', '')}"
            for text in _images(item):
                named.add_text(text.removeprefix(f"{registry}/"), by)
    return count


def _images(value: Any) -> Iterator[str]:
    """Every `image` and `imageID` of an object, however deep, and volumes that are images."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key in ("image", "imageID", "reference") and isinstance(inner, str):
                yield inner.rpartition("://")[2]
            else:
                yield from _images(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _images(inner)


def gather(
    *,
    bundles: Iterable[Bundle],
    lock: Lock,
    inventory: RawInventory,
    answers: Mapping[str, str],
    api: Api | None,
    registry: str,
    say: Callable[[str], None] = lambda text: None,
) -> Named:
    """Everything that is named, from every source."""
    named = Named()
    for bundle in bundles:
        name_bundle(named, bundle)
    name_lock(named, lock)
    name_description(named, inventory)
    count = name_nodes(named, answers, registry)
    say(f"{len(answers)} nodes hold {count} images")
    if api is not None:
        say(f"{name_workloads(named, api, registry)} workloads were read")
    return named
