#!/usr/bin/python
"""Which container runtimes are on a node, and what becomes of them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: runtime_facts
short_description: Container runtimes that are on a node already, and what becomes of them
description:
  - Looks at units, sockets, programs and the running kubelet. Nothing is changed.
  - An action plugin decides from that what the role does, and fails with one sentence for each runtime that stands in the way.
options:
  existing:
    description: What becomes of a runtime that Myriad did not install.
    type: str
    choices: [refuse, adopt, replace]
    default: refuse
  units:
    description: Units that are looked at. Filled by the action plugin.
    type: list
    elements: str
    default: []
  sockets:
    description: Sockets that are looked at. Filled by the action plugin.
    type: list
    elements: path
    default: []
  state_dir:
    description: Where the records of the roles are kept on the node.
    type: path
    default: /var/lib/myriad/state
author: The developers of Myriad
"""

EXAMPLES = r"""
- name: The runtime that is there
  myriad.gpu.runtime_facts:
    existing: adopt
  register: __runtime
"""

RETURN = r"""
runtime:
  description: What was found, with C(units), C(sockets), C(versions), C(kubelet), C(config) and C(own).
  returned: always
  type: dict
decision:
  description: What the role does, with C(action) (install, own, adopt, replace), C(version), C(program), C(stop) and C(unmask).
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.myriad.gpu.plugins.module_utils import runtimes, units
from ansible_collections.myriad.gpu.plugins.module_utils.record import RecordError

ARGUMENTS = {
    "existing": {"type": "str", "choices": ["refuse", "adopt", "replace"], "default": "refuse"},
    "units": {"type": "list", "elements": "str", "default": []},
    "sockets": {"type": "list", "elements": "path", "default": []},
    "state_dir": {"type": "path", "default": "/var/lib/myriad/state"},
}


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    params = module.params
    try:
        found = runtimes.look(params["units"], params["sockets"], state_dir=params["state_dir"])
    except (units.UnitError, RecordError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, runtime=found)


if __name__ == "__main__":
    main()
