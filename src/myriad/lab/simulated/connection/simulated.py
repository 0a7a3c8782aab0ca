"""Connection plugin `simulated`: answers like a host, and takes the time that one takes."""

from __future__ import annotations

import ast
import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.connection import ConnectionBase
from ansible_collections.myriad.gpu.plugins.plugin_utils import kept_code  # type: ignore[import-untyped]

from myriad.lab.simulated import answers, host

DOCUMENTATION = r"""
name: simulated
short_description: Hosts that are files
description:
  - Takes what ansible would send over SSH, and answers what a node would say (C(myriad.lab.simulated)).
  - A host that is dead costs the time of a connection that is not made, and then fails as SSH does.
options:
  folder:
    description: Folder with the hosts.
    type: path
    required: true
    env: [{name: MYRIAD_SIMULATED}]
  answer_s:
    description: Seconds from sending a module to its answer; what a module of this collection takes on a node.
    type: float
    default: 0.15
    env: [{name: MYRIAD_SIMULATED_ANSWER_S}]
  connect_timeout_s:
    description: Seconds until a host that is dead is given up.
    type: float
    default: 10
    env: [{name: MYRIAD_SIMULATED_TIMEOUT_S}]
"""

#: How what the collection sends ends: the call of the half that runs on the node.
CALL = b"\n\nmain(\n"
WORD = re.compile(rb"^    (\w+)=(.*?),?$", re.DOTALL | re.MULTILINE)


class Connection(ConnectionBase):  # type: ignore[misc]  # ansible-core is untyped
    """See DOCUMENTATION."""

    transport = "simulated"
    has_pipelining = True

    def _address(self) -> str:
        return str(self._play_context.remote_addr)

    def _connect(self) -> Connection:
        self._connected = True
        return self

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> tuple[int, bytes, bytes]:
        """Run a module, or a shell command that ansible itself needs, of which there are none with pipelining."""
        folder = Path(self.get_option("folder"))
        machine = host.load(folder, self._address())
        if machine.dead:
            time.sleep(self.get_option("connect_timeout_s"))
            raise AnsibleConnectionFailure(
                f"Failed to connect to the host via ssh: ssh: connect to host {self._address()} port 22: "
                "Connection timed out"
            )
        time.sleep(self.get_option("answer_s"))
        if in_data is None:
            raise AnsibleError(f"a simulated host takes modules over the pipe, not {cmd!r}")
        result = self._answered(machine, in_data, folder)
        host.save(folder, machine)
        return (1 if result.get("failed") else 0), json.dumps(result).encode(), b""

    def _answered(self, machine: host.SimulatedHost, payload: bytes, folder: Path) -> dict[str, Any]:
        call = kept_call(payload)
        if call is None:
            whole = kept_code.taken_apart(payload)
            if whole is None:
                raise AnsibleError("a simulated host does not know the shape of what was sent")
            return self._run(machine, whole["module_fqn"], whole["params"], folder)
        kept = machine.code.setdefault(call["key"], [])
        if call["packed"] is not None and call["module"] not in kept:
            kept.append(call["module"])
        if machine.adopts and call["module"] not in kept:
            # Its last run was with this code: it has it.
            kept.append(call["module"])
        if call["module"] not in kept:
            return {"changed": False, "myriad_code": "lacking"}
        return self._run(machine, call["module"], call["arguments"], folder)

    def _run(self, machine: host.SimulatedHost, module: str, parameters: str, folder: Path) -> dict[str, Any]:
        arguments = json.loads(parameters)["ANSIBLE_MODULE_ARGS"]
        admin = folder / "admin.conf"
        try:
            return answers.answer(
                module.rpartition(".")[2],
                arguments,
                machine,
                admin_conf=admin.read_text(encoding="utf-8") if admin.exists() else "",
            )
        except answers.UnknownModuleError as error:
            raise AnsibleError(str(error)) from error

    def put_file(self, in_path: str, out_path: str) -> None:
        """A file lands on the host: its arrival is all that is kept."""
        folder = Path(self.get_option("folder"))
        machine = host.load(folder, self._address())
        machine.paths.append(out_path)
        host.save(folder, machine)

    def fetch_file(self, in_path: str, out_path: str) -> None:
        """Bring the administrator's kubeconfig, the one file that is fetched."""
        shutil.copyfile(Path(self.get_option("folder")) / Path(in_path).name, out_path)

    def close(self) -> None:
        """Nothing is open."""
        self._connected = False


def kept_call(payload: bytes) -> dict[str, Any] | None:
    """The arguments with which the node's half of kept code is called; None where something else was sent."""
    start = payload.rfind(CALL)
    if start < 0 or not payload.endswith(b",\n)\n"):
        return None
    found = {key.decode(): value for key, value in WORD.findall(payload[start + len(CALL) :])}
    if {"key", "module", "arguments", "profile", "packed"} - set(found):
        return None
    return {key: ast.literal_eval(value.decode()) for key, value in found.items()}
