"""Renders a role's template tree on the controller and lands it in one module call."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.template import trust_as_template
from ansible_collections.myriad.gpu.plugins.plugin_utils import run_context
from ansible_collections.myriad.gpu.plugins.plugin_utils.kept_code import NodeAction

ENTRY_KEYS = {"mode", "owner", "group", "validate", "present", "secret"}
EXTRA_KEYS = ENTRY_KEYS | {"path", "template", "content", "vars"}
DIRECTORY_KEYS = {"mode", "owner", "group"}
OPTIONS = {
    "tree": {"type": "str", "required": True},
    "manifest": {"type": "dict", "default": {}},
    "extra": {"type": "list", "elements": "dict", "default": []},
    "directories": {"type": "dict", "default": {}},
    "absent": {"type": "list", "elements": "str", "default": []},
    "together": {"type": "list", "elements": "dict", "default": []},
    "role": {"type": "str"},
    "state_dir": {"type": "str"},
    "root": {"type": "str"},
}


class ActionModule(NodeAction):
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        task_vars = task_vars or {}
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(argument_spec=OPTIONS)
        role = run_context.role_name(self._task, args)
        host = run_context.target_host(self._task, task_vars)
        templates = self._templates_folder()
        module_args: dict[str, Any] = {
            "tree": args["tree"],
            "role": role,
            "run_id": run_context.run_id(),
            "directories": self._checked_directories(args["directories"]),
            "absent": args["absent"],
            "together": args["together"],
            "rendered": self._rendered(templates, args, role, task_vars),
        }
        module_args.update({key: args[key] for key in ("state_dir", "root") if args.get(key)})
        if self._task.check_mode:
            module_args["predicted"] = run_context.predictions(host)
        result.update(self._execute_module("myriad.gpu.files", module_args=module_args, task_vars=task_vars))
        if self._task.check_mode and not result.get("failed"):
            run_context.predict(host, result.get("content") or {})
        return result

    def _templates_folder(self) -> Path:
        if self._task._role is not None:
            return Path(self._task._role._role_path) / "templates"
        return Path(self._loader.get_basedir()) / "templates"

    def _rendered(
        self, templates: Path, args: dict[str, Any], role: str, task_vars: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Every file of the tree and of extra, rendered, sorted by path."""
        sources = self._sources(templates / args["tree"], bool(args["extra"] or args["absent"] or args["directories"]))
        manifest = args["manifest"] or {}
        unknown = sorted(set(manifest) - set(sources))
        if unknown:
            raise AnsibleActionFail(
                f"The manifest names {', '.join(unknown)}, which {templates / args['tree']} does not hold. "
                f"It holds: {', '.join(sorted(sources)) or 'nothing'}."
            )
        rendered: dict[str, dict[str, Any]] = {}
        for path, source in sources.items():
            entry = self._checked_entry(f"manifest {path}", manifest.get(path) or {}, ENTRY_KEYS)
            if entry.pop("present"):
                rendered[path] = {"path": path, **self._content(source, path, role, task_vars), **entry}
        for item in args["extra"]:
            path = item.get("path")
            if not path or not str(path).startswith("/"):
                raise AnsibleActionFail(f"An entry of extra needs a path that begins with /; it has {path!r}.")
            entry = self._checked_entry(f"extra {path}", item, EXTRA_KEYS)
            given = [key for key in ("template", "content") if key in item]
            if len(given) != 1:
                raise AnsibleActionFail(f"extra {path} needs one of template and content; it has {given or 'none'}.")
            if not entry.pop("present"):
                continue
            if path in rendered:
                raise AnsibleActionFail(f"{path} stands in the tree and in extra.")
            if "content" in item:
                content: dict[str, Any] = {"content": _text(item["content"])}
            else:
                source = templates / str(item["template"])
                variables = {**task_vars, **(item.get("vars") or {})}
                content = self._content(source, path, role, variables)
            rendered[path] = {"path": path, **content, **entry}
        return [rendered[path] for path in sorted(rendered)]

    def _sources(self, folder: Path, optional: bool) -> dict[str, Path]:
        """Files of the tree by target path."""
        if not folder.is_dir():
            if optional:
                return {}
            raise AnsibleActionFail(f"There is no folder {folder}, which the option tree names.")
        found: dict[str, Path] = {}
        for source in sorted(folder.rglob("*")):
            if not source.is_file():
                continue
            relative = source.relative_to(folder)
            target = "/" + str(relative.with_suffix("") if relative.suffix == ".j2" else relative)
            if target in found:
                raise AnsibleActionFail(f"{found[target]} and {source} both make {target}.")
            found[target] = source
        return found

    def _checked_entry(self, where: str, entry: Any, keys: set[str]) -> dict[str, Any]:
        """The keys that travel, with their types; ``present`` among them."""
        if not isinstance(entry, dict):
            raise AnsibleActionFail(f"{where} must be a mapping, it is {entry!r}.")
        unknown = sorted(set(entry) - keys)
        if unknown:
            raise AnsibleActionFail(
                f"{where} has unknown keys {', '.join(unknown)}; known are {', '.join(sorted(keys))}."
            )
        if "mode" in entry and not isinstance(entry["mode"], str):
            raise AnsibleActionFail(f'{where}: mode must be quoted, as in mode: "0644".')
        checked: dict[str, Any] = {key: str(entry[key]) for key in ("mode", "owner", "group") if key in entry}
        if entry.get("validate"):
            checked["validate"] = str(entry["validate"])
        checked["present"] = boolean(entry.get("present", True))
        checked["secret"] = boolean(entry.get("secret", False))
        return checked

    def _checked_directories(self, directories: dict[str, Any]) -> dict[str, Any]:
        checked = {}
        for path, entry in (directories or {}).items():
            if not str(path).startswith("/"):
                raise AnsibleActionFail(f"directories {path}: a path begins with /.")
            entry = self._checked_entry(f"directories {path}", entry or {}, DIRECTORY_KEYS)
            checked[str(path)] = {key: entry[key] for key in DIRECTORY_KEYS if key in entry}
        return checked

    def _content(self, source: Path, target: str, role: str, variables: dict[str, Any]) -> dict[str, Any]:
        """A template rendered, another file as it is."""
        if source.suffix != ".j2":
            try:
                data = source.read_bytes()
            except OSError as error:
                raise AnsibleActionFail(f"{source} cannot be read: {error.strerror}") from error
            try:
                return {"content": data.decode("utf-8")}
            except UnicodeDecodeError:
                return {"content": base64.b64encode(data).decode(), "encoding": "base64"}
        if not source.is_file():
            raise AnsibleActionFail(f"There is no template {source}, from which {target} is made.")
        text = trust_as_template(self._loader.get_text_file_contents(str(source)))
        managed = f"Managed by Myriad, role {role}. Changes made here are overwritten by the next site run."
        available = {
            **variables,
            "template_path": source.name,
            "template_destpath": target,
            # No date, no user, no host: a second run must write the same bytes.
            "ansible_managed": variables.get("ansible_managed", managed),
        }
        search = [str(source.parent), str(source.parent.parent)]
        if self._task._role is not None:
            search.append(str(Path(self._task._role._role_path) / "templates"))
        templar = self._templar.copy_with_new_env(searchpath=search, available_variables=available)
        try:
            rendered = templar.template(text, escape_backslashes=False, overrides={"trim_blocks": True})
        except AnsibleError as error:
            raise AnsibleActionFail(f"The template of {target} cannot be rendered: {_where(error, source)}") from error
        return {"content": _text(rendered)}


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _where(error: BaseException, source: Path) -> str:
    """The message of a template error with the file and the line of the template."""
    line: int | None = None
    cause: BaseException | None = error
    words: list[str] = []
    while cause is not None:
        line = getattr(cause, "lineno", None) or line
        frame = cause.__traceback__
        while frame is not None:
            # Jinja compiles a template to a module; it knows which of its lines came from which of the template's.
            template = frame.tb_frame.f_globals.get("__jinja_template__")
            if template is not None:
                line = template.get_corresponding_lineno(frame.tb_lineno)
            frame = frame.tb_next
        said = getattr(cause, "_original_message", None) or getattr(cause, "message", None) or str(cause)
        if said and str(said) not in " ".join(words):
            words.append(str(said).rstrip("."))
        cause = cause.__cause__ or cause.__context__
    message = ": ".join(words)
    line = line or _line_of_name(message, source)
    return f"{source}:{line}: {message}" if line else f"{source}: {message}"


def _line_of_name(message: str, source: Path) -> int | None:
    """The first line with an expression that uses the name which the message quotes.

    An undefined variable is found after rendering, when no frame of the template is left.
    """
    names = re.findall(r"'([A-Za-z_]\w*)'", message)
    for name in reversed(names):
        for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), start=1):
            if re.search(rf"\{{[{{%].*\b{name}\b", line):
                return number
    return None
