"""Looks at a host, decides, and has apt simulate exactly what was decided: in two calls where there is work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.myriad.gpu.plugins.plugin_utils.kept_code import NodeAction
from myriad.fleet.driver import DriverPlan, Refusal, plan
from myriad.fleet.driver_repository import REPOSITORY_FILES, preferences

#: Plans that change packages.
CHANGING = ("install", "replace")


class ActionModule(NodeAction):
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        task_vars = task_vars or {}
        result: dict[str, Any] = super().run(tmp, task_vars)
        args = dict(self._task.args)
        want = args.pop("want", None) or {}
        files = dict(args.pop("files", None) or {})
        found = self._execute_module("myriad.gpu.driver_facts", module_args=args, task_vars=task_vars)
        if not want or found.get("failed"):
            result.update(found)
            return result
        # Not asked is not the same as asked and not found: without these keys the plan says nothing about apt.
        look = {key: value for key, value in found["facts"].items() if key not in ("candidates", "simulation")}
        want = own_set(look, want)
        decided = plan(look, want)
        if decided.action in CHANGING and differs(decided.packages, look["installed"], decided.remove):
            found, decided = self._foresee(args, files, want, decided, task_vars)
        if found.get("failed"):
            result.update(found)
            return result
        told = decided.to_dict()
        error = found.get("fetch_error") or ""
        # A signature is believed or nothing is installed; an old index matters when something lacks.
        if error and (decided.action == "refused" or (decided.action in CHANGING and "signing key" in error)):
            told = refused(told, error, args.get("repository", ""))
        result.update(found, plan=told)
        if told["action"] in CHANGING:
            # Said when something is done, not on every run after it.
            result["warnings"] = [*result.get("warnings", ()), *told["warnings"]]
        return result

    def _foresee(
        self,
        args: Mapping[str, Any],
        files: dict[str, str],
        want: Mapping[str, Any],
        decided: DriverPlan,
        task_vars: dict[str, Any],
    ) -> tuple[dict[str, Any], DriverPlan]:
        """The second call: versions that there are, and the simulated transaction."""
        if files:
            files[REPOSITORY_FILES["preferences"]] = preferences(decided.packages)
        call = {
            **args,
            "files": files,
            "names": sorted({*want.get("packages", {}), *decided.packages}),
            "simulate": dict(decided.packages),
            "remove": list(decided.remove),
        }
        found = self._execute_module("myriad.gpu.driver_facts", module_args=call, task_vars=task_vars)
        if found.get("failed"):
            return found, decided
        return found, plan(found["facts"], want)


def own_set(look: Mapping[str, Any], want: Mapping[str, Any]) -> Mapping[str, Any]:
    """A set that this role brought, at the versions that are still locked, is no other's driver: it is put right again.

    Without this a library that was upgraded behind everybody's back would be somebody's existing driver.
    """
    locked = want.get("packages") or {}
    ours = {name: version for name, version in (look.get("recorded") or {}).items() if name in locked}
    if want.get("existing") == "adopt" and ours and all(locked[name] == version for name, version in ours.items()):
        return {**want, "existing": "replace"}
    return want


def differs(packages: Mapping[str, str], installed: Mapping[str, str], leaving: Any) -> bool:
    """Whether the host is not what the plan makes of it."""
    return any(installed.get(name) != version for name, version in packages.items()) or any(
        name in installed for name in leaving
    )


def refused(told: dict[str, Any], error: str, repository: str) -> dict[str, Any]:
    """A plan whose repository cannot be read: that comes first, what follows from it is left out."""
    where, _, rest = error.partition(": ")
    refusal = Refusal("repository", rest or error, where or repository, "then run again").to_dict()
    refusal["sentence"] = error
    kept = [one for one in told["refusals"] if one["rule"] not in ("vanished", "simulation")]
    return {**told, "action": "refused", "refused": True, "reason": error, "refusals": [refusal, *kept]}
