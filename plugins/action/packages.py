"""Adds to packages what only the controller knows: the run and the role; the verdict becomes a fact of the host."""

from __future__ import annotations

from typing import Any

from ansible_collections.myriad.gpu.plugins.plugin_utils import run_context
from ansible_collections.myriad.gpu.plugins.plugin_utils.kept_code import NodeAction


class ActionModule(NodeAction):
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        task_vars = task_vars or {}
        result: dict[str, Any] = super().run(tmp, task_vars)
        module_args = dict(self._task.args)
        module_args["run_id"] = run_context.run_id()
        module_args["role"] = run_context.role_name(self._task, module_args)
        result.update(self._execute_module("myriad.gpu.packages", module_args=module_args, task_vars=task_vars))
        if not result.get("failed"):
            known = (task_vars.get("ansible_facts") or {}).get("myriad_reboot_required") or {}
            reasons = result.get("reboot_required") or []
            # The end of a site run shows it; nobody reboots here.
            result["ansible_facts"] = {"myriad_reboot_required": {**known, module_args["role"]: reasons}}
        return result
