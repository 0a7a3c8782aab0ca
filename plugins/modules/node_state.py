#!/usr/bin/python
"""Brings units, settings and modules of a node to a state, records it, and finds drift from what was recorded."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_state
short_description: Many states of a node in one task, recorded and compared
description:
  - With C(state=present) a role sets units, kernel settings and modules, host name and swap, and records them with packages and images.
  - A unit is restarted only when the content of what it was started with is not what it is now. That is known from a digest recorded at its start,
    so a run that was killed between writing a file and restarting is repaired by the next one.
  - With C(state=check) everything that all roles recorded is compared with the node, in one task. It also gives the few facts that the roles read.
  - With C(state=converged) the inputs of a complete run are recorded. With C(state=absent) what the roles recorded is removed.
options:
  state:
    description: What to do.
    type: str
    choices: [present, check, converged, absent]
    default: present
  units:
    description: Units, in the order in which they are started.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Full name, as C(containerd.service).
        type: str
        required: true
      enabled:
        description: Whether it starts at boot. Left as it is when not given.
        type: bool
      state:
        description: Whether it runs. Left as it is when not given.
        type: str
        choices: [started, stopped]
      masked:
        description: Whether it is masked. A masked unit that is to be started is an error unless this is false.
        type: bool
      restart_on:
        description: Files and directories whose content it reads at its start. Its unit file and drop-ins always count.
        type: list
        elements: path
        default: []
      merged:
        description:
          - A directory whose files its program reads together. Not the files count then but what the program makes of them, so a comment restarts
            nothing. A refusal stops the task before a restart and names the file.
          - When the unit does not come up again, the files with which it last came up are put back, and it is started with them.
        type: dict
        suboptions:
          directory:
            description: The directory.
            type: path
            required: true
          command:
            description: Prints what the program makes of the files.
            type: str
            required: true
      restart:
        description:
          - C(drained) restarts it only while no running pod holds devices of the node (GPUs); it refuses otherwise and names the pods.
          - C(never) leaves a running one as it is and says that a restart is pending.
        type: str
        choices: [always, drained, never]
        default: always
      wait_for:
        description: What answers when it is up.
        type: dict
        suboptions:
          port:
            description: A TCP port.
            type: int
          host:
            description: Host of the port.
            type: str
          socket:
            description: A stream socket.
            type: path
          path:
            description: A path that exists.
            type: path
          url:
            description: An address that answers without an error.
            type: str
          command:
            description: A command that ends well.
            type: str
          timeout_s:
            description: Seconds to wait.
            type: int
            default: 60
      timeout_s:
        description: Seconds to wait for it to be active.
        type: int
        default: 60
  settings:
    description: Kernel settings and their values for the running kernel. The file that sets them at boot is written by M(myriad.gpu.files).
    type: dict
    default: {}
  settings_optional:
    description: Settings that may be absent or read-only (in a container).
    type: list
    elements: str
    default: []
  kernel_modules:
    description: Modules that are loaded or built in.
    type: list
    elements: str
    default: []
  kernel_modules_optional:
    description: Those of them that may be missing.
    type: list
    elements: str
    default: []
  packages:
    description: Packages whose installed version is recorded. Installing is another task's.
    type: list
    elements: str
    default: []
  images:
    description: Images that the container runtime must have; what is missing is pulled.
    type: list
    elements: dict
    default: []
    suboptions:
      ref:
        description: Reference, with registry and tag.
        type: str
        required: true
      digest:
        description: Digest, as C(sha256:<hex>).
        type: str
  hostname:
    description: Name of the host.
    type: str
  swap:
    description: C(off) turns swap off and takes it out of fstab.
    type: raw
  data:
    description: Directories in which the role's programs keep data. They are removed with C(state=absent), what is mounted below them first.
    type: list
    elements: path
    default: []
  full:
    description: With C(state=check), read artifacts instead of trusting size, times and inode.
    type: bool
    default: false
  by_hand:
    description:
      - With C(state=check), look further than the records - at what kubeadm wrote, at files that somebody put where a program reads all of them, at settings
        that another file would change at the next boot - and tell who changed a package and when a file was written.
    type: bool
    default: false
  keep:
    description: With C(state=absent), paths, units and roles that stay.
    type: list
    elements: str
    default: []
  inputs:
    description: With C(state=check), further inputs of the host to be compared, of any shape (for example the addresses of its peers).
    type: raw
  parts:
    description:
      - With C(state=check), further inputs that one role alone follows from, by the role's name (for example the addresses of the node's peers).
      - Where nothing else differs, that role alone has to run.
    type: dict
    default: {}
  groups:
    description:
      - With C(state=check), the inventory groups that a host goes to which has not converged. C(differs) with its C(parents), or, where only parts differ,
        C(part) followed by C(_) and each part. One that has converged goes to none.
    type: dict
    default: {}
  ignore_vars:
    description: With C(state=check), variables that are no inputs of the result.
    type: list
    elements: str
    default: [site_full]
  bundle:
    description: With C(state=check), the bundle's folder on the controller; another bundle is another input.
    type: path
  inputs_hash:
    description: Digest of the host's inputs. Filled by the action plugin.
    type: str
    default: ""
  parts_hash:
    description: Digests of the parts. Filled by the action plugin.
    type: dict
    default: {}
  complete:
    description: Whether the run takes all tasks (no tags, no start in the middle). Filled by the action plugin.
    type: bool
    default: false
extends_documentation_fragment: [myriad.gpu.state]
author: The developers of Myriad
"""

EXAMPLES = r"""
- name: Runtime is up
  myriad.gpu.node_state:
    packages: [runc]
    kernel_modules: [overlay, br_netfilter]
    settings: {net.ipv4.ip_forward: "1"}
    units:
      - name: containerd.service
        enabled: true
        state: started
        restart_on: [/usr/local/bin/containerd]
        merged: {directory: /etc/containerd, command: /usr/local/bin/containerd --config /etc/containerd/config.toml config dump}
        restart: drained
        wait_for: {socket: /run/containerd/containerd.sock}
    data: [/var/lib/containerd]

- name: Node as recorded
  myriad.gpu.node_state:
    state: check
    full: "{{ site_full | default(false) }}"
  register: __site_node

- name: Hosts that differ, told apart in the same task
  myriad.gpu.node_state:
    state: check
    parts: {pod_network: "{{ peers }}"}
    groups: {differs: site_plain, parents: [site_work], part: site_part}
  changed_when: false
"""

RETURN = r"""
changed_items:
  description: What was changed, as C(unit containerd.service restarted).
  returned: state is present or absent
  type: list
  elements: str
restarted:
  description: Units that were restarted. C(started), C(stopped), C(enabled), C(disabled) likewise.
  returned: state is present
  type: list
  elements: str
converged:
  description: Whether nothing differs and the inputs are those of the last complete run.
  returned: state is check
  type: bool
drift:
  description: What differs, with role, kind, item, expected and found.
  returned: state is check
  type: list
  elements: dict
removed:
  description: What was removed.
  returned: state is absent
  type: list
  elements: str
leftovers:
  description: What should be gone and is not.
  returned: state is absent
  type: list
  elements: str
kept:
  description: What was recorded and stays, with the reason.
  returned: state is absent
  type: list
  elements: str
"""

import json
import os
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.myriad.gpu.plugins.module_utils import by_hand, host, kernel, packages, units
from ansible_collections.myriad.gpu.plugins.module_utils.drift import Comparison
from ansible_collections.myriad.gpu.plugins.module_utils.present import Present
from ansible_collections.myriad.gpu.plugins.module_utils.record import (
    SITE_FILE,
    STATE_OPTIONS,
    Record,
    RecordError,
    below,
    load,
    load_all,
    write_atomic,
)
from ansible_collections.myriad.gpu.plugins.module_utils.reset import Reset

WAIT_OPTIONS = {
    "port": {"type": "int"},
    "host": {"type": "str"},
    "socket": {"type": "path"},
    "path": {"type": "path"},
    "url": {"type": "str"},
    "command": {"type": "str"},
    "timeout_s": {"type": "int", "default": 60},
}
MERGED_OPTIONS = {
    "directory": {"type": "path", "required": True},
    "command": {"type": "str", "required": True},
}
UNIT_OPTIONS = {
    "name": {"type": "str", "required": True},
    "enabled": {"type": "bool"},
    "state": {"type": "str", "choices": ["started", "stopped"]},
    "masked": {"type": "bool"},
    "restart_on": {"type": "list", "elements": "path", "default": []},
    "merged": {"type": "dict", "options": MERGED_OPTIONS},
    "restart": {"type": "str", "choices": ["always", "drained", "never"], "default": "always"},
    "wait_for": {"type": "dict", "options": WAIT_OPTIONS},
    "timeout_s": {"type": "int", "default": 60},
}
ARGUMENTS = dict(
    STATE_OPTIONS,
    state={"type": "str", "choices": ["present", "check", "converged", "absent"], "default": "present"},
    units={"type": "list", "elements": "dict", "default": [], "options": UNIT_OPTIONS},
    settings={"type": "dict", "default": {}},
    settings_optional={"type": "list", "elements": "str", "default": []},
    kernel_modules={"type": "list", "elements": "str", "default": []},
    kernel_modules_optional={"type": "list", "elements": "str", "default": []},
    packages={"type": "list", "elements": "str", "default": []},
    images={
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {"ref": {"type": "str", "required": True}, "digest": {"type": "str"}},
    },
    hostname={"type": "str"},
    swap={"type": "raw"},
    data={"type": "list", "elements": "path", "default": []},
    full={"type": "bool", "default": False},
    by_hand={"type": "bool", "default": False},
    keep={"type": "list", "elements": "str", "default": []},
    inputs={"type": "raw"},
    ignore_vars={"type": "list", "elements": "str", "default": ["site_full"]},
    bundle={"type": "path"},
    parts={"type": "dict", "default": {}},
    groups={"type": "dict", "default": {}},
    inputs_hash={"type": "str", "default": ""},
    parts_hash={"type": "dict", "default": {}},
    complete={"type": "bool", "default": False},
)


def site_file(params):
    return os.path.join(below(params["root"], params["state_dir"]), SITE_FILE)


def check(params):
    """Compare the node with all records; never changed."""
    records = load_all(below(params["root"], params["state_dir"]))
    site = load(site_file(params))
    drift = Comparison(records, params["root"], params["full"]).run()
    if params.get("by_hand"):
        drift += by_hand.look(records, drift, params["root"])
    if not site:
        drift.append(
            {
                "role": "_site",
                "kind": "site",
                "item": "run",
                "expected": "a complete run",
                "found": "none yet, or one that was broken off",
            }
        )
    elif params["inputs_hash"] and site.get("inputs_hash") != params["inputs_hash"]:
        drift.append(
            {
                "role": "_site",
                "kind": "inputs",
                "item": "inputs",
                "expected": site.get("inputs_hash", ""),
                "found": params["inputs_hash"],
            }
        )
    parts = params.get("parts_hash") or {}
    known = (site or {}).get("parts") or {}
    for name, digest in sorted(parts.items()):
        if site and known.get(name, "") != digest:
            drift.append({"role": name, "kind": "part", "item": name, "expected": known.get(name, ""), "found": digest})
    facts = host.facts(params["root"])
    facts["myriad_node"] = {
        "inputs_hash": params["inputs_hash"],
        "parts_hash": parts,
        "converged": not drift,
        "roles": sorted(records),
        "last_run": site.get("time"),
        "in_cluster": os.path.exists(below(params["root"], "/etc/kubernetes/kubelet.conf")),
        "artifacts": {
            entry["name"]: entry["sha256"] for record in records.values() for entry in record.get("artifacts", ())
        },
        "packages": {
            entry["name"]: entry["version"] for record in records.values() for entry in record.get("packages", ())
        },
    }
    return {"changed": False, "converged": not drift, "drift": drift, "ansible_facts": facts}


def converged(params, check_mode):
    """Record the inputs of a complete run; forget what its roles no longer asked for."""
    if not params["complete"] or not params["inputs_hash"]:
        return {
            "changed": False,
            "recorded": False,
            "notes": ["the run was not a complete one, so the host is looked at again next time"],
        }
    directory = below(params["root"], params["state_dir"])
    if not check_mode:
        for role in load_all(directory):
            record = Record(directory, role, params["run_id"])
            record.prune()
            record.save()
        content = {
            "inputs_hash": params["inputs_hash"],
            "parts": params.get("parts_hash") or {},
            "time": int(time.time()),
            "run": params["run_id"],
        }
        text = json.dumps(content, sort_keys=True)
        write_atomic(site_file(params), text.encode() + b"\n", 0o644)
    return {"changed": False, "recorded": True, "notes": []}


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    params = module.params
    slim = {
        key: value
        for key, value in params.items()
        if value not in (None, [], {}, "") and key not in ("predicted", "inputs", "parts", "groups", "run_id")
    }
    work = None
    try:
        if params["state"] == "check":
            result = check(params)
        elif params["state"] == "converged":
            result = converged(params, module.check_mode)
        elif params["state"] == "absent":
            work = Reset(params, module.check_mode)
            result = work.run()
        else:
            if not params["role"]:
                module.fail_json(
                    msg="no role is named; give the option role, or use the task in a role",
                    invocation={"module_args": slim},
                )
            work = Present(params, module.check_mode)
            result = work.run()
    except (RecordError, LookupError, kernel.SystemFault, packages.PackageError, units.UnitError) as error:
        done = work.result() if work is not None else {}
        done.pop("changed", None)
        module.fail_json(msg=str(error), exception=None, invocation={"module_args": slim}, **done)
    module.exit_json(invocation={"module_args": slim}, **result)


if __name__ == "__main__":
    main()
