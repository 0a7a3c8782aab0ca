"""Filters that turn entries of the bundle and short forms of the roles into what modules and Kubernetes take."""

from __future__ import annotations

DOCUMENTATION = r"""
name: stack
short_description: Entries of the bundle and short forms of Kubernetes fields
description:
  - C(artifact_items) picks files of the bundle for M(myriad.gpu.artifacts).
  - C(taints) turns KEY=VALUE:EFFECT into taint objects.
  - C(bundle_problems) are sentences about what a bundle lacks.
  - C(cluster_parts) are the parts of the cluster that only some descriptions ask for.
  - C(bundle_path) is where a file of the bundle lies on the controller.
  - C(warm_images) are the images that a node has before a pod asks for them.
  - C(proxy) gives the proxy settings of the controller, with what is inside the site left out.
  - C(spread) keeps the replicas of a program on different nodes.
  - C(node_objects) gives the labels of the hosts of the description as Node objects.
  - C(host_path_mounts) and C(host_path_volumes) turn a mapping of paths to modes into mounts and volumes of a pod.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError
from myriad.errors import MyriadError
from myriad.kube.spread import spread
from myriad.stack.bundle import Bundle
from myriad.stack.bundle_verify import quick_problems
from myriad.stack.settings import cache_root, read_mirrors

_TAINT = re.compile(r"^(?P<key>[^=:]+)(=(?P<value>[^:]*))?:(?P<effect>NoSchedule|PreferNoSchedule|NoExecute)$")


def artifact_items(artifacts: dict[str, Any], paths: dict[str, str], mode: str = "0755") -> list[dict[str, Any]]:
    """Items for M(myriad.gpu.artifacts): one for each name in `paths` (name: absolute target path)."""
    missing = sorted(set(paths) - set(artifacts))
    if missing:
        raise AnsibleFilterError(
            f"the bundle has no {', '.join(missing)}; `myriad bundle verify` names what is missing, "
            "`myriad bundle build` makes it"
        )
    return [
        {"name": name, "sha256": artifacts[name]["sha256"], "path": path, "mode": mode} for name, path in paths.items()
    ]


def bundle_path(artifacts: dict[str, Any], name: str, bundle: str) -> str:
    """Path of one file of the bundle on the controller."""
    if name not in artifacts:
        raise AnsibleFilterError(
            f"the bundle {bundle} has no {name}; `myriad bundle verify {bundle}` names what is missing"
        )
    digest = artifacts[name]["sha256"]
    return str(Path(bundle).expanduser() / "sha256" / digest[:2] / digest)


#: The file without which an optional part of the cluster cannot come, and how a site does without the part.
_OF_PART = {
    "volcano": ("volcano-manifest", "or give every pool of myriad_pools the engine kueue"),
    "training_operator": ("training-operator", "or leave site_training_operator_enabled out"),
}


def bundle_problems(bundle: str, parts: list[str] | None = None) -> list[str]:
    """A sentence for each file of a bundle that is missing or changed, and one for what to do; empty when it is whole.

    A file that was read before and has the same size, time and inode is not read again.

    Args:
        bundle: its folder on the controller.
        parts: parts of the cluster that the description asks for (`cluster_parts`); the lock has them as optional.
    """
    try:
        problems = quick_problems(Path(bundle).expanduser(), cache_root())
        lacks = _lacks(Path(bundle).expanduser(), parts) if parts else []
    except MyriadError as error:
        return [str(error)]
    return [
        *(problem.sentence() for problem in problems),
        *(f"-> {action}" for action in dict.fromkeys(problem.action for problem in problems)),
        *lacks,
    ]


def _lacks(folder: Path, parts: list[str]) -> list[str]:
    bundle = Bundle.load(folder)
    sentences = []
    for part in parts:
        file, otherwise = _OF_PART.get(part, ("", ""))
        if not file or bundle.has_file(file):
            continue
        component = part.replace("_", "-")
        why = bundle.manifest.left_out.get(component, "nobody asked for it when the bundle was built")
        sentences += [
            f"it has no {file}, which the description asks for ({why})",
            f"-> build it with `myriad bundle build --with {component}`, {otherwise}",
        ]
    return sentences


def cluster_parts(
    pools: Mapping[str, Any] | None, training_operator: bool = False, metrics: Mapping[str, Any] | None = None
) -> list[str]:
    """Parts of the cluster that only some descriptions ask for, in the order in which they come.

    Args:
        pools: `myriad_pools`.
        training_operator: whether PyTorchJobs are wanted.
        metrics: images of exporter and Prometheus, or the address of the site's own.
    """
    engines = {(pool or {}).get("engine", "kueue") for pool in (pools or {}).values()}
    wanted = {"volcano": "volcano" in engines, "training_operator": bool(training_operator), "metrics": bool(metrics)}
    return [part for part, is_wanted in wanted.items() if is_wanted]


def node_objects(hosts: dict[str, Any]) -> list[dict[str, Any]]:
    """Hosts of the description (name: {labels}) as Node objects that carry nothing but those labels."""
    return [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": dict(host["labels"])}}
        for name, host in hosts.items()
        if host["labels"]
    ]


def warm_images(
    images: dict[str, Any], registry: str, wanted: dict[str, Any], group_names: list[str]
) -> list[dict[str, str]]:
    """Images that a node has before a pod asks for them: the sandbox, and those that the description wants warm.

    Args:
        images: what the bundle holds, by repository (`pause`, `myriad/gang-check`).
        registry: name of the site's registry.
        wanted: `myriad_images`.
        group_names: groups of the node; an image names the pools whose nodes want it (all GPU nodes without).
    """
    repositories = ["pause"]
    for entry in wanted.get("warm") or []:
        pools = entry.get("pools") or []
        groups = {f"pool_{pool.replace('-', '_')}" for pool in pools} or {"gpu_nodes"}
        if groups & set(group_names):
            repositories.append(str(entry["image"]))
    result = []
    for name in repositories:
        found = images.get(name) or images.get(f"myriad/{name}")
        if found is None:
            raise AnsibleFilterError(
                f"myriad_images.warm wants {name}, which the bundle does not hold; it has {', '.join(sorted(images))}"
            )
        result.append({"ref": f"{registry}/{found['ref']}", "digest": found["digest"]})
    return result


def proxy(direct: list[str]) -> dict[str, str]:
    """The proxy settings of the controller (environment or mirrors.yml) for a node: http_proxy, https_proxy, no_proxy.

    Args:
        direct: networks and names inside the site, which no proxy serves. Empty ones are passed over.
    """
    mirrors = read_mirrors()
    if not (mirrors.http_proxy or mirrors.https_proxy):
        return {}
    inside = [name for name in direct if name]
    given = [name.strip() for name in (mirrors.no_proxy or "localhost,127.0.0.1").split(",") if name.strip()]
    return {
        name: value
        for name, value in (
            ("http_proxy", mirrors.http_proxy),
            ("https_proxy", mirrors.https_proxy),
            ("no_proxy", ",".join(dict.fromkeys(given + inside))),
        )
        if value
    }


def taints(texts: list[str]) -> list[dict[str, str]]:
    """KEY=VALUE:EFFECT or KEY:EFFECT as taint objects of the Kubernetes API."""
    result = []
    for text in texts:
        match = _TAINT.match(text)
        if not match:
            raise AnsibleFilterError(
                f'"{text}" is not a taint; write KEY=VALUE:EFFECT with an effect of NoSchedule, PreferNoSchedule '
                "or NoExecute"
            )
        result.append({name: value for name, value in match.groupdict().items() if value})
    return result


def _volume_name(path: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-") or "root"


def host_path_mounts(items: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Mounts of host paths at the same path in the container; `value` is ro or rw."""
    return [
        {"name": _volume_name(item["key"]), "mountPath": item["key"], "readOnly": item["value"] != "rw"}
        for item in items
    ]


def host_path_volumes(items: list[dict[str, str]]) -> list[dict[str, Any]]:
    """The volumes that belong to C(host_path_mounts)."""
    return [{"name": _volume_name(item["key"]), "hostPath": {"path": item["key"]}} for item in items]


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        return {
            "artifact_items": artifact_items,
            "bundle_path": bundle_path,
            "bundle_problems": bundle_problems,
            "cluster_parts": cluster_parts,
            "node_objects": node_objects,
            "proxy": proxy,
            "spread": spread,
            "taints": taints,
            "warm_images": warm_images,
            "host_path_mounts": host_path_mounts,
            "host_path_volumes": host_path_volumes,
        }
