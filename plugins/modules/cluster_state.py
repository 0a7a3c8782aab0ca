#!/usr/bin/python
"""Documents cluster_state, which runs on the controller as an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_state
short_description: Whether a cluster still is what the last complete run made of it
description:
  - With C(state=check) the objects that M(myriad.gpu.kube_objects) applied are compared with the record of the last complete run, in a few calls that
    read metadata alone. An object that is gone, or of which somebody changed a field that was applied, is found; what others added is theirs.
  - With C(state=converged) a complete run is recorded, in the ConfigMap C(myriad-site) of the namespace C(myriad-system). Nothing else is written.
  - With C(state=by_hand) the cluster is searched for what neither the description nor a program of the cluster made, item by item - fields that somebody
    set on objects of Myriad and of kubeadm, queues, flavors and rules that the description lacks, Nodes without a host and hosts without a Node,
    and versions that run and are not the lock's. Nothing is written.
  - Runs on the controller, whatever host the task names.
options:
  state:
    description: What to do.
    type: str
    choices: [check, converged, by_hand]
    default: check
  kubeconfig:
    description: The kubeconfig on the controller. The environment's C(KUBECONFIG) when not given.
    type: path
  ready:
    description: With C(state=check), objects that have to be ready as well.
    type: list
    elements: dict
    default: []
    suboptions:
      api_version:
        description: API version.
        type: str
        required: true
      kind:
        description: Kind.
        type: str
        required: true
      name:
        description: Name.
        type: str
        required: true
      namespace:
        description: Namespace.
        type: str
        default: ""
  nodes:
    description: With C(state=by_hand), the hosts of the description that are Nodes.
    type: list
    elements: str
    default: []
  versions:
    description: With C(state=by_hand), components of the lock and their versions.
    type: dict
    default: {}
  full:
    description: With C(state=check), take it for different without a look, because the tasks that follow look at everything.
    type: bool
    default: false
  inputs:
    description: With C(state=check), what the objects follow from beside the variables of the host, of any shape.
    type: raw
  ignore_vars:
    description: With C(state=check), variables that are no inputs of the result.
    type: list
    elements: str
    default: [site_full]
  bundle:
    description: With C(state=check), the bundle's folder on the controller; another bundle is another input.
    type: path
author: The developers of Myriad
"""

EXAMPLES = r"""
- name: Cluster as recorded
  myriad.gpu.cluster_state:
    kubeconfig: "{{ site_kubeconfig }}"
    bundle: "{{ site_bundle }}"
    ready:
      - {api_version: apps/v1, kind: Deployment, namespace: kueue-system, name: kueue-controller-manager}
  register: __site_cluster

- name: Record what this run applied
  myriad.gpu.cluster_state:
    state: converged
    kubeconfig: "{{ site_kubeconfig }}"
"""

RETURN = r"""
converged:
  description: Whether nothing differs, the inputs are those of the last complete run, and everything is ready.
  returned: state is check
  type: bool
drift:
  description: What differs; one sentence each, or with C(state=by_hand) role, kind, item, expected, found and by of each.
  returned: state is check or by_hand
  type: list
  elements: raw
recorded:
  description: Whether the run was a complete one and is recorded now.
  returned: state is converged
  type: bool
notes:
  description: Why it was not recorded; with C(state=by_hand), what was found and is nobody's mistake.
  returned: state is converged or by_hand
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.myriad.gpu.plugins.module_utils.kube_options import CLUSTER_STATE as ARGUMENTS


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    module.fail_json(
        msg="cluster_state runs as an action plugin on the controller; call it by its full name, myriad.gpu.cluster_state"
    )


if __name__ == "__main__":
    main()
