"""What the description wants of each node, as the `spec` of its NodePortrait. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from myriad.fleet import mig
from myriad.fleet.crosscheck import switches_near
from myriad.fleet.fabric import expected_interfaces, plan
from myriad.fleet.labels import node_labels
from myriad.fleet.model import Fleet, Host, Pool
from myriad.fleet.portrait import (
    Expected,
    ExpectedFabric,
    ExpectedMig,
    Labelling,
    Spec,
    Taint,
    Versions,
)
from myriad.kube.kinds import NODE_PORTRAITS

Json = dict[str, Any]


def portrait_specs(fleet: Fleet) -> dict[str, Json]:
    """Spec documents of all nodes with GPUs, by host: everything that follows from the description alone."""
    return {name: portrait_spec(fleet, host).document() for name, host in fleet.hosts.items() if host.pool is not None}


def portrait_spec(fleet: Fleet, host: Host) -> Spec:
    """The spec of one node.

    Raises:
        ValueError: the fabric's pattern gives no address for the node.
    """
    pool = fleet.pools[str(host.pool)]
    topology = fleet.topology
    fabric = fleet.fabrics.get(str(host.pool))
    return Spec(
        labels=node_labels(fleet, host.name),
        expected=Expected(
            gpus=host.gpus,
            model=host.gpu_model or "",
            resource=pool.resource,
            resources=_resources(pool, host),
            mig=_mig(pool, host),
            location=host.location,
            fabric=ExpectedFabric(
                interfaces=expected_interfaces(plan(host.name, host.address, fabric)) if fabric else {},
                neighbours=switches_near(topology.switches, host.location) if topology.switches else {},
                required=topology.required,
            ),
            accepted=("topology",) if host.name in topology.accept else (),
        ),
        labelling=Labelling(
            mig_strategy=pool.mig.strategy if _cut(pool, host) else "auto", replicas=pool.sharing.replicas
        ),
    )


def _cut(pool: Pool, host: Host) -> dict[str, list[str]]:
    return mig.node_layout(pool.mig, model=host.gpu_model or pool.model, host=host.name, gpus=host.gpus)


def _resources(pool: Pool, host: Host) -> dict[str, int]:
    return mig.node_resources(
        pool.mig, host=host.name, gpus=host.gpus, resource=pool.resource, replicas=pool.sharing.replicas
    )


def _mig(pool: Pool, host: Host) -> ExpectedMig:
    cards = _cut(pool, host)
    layouts = {tuple(profiles) for profiles in cards.values()}
    if len(layouts) == 1:
        (profiles,) = layouts
        return ExpectedMig(profiles={name: profiles.count(name) for name in sorted(set(profiles))})
    return ExpectedMig(cards={index: tuple(profiles) for index, profiles in cards.items()})


def node_portraits(
    specs: Mapping[str, Mapping[str, Any]],
    *,
    versions: Mapping[str, str] | None = None,
    registry: str = "",
    images: Mapping[str, Iterable[str]] | None = None,
    taints: Iterable[Mapping[str, str]] = (),
    label_sets: Iterable[str] = ("own",),
    zone_level: int = 0,
) -> list[Json]:
    """NodePortrait objects: the specs of `portrait_specs` with what a site sets for all of them.

    Args:
        specs: by host.
        versions: `driver` and `fabric_manager` that have to run; empty asks for none.
        registry: address that nodes have to reach; empty asks nobody.
        images: images that have to be warm, by pool.
        taints: taints that every such node carries.
        label_sets: vocabularies of labels to write.
        zone_level: which step of the location is the zone of the cloud keys.

    Raises:
        ValueError: something is no such thing (pydantic's ValidationError is one).
    """
    objects = []
    for name, document in specs.items():
        spec = Spec.model_validate(document)
        pool = spec.labels.get(f"{NODE_PORTRAITS.group}/pool", "")
        expected = spec.expected.model_copy(
            update={
                "versions": Versions.model_validate(dict(versions or {})),
                "registry": registry,
                "images": tuple((images or {}).get(pool, ())),
            }
        )
        labelling = Labelling.model_validate(
            spec.labelling.model_dump() | {"sets": tuple(label_sets), "zone_level": zone_level}
        )
        whole = spec.model_copy(
            update={
                "expected": expected,
                "labelling": labelling,
                "taints": tuple(Taint.model_validate(dict(taint)) for taint in taints),
            }
        )
        objects.append(
            {
                "apiVersion": NODE_PORTRAITS.api_version,
                "kind": NODE_PORTRAITS.kind,
                "metadata": {"name": name},
                "spec": whole.document(),
            }
        )
    return objects
