#!/usr/bin/python
"""Documents restore_report, which runs on the controller as an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: restore_report
short_description: What a restored cluster has lost
description:
  - Compares the pods that ran on the nodes when the control plane was stopped with those that the restored cluster knows, and tells people.
  - Nothing is written. Runs on the controller, whatever host the task names.
options:
  kubeconfig:
    description: The kubeconfig on the controller. The environment's C(KUBECONFIG) when not given.
    type: path
  running:
    description: By node what C(crictl pods -o json) printed.
    type: dict
    required: true
  meta:
    description: What the archive says of itself.
    type: dict
    required: true
  revisions:
    description: Revision of each member's data when it was stopped.
    type: list
    elements: int
    default: []
  stopped_at:
    description: Seconds since the epoch at which the control plane was stopped.
    type: float
    required: true
author: The developers of Myriad
"""

EXAMPLES = r"""
- name: What was lost
  myriad.gpu.restore_report:
    kubeconfig: "{{ site_kubeconfig }}"
    running: {gpu1: "{{ hostvars.gpu1.pods.stdout }}"}
    meta: {source: snapshot, taken_at: 1790000000, revision: 4711}
    stopped_at: 1790000300
"""

RETURN = r"""
lost:
  description: C(unknown) pods that ran and are not known now, pods that are started C(again), and how many run on (C(same)).
  returned: always
  type: dict
msg:
  description: The same for people, a sentence a line.
  returned: always
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.myriad.gpu.plugins.module_utils.restore_report_options import ARGUMENTS


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    module.fail_json(
        msg="restore_report runs as an action plugin on the controller; call it by its full name, myriad.gpu.restore_report"
    )


if __name__ == "__main__":
    main()
