"""Which images a node has warm, from the description: where they lie, their digest, and what they weigh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from myriad.errors import InputError
from myriad.fleet.model import pool_group
from myriad.fleet.names import did_you_mean
from myriad.prewarm import sizes

Json = dict[str, Any]


def wanted(
    held: Mapping[str, Mapping[str, Any]],
    described: Mapping[str, Any],
    group_names: Sequence[str],
    *,
    registry: str,
    bundle: Path,
    endpoints: Sequence[str] = (),
    only: Sequence[str] = (),
    ca: Path | None = None,
) -> list[Json]:
    """Images that one node has warm, as the module image_prewarm takes them.

    Args:
        held: images of the bundle by repository, each `ref` and `digest`.
        described: `myriad_images`. An entry of `warm` names an image of the bundle, or one of the site's registry with
            its `digest`; `pools` empty means every GPU node.
        group_names: groups of the node.
        registry: name that references carry.
        bundle: the bundle's folder, which tells how large the layers are.
        endpoints: addresses of the registry, for images that the bundle does not hold.
        only: names; the others are left out. Empty takes all.
        ca: certificate of the authority that vouches for the registry; None where the system's do.

    Raises:
        InputError: something is named that is not there.
    """
    entries = list(described.get("warm") or [])
    names = [str(entry["image"]) for entry in entries]
    for name in only:
        if name not in names:
            raise InputError(
                f'"{name}" is no image that myriad_images.warm names{did_you_mean(name, names)}',
                hint=f"it names {', '.join(names) or 'none'}",
            )
    result = []
    for entry in entries:
        pools = [str(pool) for pool in entry.get("pools") or []]
        groups = {pool_group(pool) for pool in pools} or {"gpu_nodes"}
        name = str(entry["image"])
        if not groups & set(group_names) or (only and name not in only):
            continue
        result.append(_image(name, entry.get("digest"), held, registry, bundle, endpoints, ca))
    return result


def _image(
    name: str,
    digest: str | None,
    held: Mapping[str, Mapping[str, Any]],
    registry: str,
    bundle: Path,
    endpoints: Sequence[str],
    ca: Path | None,
) -> Json:
    found = held.get(name) or held.get(f"myriad/{name}")
    if found is not None and digest in (None, found["digest"]):
        repo, _, tag = str(found["ref"]).rpartition(":")
        weighed = sizes.in_bundle(bundle, [str(found["ref"])])[str(found["ref"])]
        return {
            "ref": f"{registry}/{repo}", "digest": found["digest"], "tags": [tag], "layers": weighed["layers"],
        }  # fmt: skip
    if digest is None:
        raise InputError(
            f"myriad_images.warm wants {name}, which the bundle does not hold; it has {', '.join(sorted(held))}",
            hint="add `digest: sha256:...` for an image that was pushed to the site's registry; "
            "`myriad image push` prints it",
        )
    if not endpoints:
        raise InputError(f"no registry is named that has {name}")
    return {
        "ref": f"{registry}/{name}", "digest": digest, "tags": [],
        "layers": sizes.in_registry(endpoints[0], name, digest, ca=ca),
    }  # fmt: skip
