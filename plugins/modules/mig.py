#!/usr/bin/python
"""Cuts the GPUs of a node by MIG, proves it, and puts everything back when it fails."""

from __future__ import annotations

DOCUMENTATION = r"""
module: mig
short_description: The MIG layout of a node's GPUs
description:
  - Makes the GPUs of a node what I(layouts) says and reads the layout back. Success is reported only when every slice is there.
  - A change needs a node without running GPU pods. GPU clients are stopped with a deadline and started again.
  - On any failure every GPU that was touched is put back to what it was, the clients are started, and the reason is said.
  - A mode that needs a reboot stays pending; the result says C(reboot_required) and the task fails unless I(reboot_allowed).
  - The layout is recorded, so that M(myriad.gpu.node_state) finds drift from it.
options:
  state:
    description: C(check) compares, C(plan) says what C(present) would do; both change nothing.
    type: str
    choices: [present, check, plan]
    default: present
  layouts:
    description: Profiles by GPU index, in the order in which they are made. An empty list is a whole card. GPUs that are not named are left alone.
    type: dict
    required: true
  drained:
    description: Whether the caller has drained the node. Running GPU pods are refused either way; this decides what the refusal says.
    type: bool
    default: false
  reboot_allowed:
    description: A pending mode is a result instead of an error; the caller reboots.
    type: bool
    default: false
  client_units:
    description: Units that use the GPUs, in the order in which they are stopped. Those that do not run are passed over.
    type: list
    elements: str
    default: []
  client_pods:
    description: Beginnings of names of pods of the node that use the GPUs without asking the kubelet for them (device plugin, exporters). The kubelet starts them again.
    type: list
    elements: str
    default: []
  refresh_units:
    description: Units that describe the GPUs to others, as for CDI. Those that are active are run again after a change, before the clients start.
    type: list
    elements: str
    default: []
  deadline_s:
    description: Seconds in which all clients have to stop.
    type: int
    default: 60
  nvidia_smi:
    description: The program.
    type: path
    default: /usr/bin/nvidia-smi
extends_documentation_fragment: [myriad.gpu.state]
author: The developers of Myriad
"""

EXAMPLES = r"""
- name: Seven slices on the first GPU, two on the second, the others whole
  myriad.gpu.mig:
    layouts: {"0": [1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb], "1": [3g.40gb, 3g.40gb]}
    client_units: [kubelet.service, nvidia-dcgm.service]
    client_pods: [myriad-device-plugin]
    drained: true
"""

RETURN = r"""
plan:
  description: What a change touches, as change, reset, recut, untouched (GPU indices), pods, and lines for people.
  returned: always
  type: dict
differences:
  description: What is not as the layout says, as sentences.
  returned: state is check
  type: list
  elements: str
reboot_required:
  description: GPUs whose mode waits for a reboot.
  returned: state is present
  type: list
  elements: int
"""

import hashlib
import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.myriad.gpu.plugins.module_utils import busy, mig
from ansible_collections.myriad.gpu.plugins.module_utils.record import (
    STATE_OPTIONS,
    Record,
    RecordError,
    below,
    write_atomic,
)

ARGUMENTS = dict(
    STATE_OPTIONS,
    state={"type": "str", "choices": ["present", "check", "plan"], "default": "present"},
    layouts={"type": "dict", "required": True},
    drained={"type": "bool", "default": False},
    reboot_allowed={"type": "bool", "default": False},
    client_units={"type": "list", "elements": "str", "default": []},
    client_pods={"type": "list", "elements": "str", "default": []},
    refresh_units={"type": "list", "elements": "str", "default": []},
    deadline_s={"type": "int", "default": 60},
    nvidia_smi={"type": "path", "default": "/usr/bin/nvidia-smi"},
)


def refusal(planned, drained):
    """Why a node with GPU pods is left as it is."""
    pods = ", ".join(planned["pods"])
    gpus = mig.numbers(planned["change"])
    if drained:
        return (
            f"the node was drained, and GPU pods still run on it: {pods}. Nothing was changed on GPU {gpus}. "
            "Wait for them to end or delete them, then run again"
        )
    return (
        f"GPU {gpus} would be cut anew, and GPU pods run on this node: {pods}. Nothing was changed. Drain it "
        "(kubectl drain NODE --ignore-daemonsets), then run again with mig_drained=true"
    )


def write_config(params, wanted):
    """Write what the unit applies at boot; returns its digest and whether it changed."""
    content = mig.dump(
        wanted,
        params["client_units"],
        params["client_pods"],
        params["refresh_units"],
        params["deadline_s"],
        params["nvidia_smi"],
    )
    path = below(params["root"], mig.CONFIG)
    try:
        with open(path, "rb") as stream:
            is_same = stream.read() == content
    except FileNotFoundError:
        is_same = False
    if not is_same:
        write_atomic(path, content, 0o644)
    return hashlib.sha256(content).hexdigest(), not is_same


def present(params, check_mode):
    """Bring the layout about; returns the result or raises MigFault."""
    wanted = {int(index): [str(name) for name in profiles or []] for index, profiles in params["layouts"].items()}
    driver = mig.Driver(params["nvidia_smi"])
    gpus = driver.read()
    holders = [str(holder) for holder in busy.holders(params["root"])]
    planned = mig.plan(wanted, gpus, holders)
    result = {"changed": bool(planned["change"]), "plan": planned, "reboot_required": []}
    if planned["change"]:
        before = "".join(f"GPU {index}: {gpus[index].text}\n" for index in sorted(wanted))
        after = "".join(f"GPU {index}: {mig.described(wanted[index])}\n" for index in sorted(wanted))
        result["diff"] = [
            {"before": before, "after": after, "before_header": "MIG", "after_header": "MIG"},
            {"prepared": "\n".join(planned["lines"]) + "\n"},
        ]
    if params["state"] == "check":
        result["changed"] = False
        result["differences"] = mig.check(driver, wanted)
        return result
    if params["state"] == "plan":
        result["changed"] = False
        return result

    def guard():
        planned["pods"] = [str(holder) for holder in busy.holders(params["root"])]
        if planned["pods"]:
            raise mig.MigFault(refusal(planned, params["drained"]))

    if planned["change"]:
        guard()
    if check_mode:
        return result
    record = Record(below(params["root"], params["state_dir"]), params["role"] or "mig", params["run_id"])
    if planned["change"]:
        record.begin_change()
        clients = mig.Clients(
            params["client_units"], params["client_pods"], params["refresh_units"], params["deadline_s"]
        )
        try:
            mig.apply(driver, wanted, clients, gpus, guard)
        except mig.MigFault as fault:
            if fault.reboot:
                write_config(params, wanted)  # The unit finishes at boot.
            if not (fault.reboot and params["reboot_allowed"]):
                raise
            result["reboot_required"] = fault.reboot
            result["msg"] = fault.text
    digest, written = write_config(params, wanted)
    result["changed"] = result["changed"] or written
    record.put("checks", {"name": "MIG layout", "command": [mig.PROGRAM, "check", digest]})
    record.put("data", {"path": os.path.dirname(mig.CONFIG)})
    record.save()
    return result


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        module.exit_json(**present(module.params, module.check_mode))
    except mig.MigFault as fault:
        module.fail_json(msg=fault.text, reboot_required=fault.reboot)
    except (RecordError, ValueError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
