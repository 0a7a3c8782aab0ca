"""Runs modules of this collection out of code that is kept on the node, where a node allows that.

What ansible has built for a task is taken apart and sent in a shorter form: arguments only, or arguments and code when
the node answers that it lacks the code (module_utils/kept_code). Wherever anything is not as known (another shape of
ansible's payload, a debugger, a node without systemd, a user who is not root), the task goes on as ansible built it.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ansible import constants as C
from ansible.module_utils.common.json import Direction, get_module_encoder
from ansible.plugins.action import ActionBase
from ansible.release import __version__ as ansible_version
from ansible_collections.myriad.gpu.plugins.plugin_utils import run_context

PLUGINS = Path(__file__).resolve().parents[1]
NODE_HALF = PLUGINS / "module_utils" / "kept_code.py"
#: The key of a result in which the node answers, and what it says.
ANSWER = "myriad_code"
#: How modules of a collection take their arguments and give their results.
PROFILE = "legacy"
INTERPRETER, FILE_LIMIT = "INTERPRETER_PYTHON", "PYTHON_MODULE_RLIMIT_NOFILE"
#: How ansible's wrapper ends: the call, and the last of its arguments.
CALL = b'if __name__ == "__main__":'
CODE_LINE = b"\nzip_data="
ARGUMENTS, CODE, WHOLE = "arguments", "code", "whole"


class NodeAction(ActionBase):
    """An action plugin whose module runs on a node."""

    _sending = WHOLE

    def _execute_module(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        task_vars = kwargs.get("task_vars") or {}
        memory = _memory(run_context.target_host(self._task, task_vars))
        ways = [ARGUMENTS, CODE, WHOLE]
        if self._keeps_nothing(kwargs.get("module_args") or {}) or memory.exists():
            ways = [WHOLE]
        result: dict[str, Any] = {}
        for self._sending in ways:
            result = super()._execute_module(*args, **kwargs)
            answer = result.pop(ANSWER, None)
            if answer is None:
                break
            if answer == "unsuitable":
                memory.touch()
                self._sending = WHOLE
                return super()._execute_module(*args, **kwargs)  # type: ignore[no-any-return]
        return result

    def _configure_module(self, *args: Any, **kwargs: Any) -> Any:
        alone = self._arguments_alone(**kwargs) if self._sending == ARGUMENTS and not args else None
        if alone is not None:
            return alone
        built, path = super()._configure_module(*args, **kwargs)
        if self._sending != WHOLE:
            data = shortened(built.b_module_data, with_code=self._sending == CODE)
            if data is not None:
                built = dataclasses.replace(built, b_module_data=data)
        return built, path

    def _arguments_alone(
        self, module_name: str, module_args: dict[str, Any], task_vars: dict[str, Any]
    ) -> tuple[Any, str] | None:
        """The shorter form without building the longer one (half a second a module); None where ansible has to."""
        found = self._shared_loader_obj.module_loader.find_plugin_with_context(module_name, ".py")
        delegated = self._task.delegate_to
        variables = task_vars["ansible_delegated_vars"][delegated] if delegated else task_vars
        asked = {name: C.config.get_config_value(name, variables=variables) for name in (INTERPRETER, FILE_LIMIT)}
        interpreter = str(self._templar.template(asked[INTERPRETER]) or "auto")
        # Which one `auto` is has to be found out; a limit and extensions (debuggers, coverage) are the wrapper's.
        if interpreter.startswith("auto") or asked[FILE_LIMIT] or _extensions(task_vars) or not found.resolved:
            return None
        encoder = get_module_encoder(PROFILE, Direction.CONTROLLER_TO_MODULE)
        call = {
            "module_fqn": f"ansible_collections.myriad.gpu.plugins.modules.{module_name.rpartition('.')[2]}",
            "params": json.dumps({"ANSIBLE_MODULE_ARGS": module_args}, cls=encoder),
            "profile": PROFILE,
        }
        shebang = f"#!{interpreter}"
        data = script(call, shebang=shebang, packed=None)
        built = SimpleNamespace(b_module_data=data, module_style="new", shebang=shebang, serialization_profile=PROFILE)
        return built, found.plugin_resolved_path

    def _keeps_nothing(self, module_args: dict[str, Any]) -> bool:
        """Whether the code has to come along: on the controller itself, for a reset, in the background."""
        return bool(
            getattr(self._connection, "_remote_is_local", False)
            or self._task.async_val
            or module_args.get("state") == "absent"
        )


def _memory(host: str) -> Path:
    """A file that is there when a host was found to be unsuitable in this process."""
    name = hashlib.sha256(host.encode()).hexdigest()[:16]
    return run_context.process_folder() / f"myriad-whole-{name}"


def shortened(payload: bytes, *, with_code: bool) -> bytes | None:
    """ansible's self-extracting module in the form that uses kept code; None when it is not of the known shape."""
    call = taken_apart(payload)
    if call is None:
        return None
    shebang = payload.split(b"\n", 1)[0].decode() if payload.startswith(b"#!") else "#!/usr/bin/python3"
    return script(call, shebang=shebang, packed=call["zip_data"] if with_code else None)


def script(call: dict[str, Any], *, shebang: str, packed: str | None) -> bytes:
    """What travels: the half that runs on the node, and its call."""
    given = {
        "key": code_key(),
        "module": call["module_fqn"],
        "arguments": call["params"],
        "profile": call["profile"],
        "packed": packed,
    }
    words = ",\n".join(f"    {name}={value!r}" for name, value in given.items())
    return f"{shebang}\n{NODE_HALF.read_text(encoding='utf-8')}\n\nmain(\n{words},\n)\n".encode()


def _extensions(task_vars: dict[str, Any]) -> bool:
    """Whether somebody debugs or measures modules."""
    try:
        from ansible._internal._ansiballz._builder import ExtensionManager
    except ImportError:
        return True
    return bool(ExtensionManager.create(task_vars=task_vars).extension_names)


def taken_apart(payload: bytes) -> dict[str, Any] | None:
    """The arguments of the call with which ansible's wrapper ends.

    The code is cut out before the rest is parsed: its 200 KB are one string, and parsing them costs more than all else.
    """
    start, code = payload.rfind(CALL), payload.rfind(CODE_LINE)
    if not 0 <= start < code:
        return None
    value, _comma, rest = payload[code + len(CODE_LINE) :].partition(b",\n")
    if rest.strip() != b")" or not re.fullmatch(rb"'[A-Za-z0-9+/=]*'", value):
        return None
    try:
        call = ast.parse(payload[start : code + 1] + rest).body[-1].body[-1].value  # type: ignore[attr-defined]
        if call.func.id != "_ansiballz_main" or call.args:
            return None
        found = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg != "date_time"}
    except (SyntaxError, ValueError, AttributeError, IndexError):
        return None
    # A debugger, coverage, a limit of open files: ansible's own wrapper knows what to do with them.
    if found.get("extensions") or found.get("rlimit_nofile"):
        return None
    found["zip_data"] = value[1:-1].decode()
    return found if all(isinstance(found.get(name), str) for name in ("module_fqn", "params", "profile")) else None


def code_key() -> str:
    """Names the code that modules consist of: ansible's and this collection's. Shared by the workers of a run."""
    remembered = run_context.process_folder() / "myriad-code-key"
    try:
        return remembered.read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    digest = hashlib.sha256(ansible_version.encode())
    for folder in ("modules", "module_utils"):
        for path in sorted((PLUGINS / folder).glob("*.py")):
            digest.update(f"{folder}/{path.name}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    answer = digest.hexdigest()[:24]
    run_context.remember(remembered, answer)
    return answer
