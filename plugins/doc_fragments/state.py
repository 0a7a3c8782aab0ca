"""Options that the modules share which record what a role did on a node."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  role:
    description:
      - The role under whose name everything is recorded, as C(<state_dir>/<role>.json).
      - Taken from the task when it stands in a role.
    type: str
  state_dir:
    description: Where the records of the roles are kept on the node.
    type: path
    default: /var/lib/myriad/state
  root:
    description:
      - The root of the file system to work on. Another one than C(/) is the root of an image that is being built,
        or a folder of a test; I(state_dir) is looked up below it.
    type: path
    default: /
  run_id:
    description: Names the run, to tell what a role still asks for from what it dropped. Filled by the action plugin.
    type: str
    default: ""
  predicted:
    description:
      - In check mode, the content that earlier tasks of the run would have put on the node, by path
        (sha256, or null where the file would be removed). Filled by the action plugin.
    type: dict
    default: {}
"""
