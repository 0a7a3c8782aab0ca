#!/usr/bin/python
"""The half of node_reboot that runs on the host: it looks."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_reboot
short_description: Looks whether hosts need a reboot, plans who goes when, and brings a drained node through it
description:
  - V(looked) says what on the host asks for a reboot. C(/run/reboot-required) with the packages, another kernel than the wanted one or than the newest
    that is installed, an NVIDIA module that is not the version of what is installed, a MIG mode that waits.
  - V(planned) makes batches of the hosts that were looked at. It runs on the controller.
  - V(rebooted) reboots a node that was drained under the name C(reboot), waits for another boot, SSH, a kubelet that is Ready and an open GPU gate that
    was judged since, and gives it back as it was found. A node that does not come back stays closed with the reason in its annotations, and the host
    counts as unreachable.
  - All state is in the annotations C(myriad.dev/reboot) and C(myriad.dev/cordon-owner) of the Node, so a run that was killed is gone on with by the next.
options:
  state:
    description: What to do.
    type: str
    choices: [looked, planned, rebooted]
    required: true
  kubeconfig:
    description: The kubeconfig on the controller. The environment's C(KUBECONFIG) when not given; never C(~/.kube/config).
    type: path
  kernel:
    description: Release of the kernel that should run. When empty, the newest of the running one's flavour in I(boot).
    type: str
    default: ""
  sysfs:
    description: Where the kernel's devices and modules are shown.
    type: path
    default: /sys
  procfs:
    description: Where the NVIDIA driver shows its version.
    type: path
    default: /proc
  run:
    description: Where the package manager's hooks leave C(reboot-required).
    type: path
    default: /run
  boot:
    description: Where the kernels are.
    type: path
    default: /boot
  libraries:
    description: Folders, as patterns, with the driver's libraries.
    type: list
    elements: str
    default: ["/usr/lib/*-linux-gnu", "/usr/lib64"]
  looks:
    description: For V(planned), what V(looked) returned, by host.
    type: dict
    default: {}
  force:
    description: For V(planned), also the hosts that need no reboot.
    type: bool
    default: false
  batch:
    description: For V(planned), how many nodes are away at a time at most. 0 is no bound.
    type: int
    default: 10
  per_rack:
    description: For V(planned), how many nodes of one rack are away at a time at most.
    type: int
    default: 1
  gangs:
    description:
      - For V(planned), what becomes of nodes that share a job running on several of them.
      - V(together) puts them in one batch, so that it is interrupted once and never runs on old and new nodes together; V(wait) leaves them for a later
        run; V(apart) does not look at jobs.
    type: str
    choices: [together, wait, apart]
    default: together
  reasons:
    description: For V(rebooted), why; stands on the Node.
    type: list
    elements: str
    default: []
  command:
    description: For V(rebooted), the command on the host.
    type: list
    elements: str
    default: [systemctl, reboot]
  controller_command:
    description: For V(rebooted), a command on the controller in its place, for machines that are restarted through their management controller.
    type: list
    elements: str
    default: []
  reboot_timeout_s:
    description: Seconds until the host answers with another boot.
    type: int
    default: 1200
  ready_timeout_s:
    description: Seconds from then until its kubelet is Ready.
    type: int
    default: 300
  gate_timeout_s:
    description: Seconds from then until its GPU gate is open.
    type: int
    default: 600
author: The developers of Myriad
"""

EXAMPLES = r"""
- name: What asks for a reboot
  myriad.gpu.node_reboot:
    state: looked
    kubeconfig: "{{ site_kubeconfig }}"
  register: __reboot_look

- name: Reboot, and wait until the node takes work
  myriad.gpu.node_reboot:
    state: rebooted
    kubeconfig: "{{ site_kubeconfig }}"
    reasons: "{{ __reboot_look.reasons }}"
"""

RETURN = r"""
reasons:
  description: What asks for a reboot, a sentence each.
  returned: when state is looked
  type: list
  elements: str
boot:
  description: The boot that the host is in.
  returned: when state is looked
  type: str
kernel:
  description: Release of the kernel that runs.
  returned: when state is looked
  type: str
batches:
  description: Names of nodes, batch by batch. C(order) is the same in one list and C(sizes) how many a batch has.
  returned: when state is planned
  type: list
  elements: list
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.myriad.gpu.plugins.module_utils.reboot_options import ARGUMENTS
from ansible_collections.myriad.gpu.plugins.module_utils.reboot_reasons import look


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    if module.params["state"] != "looked":
        module.fail_json(
            msg="this state runs on the controller; call the module by its full name, myriad.gpu.node_reboot"
        )
    module.exit_json(changed=False, **look(module.params))


if __name__ == "__main__":
    main()
