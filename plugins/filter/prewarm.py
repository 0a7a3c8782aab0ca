"""Filters of the role image_prewarm: which images, from which registries, in which waves."""

from __future__ import annotations

DOCUMENTATION = r"""
name: prewarm
short_description: Images, registries and waves of a prewarm
description:
  - C(prewarm_images) are the images that a node has warm, with their digests and the sizes of their layers.
  - C(nearest_registries) are the addresses of the site's registries in the order in which a node tries them.
  - C(prewarm_registries) adds to each address how many nodes it serves at a time.
  - C(prewarm_rack) is the rack of a node, and how many of it pull at a time.
  - C(prewarm_waves) are the sizes of the waves for so many nodes, as C(serial) takes them.
  - C(prewarm_jitter) is the longest wait of a node before its pull.
  - C(prewarm_looks) and C(prewarm_results) gather what the role registered on each host, for the plan and the verdict.
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError
from myriad.errors import MyriadError
from myriad.prewarm.limits import Limits
from myriad.prewarm.registries import Registry, nearest
from myriad.prewarm.wanted import wanted
from myriad.prewarm.waves import ends


def prewarm_images(
    images: Mapping[str, Any],
    registry: str,
    bundle: str,
    described: Mapping[str, Any],
    group_names: Sequence[str],
    endpoints: Sequence[str] = (),
    only: Sequence[str] | str = (),
    ca: str = "",
) -> list[dict[str, Any]]:
    """Images that a node has warm, as the module takes them."""
    names = [name for name in only.split(",") if name] if isinstance(only, str) else list(only)
    try:
        return wanted(
            images,
            described,
            group_names,
            registry=registry,
            bundle=Path(bundle).expanduser(),
            endpoints=endpoints,
            only=names,
            ca=Path(ca).expanduser() if ca else None,
        )
    except MyriadError as error:
        raise AnsibleFilterError(str(error)) from error


def nearest_registries(
    endpoints: Sequence[str], node: str, location: str | None, places: Sequence[str | None]
) -> list[str]:
    """Addresses of the registries, nearest first. `places` are their locations, in the order of the addresses."""
    pairs = zip(endpoints, [*places, *[None] * len(endpoints)], strict=False)
    registries = [Registry(url, tuple((place or "").split("/")) if place else ()) for url, place in pairs]
    return [one.url for one in nearest(node, (location or "").split("/"), registries)]


def _limits(described: Mapping[str, Any] | None) -> Limits:
    try:
        return Limits.read((described or {}).get("prewarm"))
    except MyriadError as error:
        raise AnsibleFilterError(f"myriad_images.prewarm: {error}") from error


def prewarm_registries(endpoints: Sequence[str], described: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Addresses with how many nodes each serves at a time."""
    slots = _limits(described).registry_slots
    return [{"url": url, "nodes": slots} for url in endpoints]


def prewarm_rack(location: str | None, described: Mapping[str, Any] | None) -> dict[str, Any]:
    """The rack of a node; nodes without a location share none."""
    return {"name": location, "nodes": _limits(described).rack_slots} if location else {}


def prewarm_waves(hosts: Sequence[str]) -> list[int]:
    """Sizes of the waves: 1, to 1 %, to 10 %, the rest."""
    done = [0, *ends(len(hosts))]
    return [after - before for before, after in itertools.pairwise(done)] or [1]


def prewarm_jitter(described: Mapping[str, Any] | None) -> float:
    """The longest wait of a node before its pull, in seconds."""
    return _limits(described).jitter_s


def prewarm_looks(hosts: Sequence[str], variables: Mapping[str, Any]) -> dict[str, Any]:
    """What was found on each host, with its rack and its nearest registry."""
    result = {}
    for host in hosts:
        look = dict(variables[host].get("__image_prewarm_look") or {})
        kept = {key: look.get(key) for key in ("outcome", "failed", "msg")}
        kept["images"] = [
            {key: one.get(key) for key in ("ref", "digest", "sentence", "warnings", "needs_bytes", "outcome")}
            for one in look.get("images") or []
        ]
        kept["surplus"] = list(look.get("surplus") or [])
        kept["rack"] = look.get("rack", "")
        kept["registry"] = look.get("registry", "")
        result[host] = kept
    return result


def prewarm_results(hosts: Sequence[str], variables: Mapping[str, Any]) -> dict[str, Any]:
    """What came of each host that was tried."""
    keys = ("outcome", "failed", "unreachable", "msg")
    results = {host: variables[host].get("__image_prewarm_result") or {} for host in hosts}
    return {host: {key: found[key] for key in keys if key in found} for host, found in results.items() if found}


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        return {
            "nearest_registries": nearest_registries,
            "prewarm_images": prewarm_images,
            "prewarm_jitter": prewarm_jitter,
            "prewarm_looks": prewarm_looks,
            "prewarm_rack": prewarm_rack,
            "prewarm_registries": prewarm_registries,
            "prewarm_results": prewarm_results,
            "prewarm_waves": prewarm_waves,
        }
