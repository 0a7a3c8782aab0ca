"""`myriad lint`: conflicts and traps that can be seen in objects and configuration, before they cost anybody a night.

Pure rules over a set of objects (`Scene`); `documents` reads YAML and JSON and knows the line of every key. What reads
files and clusters is in `myriad.cli.lint` and `myriad.lint.live`.
"""

from myriad.lint import (
    rules_cluster,
    rules_gang,
    rules_images,
    rules_kueue,
    rules_leaving,
    rules_object,
    rules_priorities,
    rules_quantities,
    rules_queue,
    rules_requests,
    rules_shape,
    rules_topology,
    rules_volcano,
    rules_volcano_queue,
)
from myriad.lint.rule import RULES, Finding, Rule, findings
from myriad.lint.scene import Scene, scene_of

#: The modules that register the rules, in the order in which they are documented.
MODULES = (
    rules_queue,
    rules_gang,
    rules_requests,
    rules_quantities,
    rules_object,
    rules_shape,
    rules_images,
    rules_leaving,
    rules_kueue,
    rules_priorities,
    rules_topology,
    rules_volcano,
    rules_volcano_queue,
    rules_cluster,
)

__all__ = ["MODULES", "RULES", "Finding", "Rule", "Scene", "findings", "scene_of"]
