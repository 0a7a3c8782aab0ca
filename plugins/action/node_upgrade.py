"""Upgrades from the controller, in the worker itself. What happens is in `myriad.upgrade`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.plugins.action import ActionBase
from ansible_collections.myriad.gpu.plugins.filter.driver import locked_driver_set
from ansible_collections.myriad.gpu.plugins.module_utils.upgrade_options import ARGUMENTS
from ansible_collections.myriad.gpu.plugins.plugin_utils.controller import told_of_a_host

if TYPE_CHECKING:
    from myriad.upgrade.plan import DriverWish, Plan


_AWAY_S = 90.0
"""An upgrade that was killed may have left the only API server in the middle of its exchange."""


class ActionModule(ActionBase):
    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        task_vars = task_vars or {}
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(argument_spec=ARGUMENTS)
        states = {"planned": self._planned, "prepared": self._prepared, "finished": self._finished, "held": self._held}
        from myriad.kube.patience import patient

        with told_of_a_host(result):
            # Each state may be asked for again: what it finds done it leaves.
            result.update(patient(lambda: states[args["state"]](args, task_vars), _AWAY_S, say=self._display.display))
        return result

    def _planned(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        from myriad.kube.client import connect
        from myriad.upgrade.plan import DriverWish, Limits, Look, Target
        from myriad.upgrade.read import planned, refused

        looks = {
            str(name): Look(
                dict(found.get("artifacts") or {}),
                dict(found.get("packages") or {}),
                _driver_of(task_vars["hostvars"][name]) if found.get("packages") else DriverWish(),
            )
            for name, found in args["looks"].items()
        }
        target = Target(
            {str(name): str(version) for name, version in args["versions"].items()},
            {str(name): (str(one["sha256"]), str(one["version"])) for name, one in args["artifacts"].items()},
        )
        found: Plan = planned(
            connect(args["kubeconfig"]),
            looks,
            target,
            {str(name): str(one["digest"]) for name, one in args["images"].items()},
            Limits(batch=args["batch"], per_rack=args["per_rack"], jobs=args["jobs"]),
            control_plane_hosts=[str(name) for name in args["control_plane"]],
            unmanaged=args["unmanaged"],
        )
        self._display.display(found.text())
        if found.refusals and not self._task.check_mode:
            raise refused(found)
        return {
            "changed": False,
            "plan": found.text(),
            "report": {"plan": found.text(), **found.as_dict()},
            **found.as_dict(),
        }

    def _prepared(self, args: dict[str, Any], _task_vars: dict[str, Any]) -> dict[str, Any]:
        """What has to stand before the first host is touched: the way back, and kubeadm's description."""
        from myriad.kube.client import connect
        from myriad.upgrade.kubeadm import describe
        from myriad.upgrade.rollback import SETS, keep, target_of

        api, check = connect(args["kubeconfig"]), bool(self._task.check_mode)
        items = []
        if args["keep"] and not check:
            target = target_of(args["images"])
            kept = [keep(api, name, Path(args["keep"]), target) for name in SETS.values()]
            items += [f"kept {path}" for path in kept if path is not None]
        tags = {name: str(args["images"][name]["tag"]) for name in ("etcd", "coredns")}
        changed = describe(api, etcd=tags["etcd"], coredns=tags["coredns"], dry_run=check)
        if changed:
            items.append(f"etcd {tags['etcd']}, coredns {tags['coredns']} in kubeadm's description")
        return {"changed": changed, "changed_items": items}

    def _finished(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        from myriad.kube.client import connect
        from myriad.upgrade.node import Waits, finish

        name = str(task_vars["inventory_hostname"])
        if self._task.check_mode:
            return {"changed": True, "changed_items": [name]}
        waits = Waits(ready_s=args["ready_timeout_s"], gate_s=args["gate_timeout_s"])
        released = finish(connect(args["kubeconfig"]), name, args["version"], waits=waits, say=self._display.display)
        return {"changed": released, "changed_items": [name] if released else []}

    def _held(self, args: dict[str, Any], _task_vars: dict[str, Any]) -> dict[str, Any]:
        """Nodes whose jobs are waited for take no new ones, or are given back where nobody waits any more."""
        from myriad.kube.client import connect
        from myriad.upgrade.held import hold, let_go

        if self._task.check_mode:
            return {"changed": False, "changed_items": []}
        api = connect(args["kubeconfig"])
        left = {str(name): str(reason) for name, reason in (args["plan"].get("left") or {}).items()}
        changed = hold(api, left) if args["hold"] else let_go(api, left)
        return {"changed": bool(changed), "changed_items": changed, "left": left}


def _driver_of(host: Mapping[str, Any]) -> DriverWish:
    """What the role gpu_driver would want on a host, from the same variables and the role's own defaults."""
    from myriad.upgrade.plan import DriverWish

    facts = host.get("ansible_facts") or {}
    locked = locked_driver_set(
        str(host.get("gpu_driver_channel") or "distribution"),
        str(facts.get("distribution") or ""),
        str(facts.get("distribution_version") or ""),
    )
    versions = host.get("gpu_driver_versions") or locked["versions"]
    return DriverWish(
        str(versions.get("driver") or ""),
        {str(name): str(version) for name, version in (host.get("gpu_driver_packages") or locked["packages"]).items()},
        host.get("gpu_driver_existing") == "replace",
    )
