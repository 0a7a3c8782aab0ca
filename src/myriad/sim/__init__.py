"""A cluster that is simulated by events: Kueue's admission as a model, Myriad's planner and steering for real.

`simulate(config, jobs, seed)` plays the jobs of a month in minutes and gives back a `Trace`: what happened to whom and
when. It is what the back-test of waiting times, the benchmark of protected domains and the test of gang pairs at 1,250
nodes run on. Equal arguments give equal traces. docs/placement.md says what the model of Kueue has and what it lacks.
"""

from myriad.sim.config import Failures, SimConfig, TeamQuota, site_nodes
from myriad.sim.engine import simulate
from myriad.sim.jobs import Distribution, JobMix, SimJob, draw_jobs
from myriad.sim.run import Observation
from myriad.sim.trace import Event, InvariantError, JobRecord, Trace

__all__ = [
    "Distribution",
    "Event",
    "Failures",
    "InvariantError",
    "JobMix",
    "JobRecord",
    "Observation",
    "SimConfig",
    "SimJob",
    "TeamQuota",
    "Trace",
    "draw_jobs",
    "simulate",
    "site_nodes",
]
