#!/usr/bin/python
"""Documents node_drain, which runs on the controller as an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_drain
short_description: Empties Kubernetes nodes, and gives them back as they were found
description:
  - V(drained) closes the nodes under the name I(by) and evicts their pods. The annotation C(myriad.dev/cordon-owner) remembers who closed a node,
    why, and whether it was cordoned before.
  - Nothing is drained while many nodes fell silent together. That points to the control plane; nodes that are cordoned do not count.
  - Before anything is touched the eviction of every pod is asked for as a dry run. Pods whose PodDisruptionBudget forbids it, and pods that nothing
    would make again, are named and the task fails.
  - A drain that fails, also by its deadline or by Ctrl-C, gives back exactly what it closed.
  - V(undrained) restores the previous state only on nodes that I(by) closed. Cordons and taints of others are left alone.
  - Runs on the controller over the C(kubeconfig), whatever host the task names; all nodes of one task are handled together, with one list of pods.
options:
  nodes:
    description: Names of the nodes.
    type: list
    elements: str
    required: true
  state:
    description:
      - V(drained) closes and empties, V(cordoned) closes only, V(undrained) gives back.
      - V(asked) touches nothing and returns what a drain would do.
    type: str
    choices: [drained, cordoned, undrained, asked]
    default: drained
  by:
    description: The name under which nodes are closed. Another name's nodes are refused.
    type: str
    required: true
  reason:
    description: A sentence for the annotation, that C(kubectl describe node) then shows.
    type: str
    default: ""
  kubeconfig:
    description: The kubeconfig on the controller. The environment's C(KUBECONFIG) when not given; never C(~/.kube/config).
    type: path
  deadline_s:
    description: Seconds until the pods of all nodes must be gone.
    type: int
    default: 900
  notice_s:
    description:
      - Seconds that queued jobs have between the announcement and the eviction of their pods. They are told in any case, by an Event and the
        annotation C(myriad.dev/planned-eviction) on the Job; a job that bears C(myriad.dev/may-leave) is not waited for.
    type: int
    default: 0
  unmanaged:
    description: Evict pods without a controller too. They are gone for good.
    type: bool
    default: false
author: The developers of Myriad
"""

EXAMPLES = r"""
- name: Empty the nodes of this batch
  myriad.gpu.node_drain:
    nodes: "{{ ansible_play_batch }}"
    by: reboot
    reason: the driver was upgraded
    kubeconfig: "{{ site_kubeconfig }}"
  run_once: true

- name: Give them back
  myriad.gpu.node_drain:
    nodes: "{{ ansible_play_batch }}"
    state: undrained
    by: reboot
    kubeconfig: "{{ site_kubeconfig }}"
  run_once: true
"""

RETURN = r"""
changed_items:
  description: Nodes that were closed or given back.
  returned: always
  type: list
  elements: str
pods:
  description: Pods that leave, by node.
  returned: when state is drained or asked
  type: dict
blockers:
  description: Pods that would not leave, each with pod, node, budgets and reason.
  returned: when state is drained or asked
  type: list
  elements: dict
gangs:
  description: Jobs that run on several nodes and lose pods, each with name and nodes.
  returned: when state is drained or asked
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.myriad.gpu.plugins.module_utils.drain_options import ARGUMENTS


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    module.fail_json(
        msg="node_drain runs as an action plugin on the controller; call it by its full name, myriad.gpu.node_drain"
    )


if __name__ == "__main__":
    main()
