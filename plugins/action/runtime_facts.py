"""Decides on the controller what becomes of the runtimes that the module found."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ansible_collections.myriad.gpu.plugins.plugin_utils.kept_code import NodeAction
from myriad.fleet import runtime_config


class ActionModule(NodeAction):
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        task_vars = task_vars or {}
        result: dict[str, Any] = super().run(tmp, task_vars)
        module_args = {
            **self._task.args,
            "units": list(runtime_config.UNITS),
            "sockets": list(runtime_config.SOCKETS),
        }
        result.update(self._execute_module("myriad.gpu.runtime_facts", module_args=module_args, task_vars=task_vars))
        if result.get("failed"):
            return result
        decision = runtime_config.decide(result["runtime"], module_args.get("existing", "refuse"))
        result["decision"] = {**asdict(decision), "stop": list(decision.stop), "refusals": list(decision.refusals)}
        if decision.refusals:
            result.update(failed=True, msg="\n".join([*decision.refusals, "Nothing was changed."]))
        return result
