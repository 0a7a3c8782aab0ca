#!/usr/bin/python
"""Runs one of Myriad's own programs on a host and gives its answer as data."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_program
short_description: The answer of one of Myriad's own programs on a host
description:
  - Programs that roles install below /usr/local/lib/myriad do what belongs to one host, also without Ansible (at boot, by a timer). They print one
    JSON document as their last line; its key C(changed) says whether something was changed.
  - In check mode nothing is run, unless the task says C(check_mode) false.
options:
  name:
    description: Name of the program, or the path of another one.
    type: str
    required: true
  arguments:
    description: Its arguments.
    type: list
    elements: str
    default: []
  accept:
    description: Exit codes that are no failure.
    type: list
    elements: int
    default: [0]
  missing_ok:
    description: Whether a host without the program answers nothing. Otherwise that is a failure.
    type: bool
    default: false
author: The developers of Myriad
"""

EXAMPLES = r"""
- name: An archive on this host
  myriad.gpu.host_program:
    name: etcd-backup
    arguments: [take]
"""

RETURN = r"""
answer:
  description: The last line that was printed, as data. Empty where it is no JSON document.
  returned: always
  type: dict
stdout:
  description: All that was printed.
  returned: always
  type: str
rc:
  description: Exit code.
  returned: when it was run
  type: int
"""

import json
import os

from ansible.module_utils.basic import AnsibleModule

FOLDER = "/usr/local/lib/myriad"

ARGUMENTS = {
    "name": {"type": "str", "required": True},
    "arguments": {"type": "list", "elements": "str", "default": []},
    "accept": {"type": "list", "elements": "int", "default": [0]},
    "missing_ok": {"type": "bool", "default": False},
}


def answer_of(text):
    """The last line as a dict; empty where it is none."""
    lines = text.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    path = os.path.join(FOLDER, module.params["name"])
    nothing = {"changed": False, "answer": {}, "stdout": ""}
    if module.check_mode:
        module.exit_json(**nothing)
    if not os.path.exists(path):
        if module.params["missing_ok"]:
            module.exit_json(**nothing)
        module.fail_json(msg=f"{path} is not on this host: run the site on it first", **nothing)
    rc, out, err = module.run_command([path, *module.params["arguments"]])
    answer = answer_of(out)
    result = {"changed": bool(answer.get("changed")), "answer": answer, "stdout": out.strip(), "rc": rc}
    if rc not in module.params["accept"]:
        said = err.strip() or out.strip() or f"ended with {rc}"
        module.fail_json(msg="{}: {}".format(module.params["name"], said[-2000:]), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
