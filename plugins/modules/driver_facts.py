#!/usr/bin/python
"""What a host has of a GPU driver and what it would take to install one; nothing is changed."""

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_facts
short_description: Facts about the GPU driver of a host, and what an installation would do
description:
  - Kernel and headers, Secure Boot, GPUs and bridges on the PCI bus, the module in the kernel and the one on the disk, driver packages,
    leftovers of a runfile, and whether the host upgrades packages by itself. Nothing is changed, also without check mode.
  - With I(want) the controller decides what is to be done (filter P(myriad.gpu.driver_plan#filter)). When packages are to be installed, apt is asked which
    versions there are and simulates the exact transaction, aside of the host's own apt configuration where I(files) are not there yet.
options:
  want:
    description:
      - What is wanted of the host, as C(channel), C(existing), C(versions), C(module), C(packages), C(kernel), C(load_modules).
        The result then holds the plan. Used by the action plugin.
    type: dict
    default: {}
  kernel:
    description: Release of the kernel that the module is for. The running one when empty.
    type: str
    default: ""
  version:
    description: The locked version of the driver.
    type: str
    default: ""
  sysfs:
    description: Where sysfs is looked at.
    type: path
    default: /sys
  procfs:
    description: Where procfs is looked at.
    type: path
    default: /proc
  root:
    description: Root of the file system whose packages and modules are looked at.
    type: path
    default: /
  record:
    description: A role's record, of which the packages are told too.
    type: path
    default: /var/lib/myriad/state/gpu_driver.json
  names:
    description: Packages whose available versions are asked for.
    type: list
    elements: str
    default: []
  simulate:
    description: Packages with their exact versions whose installation apt simulates, on lists that are fetched for it.
    type: dict
    default: {}
  remove:
    description: Packages that leave in the same transaction.
    type: list
    elements: str
    default: []
  files:
    description:
      - Content by path of apt's sources, preferences and keyrings that the transaction needs. They are used aside of the host's own, in a temporary
        folder in which the lists are too.
    type: dict
    default: {}
  repository:
    description: URL of the repository that holds the packages, for messages.
    type: str
    default: ""
  keyring:
    description: The file that holds its keys, for messages.
    type: str
    default: ""
author: The developers of Myriad
"""

EXAMPLES = r"""
- name: What the host has
  myriad.gpu.driver_facts:
    names: [nvidia-smi]
  register: __look

- name: What the lock would do to it
  myriad.gpu.driver_facts:
    kernel: 6.1.0-57-amd64
    version: 535.309.01
    want: {channel: distribution, existing: replace, module: auto, versions: {driver: 535.309.01}, packages: {nvidia-smi: 535.309.01-0+deb12u1}}
  register: __plan
"""

RETURN = r"""
facts:
  description: What was found, with C(kernel), C(secure_boot), C(pci), C(module), C(installed), C(foreign), C(candidates), C(simulation), C(unattended_upgrades), C(reboot_required).
  returned: always
  type: dict
plan:
  description: The decision, with C(action), C(reason), C(packages), C(remove), C(hold), C(module), C(fabric_manager), C(refusals), C(warnings), C(reboot).
  returned: when I(want) is given
  type: dict
fetch_error:
  description: Why the lists of I(repository) could not be fetched; empty when they were, or when nobody had to.
  returned: always
  type: str
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.myriad.gpu.plugins.module_utils import driver_facts
from ansible_collections.myriad.gpu.plugins.module_utils.packages import Apt, PackageError, explain_fetch
from ansible_collections.myriad.gpu.plugins.module_utils.record import RecordError

ARGUMENTS = {
    "want": {"type": "dict", "default": {}},
    "kernel": {"type": "str", "default": ""},
    "version": {"type": "str", "default": ""},
    "sysfs": {"type": "path", "default": "/sys"},
    "procfs": {"type": "path", "default": "/proc"},
    "root": {"type": "path", "default": "/"},
    "record": {"type": "path", "default": "/var/lib/myriad/state/gpu_driver.json"},
    "names": {"type": "list", "elements": "str", "default": []},
    "simulate": {"type": "dict", "default": {}},
    "remove": {"type": "list", "elements": "str", "default": []},
    "files": {"type": "dict", "default": {}},
    "repository": {"type": "str", "default": ""},
    "keyring": {"type": "str", "default": ""},
}


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    params = module.params
    try:
        with Apt(params["files"]) as apt:
            facts, said = driver_facts.facts(params, apt)
    except (PackageError, RecordError) as error:
        module.fail_json(msg=str(error), exception=None)
    error = ""
    if said and params["repository"]:
        error = explain_fetch(said, params["repository"], params["keyring"] or "the host's keyring") or ""
    module.exit_json(changed=False, facts=facts, fetch_error=error, uname=os.uname().release)


if __name__ == "__main__":
    main()
