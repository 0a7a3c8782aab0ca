"""The half of image_prewarm that runs on the controller: waves, slots of racks and registries, and the journal.

A node that has its images needs no slot. One that lacks some waits until its rack and a registry have one free, and
pulls from that registry alone; where the registry does not serve it, the next one is asked, with a slot of its own.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible_collections.myriad.gpu.plugins.plugin_utils import run_context, slots
from ansible_collections.myriad.gpu.plugins.plugin_utils.controller import told_by_myriad
from ansible_collections.myriad.gpu.plugins.plugin_utils.kept_code import NodeAction

OWN = ("registries", "rack", "jitter_s", "journal", "plan")


class ActionModule(NodeAction):
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        task_vars = task_vars or {}
        result: dict[str, Any] = super().run(tmp, task_vars)
        args = dict(self._task.args)
        state = args.get("state", "present")
        with told_by_myriad():
            if state == "planned":
                found = _planned(args.get("plan") or {})
                looks = (args.get("plan") or {}).get("looks") or {}
                _append(args.get("journal"), {"plan": {**found, "looks": looks}})
                result.update(found)
                self._display.display(result["text"])
            elif state == "judged":
                result.update(_judged(args.get("plan") or {}))
                if result["stop"]:
                    _append(args.get("journal"), {"stop": result["stop"]})
                    self._display.display(result["stop"], color="red")
            elif state == "signed":
                result.update(_signed(args))
            else:
                result.update(self._on_node(args, state, task_vars))
        return result

    # One node

    def _on_node(self, args: dict[str, Any], state: str, task_vars: dict[str, Any]) -> dict[str, Any]:
        host = run_context.target_host(self._task, task_vars)
        given = {key: value for key, value in args.items() if key not in OWN}
        given["run_id"] = run_context.run_id()
        registries = [dict(one) for one in args.get("registries") or []] or [{"url": args.get("registry", "")}]
        given["registry"] = registries[0]["url"]
        if state == "check" or self._task.check_mode:
            found = self._execute_module("myriad.gpu.image_prewarm", module_args=given, task_vars=task_vars)
            # What the plan spreads the nodes over.
            return {**found, "rack": (args.get("rack") or {}).get("name", ""), "registry": given["registry"]}
        given["role"] = run_context.role_name(self._task, given)
        began = time.time()
        tried: list[str] = []
        try:
            result = self._warmed(given, args, host, registries, tried, task_vars)
        except AnsibleConnectionFailure as error:
            _journal(args.get("journal"), host, {"outcome": "unreachable", "msg": str(error)}, began, tried)
            raise
        _journal(args.get("journal"), host, result, began, tried)
        return {**result, "tried": tried}

    def _warmed(
        self,
        given: dict[str, Any],
        args: dict[str, Any],
        host: str,
        registries: list[dict[str, Any]],
        tried: list[str],
        task_vars: dict[str, Any],
    ) -> dict[str, Any]:
        result = self._execute_module(
            "myriad.gpu.image_prewarm", module_args={**given, "fetch": False}, task_vars=task_vars
        )
        if result.get("outcome") != "cold" or result.get("failed"):
            return result
        items = list(result.get("changed_items") or [])
        rack = args.get("rack") or {}
        folder = run_context.process_folder() / "prewarm-slots"
        time.sleep(_wait_s(host, float(args.get("jitter_s") or 0)))
        for registry in registries:
            wanted = [(f"rack {rack.get('name')}", int(rack.get("nodes") or 0)),
                      (f"registry {registry['url']}", int(registry.get("nodes") or 0))]  # fmt: skip
            with slots.held(folder, wanted):
                result = self._execute_module(
                    "myriad.gpu.image_prewarm", module_args={**given, "registry": registry["url"]}, task_vars=task_vars
                )
            if not (result.get("failed") and result.get("elsewhere")):
                break
            tried.append(f"{registry['url'] or 'the registry'}: {result.get('msg')}")
        if result.get("failed") and len(tried) > 1:
            result["msg"] = "no registry served it. " + " ".join(tried)
        result["changed_items"] = items + [one for one in result.get("changed_items") or [] if one not in items]
        result["changed"] = bool(result["changed_items"])
        return result


def _wait_s(host: str, most_s: float) -> float:
    from myriad.prewarm.waves import jitter

    return jitter(host, most_s)


def _journal(path: str | None, host: str, result: Mapping[str, Any], began: float, tried: list[str]) -> None:
    """One line a node, written in one piece: what happened is known even where the run was killed."""
    if not path:
        return
    images = list(result.get("images") or [])
    line = {
        "host": host, "outcome": result.get("outcome") or "failed", "sentence": result.get("msg") or "",
        "tried": tried, "began": round(began, 3), "ended": round(time.time(), 3), "images": images,
    }  # fmt: skip
    if not result.get("failed") and line["outcome"] != "unreachable":
        line["sentence"] = "; ".join(str(one["sentence"]) for one in images if one.get("sentence"))
    _append(path, line)


def _append(path: str | None, line: Mapping[str, Any]) -> None:
    if not path:
        return
    target = Path(path).expanduser()
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, (json.dumps(line) + "\n").encode())
    finally:
        os.close(descriptor)


# All nodes


def _planned(given: Mapping[str, Any]) -> dict[str, Any]:
    """Waves of the nodes that lack images, from what was found on each."""
    from myriad.prewarm.limits import Limits
    from myriad.prewarm.rollout import plan_rollout

    return plan_rollout(
        given.get("looks") or {},
        Limits.read(given.get("limits")),
        seed=str(given.get("seed") or ""),
        look_only=str(given.get("look_only")).lower() in ("true", "yes", "1"),
    )


def _signed(args: Mapping[str, Any]) -> dict[str, Any]:
    """Every image was signed with the key: asked of the nearest registry, of which manifests alone are read."""
    from myriad.images.signing import verify

    plan = args.get("plan") or {}
    key = Path(str(plan.get("key") or "")).expanduser()
    ca = Path(str(plan["ca"])).expanduser() if plan.get("ca") else None
    registries = [dict(one) for one in args.get("registries") or []]
    if not registries:
        raise AnsibleActionFail("no registry is named that could be asked for signatures")
    names = []
    for image in args.get("images") or []:
        repository = str(image["ref"]).split("/", 1)[1]
        verify(f"{str(registries[0]['url']).rstrip('/')}/{repository}@{image['digest']}", key, ca=ca)
        names.append(f"{repository}@{image['digest']}")
    return {"changed": False, "signed": names}


def _judged(given: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the wave that stands before its first task may begin."""
    from myriad.prewarm.limits import Limits
    from myriad.prewarm.rollout import judge_rollout

    stop = judge_rollout(
        given.get("plan") or {}, given.get("results") or {}, given.get("batch") or [], Limits.read(given.get("limits"))
    )
    return {"changed": False, "stop": stop, "go": not stop}
