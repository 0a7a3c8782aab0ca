"""Adds to node_state what only the controller knows: the run, the role, predictions, digests of the inputs, groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.myriad.gpu.plugins.plugin_utils import inputs, run_context
from ansible_collections.myriad.gpu.plugins.plugin_utils.kept_code import NodeAction

#: Options of a look that the controller answers for.
OWN = ("inputs", "parts", "groups")


class ActionModule(NodeAction):
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        task_vars = task_vars or {}
        result: dict[str, Any] = super().run(tmp, task_vars)
        args = dict(self._task.args)
        module_args = {key: value for key, value in args.items() if key not in OWN}
        state = args.get("state", "present")
        host = run_context.target_host(self._task, task_vars)
        module_args["run_id"] = run_context.run_id()
        if state == "present":
            module_args["role"] = run_context.role_name(self._task, args)
            if self._task.check_mode:
                module_args["predicted"] = run_context.predictions(host)
        elif state == "check":
            module_args["inputs_hash"] = inputs.node_digest(task_vars, args)
            module_args["parts_hash"] = inputs.part_digests(args.get("parts") or {})
        elif state == "converged":
            # As it was at the first task of the run: what tasks registered since then is no input.
            known = (task_vars.get("ansible_facts") or {}).get("myriad_node") or {}
            module_args["inputs_hash"] = known.get("inputs_hash", "")
            module_args["parts_hash"] = known.get("parts_hash") or {}
            module_args["complete"] = run_context.is_complete()
        result.update(self._execute_module("myriad.gpu.node_state", module_args=module_args, task_vars=task_vars))
        if state == "check" and args.get("groups") and not result.get("failed"):
            result.update(_grouped(result, args["groups"], full=boolean(args.get("full") or False)))
        return result


def _grouped(result: Mapping[str, Any], groups: Mapping[str, Any], *, full: bool) -> dict[str, Any]:
    """The group that a host goes to, in the form of group_by's result: a task of its own would cost a fork a host.

    One that has converged goes to none: adding it costs ansible a walk over the whole inventory.
    """
    parts = sorted({str(entry["item"]) for entry in result.get("drift") or [] if entry.get("kind") == "part"})
    if full or any(entry.get("kind") != "part" for entry in result.get("drift") or []):
        return {
            "add_group": str(groups["differs"]),
            "parent_groups": [str(name) for name in groups.get("parents") or []],
        }
    if parts:
        names = [f"{groups['part']}_{name}" for name in parts]
        return {"add_group": "_".join([str(groups["part"]), "only", *parts]), "parent_groups": names}
    return {}
