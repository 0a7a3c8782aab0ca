"""Takes nodes out of the cluster, from the controller. What happens is in `myriad.kube.membership`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.myriad.gpu.plugins.module_utils.cluster_node_options import ARGUMENTS
from ansible_collections.myriad.gpu.plugins.plugin_utils.controller import told_by_myriad


class ActionModule(ActionBase):
    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(argument_spec=ARGUMENTS)
        with told_by_myriad():
            _one_by_one([str(name) for name in args["nodes"]], (task_vars or {}).get("groups") or {})
            result.update(self._carry_out(args))
        for note in result.get("notes") or []:
            self._display.display(note)
        return result

    def _carry_out(self, args: dict[str, Any]) -> dict[str, Any]:
        from myriad.kube import membership
        from myriad.kube.client import ClusterUnreachableError, connect

        kubeconfig, check = args["kubeconfig"], bool(self._task.check_mode)
        names = [str(name) for name in args["nodes"]]
        wanted = {str(name): str(value or "") for name, value in args["machines"].items()}
        nothing = {"changed": False, "changed_items": [], **membership.as_dict(membership.Forgotten())}
        if args["state"] == "replaced" and kubeconfig and not Path(kubeconfig).exists():
            return nothing
        api = connect(kubeconfig)
        if args["state"] == "known":
            found = membership.machines(api, names)
            alive = [one.name for one in found if one.alive]
            return {"changed": False, "changed_items": [], "nodes": [one.name for one in found], "alive": alive}
        try:
            if args["state"] == "replaced":
                done = membership.replaced(api, wanted, dry_run=check)
            else:
                done = membership.forget(api, names, dry_run=check)
        except ClusterUnreachableError:
            # A prediction comes before the control plane that the run would make.
            if check and args["state"] == "replaced":
                return nothing
            raise
        items = [f"Node {name} taken out" for name in sorted(done.nodes)]
        return {"changed": bool(items), "changed_items": items, **membership.as_dict(done)}


def _one_by_one(names: list[str], groups: dict[str, Any]) -> None:
    """Refuse groups and patterns: the plays that follow would take `all` for every host of the site, and reset it.

    Raises:
        MyriadError: one is not the name of one machine.
    """
    from myriad.errors import MyriadError
    from myriad.fleet.names import several_fault

    hosts = set(groups.get("all") or ())
    # An empty name comes of a comma at the end.
    faults = [fault for name in filter(None, names) if (fault := several_fault(name, hosts, groups)) is not None]
    if faults:
        raise MyriadError(
            f"{'; '.join(faults)}: nodes are named one by one, with commas. Nothing was touched",
            hint="for example gpu0042,gpu0043, as they stand in the inventory",
        )
