#!/usr/bin/python
"""Documents node_upgrade, which runs on the controller as an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_upgrade
short_description: Plans an upgrade, prepares it, and brings a node that was upgraded back to work
description:
  - V(planned) says what becomes another on which host, who goes when, and what stands in the way - versions that may not follow one another, pods that
    would not leave, jobs, cordons of others. Nothing is touched; what may not begin is an error unless in check mode.
  - V(prepared) keeps what the sets of Kueue, the extension and Volcano applied, for the way back, once for the images that the upgrade goes to; and writes
    the tags of etcd and CoreDNS into kubeadm's description of the cluster.
  - V(finished) waits until a node that was drained under the name C(upgrade) is Ready with the wanted kubelet and its GPU gate was judged since and is
    open, and gives it back as it was found. One that does not come to that stays closed and counts as unreachable.
  - V(held) closes nodes whose jobs are waited for, or gives back those that were closed for that.
  - All state is in the annotation C(myriad.dev/cordon-owner) of the Node, so a run that was killed is gone on with by the next.
  - Runs on the controller, whatever host the task names.
options:
  state:
    description: What to do.
    type: str
    choices: [planned, prepared, finished, held]
    required: true
  kubeconfig:
    description: The kubeconfig on the controller. The environment's C(KUBECONFIG) when not given.
    type: path
  looks:
    description: For V(planned), the fact C(myriad_node) of M(myriad.gpu.node_state) by host.
    type: dict
    default: {}
  versions:
    description: For V(planned), components of the lock and their versions.
    type: dict
    default: {}
  artifacts:
    description: For V(planned), files of the bundle by name, with sha256 and version.
    type: dict
    default: {}
  images:
    description: For V(planned) and V(prepared), images of the bundle by repository, with tag and digest.
    type: dict
    default: {}
  control_plane:
    description: For V(planned), the hosts of the control plane; the first one goes first.
    type: list
    elements: str
    default: []
  batch:
    description: For V(planned), how many nodes are away at a time at most. 0 is no bound.
    type: int
    default: 10
  per_rack:
    description: For V(planned), how many nodes of one rack are away at a time at most.
    type: int
    default: 1
  jobs:
    description:
      - For V(planned), what becomes of nodes on which a job holds GPUs.
      - V(wait) and V(leave) leave them, and V(held) closes those of V(wait) to new jobs; V(checkpoint) asks the jobs to save and go, with their grace,
        and puts the nodes of one job into one wave.
    type: str
    choices: [wait, checkpoint, leave]
    default: wait
  unmanaged:
    description: For V(planned), evict pods that nothing would make again, too.
    type: bool
    default: false
  keep:
    description: For V(prepared), the folder on the controller for what was applied; nothing is kept when not given.
    type: path
  plan:
    description: For V(held), what V(planned) returned.
    type: dict
    default: {}
  hold:
    description: For V(held), close the nodes; otherwise they are given back.
    type: bool
    default: false
  version:
    description: For V(finished), the version of the kubelet.
    type: str
    default: ""
  ready_timeout_s:
    description: For V(finished), seconds until the kubelet of that version is Ready.
    type: int
    default: 300
  gate_timeout_s:
    description: For V(finished), seconds from then until the GPU gate is open.
    type: int
    default: 600
author: The developers of Myriad
"""

EXAMPLES = r"""
- name: What changes where, and what stands in the way
  myriad.gpu.node_upgrade:
    state: planned
    kubeconfig: "{{ site_kubeconfig }}"
    looks: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, ['ansible_facts', 'myriad_node']))) }}"
    versions: "{{ site_stack.versions }}"
    artifacts: "{{ site_stack.artifacts }}"
    images: "{{ site_stack.images }}"
    control_plane: "{{ groups['control_plane'] }}"
  run_once: true
  register: __upgrade_plan

- name: Works again, and is given back
  myriad.gpu.node_upgrade:
    state: finished
    kubeconfig: "{{ site_kubeconfig }}"
    version: "{{ site_stack.versions.kubernetes }}"
"""

RETURN = r"""
report:
  description: All of what follows as one document, which the run's events carry.
  returned: state is planned
  type: dict
plan:
  description: The plan as people read it.
  returned: state is planned
  type: str
control_plane:
  description: Hosts of the control plane that are upgraded, one at a time, in this order.
  returned: state is planned
  type: list
  elements: str
waves:
  description: Names of nodes, wave by wave. C(order) is the same in one list and C(sizes) how many a wave has.
  returned: state is planned
  type: list
  elements: list
changes:
  description: What becomes another, by host, each with item, old and new.
  returned: state is planned
  type: dict
left:
  description: Hosts that stay as they are, with the reason.
  returned: state is planned
  type: dict
refusals:
  description: Why nothing may begin.
  returned: state is planned
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.myriad.gpu.plugins.module_utils.upgrade_options import ARGUMENTS


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    module.fail_json(
        msg="node_upgrade runs as an action plugin on the controller; call it by its full name, myriad.gpu.node_upgrade"
    )


if __name__ == "__main__":
    main()
