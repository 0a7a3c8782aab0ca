"""What is wrong with the cluster's use, found before somebody asks: gangs, reservations, nodes, queues, idle GPUs.

`report` is pure over a cache and what was read beside it; the observer tells each finding once, as an Event, and
counts them for Prometheus; `myriad diagnose` prints them.
"""

from __future__ import annotations

from myriad.scheduler.diagnose.found import Finding, Outside, report
from myriad.scheduler.diagnose.use import Usage, UseAdvice, advise

__all__ = ["Finding", "Outside", "Usage", "UseAdvice", "advise", "report"]
