"""Tiers: how near the nodes of a gang stand to each other. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from myriad.scheduler.model import HOSTNAME_LABEL, level_label


def tiers(levels: Sequence[str]) -> tuple[str, ...]:
    """Tiers from the narrowest to the broadest: node, the levels from narrow to broad, cluster."""
    return ("node", *reversed(levels), "cluster")


def ranks(levels: Sequence[str]) -> dict[str, int]:
    """Rank of every tier (0 = node), also by the label key of a level and by the hostname label."""
    out = {tier: k for k, tier in enumerate(tiers(levels))}
    out.update({level_label(name): out[name] for name in levels})
    out[HOSTNAME_LABEL] = 0
    return out
