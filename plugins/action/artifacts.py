"""Artifacts on a node from the registry or the controller's store; a bundle published to a registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible_collections.myriad.gpu.plugins.plugin_utils import run_context
from ansible_collections.myriad.gpu.plugins.plugin_utils.controller import told_by_myriad
from ansible_collections.myriad.gpu.plugins.plugin_utils.kept_code import NodeAction

OPTIONS: dict[str, Any] = {
    "state": {"type": "str", "choices": ["present", "published"], "default": "present"},
    "source": {"type": "str"},
    "store": {"type": "str"},
    "items": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "name": {"type": "str", "required": True},
            "sha256": {"type": "str", "required": True},
            "path": {"type": "str", "required": True},
            "mode": {"type": "str", "default": "0755"},
            "owner": {"type": "str", "default": "root"},
            "group": {"type": "str", "default": "root"},
        },
    },
    "full": {"type": "bool"},
    "parallel": {"type": "int"},
    "timeout_s": {"type": "int"},
    "use_proxy": {"type": "bool"},
    "ca": {"type": "str", "default": ""},
    "user": {"type": "str", "default": ""},
    "password_file": {"type": "str", "default": ""},
    "bundle": {"type": "str"},
    "registry": {"type": "str"},
    "role": {"type": "str"},
    "state_dir": {"type": "str"},
    "root": {"type": "str"},
}
PASSED = ("source", "items", "full", "parallel", "timeout_s", "use_proxy", "ca", "state_dir", "root")


class ActionModule(NodeAction):
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        task_vars = task_vars or {}
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec=OPTIONS,
            required_if=[
                ("state", "published", ("bundle", "registry")),
                ("state", "present", ("source", "store"), True),
            ],
            mutually_exclusive=[("source", "store")],
        )
        if args["state"] == "published":
            result.update(self._publish(args))
            return result
        host = run_context.target_host(self._task, task_vars)
        module_args = {key: args[key] for key in PASSED if args.get(key) is not None}
        module_args["role"] = run_context.role_name(self._task, args)
        module_args["run_id"] = run_context.run_id()
        if self._task.check_mode:
            module_args["predicted"] = run_context.predictions(host)
        if args["store"] and not self._task.check_mode:
            module_args["transferred"] = self._transfer(Path(args["store"]), module_args, task_vars)
        try:
            result.update(self._execute_module("myriad.gpu.artifacts", module_args=module_args, task_vars=task_vars))
        finally:
            self._remove_tmp_path(self._connection._shell.tmpdir)
        if self._task.check_mode and not result.get("failed"):
            run_context.predict(host, result.get("content") or {})
        return result

    def _transfer(self, store: Path, module_args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, str]:
        """Send what the node lacks; returns where each digest lies on the node."""
        plan = self._execute_module(
            "myriad.gpu.artifacts", module_args={**module_args, "plan_only": True}, task_vars=task_vars
        )
        if plan.get("failed"):
            raise AnsibleActionFail(str(plan.get("msg", "the node could not be looked at")))
        names = {item["sha256"]: item["name"] for item in module_args["items"]}
        sources = {digest: _blob(store, digest) for digest in plan["missing"]}
        lacking = [f"{names[digest]} (sha256 {digest})" for digest, source in sources.items() if source is None]
        if lacking:
            raise AnsibleActionFail(
                f"The store {store} does not hold {', '.join(lacking)}. Nothing was sent; "
                "`myriad bundle verify` tells what else it lacks."
            )
        sent: dict[str, str] = {}
        for digest, source in sources.items():
            if not self._connection._shell.tmpdir:
                self._make_tmp_path()
            target = self._connection._shell.join_path(self._connection._shell.tmpdir, digest)
            self._transfer_file(str(source), target)
            sent[digest] = target
        return sent

    def _publish(self, args: dict[str, Any]) -> dict[str, Any]:
        """Fill a registry from a bundle; runs on the controller."""
        with told_by_myriad():
            from myriad.stack.push import push_bundle

            outcome = push_bundle(
                Path(args["bundle"]),
                args["registry"],
                dry_run=bool(self._task.check_mode),
                ca=args["ca"],
                credentials=_credentials(args),
            )
        return _published(outcome)


def _credentials(args: dict[str, Any]) -> tuple[str, str] | None:
    """Who publishes, with the password from its file; None for a registry that knows no users."""
    if not args["user"]:
        return None
    path = Path(args["password_file"]).expanduser()
    try:
        return args["user"], path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise AnsibleActionFail(f"The password of {args['user']} cannot be read: {path}: {error.strerror}") from error


def _published(outcome: Any) -> dict[str, Any]:
    """The task's result from what was sent: an object with ``sent`` (names or refs), or the list itself."""
    sent = outcome if isinstance(outcome, (list, tuple, set)) else getattr(outcome, "sent", None)
    if sent is None and isinstance(outcome, dict):
        sent = outcome.get("sent", [])
    names = [str(name) for name in (sent or [])]
    result: dict[str, Any] = {"changed": bool(names), "sent": names}
    if names:
        result["diff"] = [{"before": "", "after": "".join(f"{name}\n" for name in names), "after_header": "registry"}]
    return result


def _blob(store: Path, digest: str) -> Path | None:
    """A file of a store or bundle by digest."""
    for candidate in (store / "sha256" / digest[:2] / digest, store / "store" / "sha256" / digest[:2] / digest):
        if candidate.is_file():
            return candidate
    return None
