#!/usr/bin/python
"""Documentation of the action plugin registry_trust."""

from __future__ import annotations

DOCUMENTATION = r"""
module: registry_trust
short_description: The authority, certificates and users of the site's registry, on the controller
description:
  - Makes the site's own certificate authority once, or takes the operator's, and a certificate for one registry. What is there and good stays;
    a certificate that ends within 60 days, names too few hosts or comes from another authority is issued anew.
  - Makes a password for each user that has none. Neither keys nor passwords are in the result.
  - No node is asked.
options:
  folder:
    description: The site's secrets folder on the controller. It is made for its owner alone.
    type: path
    required: true
  host:
    description: The registry's host, for the names of files.
    type: str
    required: true
  names:
    description: DNS names and addresses by which the registry is reached.
    type: list
    elements: str
    required: true
  site:
    description: Name of the site, for the name of its authority.
    type: str
    default: site
  ca_certificate:
    description: Certificate of an authority that the operator has, in PEM. Empty makes one of the site's own.
    type: path
    default: ""
  ca_key:
    description: Its private key without a passphrase.
    type: path
    default: ""
  tls:
    description: Whether certificates are wanted at all.
    type: bool
    default: true
  users:
    description: Users that have a password. For example C(publisher) and teams.
    type: list
    elements: str
    default: []
author: The developers of Myriad
"""

EXAMPLES = r"""
- name: Authority and certificate
  myriad.gpu.registry_trust:
    folder: /etc/myriad/site-a/secrets
    host: registry1
    names: [10.0.0.10, registry.myriad.internal]
    users: [publisher, vision]
"""

RETURN = r"""
ca:
  description: Certificate of the authority in PEM; empty in check mode where there is none yet.
  returned: when tls
  type: str
certificate:
  description: Path of the registry's certificate chain on the controller.
  returned: when tls
  type: str
key:
  description: Path of its private key on the controller.
  returned: when tls
  type: str
made:
  description: What was made, in words.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

ARGUMENTS = {
    "folder": {"type": "path", "required": True},
    "host": {"type": "str", "required": True},
    "names": {"type": "list", "elements": "str", "required": True},
    "site": {"type": "str", "default": "site"},
    "ca_certificate": {"type": "path", "default": ""},
    "ca_key": {"type": "path", "default": ""},
    "tls": {"type": "bool", "default": True},
    "users": {"type": "list", "elements": "str", "default": []},
}


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    module.fail_json(
        msg="registry_trust runs on the controller as an action plugin; use the full name myriad.gpu.registry_trust"
    )


if __name__ == "__main__":
    main()
