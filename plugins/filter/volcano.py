"""Filter over the rules of `myriad lint`: what is wrong with a configuration of Volcano's scheduler."""

from __future__ import annotations

DOCUMENTATION = r"""
name: volcano
short_description: What is wrong with a configuration of Volcano's scheduler
description:
  - C(volcano_problems) are sentences about a configuration, as C(myriad lint) finds them where Kueue counts quota.
"""

from typing import Any

from ansible.errors import AnsibleFilterError
from myriad.errors import InputError
from myriad.lint import findings, scene_of
from myriad.lint.documents import read_text


def volcano_problems(text: str) -> list[str]:
    """Sentences about a scheduler configuration; each says what will happen and what to change."""
    try:
        documents = read_text(str(text), "volcano-scheduler.conf")
    except InputError as error:
        raise AnsibleFilterError(str(error)) from error
    # Where Myriad installs Volcano, Kueue is there, with every queue that there is.
    scene = scene_of(documents, sure=frozenset({"ClusterQueue"}))
    return [f"it {found.message}: {found.change} [{found.rule}]" for found in findings(scene)]


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Filters by name."""
        return {"volcano_problems": volcano_problems}
