"""Adds to mig what only the controller knows: the run and the role under whose name the layout is recorded."""

from __future__ import annotations

from typing import Any

from ansible_collections.myriad.gpu.plugins.plugin_utils import run_context
from ansible_collections.myriad.gpu.plugins.plugin_utils.kept_code import NodeAction


class ActionModule(NodeAction):
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        module_args = dict(self._task.args)
        module_args["run_id"] = run_context.run_id()
        if module_args.get("state", "present") == "present":
            module_args["role"] = run_context.role_name(self._task, module_args)
        result.update(self._execute_module("myriad.gpu.mig", module_args=module_args, task_vars=task_vars or {}))
        return result
