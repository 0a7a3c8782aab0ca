"""The half of node_reboot that runs on the controller: the plan, and bringing one node through its reboot.

What happens is in `myriad.kube.reboot`; here are the connection to the host and ansible's words for the outcome.
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.myriad.gpu.plugins.module_utils.reboot_options import ARGUMENTS, LOOK
from ansible_collections.myriad.gpu.plugins.plugin_utils.controller import told_of_a_host

# The same as reboot_reasons.boot_id, for a host that may not even have Python's folders yet.
BOOT = "cat /proc/sys/kernel/random/boot_id && sed 's/.*) //' /proc/1/stat | cut -d' ' -f20"
CONNECT_TIMEOUT_S = 10
COMMAND_TIMEOUT_S = 300


class ActionModule(ActionBase):
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        task_vars = task_vars or {}
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(argument_spec=ARGUMENTS)
        with told_of_a_host(result):
            if args["state"] == "looked":
                result.update(self._looked(args, task_vars))
            elif args["state"] == "planned":
                result.update(self._planned(args))
            else:
                result.update(self._rebooted(args, task_vars))
        return result

    def _looked(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        from myriad.kube.client import connect
        from myriad.kube.kinds import NODES
        from myriad.kube.reboot import Mark

        options = {key: args[key] for key in ("state", *LOOK)}
        try:
            return self._execute_module("myriad.gpu.node_reboot", module_args=options, task_vars=task_vars)
        except AnsibleConnectionFailure:
            # A host that a killed run sent down is waited for, not given up.
            node = connect(args["kubeconfig"]).find(NODES, task_vars["inventory_hostname"])
            if node is None or Mark.of(node) is None:
                raise
            return {"changed": False, "boot": "", "kernel": "", "reasons": []}

    def _planned(self, args: dict[str, Any]) -> dict[str, Any]:
        from myriad.kube.client import connect
        from myriad.kube.drain import gangs_of, pod_view
        from myriad.kube.kinds import NODES, PODS
        from myriad.kube.reboot import Rules, candidate, plan

        api = connect(args["kubeconfig"])
        nodes = {node["metadata"]["name"]: node for node in api.list(NODES)[0]}
        candidates = [
            candidate(str(name), [str(reason) for reason in look.get("reasons") or []], nodes.get(str(name)))
            for name, look in args["looks"].items()
        ]
        rules = Rules(force=args["force"], batch=args["batch"], per_rack=args["per_rack"], gangs=args["gangs"])
        found = plan(candidates, gangs_of(pod_view(pod) for pod in api.list(PODS)[0]), rules)
        self._display.display(found.text())
        return {"changed": False, "plan": found.text(), **found.as_dict()}

    def _rebooted(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        from myriad.kube.client import connect
        from myriad.kube.reboot import Waits, reboot

        name = str(task_vars["inventory_hostname"])
        if self._task.check_mode:
            return {"changed": True, "changed_items": [name]}
        waits = Waits(reboot_s=args["reboot_timeout_s"], ready_s=args["ready_timeout_s"], gate_s=args["gate_timeout_s"])
        api = connect(args["kubeconfig"])
        is_new = reboot(api, name, _Host(self, args), args["reasons"], waits=waits, say=self._display.display)
        return {"changed": True, "changed_items": [name], "rebooted": is_new}


class _Host:
    """The host of the task, over its connection."""

    def __init__(self, action: ActionModule, args: dict[str, Any]) -> None:
        self._action = action
        self._command: list[str] = args["command"]
        self._controller_command: list[str] = args["controller_command"]
        for option, value in (("timeout", CONNECT_TIMEOUT_S), ("reconnection_retries", 0)):
            # Not every kind of connection knows both.
            with contextlib.suppress(KeyError, AnsibleError):
                action._connection.set_option(option, value)

    def boot(self) -> str | None:
        try:
            done = self._action._low_level_execute_command(BOOT)
        except AnsibleConnectionFailure:
            # The connection that is kept open belongs to the boot that has ended.
            self._action._connection.reset()
            return None
        words = done["stdout"].split()
        return ".".join(words[-2:]) if done["rc"] == 0 and len(words) >= 2 else None

    def reboot(self) -> None:
        from myriad.errors import MyriadError

        if self._controller_command:
            command = [str(word) for word in self._controller_command]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise MyriadError(f"`{shlex.join(command)}` on the controller failed: {error}") from error
            if done.returncode:
                raise MyriadError(
                    f"`{shlex.join(command)}` on the controller ended with {done.returncode}: "
                    f"{(done.stderr or done.stdout).strip()[-300:]}",
                    hint="repair that and run the same command again",
                )
            return
        text = shlex.join(str(word) for word in self._command)
        try:
            answer = self._action._low_level_execute_command(text)
        except AnsibleConnectionFailure:
            return  # it went down before it could answer
        # ssh ends with 255 when the host closes the connection under it.
        if answer["rc"] not in (0, 255) and answer["rc"] >= 0:
            raise MyriadError(
                f"`{text}` ended with {answer['rc']}: {(answer['stderr'] or answer['stdout']).strip()[-300:]}",
                hint="repair that and run the same command again",
            )
