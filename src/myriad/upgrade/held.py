"""Nodes whose jobs an upgrade waits for: they take no new ones meanwhile, and are given back when nobody waits."""

from __future__ import annotations

from collections.abc import Mapping

from myriad.errors import MyriadError
from myriad.kube.client import Api
from myriad.kube.drain import Cordon, cordon, cordon_patch, now_text, release
from myriad.kube.kinds import NODES
from myriad.upgrade.plan import BY, HELD, JOB_RUNS


def hold(api: Api, left: Mapping[str, str]) -> list[str]:
    """Close the nodes on which a job runs that is waited for. Returns those that changed.

    Called again and again while jobs are waited for, so nodes that say so already are not asked one by one.
    """
    wanted = {name: f"{HELD}: {reason}" for name, reason in left.items() if reason.startswith(JOB_RUNS)}
    if not wanted:
        return []
    nodes = {node["metadata"]["name"]: node for node in api.list(NODES)[0]}
    changed = []
    for name, reason in wanted.items():
        try:
            if name in nodes and cordon_patch(nodes[name], BY, reason, now_text()) is not None:
                changed += cordon(api, [name], by=BY, reason=reason)
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
