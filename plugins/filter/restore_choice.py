"""What of the control planes' backups is restored; the logic is in myriad.kube.backups."""

from __future__ import annotations

DOCUMENTATION = r"""
name: restore_choice
short_description: The archive that a restore takes
description:
  - From what all reached control planes have, the newest archive or what a member that is left holds; or a file
    on the controller.
options:
  _input:
    description: By control plane the document of C(etcd-backup list); empty for a machine without the program.
    type: dict
    required: true
  wanted:
    description: C(newest), C(survivor), or a file on the controller.
    type: str
    required: true
  cluster:
    description: Name of the cluster. Archives of another one are not looked at.
    type: str
    required: true
author: The developers of Myriad
"""

EXAMPLES = r"""
choice: "{{ {'cp1': hostvars.cp1.listing.answer} | myriad.gpu.restore_choice('newest', 'lab') }}"
"""

RETURN = r"""
_value:
  description:
    - C(host) that has the archive (empty for the controller), its C(path), what it says of itself (C(meta)), and
      a C(problem) or none.
  type: dict
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from myriad.kube.backups import choose


def restore_choice(listings: Mapping[str, Mapping[str, Any]], wanted: str, cluster: str) -> dict[str, Any]:
    """What `choose` decides, as a dict."""
    # Ansible's own kinds of dict cannot be copied into a dataclass and out of it.
    plain = json.loads(json.dumps(listings))
    return asdict(choose(plain, str(wanted), cluster=str(cluster)))


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Filters by name."""
        return {"restore_choice": restore_choice}
