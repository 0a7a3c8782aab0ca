"""What the action plugins of one ansible-playbook process share: the run's id, predictions of check mode, role names.

Workers are forked for each task and host, so what they share lies in ansible's own temporary folder of the process,
which ansible removes at its end.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from ansible import constants as C
from ansible import context
from ansible.errors import AnsibleActionFail


def process_folder() -> Path:
    """The temporary folder of this ansible-playbook process."""
    return Path(C.DEFAULT_LOCAL_TMP)


def run_id() -> str:
    """One name for everything that this ansible-playbook process does."""
    return hashlib.sha256(str(process_folder()).encode()).hexdigest()[:16]


def role_name(task: Any, args: dict[str, Any]) -> str:
    """The role under whose name a task records: given, or the role that the task stands in."""
    given = args.get("role")
    if given:
        return str(given)
    if task._role is not None:
        return str(task._role.get_name(include_role_fqcn=False))
    raise AnsibleActionFail(f"{task.action} stands in no role; give the option role, under whose name it records.")


def target_host(task: Any, task_vars: dict[str, Any]) -> str:
    """The host on which the module runs."""
    return str(task.delegate_to or task_vars.get("inventory_hostname", "localhost"))


def _prediction_file(host: str) -> Path:
    return process_folder() / f"myriad-predicted-{hashlib.sha256(host.encode()).hexdigest()[:16]}.json"


def predictions(host: str) -> dict[str, str | None]:
    """What check mode would have written on a host so far: sha256 by path, None where a file would be gone."""
    try:
        found: dict[str, str | None] = json.loads(_prediction_file(host).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found


def predict(host: str, content: dict[str, str | None]) -> None:
    """Add to what check mode would have written on a host. Tasks of one host never run at the same time."""
    if not content:
        return
    known = predictions(host)
    known.update(content)
    remember(_prediction_file(host), json.dumps(known))


def remember(path: Path, answer: str) -> None:
    """Write a file for the other workers, whole or not at all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(answer, encoding="utf-8")
    temporary.replace(path)


def is_complete() -> bool:
    """Whether the command line takes every task."""
    flags = context.CLIARGS
    tags = set(flags.get("tags") or ())
    return not (flags.get("skip_tags") or flags.get("start_at_task") or tags - {"all"})


def note_applied(entries: list[Any]) -> None:
    """Add to what this run applied to clusters. One write a task, so lines of several workers never mix."""
    with (process_folder() / "myriad-applied.jsonl").open("a", encoding="utf-8") as stream:
        stream.write("".join(json.dumps(entry) + "\n" for entry in entries))


def applied() -> list[Any]:
    """What this run applied to clusters so far."""
    try:
        text = (process_folder() / "myriad-applied.jsonl").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines()]
