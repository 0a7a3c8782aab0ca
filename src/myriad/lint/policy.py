"""What the site's policy says of preemption, where it is among the objects; Myriad's defaults elsewhere. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass

from myriad.lint.scene import Scene, get, mapping, text, whole

#: ConfigMap that the policy of a site is written in.
NAME, NAMESPACE, KEY = "myriad-policy", "myriad-system", "policy.json"


@dataclass(frozen=True, slots=True)
class Policy:
    """The part of a site's policy that jobs are held against.

    Attributes:
        known: whether it is the site's own rather than the default.
        grace_s: seconds that a preempted pod has.
        checkpoint_max_age_s: what may be lost at most.
    """

    known: bool = False
    grace_s: int = 300
    checkpoint_max_age_s: int = 3600


def policy_of(scene: Scene) -> Policy:
    """The policy that is in force."""
    kept = scene.recall("policy")
    if isinstance(kept, Policy):
        return kept
    policy = Policy()
    found = scene.find("ConfigMap", NAME, NAMESPACE)
    if found is not None:
        try:
            document = json.loads(text(found.body, "data", KEY) or "{}")
        except ValueError:
            document = {}
        preemption = mapping(document, "preemption")
        if preemption:
            policy = Policy(
                True,
                whole(get(preemption, "grace_s"), policy.grace_s),
                whole(get(preemption, "checkpoint_max_age_s"), policy.checkpoint_max_age_s),
            )
    scene.remember("policy", policy)
    return policy
