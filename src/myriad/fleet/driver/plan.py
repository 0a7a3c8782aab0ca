"""The decision itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from myriad.fleet.driver.result import DriverPlan, Refusal


def plan(facts: Mapping[str, Any], want: Mapping[str, Any]) -> DriverPlan:
    """Decide what happens to the GPU driver of one host.

    Args:
        facts: what `driver_facts` read on the host.
        want: channel, existing, versions, module, packages (the lock: name to exact version), kernel, load_modules.

    Returns:
        the plan; refused with every reason at once, or the exact transaction.
    """
    if want.get("existing") == "skip":
        return DriverPlan("skip", "gpu_driver_existing is skip: the driver of this host is somebody else's business")
    if want.get("channel") == "runfile":
        refusal = Refusal(
            "channel",
            "runfile installs are refused: no package database knows what they put where",
            "gpu_driver_channel",
            "use distribution or vendor",
        )
        return DriverPlan("refused", refusal.what, refusals=(refusal,))
    return DriverPlan("none", "no GPU was found on the PCI bus")
