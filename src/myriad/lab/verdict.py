"""The table at the end of `make lab`: which nodes take work, from the Kubernetes API and the description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from myriad.agent.report import Record, own_taints
from myriad.fleet.labels import WARM_PREFIX
from myriad.lab.topology import LabNode

Json = dict[str, Any]
GPU_RESOURCE = "nvidia.com/gpu"


@dataclass(frozen=True)
class NodeVerdict:
    """One GPU node as a line of the table.

    Attributes:
        node: its name.
        rack: place, with slashes.
        expected, allocatable: GPUs by the description and by the kubelet.
        gate: open | closed.
        warm: warm images that are on it.
        cause: why it takes no work; empty where it does.
        next: what to type.
    """

    node: str
    rack: str
    expected: int
    allocatable: int
    gate: str
    warm: tuple[str, ...]
    cause: str = ""
    next: str = ""

    @property
    def takes_work(self) -> bool:
        """Whether jobs can run there."""
        return not self.cause

    def as_json(self) -> Json:
        """For `--json`."""
        return {**asdict(self), "takes_work": self.takes_work}


def node_verdicts(nodes: Sequence[LabNode], objects: Sequence[Json], warm: Sequence[str] = ()) -> list[NodeVerdict]:
    """Compare the description with what the API server says. Pure.

    Args:
        nodes: the lab's nodes; those without GPUs have no line.
        objects: the Node objects.
        warm: names of the images that should be on GPU nodes.
    """
    by_name = {str(item["metadata"]["name"]): item for item in objects}
    return [_verdict(node, by_name.get(node.name), warm) for node in nodes if node.gpus]


def _verdict(node: LabNode, item: Json | None, warm: Sequence[str]) -> NodeVerdict:
    if item is None:
        return NodeVerdict(
            node.name,
            node.location,
            node.gpus,
            0,
            "closed",
            (),
            cause="it has not joined the cluster",
            next=f"ansible-playbook playbooks/site.yml -i inventories/lab --limit {node.name}",
        )
    status, spec = item.get("status", {}), item.get("spec", {})
    allocatable = int(status.get("allocatable", {}).get(GPU_RESOURCE, 0))
    # The node's label comes as soon as the image is proven, the kubelet's list up to 40 seconds later.
    labels = {value for key, value in (item["metadata"].get("labels") or {}).items() if key.startswith(WARM_PREFIX)}
    present = [
        name for name in warm if name.rpartition("/")[2] in labels or _has_image(status.get("images") or [], name)
    ]
    ready: Json = next((c for c in status.get("conditions") or [] if c.get("type") == "Ready"), {})
    closed = bool(own_taints(item))
    record = Record.of(item)
    found = record.verdict.first
    short = f"{node.gpus} GPUs expected, {allocatable} allocatable" if allocatable != node.gpus else ""
    cause = next_step = ""
    if ready.get("status") != "True":
        cause = f"the kubelet is not ready: {ready.get('message') or 'no message'}"
        next_step = f"kubectl describe node {node.name}"
    elif closed and found is not None:
        cause = f"{found.cause} ({short})" if short and short not in found.cause else found.cause
        next_step = f"{found.next} (each check: myriad gate {node.name})"
    elif short:
        cause = short
        next_step = f"myriad gate {node.name}"
    elif closed:
        cause = "its gate is closed: the node agent has not judged it yet"
        next_step = f"myriad gate {node.name}"
    elif record.held:
        cause = record.held
        next_step = f"myriad gate {node.name}"
    elif spec.get("unschedulable"):
        cause = "it is cordoned"
        next_step = f"kubectl uncordon {node.name}"
    gate = "closed" if closed else "open"
    return NodeVerdict(
        node.name, node.location, node.gpus, allocatable, gate, tuple(present), cause=cause, next=next_step
    )


def _has_image(images: Sequence[Json], name: str) -> bool:
    """Whether one of the node's images is named so; `gang-check` is `<registry>/myriad/gang-check:0.1.0`."""
    for image in images:
        for full in image.get("names") or []:
            repository = str(full).split("@")[0]
            if repository.rsplit("/", 1)[-1].split(":")[0] == name.rsplit("/", 1)[-1]:
                return True
    return False


def table(rows: Sequence[NodeVerdict]) -> list[str]:
    """The table as lines; a node that takes no work has its cause and next command below it."""
    heads = ("node", "rack", "GPUs expected/allocatable", "gate", "warm images")
    cells = [
        (row.node, row.rack, f"{row.expected} / {row.allocatable}", row.gate, " ".join(row.warm) or "-") for row in rows
    ]
    widths = [max(len(line[i]) for line in (heads, *cells)) for i in range(len(heads))]

    def line(parts: Sequence[str]) -> str:
        return "  ".join(f"{part:<{width}}" for part, width in zip(parts, widths, strict=True)).rstrip()

    lines = [line(heads)]
    for row, cell in zip(rows, cells, strict=True):
        lines.append(line(cell))
        if row.cause:
            lines.append(f"{'':<{widths[0]}}  {row.cause}; next: {row.next}")
    return lines


def warm_images(cluster: Mapping[str, Any]) -> list[str]:
    """Names of the images that the description wants warm."""
    return [str(entry["image"]) for entry in (cluster.get("myriad_images") or {}).get("warm") or []]
