"""Adds to node_state what only the controller knows: the run, the role, predictions, the digest of the inputs."""

from __future__ import annotations

from typing import Any

from ansible_collections.myriad.gpu.plugins.plugin_utils import inputs, run_context
from ansible_collections.myriad.gpu.plugins.plugin_utils.kept_code import NodeAction


class ActionModule(NodeAction):
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        task_vars = task_vars or {}
        result: dict[str, Any] = super().run(tmp, task_vars)
        module_args = dict(self._task.args)
        state = module_args.get("state", "present")
        host = run_context.target_host(self._task, task_vars)
        module_args["run_id"] = run_context.run_id()
        if state == "present":
            module_args["role"] = run_context.role_name(self._task, module_args)
            if self._task.check_mode:
                module_args["predicted"] = run_context.predictions(host)
        elif state == "check":
            module_args["inputs_hash"] = inputs.run_digest(task_vars, module_args)
            module_args.pop("inputs", None)
        elif state == "converged":
            # As it was at the first task of the run: what tasks registered since then is no input.
            known = (task_vars.get("ansible_facts") or {}).get("myriad_node") or {}
            module_args["inputs_hash"] = known.get("inputs_hash", "")
            module_args["complete"] = run_context.is_complete()
        result.update(self._execute_module("myriad.gpu.node_state", module_args=module_args, task_vars=task_vars))
        return result
