#!/usr/bin/python
"""Documents kube_objects, which runs on the controller as an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: kube_objects
short_description: Applies many Kubernetes objects in one task
description:
  - Server-side apply of a named set of objects. Only what changed is sent. CustomResourceDefinitions come first, then namespaces, what workloads need,
    workloads, the rest, and objects of the set's own kinds last; an object that a webhook refuses because it does not run yet is tried again.
  - Runs on the controller, whatever host the task names, over the C(kubeconfig). Use C(run_once) or a play on localhost.
  - In check mode the API server is asked by dry runs. Objects whose kind is not served yet are predicted as created, and all of them where no
    cluster answers yet.
options:
  set:
    description: Name of the set. Stamped on each object as the label C(myriad.dev/set), by which I(prune) goes.
    type: str
    required: true
  objects:
    description: Objects.
    type: list
    elements: dict
    default: []
  text:
    description: Further objects as YAML text, for example a rendered template. Faster than I(objects) for large ones.
    type: str
    default: ""
  manifests:
    description: YAML files on the controller with further objects.
    type: list
    elements: path
    default: []
  chart:
    description: A Helm chart, whose objects (its CRDs too) are rendered here and belong to the set. Helm itself never speaks to the cluster.
    type: dict
    suboptions:
      program:
        description: Helm on the controller.
        type: path
        required: true
      path:
        description: Archive or folder of the chart on the controller.
        type: path
        required: true
      name:
        description: Name of the release.
        type: str
        required: true
      namespace:
        description: Namespace of the release.
        type: str
        required: true
      values:
        description: The release's values, as YAML text.
        type: str
        default: ""
  kustomization:
    description:
      - Manifests of another project with what a site changes in them, whose objects belong to the set.
      - Rendered on the controller by kubectl, which speaks to no cluster for it.
    type: dict
    suboptions:
      program:
        description: kubectl on the controller.
        type: path
        required: true
      text:
        description: The kustomization, as YAML text.
        type: str
        required: true
      files:
        description: What it names as resources. A file by its name there, or C(NAME/) for the folder of that name in a tar archive; both with their path
          on the controller.
        type: dict
        required: true
  certificates:
    description:
      - Secrets that get a certificate before the workloads come, unless they hold one. Programs that renew the certificate of their webhook themselves
        then serve at once. What is in such a Secret is never touched again.
    type: list
    elements: dict
    default: []
    suboptions:
      namespace:
        description: Namespace of the Secret.
        type: str
        required: true
      name:
        description: Name of the Secret.
        type: str
        required: true
      dns_names:
        description: DNS names of the service.
        type: list
        elements: str
        required: true
      authority:
        description: Common name of the authority that is made with it.
        type: str
        required: true
  kubeconfig:
    description: The kubeconfig on the controller. The environment's C(KUBECONFIG) when not given; never C(~/.kube/config).
    type: path
  field_manager:
    description: Owner of the fields. C(myriad-<set>) when not given.
    type: str
  prune:
    description: Remove objects of the set that are no longer wanted.
    type: bool
    default: false
  prune_kinds:
    description: Further kinds to prune, as C(kueue.x-k8s.io/v1beta2/Cohort); the kinds of the objects are always looked at.
    type: list
    elements: str
    default: []
  protect:
    description: Kinds that are shown when they are no longer wanted and never removed.
    type: list
    elements: str
    default: [Namespace, CustomResourceDefinition, PersistentVolume, PersistentVolumeClaim]
  existing_only:
    description: Change only objects that exist, for example labels of Nodes. The set's label is not stamped and nothing is pruned.
    type: bool
    default: false
  force_conflicts:
    description: Take over fields that another manager owns. When not given, only on objects of the set.
    type: bool
  wait:
    description: What to wait for after applying. Not in check mode.
    type: dict
    default: {}
    suboptions:
      workloads:
        description: Every Deployment, DaemonSet, StatefulSet, CustomResourceDefinition and APIService of the set is ready.
        type: bool
        default: false
      conditions:
        description: Further objects.
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
          condition:
            description: Type of the condition that must be True. When not given, what the kind itself means by ready.
            type: str
      dry_run:
        description: Objects that the server must accept in a dry run. Their webhooks answer then.
        type: list
        elements: dict
        default: []
  timeout_s:
    description: Seconds for all waiting of the task together.
    type: int
    default: 180
author: The developers of Myriad
"""

EXAMPLES = r"""
- name: Queues from the description
  myriad.gpu.kube_objects:
    kubeconfig: "{{ cluster_policy_kubeconfig }}"
    set: policy
    objects: "{{ cluster_policy_objects }}"
    prune: true
    prune_kinds: [kueue.x-k8s.io/v1beta2/Cohort, kueue.x-k8s.io/v1beta2/ClusterQueue]

- name: Kueue
  myriad.gpu.kube_objects:
    kubeconfig: "{{ kueue_kubeconfig }}"
    set: kueue
    chart:
      program: /usr/local/bin/helm
      path: /srv/bundle/kueue.tgz
      name: kueue
      namespace: kueue-system
      values: "{{ lookup('ansible.builtin.template', 'values.yaml.j2') }}"
    wait:
      workloads: true
      dry_run:
        - {apiVersion: kueue.x-k8s.io/v1beta2, kind: ResourceFlavor, metadata: {name: probe}}

- name: An operator as its project ships it, with two replicas
  myriad.gpu.kube_objects:
    kubeconfig: "{{ site_kubeconfig }}"
    set: operator
    kustomization:
      program: /usr/local/bin/kubectl
      text: |
        resources: [operator.yaml]
        replicas: [{name: operator, count: 2}]
      files: {operator.yaml: /srv/bundle/operator.yaml}

- name: Labels of the nodes
  myriad.gpu.kube_objects:
    kubeconfig: "{{ node_portrait_kubeconfig }}"
    set: node-labels
    existing_only: true
    force_conflicts: true
    objects: "{{ node_portrait_nodes }}"
"""

RETURN = r"""
drift:
  description: What differs, field by field, with role (the set), kind, item, expected and found.
  returned: in check mode, when something would change
  type: list
  elements: dict
created:
  description: Objects that were created. C(updated), C(unchanged), C(pruned), C(kept) and C(missing) likewise.
  returned: always
  type: list
  elements: str
notes:
  description: What could not be asked in check mode.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.myriad.gpu.plugins.module_utils.kube_options import ARGUMENTS


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    module.fail_json(
        msg="kube_objects runs as an action plugin on the controller; call it by its full name, myriad.gpu.kube_objects"
    )


if __name__ == "__main__":
    main()
