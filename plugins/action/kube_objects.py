"""Applies Kubernetes objects from the controller, in the worker itself: no module is shipped, no Python is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.myriad.gpu.plugins.module_utils.kube_options import ARGUMENTS
from ansible_collections.myriad.gpu.plugins.plugin_utils import run_context
from ansible_collections.myriad.gpu.plugins.plugin_utils.controller import told_by_myriad

if TYPE_CHECKING:
    from myriad.kube.apply import Outcome


class ActionModule(ActionBase):
    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        # Not through the validator, which copies and walks every value: a second for the CRDs of one operator.
        objects = self._task.args.pop("objects", None) or []
        _validation, args = self.validate_argument_spec(argument_spec=ARGUMENTS)
        if not isinstance(objects, list):
            raise AnsibleActionFail(f"objects must be a list of Kubernetes objects, it is {type(objects).__name__}.")
        args["objects"] = objects
        with told_by_myriad():
            outcome = self._apply(args)
        result.update(
            changed=outcome.is_changed,
            created=outcome.created,
            # The key "changed" is ansible's own.
            updated=outcome.changed,
            unchanged=outcome.unchanged,
            pruned=outcome.pruned,
            kept=outcome.kept,
            missing=outcome.missing,
            notes=outcome.notes,
            changed_items=[*outcome.created, *outcome.changed, *outcome.pruned],
            diff=outcome.diff,
        )
        if self._task.check_mode and outcome.is_changed:
            from myriad.drift.objects import differences

            result["drift"] = differences(args["set"], outcome.diff)
        return result

    def _apply(self, args: dict[str, Any]) -> Outcome:
        from myriad.kube import apply as engine
        from myriad.kube.certificates import Certificate
        from myriad.kube.client import ClusterUnreachableError, connect

        check = bool(self._task.check_mode)
        # Plain JSON types: values from templates carry tags of ansible that YAML dumpers do not know.
        objects = json.loads(json.dumps(list(args["objects"])))
        objects.extend(_documents(args["text"], "the option text"))
        for manifest in args["manifests"]:
            objects.extend(_documents(_read(Path(manifest)), manifest))
        if args["chart"]:
            objects.extend(_rendered(args["chart"]))
        if args["kustomization"]:
            objects.extend(_kustomized(args["kustomization"], args["set"]))
        options = engine.Options(
            # Plain, as everything that is compared with what the API server says.
            set_name=str(args["set"]),
            field_manager=args["field_manager"] or "",
            prune=args["prune"],
            prune_kinds=tuple(_kind(text) for text in args["prune_kinds"]),
            protect=tuple(args["protect"]),
            existing_only=args["existing_only"],
            force_conflicts=args["force_conflicts"],
            dry_run=check,
            timeout_s=args["timeout_s"],
            certificates=tuple(
                Certificate(item["namespace"], item["name"], tuple(item["dns_names"]), item["authority"])
                for item in args["certificates"]
            ),
        )
        kubeconfig = args["kubeconfig"]
        if check and kubeconfig and not Path(kubeconfig).exists():
            return engine.predicted_without_cluster(objects, options, f"{kubeconfig} does not exist")
        try:
            api = connect(kubeconfig)
            applier = engine.Applier(api, options, say=self._display.vv)
            outcome = applier.apply(objects)
        except ClusterUnreachableError as error:
            if not check:
                raise
            return engine.predicted_without_cluster(objects, options, error.message)
        if not check:
            kinds = {(key.api_version, key.kind) for key in map(engine.identity, engine.flatten(objects))}
            run_context.note_applied(
                [[kubeconfig, *pair, options.manager, options.existing_only] for pair in sorted(kinds)]
            )
            wait = args["wait"] or {}
            conditions = [(key, None) for key in engine.workloads(objects)] if wait.get("workloads") else []
            conditions += [
                (engine.Identity(item["api_version"], item["kind"], item["namespace"], item["name"]), item["condition"])
                for item in wait.get("conditions") or []
            ]
            if conditions:
                applier.wait_for(conditions)
            applier.wait_dry_run(json.loads(json.dumps(wait.get("dry_run") or [])))
        return outcome


def _kind(text: str) -> tuple[str, str]:
    """``group/version/Kind`` or ``v1/Kind`` as (apiVersion, kind)."""
    api_version, separator, kind = text.rpartition("/")
    if not separator or not api_version:
        raise AnsibleActionFail(f"prune_kinds: {text!r} must read as group/version/Kind or v1/Kind.")
    return api_version, kind


def _rendered(chart: dict[str, Any]) -> list[Any]:
    from myriad.kube.chart import render

    text = render(
        Path(chart["program"]),
        Path(chart["path"]),
        name=chart["name"],
        namespace=chart["namespace"],
        values=chart["values"],
    )
    return _documents(text, f"what helm made of the chart {chart['name']}")


def _kustomized(kustomization: dict[str, Any], name: str) -> list[Any]:
    from myriad.kube.kustomization import render

    text = render(
        Path(kustomization["program"]),
        str(kustomization["text"]),
        files={str(key): Path(path) for key, path in kustomization["files"].items()},
        name=f"kustomization of {name}",
    )
    return _documents(text, f"what kubectl made of the kustomization of {name}")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise AnsibleActionFail(f"The manifest {path} cannot be read: {error.strerror}.") from error


def _documents(text: str, where: str) -> list[Any]:
    """All documents of YAML text, parsed by libyaml where it is there."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return [document for document in yaml.load_all(str(text), Loader=loader) if document]
    except yaml.YAMLError as error:
        raise AnsibleActionFail(f"{where} is not valid YAML: {error}") from error
