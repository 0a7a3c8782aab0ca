"""Which machines are the cluster's nodes: taking one out, and noticing that one was installed anew under its old name.

A Node outlives its machine. One that comes back reinstalled would inherit the Node's labels, cordon, gate and the pods
that the old machine never ended. A machine is known by its machine-id (https://www.freedesktop.org/software/systemd/man/machine-id.html),
which the kubelet reports in the Node and which a new installation does not keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from myriad.errors import MyriadError
from myriad.kube.client import Api, Json
from myriad.kube.drain import Cordon, pods_on
from myriad.kube.kinds import LEASES, NODE_PORTRAITS, NODES, PODS, VOLUME_ATTACHMENTS

LEASE_NAMESPACE = "kube-node-lease"
#: A kubelet renews its Lease every 10 s and is taken for gone after 40 (nodeLeaseDurationSeconds).
ALIVE_S = 40.0


class MembershipError(MyriadError):
    """A node cannot be taken out, or two machines have one name."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A Node as far as its machine matters.

    Attributes:
        name: the Node's name.
        machine_id: as the kubelet reported it; empty before its first report.
        alive: whether its kubelet renewed its Lease within ALIVE_S.
        closed_by: who cordoned it: a name of Myriad's, `somebody`, or empty.
    """

    name: str
    machine_id: str
    alive: bool
    closed_by: str


@dataclass(slots=True)
class Forgotten:
    """What was (or would be) taken out of the cluster, by node.

    Attributes:
        nodes: Nodes that were deleted.
        pods: pods that were ended without their kubelet, `namespace/name`, by node.
        notes: what somebody should know, one sentence each.
    """

    nodes: list[str] = field(default_factory=list)
    pods: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def machine_of(node: Mapping[str, Any], lease: Mapping[str, Any] | None, now: datetime) -> Machine:
    """A Node and its Lease as a machine."""
    renewed = ((lease or {}).get("spec") or {}).get("renewTime")
    age = (now - datetime.fromisoformat(str(renewed))).total_seconds() if renewed else ALIVE_S
    closed = bool((node.get("spec") or {}).get("unschedulable"))
    own = Cordon.of(node)
    return Machine(
        name=node["metadata"]["name"],
        machine_id=str(((node.get("status") or {}).get("nodeInfo") or {}).get("machineID") or ""),
        alive=age < ALIVE_S,
        closed_by=(own.by if own is not None else "somebody") if closed else "",
    )


def strangers(found: Iterable[Machine], wanted: Mapping[str, str]) -> list[Machine]:
    """Nodes whose name the description gives to another machine.

    Args:
        found: the cluster's nodes.
        wanted: machine-id by name; names without one are not judged.

    Raises:
        MembershipError: the other machine is alive, so two machines have one name.
    """
    others = [one for one in found if one.machine_id and wanted.get(one.name, "") not in ("", one.machine_id)]
    alive = [one for one in others if one.alive]
    if alive:
        raise MembershipError(
            "; ".join(
                f"{one.name} is the name of two machines: machine-id {one.machine_id} runs in the cluster, "
                f"and the host of the inventory has {wanted[one.name]}"
                for one in alive
            ),
            hint="give one of them another name, or switch the old machine off and wait "
            f"{ALIVE_S:.0f} s; nothing of the cluster was changed",
        )
    return others


def machines(api: Api, names: Iterable[str]) -> list[Machine]:
    """Those of the names that are Nodes, from one list of Nodes and one of Leases."""
    wanted = set(names)
    nodes = [node for node in api.list(NODES)[0] if node["metadata"]["name"] in wanted]
    leases = api.list(LEASES, namespace=LEASE_NAMESPACE)[0] if nodes else []
    by_name = {lease["metadata"]["name"]: lease for lease in leases}
    now = datetime.now(UTC)
    return [machine_of(node, by_name.get(node["metadata"]["name"]), now) for node in nodes]


def forget(api: Api, names: Sequence[str], *, dry_run: bool = False) -> Forgotten:
    """Take nodes out of the cluster: their pods, attachments of volumes, portrait, and the Node itself, in this order.

    Pods are ended without their kubelet, so the machine has to be off, reset or gone. Their owners make them again
    elsewhere. What is gone already is passed over, so that a run that was killed may go on.
    """
    found = machines(api, names)
    done = Forgotten()
    if not found:
        return done
    here = pods_on(api, [one.name for one in found])
    for pod in here:
        done.pods.setdefault(pod.node, []).append(pod.key)
        if not dry_run:
            api.delete(PODS, pod.name, namespace=pod.namespace, now=True)
    gone = {one.name for one in found}
    for attachment in api.list(VOLUME_ATTACHMENTS)[0]:
        if attachment["spec"].get("nodeName") in gone and not dry_run:
            api.delete(VOLUME_ATTACHMENTS, attachment["metadata"]["name"])
    for one in found:
        if one.closed_by == "somebody":
            done.notes.append(
                f"{one.name} was cordoned by hand; a new Node of that name is open: kubectl cordon {one.name}"
            )
        done.nodes.append(one.name)
        if not dry_run:
            api.delete(NODE_PORTRAITS, one.name)
            api.delete(NODES, one.name)
    return done


def replaced(api: Api, wanted: Mapping[str, str], *, dry_run: bool = False) -> Forgotten:
    """Forget the Nodes of machines that were installed anew; what is left of the others is untouched.

    Args:
        api: the cluster.
        wanted: machine-id by the name of the host.
        dry_run: tell, change nothing.

    Raises:
        MembershipError: a machine of that name is alive, and another one.
    """
    others = strangers(machines(api, wanted), wanted)
    return forget(api, [one.name for one in others], dry_run=dry_run)


def as_dict(done: Forgotten) -> Json:
    """Plain types."""
    return {"nodes": sorted(done.nodes), "pods": done.pods, "notes": done.notes}
