"""Adds to node_state what only the controller knows: the run, the role, predictions, the digest of the inputs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ansible import constants as C
from ansible import context
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
            module_args["inputs_hash"] = self._inputs_hash(module_args, task_vars)
            module_args.pop("inputs", None)
        elif state == "converged":
            # As it was at the first task of the run: what tasks registered since then is no input.
            known = (task_vars.get("ansible_facts") or {}).get("myriad_node") or {}
            module_args["inputs_hash"] = known.get("inputs_hash", "")
            module_args["complete"] = _is_complete()
        result.update(self._execute_module("myriad.gpu.node_state", module_args=module_args, task_vars=task_vars))
        return result

    def _inputs_hash(self, args: dict[str, Any], task_vars: dict[str, Any]) -> str:
        digest = hashlib.sha256()
        digest.update(inputs.host_digest(task_vars, set(args.get("ignore_vars") or ["site_full"])).encode())
        digest.update(inputs.collection_digest(Path(C.DEFAULT_LOCAL_TMP)).encode())
        digest.update(inputs.bundle_digest(args.get("bundle"), Path(C.DEFAULT_LOCAL_TMP)).encode())
        digest.update(json.dumps(inputs.canonical(args.get("inputs")), sort_keys=True).encode())
        return digest.hexdigest()


def _is_complete() -> bool:
    """Whether the command line takes every task."""
    flags = context.CLIARGS
    tags = set(flags.get("tags") or ())
    return not (flags.get("skip_tags") or flags.get("start_at_task") or tags - {"all"})
