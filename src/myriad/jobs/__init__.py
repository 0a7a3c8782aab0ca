"""Job templates: from a few wishes to a job that Kueue, the planner and a preemption can live with.

`request` and `render` are pure, and so is `judge`, which says what will become of a job; `submit` creates it.
"""
