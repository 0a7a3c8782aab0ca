"""A decision's inputs as plain data, and the same decision made again from them. Pure.

`inputs_of` writes down snapshot, gang, policy and penalties as JSON-able data; `replay` plans again from it. Equal
data gives the same plan and the same hash on every machine, and another policy can be tried on the same state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from myriad.errors import InputError
from myriad.scheduler.model import (
    Expression,
    Gang,
    NodeInfo,
    NodeTerm,
    Outcome,
    PlacementPolicy,
    PodSet,
    Taint,
    Toleration,
    TopologyRequest,
)
from myriad.scheduler.placement import plan
from myriad.scheduler.placement.packing import FloatArray
from myriad.scheduler.snapshot import Snapshot

FORMAT = 1


def inputs_hash(
    snapshot: Snapshot, gang: Gang, policy: PlacementPolicy, *, node_penalty: FloatArray | None = None
) -> str:
    """Hash of all that a plan depends on: equal inputs have equal hashes on every machine and Python."""
    h = hashlib.sha256()
    h.update(snapshot.digest().encode())
    text = json.dumps({"gang": asdict(gang), "policy": asdict(policy)}, sort_keys=True, separators=(",", ":"))
    h.update(text.encode())
    if node_penalty is not None:
        h.update(np.asarray(node_penalty, dtype="<f8").tobytes())
    return f"sha256:{h.hexdigest()}"


def nodes_data(snapshot: Snapshot) -> list[dict[str, Any]]:
    """The nodes as JSON-able data."""
    return [asdict(n) for n in snapshot.nodes]


def inputs_of(
    snapshot: Snapshot,
    gang: Gang,
    policy: PlacementPolicy,
    *,
    node_penalty: FloatArray | None = None,
    nodes: bool = True,
    digest: str = "",
) -> dict[str, Any]:
    """The inputs of one decision as JSON-able data: what is used is kept by node, not by pod.

    Without ``nodes`` they are left out, for those who keep them apart; ``digest`` is the hash, where it is known.
    """
    return {
        "format": FORMAT,
        "levels": list(snapshot.levels),
        **({"nodes": nodes_data(snapshot)} if nodes else {}),
        "used": {
            node.name: {r: int(a) for r, a in zip(snapshot.resources, column, strict=True) if a}
            for node, column in zip(snapshot.nodes, snapshot.used.T, strict=True)
        },
        "gang": asdict(gang),
        "policy": asdict(policy),
        "penalty": None if node_penalty is None else [float(x) for x in node_penalty],
        "hash": digest or inputs_hash(snapshot, gang, policy, node_penalty=node_penalty),
    }


_HINT = "give a file written by the decision log, as it was written"


def replay(data: Mapping[str, Any], *, policy: PlacementPolicy | None = None) -> tuple[Outcome, str]:
    """Plan again from `inputs_of`'s data (through JSON or not): (outcome, hash of the inputs as read).

    ``policy`` tries another policy on the same state. Raises InputError where the data is no set of inputs.
    """
    try:
        if data.get("format") is None:
            raise InputError("these are no inputs of a decision: they say no format", hint=_HINT)
        if data["format"] != FORMAT:
            raise InputError(f"planner inputs of format {data['format']}", hint=f"this version reads format {FORMAT}")
        snapshot = Snapshot.build([_node(n) for n in data["nodes"]], levels=data["levels"])
        for name, amounts in data["used"].items():
            for resource, amount in amounts.items():
                snapshot.used[snapshot.row[resource], snapshot.index[name]] = amount
        gang = _gang(data["gang"])
        chosen = policy or PlacementPolicy(**data["policy"])
        penalty = None if data["penalty"] is None else np.array(data["penalty"], dtype=np.float64)
        outcome = plan(snapshot, gang, chosen, node_penalty=penalty)
        return outcome, inputs_hash(snapshot, gang, chosen, node_penalty=penalty)
    except KeyError as e:
        raise InputError(f"these are no whole inputs of a decision: {e.args[0]} is missing", hint=_HINT) from e
    except (TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as e:
        # A field of another shape shows wherever it is used first.
        raise InputError(f"these inputs of a decision cannot be read: {e}", hint=_HINT) from e


def _node(data: Mapping[str, Any]) -> NodeInfo:
    taints = tuple(Taint(**t) for t in data["taints"])
    return NodeInfo(**{**data, "taints": taints, "location": tuple(data["location"])})


def _expression(data: Mapping[str, Any]) -> Expression:
    return Expression(data["key"], data["operator"], tuple(data["values"]))


def _term(data: Mapping[str, Any]) -> NodeTerm:
    return NodeTerm(tuple(_expression(e) for e in data["expressions"]), tuple(_expression(e) for e in data["fields"]))


def _podset(data: Mapping[str, Any]) -> PodSet:
    return PodSet(
        **{
            **data,
            "affinity": tuple(_term(t) for t in data["affinity"]),
            "tolerations": tuple(Toleration(**t) for t in data["tolerations"]),
            "topology": TopologyRequest(**data["topology"]),
            "images": tuple(data.get("images") or ()),
        }
    )


def _gang(data: Mapping[str, Any]) -> Gang:
    return Gang(**{**data, "podsets": tuple(_podset(p) for p in data["podsets"])})
