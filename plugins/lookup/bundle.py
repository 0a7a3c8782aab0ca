"""Lookup `myriad.gpu.bundle`: what a bundle holds, as variables for a playbook."""

from __future__ import annotations

DOCUMENTATION = r"""
name: bundle
short_description: What a Myriad bundle holds
description:
  - Reads the manifest C(bundle.yml) of a bundle directory on the controller.
options:
  _terms:
    description: Paths of bundle directories.
    required: true
"""

EXAMPLES = r"""
- name: Know the artifacts of the bundle
  ansible.builtin.debug:
    msg: "{{ (lookup('myriad.gpu.bundle', '/srv/bundle')).myriad_artifacts.kubelet.sha256 }}"
"""

RETURN = r"""
_raw:
  description:
    - One mapping a bundle.
    - C(myriad_artifacts) maps names to sha256, size, version and kind.
    - C(myriad_stack_images) maps repositories to ref, repo, tag, digest and size.
    - C(myriad_stack_versions) maps components to versions.
    - C(myriad_bundle) holds digest, directory, arch and left_out.
  type: list
  elements: dict
"""

from pathlib import Path

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase
from myriad.errors import MyriadError
from myriad.stack.bundle import Bundle


class LookupModule(LookupBase):
    """See DOCUMENTATION."""

    def run(self, terms, variables=None, **kwargs):
        """Return the variables of each bundle directory in `terms`."""
        self.set_options(var_options=variables, direct=kwargs)
        try:
            return [Bundle.load(Path(str(term)).expanduser()).as_ansible_vars() for term in terms]
        except MyriadError as error:
            raise AnsibleLookupError(f"myriad.gpu.bundle: {error}") from error
