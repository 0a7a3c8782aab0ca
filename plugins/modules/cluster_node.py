#!/usr/bin/python
"""Documents cluster_node, which runs on the controller as an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_node
short_description: Which machines are nodes of the cluster, taken out or known again
description:
  - V(known) tells which of the names are Nodes, and whether their kubelets are alive. Nothing is written.
  - V(absent) takes nodes out - their pods, attachments of volumes, NodePortrait, and the Node itself. Pods are ended without their kubelet, so the
    machine has to be off, reset or gone before.
  - V(replaced) does the same for Nodes whose machine was installed anew under its old name, known by its machine-id. Where the other machine
    is alive two machines have one name, and the task fails with nothing changed.
  - Runs on the controller over the C(kubeconfig), whatever host the task names; all nodes of one task cost one list of Nodes, Leases and pods.
options:
  state:
    description: What to do.
    type: str
    choices: [known, absent, replaced]
    default: known
  nodes:
    description: Names of nodes, with V(known) and V(absent). A name that the cluster does not have is passed over.
    type: list
    elements: str
    default: []
  machines:
    description: With V(replaced), the machine-id of each host by its name.
    type: dict
    default: {}
  kubeconfig:
    description: The kubeconfig on the controller. With V(replaced), nothing is done where the file does not exist, because there is no cluster yet.
    type: path
author: The developers of Myriad
"""

EXAMPLES = r"""
- name: The cluster forgets machines that were installed anew
  myriad.gpu.cluster_node:
    state: replaced
    machines: "{{ dict(names | zip(names | map('extract', hostvars, ['ansible_facts', 'machine_id']))) }}"
    kubeconfig: "{{ site_kubeconfig }}"
  run_once: true

- name: Take nodes out
  myriad.gpu.cluster_node:
    state: absent
    nodes: [gpu0042]
    kubeconfig: "{{ site_kubeconfig }}"
  run_once: true
"""

RETURN = r"""
nodes:
  description: Nodes that are known, or that were taken out.
  returned: always
  type: list
  elements: str
alive:
  description: Those of them whose kubelet is alive.
  returned: when state is known
  type: list
  elements: str
pods:
  description: Pods that were ended without their kubelet, by node.
  returned: when state is absent or replaced
  type: dict
notes:
  description: What somebody should know.
  returned: when state is absent or replaced
  type: list
  elements: str
changed_items:
  description: What was changed, as C(Node gpu0042 taken out).
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.myriad.gpu.plugins.module_utils.cluster_node_options import ARGUMENTS


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    module.fail_json(
        msg="cluster_node runs as an action plugin on the controller; call it by its full name, myriad.gpu.cluster_node"
    )


if __name__ == "__main__":
    main()
