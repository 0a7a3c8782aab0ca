"""Compares a cluster with what the last complete run applied to it, or records that; on the controller itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.plugins.action import ActionBase
from ansible_collections.myriad.gpu.plugins.module_utils.kube_options import CLUSTER_STATE
from ansible_collections.myriad.gpu.plugins.plugin_utils import inputs, run_context
from ansible_collections.myriad.gpu.plugins.plugin_utils.controller import told_by_myriad

if TYPE_CHECKING:
    from myriad.kube.record import Look

UNKNOWN = "the run was not a complete one, so the cluster is looked at again next time"


class ActionModule(ActionBase):
    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        task_vars = task_vars or {}
        result: dict[str, Any] = super().run(tmp, task_vars)
        given = self._task.args.pop("inputs", None)
        _validation, args = self.validate_argument_spec(argument_spec=CLUSTER_STATE)
        with told_by_myriad():
            if args["state"] == "check":
                digest = inputs.run_digest(task_vars, {**args, "inputs": given})
                result.update(changed=False, **self._look(args, digest))
            elif args["state"] == "by_hand":
                result.update(changed=False, **self._by_hand(args))
            else:
                result.update(changed=False, **self._record(args, task_vars))
        return result

    def _look(self, args: dict[str, Any], digest: str) -> dict[str, Any]:
        from myriad.kube.client import ClusterUnreachableError, connect
        from myriad.kube.objects import Identity
        from myriad.kube.record import Look, look

        if args["full"]:
            found = Look(["everything was asked to be looked at"])
            return self._looked(found, digest)
        ready = [Identity(item["api_version"], item["kind"], item["namespace"], item["name"]) for item in args["ready"]]
        if args["kubeconfig"] and not Path(args["kubeconfig"]).exists():
            found = Look([f"there is no cluster yet ({args['kubeconfig']} does not exist)"])
        else:
            try:
                found = look(connect(args["kubeconfig"]), digest, ready)
            except ClusterUnreachableError as error:
                found = Look([error.message])
        return self._looked(found, digest)

    @staticmethod
    def _looked(found: Look, digest: str) -> dict[str, Any]:
        # As the inputs are at the first task of the run: what tasks register later is no input.
        facts = {"myriad_cluster": {"inputs_hash": digest, "converged": found.converged}}
        return {"converged": found.converged, "drift": found.drift, "ansible_facts": facts}

    @staticmethod
    def _by_hand(args: dict[str, Any]) -> dict[str, Any]:
        from myriad.drift.read import look
        from myriad.kube.client import connect

        locked = {str(name): str(version) for name, version in args["versions"].items()}
        found, notes = look(connect(args["kubeconfig"]), [str(name) for name in args["nodes"]], locked)
        return {"drift": found, "notes": notes}

    def _record(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        from myriad.kube.client import connect
        from myriad.kube.record import Applied, save

        known = (task_vars.get("ansible_facts") or {}).get("myriad_cluster") or {}
        digest = known.get("inputs_hash", "")
        applied = [Applied(*entry[1:]) for entry in run_context.applied() if entry[0] == args["kubeconfig"]]
        if not (run_context.is_complete() and digest and applied):
            return {"recorded": False, "notes": [UNKNOWN]}
        if not self._task.check_mode:
            save(connect(args["kubeconfig"]), digest, applied)
        return {"recorded": True, "notes": []}
