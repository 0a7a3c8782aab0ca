"""The planner: a place for a whole gang, or the exact reason why there is none. Pure: no I/O, no API client.

`plan` tries the tiers from the narrowest (node) to the broadest (cluster) and stops at the first whose one domain holds
the gang. Among the domains of that tier it takes the fullest that fits, so that large free blocks stay whole.
`fits_ever` judges the same gang against empty, healthy nodes; `fragmentation` says what fits now; and
`first_end_that_fits`, `plan_elastic`, `replacement_for` and `tier_of_assignment` answer what-if questions.
"""

from myriad.scheduler.placement.planner import plan
from myriad.scheduler.placement.refusal import fits_ever, gpu_name_of, numbers_of
from myriad.scheduler.placement.tiers import tiers
from myriad.scheduler.placement.views import (
    LargestGang,
    first_end_that_fits,
    fragmentation,
    plan_elastic,
    replacement_for,
    tier_of_assignment,
)

__all__ = [
    "LargestGang",
    "first_end_that_fits",
    "fits_ever",
    "fragmentation",
    "gpu_name_of",
    "numbers_of",
    "plan",
    "plan_elastic",
    "replacement_for",
    "tier_of_assignment",
    "tiers",
]
