"""The site's registry authority, a registry's certificate and its users, made on the controller and kept there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.myriad.gpu.plugins.modules.registry_trust import ARGUMENTS
from ansible_collections.myriad.gpu.plugins.plugin_utils.controller import told_by_myriad


class ActionModule(ActionBase):
    """Runs on the controller alone; no node is asked."""

    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars or {})
        _validation, args = self.validate_argument_spec(
            argument_spec=ARGUMENTS, required_together=[("ca_certificate", "ca_key")]
        )
        folder = Path(args["folder"]).expanduser()
        check = bool(self._task.check_mode)
        given = None
        if args["ca_certificate"]:
            given = (Path(args["ca_certificate"]).expanduser(), Path(args["ca_key"]).expanduser())
        made: list[str] = []
        with told_by_myriad():
            from myriad.registry_site import ca, users

            if args["tls"]:
                found = ca.ensure(folder, args["host"], args["names"], site=args["site"], given_ca=given, check=check)
                made += found.changed
                result.update(ca=found.ca, certificate=str(found.certificate), key=str(found.key))
            for user in args["users"]:
                if not users.password(folder, user, make=False):
                    made.append(f"password of {user} in {folder / users.USERS_FOLDER}")
                    if not check:
                        users.password(folder, user)
        result.update(changed=bool(made), made=made)
        if made:
            after = "".join(f"{line}\n" for line in made)
            result["diff"] = [{"before": "", "after": after, "after_header": str(folder)}]
        return result
