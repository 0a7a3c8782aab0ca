"""Tells what a restored cluster has lost; on the controller itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.myriad.gpu.plugins.module_utils.restore_report_options import ARGUMENTS
from ansible_collections.myriad.gpu.plugins.plugin_utils.controller import told_by_myriad


class ActionModule(ActionBase):
    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars or {})
        _validation, args = self.validate_argument_spec(argument_spec=ARGUMENTS)
        with told_by_myriad():
            from myriad.kube.backups import compare, read_running, sentences
            from myriad.kube.client import connect
            from myriad.kube.kinds import PODS

            running = {node: read_running(str(text)) for node, text in args["running"].items()}
            lost = compare(running, connect(args["kubeconfig"]).list(PODS)[0])
        lines = sentences(lost, args["meta"], revisions=args["revisions"], at=args["stopped_at"])
        # Said as debug says its words, whatever callback prints the run: there is no other place to read it.
        result.update(changed=False, lost=asdict(lost), msg="\n".join(lines), _ansible_verbose_always=True)
        return result
