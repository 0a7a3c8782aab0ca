"""Labels and taints that follow from the description: one place for their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from myriad.fleet import model

PREFIX = "myriad.dev/"
TEAM_LABEL = f"{PREFIX}team"
POOL_LABEL = f"{PREFIX}pool"
GPU_MODEL_LABEL = f"{PREFIX}gpu-model"
GPU_EXPECTED_LABEL = f"{PREFIX}gpu-expected"
GATE_TAINT = f"{PREFIX}gpu-not-ready"
"""Taint (NoSchedule) that a GPU node carries until its gate opens."""
WARM_PREFIX = f"warm.{PREFIX}"
"""Labels of images that are warm on a node, by the first digits of their digest."""
WARM_DIGITS = 16
HOSTNAME_LABEL = "kubernetes.io/hostname"


def level_label(level: str) -> str:
    """Label key of a topology level: `myriad.dev/rack`."""
    return f"{PREFIX}{level}"


def warm_label(digest: str) -> str:
    """Label key of an image that is warm: `warm.myriad.dev/9f1c0c2f5d0e6a6b` of `sha256:9f1c...`."""
    return f"{WARM_PREFIX}{digest.rpartition(':')[2][:WARM_DIGITS]}"


def place_value(location: Sequence[str]) -> str:
    """Label value of a place: its whole path joined by dots, so that one value names one place (`hall1.b1.r1`)."""
    return ".".join(location)


def place_text(value: str) -> str:
    """A label value as people read it: `hall1.b1.r1` becomes `hall1/b1/r1`."""
    return value.replace(".", "/")


def place_labels(levels: Sequence[str], location: Sequence[str]) -> dict[str, str]:
    """Labels of a place, one for each level, each with the whole path down to it."""
    return {
        level_label(level): place_value(location[: depth + 1]) for depth, level in enumerate(levels[: len(location)])
    }


def node_labels(fleet: model.Fleet, host: str) -> dict[str, str]:
    """Labels that a node must carry because the description says so; empty for a machine without GPUs.

    Raises:
        KeyError: the fleet has no such host.
    """
    machine = fleet.hosts[host]
    labels = place_labels(fleet.cluster.topology_levels, machine.location)
    if machine.pool is not None:
        labels[POOL_LABEL] = machine.pool
        labels[GPU_MODEL_LABEL] = str(machine.gpu_model)
        labels[GPU_EXPECTED_LABEL] = str(machine.gpus)
    return labels


def labels_from_variables(
    *,
    location: str | None,
    group_names: Iterable[str],
    cluster: Mapping[str, object],
    pools: Mapping[str, Mapping[str, object]],
    gpus: int | None = None,
) -> dict[str, str]:
    """The same labels from the variables that a playbook has for one host, without reading any other host.

    Args:
        location: the host's `myriad_location`.
        group_names: the host's groups (Ansible's `group_names`).
        cluster: `myriad_cluster`.
        pools: `myriad_pools`.
        gpus: the host's `myriad_gpus`, where its node is smaller than its pool's.
    """
    described = model.Cluster.model_validate(dict(cluster))
    candidates = (model.pool_of_group(group, pools) for group in group_names if group.startswith("pool_"))
    name = next((pool for pool in candidates if pool is not None), None)
    if name is None:
        return {}
    pool = model.Pool.model_validate(dict(pools[name]))
    labels = place_labels(described.topology_levels, location.split("/")) if location else {}
    labels[POOL_LABEL] = name
    labels[GPU_MODEL_LABEL] = pool.model
    labels[GPU_EXPECTED_LABEL] = str(pool.gpus_per_node if gpus is None else gpus)
    return labels


def hypernode_name(place: Sequence[str]) -> str:
    """Name of the HyperNode of a place; object names are lower case and have no underscores."""
    return place_value(place).lower().replace("_", "-")
