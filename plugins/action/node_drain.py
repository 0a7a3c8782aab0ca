"""Drains nodes from the controller, in the worker itself. What happens is in `myriad.kube.drain`."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.myriad.gpu.plugins.module_utils.drain_options import ARGUMENTS
from ansible_collections.myriad.gpu.plugins.plugin_utils.controller import told_by_myriad


class ActionModule(ActionBase):
    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(argument_spec=ARGUMENTS)
        with told_by_myriad():
            result.update(self._carry_out(args))
        return result

    def _carry_out(self, args: dict[str, Any]) -> dict[str, Any]:
        from myriad.kube import drain as engine
        from myriad.kube.client import connect
        from myriad.kube.kinds import NODES
        from myriad.scheduler.notices.farewell import Farewell

        nodes = [str(name) for name in args["nodes"]]
        check, state = bool(self._task.check_mode), args["state"]
        api = connect(args["kubeconfig"])
        options = engine.DrainOptions(
            by=args["by"], reason=args["reason"], deadline_s=float(args["deadline_s"]), unmanaged=args["unmanaged"]
        )
        if state in ("cordoned", "undrained"):
            if check:
                known = {node["metadata"]["name"]: node for node in api.list(NODES)[0]}
                found = [known[name] for name in nodes if name in known]
                changes = {
                    node["metadata"]["name"]: engine.release_patch(node, options.by)
                    if state == "undrained"
                    else engine.cordon_patch(node, options.by, options.reason, "")
                    for node in found
                }
                changed = [name for name, body in changes.items() if body]
            elif state == "undrained":
                changed = engine.release(api, nodes, by=options.by)
            else:
                changed = engine.cordon(api, nodes, by=options.by, reason=options.reason)
            return {"changed": bool(changed), "changed_items": changed}
        if check or state == "asked":
            foreseen, changed = engine.preflight(api, nodes, options), []
            if state == "drained":
                if foreseen.blockers:
                    raise engine.blocked(foreseen.blockers, nodes)
                changed = [
                    name for name in nodes if not _is_ours(api.get(NODES, name), options.by) or foreseen.pods[name]
                ]
        else:
            farewell = Farewell(
                api, by=options.by, reason=options.reason, notice_s=float(args["notice_s"]), say=self._display.v
            )
            foreseen, changed = engine.drain(api, nodes, options, say=self._display.v, farewell=farewell)
            changed = sorted({*changed, *(name for name in nodes if foreseen.pods[name])})
        return {"changed": bool(changed), "changed_items": changed, **foreseen.as_dict()}


def _is_ours(node: dict[str, Any], by: str) -> bool:
    from myriad.kube.drain import Cordon

    found = Cordon.of(node)
    return found is not None and found.by == by
