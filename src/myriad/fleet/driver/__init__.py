"""The GPU driver of one host, decided from facts before anything is touched.

`plan(facts, want)` is pure: the same facts and wishes give the same plan. Everything that stands in the way is said at
once, each as what is wrong, where, and what to do.
"""

from __future__ import annotations

from myriad.fleet.driver.plan import channel_refusals, plan
from myriad.fleet.driver.result import Action, DriverPlan, FoundGpu, ModuleKind, Refusal

__all__ = ["Action", "DriverPlan", "FoundGpu", "ModuleKind", "Refusal", "channel_refusals", "plan"]
