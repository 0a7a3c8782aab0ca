"""Nodes whose jobs an upgrade waits for: they take no new ones meanwhile, and are given back when nobody waits."""

from __future__ import annotations

from collections.abc import Mapping

from myriad.errors import MyriadError
from myriad.kube.client import Api
from myriad.kube.drain import Cordon, cordon, release
from myriad.kube.kinds import NODES
from myriad.upgrade.plan import BY, HELD, JOB_RUNS


def hold(api: Api, left: Mapping[str, str]) -> list[str]:
    """Close the nodes on which a job runs that is waited for. Returns those that changed."""
    changed = []
    for name, reason in left.items():
        if reason.startswith(JOB_RUNS):
            try:
                changed += cordon(api, [name], by=BY, reason=f"{HELD}: {reason}")
            except MyriadError:
                # Somebody else has closed it since; it takes no new jobs either way.
                continue
    return changed


def let_go(api: Api, left: Mapping[str, str]) -> list[str]:
    """Give back nodes that were only held. One that an upgrade has begun to change stays closed."""
    nodes = {node["metadata"]["name"]: node for node in api.list(NODES)[0]}
    waiting = []
    for name in left:
        found = Cordon.of(nodes[name]) if name in nodes else None
        if found is not None and found.by == BY and found.reason.startswith(HELD):
            waiting.append(name)
    return release(api, waiting, by=BY)
