"""Filter over `myriad.scheduler.monitoring`: the alert rules of Myriad, with those of a site."""

from __future__ import annotations

DOCUMENTATION = r"""
name: monitoring
short_description: Alert rules for Prometheus
description:
  - C(alert_rules) is a rule file of Prometheus with the groups of Myriad and those of the site that it is given.
"""

from collections.abc import Sequence
from typing import Any

from ansible.errors import AnsibleFilterError
from myriad.scheduler.monitoring import rules


def alert_rules(groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The content of a rule file.

    Args:
        groups: groups of the site's own. A name that Myriad has is refused: Prometheus takes no two of one name.
    """
    own: list[dict[str, Any]] = rules()["groups"]
    taken = {group["name"] for group in own} & {group.get("name") for group in groups}
    if taken:
        raise AnsibleFilterError(
            f"the group {', '.join(sorted(taken))} of alert rules is Myriad's; give yours another name"
        )
    return {"groups": [*own, *groups]}


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Filters by name."""
        return {"alert_rules": alert_rules}
