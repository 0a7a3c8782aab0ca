"""Reads an Ansible inventory into the raw data that `myriad.fleet` checks: the edge to ansible-core.

Hosts, groups and files are found by ansible-core's own InventoryManager and DataLoader, so every kind of inventory
works (YAML, INI, ranges, scripts, plugins). Variables are merged here, once for each different set of groups, because
VariableManager.get_vars costs milliseconds a host; a test compares the result with ansible's own.

Not read: variables next to a playbook, extra vars and files that are encrypted as a whole: a site is described in its
inventory, in the open.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.inventory.group import Group
from ansible.inventory.helpers import sort_groups
from ansible.inventory.host import Host
from ansible.inventory.manager import IGNORED, InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.parsing.vault import EncryptedString
from ansible.plugins.loader import init_plugin_loader
from ansible.template import Templar
from ansible.utils.collection_loader import AnsibleCollectionConfig
from ansible.utils.vars import combine_vars

from myriad.fleet import names
from myriad.fleet.model import HOST_VARIABLES
from myriad.fleet.problems import Origin, Problem
from myriad.fleet.schema import dotted
from myriad.fleet.source import KeyPath, RawGroup, RawHost, RawInventory, RawSetting
from myriad.inventory_ansible import Manager, best_reasons, captured, is_script, sentence
from myriad.inventory_ini import scan_ini
from myriad.inventory_ranges import expand
from myriad.inventory_yaml import Definitions, is_mapping, is_vault_file, scan_inventory, scan_variables

try:
    # ansible-core 2.19 and newer tag every value with the place that it was read from. The tag is not public API; where
    # it moves, problems lose their line and keep everything else.
    from ansible._internal._datatag._tags import Origin as _AnsibleOrigin
except ImportError:  # pragma: no cover
    _AnsibleOrigin = None

_ADDRESS = "ansible_host"
_NEVER_SECRET = ("myriad_pools", "myriad_teams")
"""What every description has. Where it is missing, a file that cannot be read may hold it."""
_YAML_SUFFIXES = {".yml", ".yaml", ".json"}


def read_inventory(*sources: str | os.PathLike[str]) -> RawInventory:
    """Read one or several inventory sources (a directory, a file, or both, as ansible's `-i`).

    Returns:
        The raw data. What cannot be read stands in its `problems`; where `complete` is False, hosts or variables are
        missing because of that.
    """
    texts = [os.fspath(source) for source in sources]
    raw = RawInventory(name=", ".join(texts))
    missing = [text for text in texts if not _is_list(text) and not Path(text).exists()]
    for text in missing:
        raw.problems.append(
            Problem(
                "inventory-missing",
                "does not exist; give -i the path of an inventory (a folder with hosts.yml, or one file)",
                key=text,
                origin=Origin(text),
            )
        )
    if missing:
        raw.complete = False
        return raw
    _Reader(texts, raw).read()
    return raw


class _Loader(DataLoader):  # type: ignore[misc]  # ansible-core is untyped
    """Parses each file once and hands out the same data: copying it was half the time of a large inventory.

    Ansible's inventory plugins read what they get; the only thing that they change is a section written as one word.
    """

    def load_from_file(self, file_name: str, *args: Any, **kwargs: Any) -> Any:
        kwargs["unsafe"] = True  # ansible's word for "not copied"
        return super().load_from_file(file_name, *args, **kwargs)


class _Reader:
    def __init__(self, sources: Sequence[str], raw: RawInventory) -> None:
        self.raw = raw
        # Absolute paths inside, the paths that the user typed in messages.
        files = [source for source in sources if not _is_list(source)]
        self.sources = [str(Path(source).absolute()) if source in files else source for source in sources]
        self.typed = {str(Path(source).resolve()): source.rstrip("/") or "/" for source in files}
        self.loader = _Loader()
        self.shown_paths: dict[str, str] = {}
        self.folders = {kind: tuple(self.variable_folders(kind)) for kind in ("group_vars", "host_vars")}
        self.definitions = Definitions()
        self.bad_files: set[str] = set()
        self.encrypted: list[Path] = []
        self.file_cache: dict[tuple[str, str], dict[str, Any]] = {}
        self.merged_groups: dict[tuple[str, ...], dict[str, Any]] = {}

    def read(self) -> None:
        files = list(self.inventory_files())
        if not files and not any(map(_is_list, self.sources)):
            self.raw.complete = False
            message = "holds no file that lists hosts; write hosts.yml there (inventories/example has one)"
            self.raw.problems.append(
                Problem("inventory-empty", message, key="the inventory", origin=Origin(self.raw.name))
            )
            return
        for path in files:
            try:
                self.scan_hosts(path)
            except OSError as error:
                self.definitions.broken = True
                self.report_unreadable(path, error.strerror)
        self.raw.problems += self.definitions.problems
        self.scan_variable_files()
        if self.bad_files:
            self.raw.complete = False
        if self.definitions.broken:
            self.raw.complete = False
            self.read_variables_of_all_without_hosts()
            return
        manager = self.load()
        if manager is None:
            self.raw.complete = False
            return
        self.read_groups(manager)
        self.read_hosts(manager)

    # Files

    def inventory_files(self) -> Iterator[Path]:
        """Files that ansible would parse for hosts, by its own rules."""

        def inside(path: Path) -> Iterator[Path]:
            if path.is_dir():
                for child in sorted(path.iterdir()):
                    if not IGNORED.search(os.fsencode(child.name)):
                        yield from inside(child)
            elif path.is_file():
                yield path

        for source in self.sources:
            if not _is_list(source):
                yield from inside(Path(source))

    def scan_hosts(self, path: Path) -> None:
        """Look at one file that ansible would parse for hosts, in the form in which it is written."""
        shown = self.shown(path)
        if is_script(path):
            if not os.access(path, os.X_OK):
                self.definitions.broken = True
                message = "is a script that may not be executed, so Ansible reads its lines as hosts: chmod +x it"
                self.definitions.report("script-mode", message, key="the file", origin=Origin(shown))
        elif path.suffix in _YAML_SUFFIXES or is_vault_file(path) or (not path.suffix and is_mapping(path)):
            scan_inventory(path, shown, expand, self.definitions)
        elif path.suffix != ".toml":
            scan_ini(path, shown, expand, self.definitions)

    def variable_folders(self, kind: str) -> Iterator[Path]:
        """`group_vars` or `host_vars` folders next to the sources, in the sources' order."""
        for source in self.sources:
            if _is_list(source):
                continue
            path = Path(source)
            folder = (path if path.is_dir() else path.parent) / kind
            if folder.is_dir():
                yield folder

    def scan_variable_files(self) -> None:
        for folder in (*self.folders["group_vars"], *self.folders["host_vars"]):
            for path in sorted(folder.rglob("*")):
                # Names without a suffix may be notes; those that ansible loads are checked when they are loaded.
                if not path.is_file() or path.suffix not in _YAML_SUFFIXES or path.name.startswith("."):
                    continue
                try:
                    if is_vault_file(path):
                        self.encrypted.append(path)
                        continue
                    problems, readable = scan_variables(path, self.shown(path))
                except OSError as error:
                    self.report_unreadable(path, error.strerror)
                    self.bad_files.add(str(path.resolve()))
                    continue
                self.raw.problems += problems
                if not readable:
                    self.bad_files.add(str(path.resolve()))

    def report_unreadable(self, path: Path, reason: str | None) -> None:
        self.raw.complete = False
        message = f"cannot be read: {reason or 'unknown reason'}"
        self.raw.problems.append(Problem("unreadable", message, key="the file", origin=Origin(self.shown(path))))

    def shown(self, path: str | os.PathLike[str]) -> str:
        """The path as the user would type it: below the inventory that was given."""
        text = os.fspath(path)
        if text not in self.shown_paths:
            self.shown_paths[text] = self.path_as_typed(Path(text))
        return self.shown_paths[text]

    def path_as_typed(self, path: Path) -> str:
        resolved = path.resolve()
        for root, typed in self.typed.items():
            base = Path(root)
            if resolved == base:
                return typed
            folder = base if base.is_dir() else base.parent
            shown_folder = Path(typed) if base.is_dir() else Path(typed).parent
            if resolved.is_relative_to(folder):
                return str(shown_folder / resolved.relative_to(folder))
        return str(path)

    # Hosts and groups

    def load(self) -> InventoryManager | None:
        """Let ansible parse the sources; what it refuses becomes a problem."""
        if self.definitions.has_plugins and AnsibleCollectionConfig.collection_finder is None:
            init_plugin_loader()  # inventory plugins come from collections too
        with captured() as said:
            try:
                manager = Manager(loader=self.loader, sources=self.sources)
            except AnsibleError as error:
                for reason in best_reasons(said.failures) or [error]:
                    origin = self.origin_of(getattr(reason, "obj", None)) or self.failed_file(error)
                    text = sentence(reason)
                    if "nventory script" in text:
                        text += f"; `{origin.file} --list` by hand prints what it should: JSON, and 0 as its exit code"
                    self.raw.problems.append(
                        Problem(
                            "inventory-unreadable",
                            f"cannot be read as an inventory: {text}",
                            key="the inventory",
                            origin=origin,
                        )
                    )
                return None
        for text in said.warnings:
            if "duplicate mapping key" not in text:  # found before, with both lines
                self.raw.problems.append(
                    Problem(
                        "ansible",
                        f"ansible warns: {text}",
                        "warning",
                        key="the inventory",
                        origin=Origin(self.raw.name),
                    )
                )
        return manager

    def failed_file(self, error: AnsibleError) -> Origin:
        """File that ansible gave up on; its message ends with the path."""
        path = sentence(error).rsplit(" ", 1)[-1]
        return Origin(self.shown(path) if Path(path).exists() else self.raw.name)

    def read_groups(self, manager: InventoryManager) -> None:
        everyone: Group = manager.groups["all"]
        described = combine_vars(everyone.get_vars(), self.file_variables("group_vars", "all"))
        self.read_description(described)
        for name, group in manager.groups.items():
            values = combine_vars(group.get_vars(), self.file_variables("group_vars", name))
            wanted = {key: value for key, value in values.items() if _is_described(key)}
            self.note_settings(values, f"group {name}")
            self.raw.groups[str(name)] = RawGroup(
                name=str(name),
                parents=tuple(str(parent.name) for parent in group.parent_groups),
                children=tuple(str(child.name) for child in group.child_groups),
                hosts=tuple(str(host.name) for host in group.hosts),
                variables={key: _plain(value) for key, value in wanted.items()},
                origin=self.definitions.groups.get(str(name)),
                origins=self.origins_of(wanted),
            )
        self.report_stray_files(manager)

    def read_variables_of_all_without_hosts(self) -> None:
        """Hosts cannot be read: the description in group_vars/all is still worth checking."""
        self.read_description(self.file_variables("group_vars", "all"))

    def read_description(self, described: Mapping[str, Any]) -> None:
        for name, value in described.items():
            if not str(name).startswith("myriad_"):
                continue
            path: KeyPath = (str(name),)
            self.note_origins(path, name, value)
            if name in HOST_VARIABLES:
                continue
            resolved = self.template(value, described, path)
            if resolved is not _UNREADABLE:
                self.raw.variables[str(name)] = _plain(resolved)

        for name in _NEVER_SECRET if self.encrypted else ():
            if name not in described:
                self.raw.complete = False
                file = self.shown(self.encrypted[0])
                message = (
                    f"is nowhere in the open, and {file} is encrypted as a whole; write the description in the open"
                )
                self.raw.problems.append(Problem("encrypted", message, key=name, origin=Origin(file)))

    def note_origins(self, path: KeyPath, key: Any, value: Any) -> None:
        # The key's own place is the line that a person looks for; the value may begin on a later one.
        origin = self.origin_of(key) or self.origin_of(value)
        if origin is not None:
            self.raw.origins[path] = origin
        if isinstance(value, Mapping):
            for inner_key, inner in value.items():
                self.note_origins((*path, _plain(inner_key)), inner_key, inner)
        elif isinstance(value, list | tuple):
            for index, inner in enumerate(value):
                self.note_origins((*path, index), inner, inner)

    def read_hosts(self, manager: InventoryManager) -> None:
        for name, host in manager.hosts.items():
            groups = [group for group in host.get_groups() if group.name != "all"]
            inherited = self.group_variables(manager, groups)
            from_files = self.host_file_variables(name)
            own = combine_vars(host.vars, from_files) if from_files else host.vars
            # What describes the site (myriad_teams, ...) is read once, from group all; a misplaced one counts here.
            values = {key: inherited[key] for key in (_ADDRESS, *HOST_VARIABLES) if key in inherited}
            mine = {key: value for key, value in own.items() if key == _ADDRESS or _is_described(key)}
            values.update(mine)
            self.note_settings(own, f"host {name}")
            raw_host = RawHost(
                name=str(name),
                groups=frozenset({"all", *(str(group.name) for group in groups)}),
                own=frozenset(str(key) for key in mine),
                origin=self.definitions.hosts.get(str(name)),
                origins=self.origins_of(values),
            )
            for key, value in values.items():
                if _may_be_template(value) or isinstance(value, EncryptedString):
                    value = self.template_for_host(host, key, value, combine_vars(inherited, own))
                if value is not _UNREADABLE:
                    raw_host.variables[str(key)] = _plain(value)
                else:
                    self.raw.complete = False
            self.raw.hosts[str(name)] = raw_host

    def note_settings(self, values: Mapping[Any, Any], holder: str) -> None:
        for key, value in values.items():
            name = str(key)
            if not name.startswith(("myriad_", "ansible_")):
                origin = self.origin_of(key) or self.origin_of(value)
                self.raw.settings.append(RawSetting(name, _plain(value), holder, origin))

    def group_variables(self, manager: InventoryManager, groups: Sequence[Group]) -> dict[str, Any]:
        """Variables that a host inherits, in ansible's order: see VARIABLE_PRECEDENCE in its configuration."""
        key = tuple(sorted(str(group.name) for group in groups))
        known = self.merged_groups.get(key)
        if known is not None:
            return known
        ordered = sort_groups(list(groups))
        layers: list[Mapping[str, Any]] = [manager.groups["all"].get_vars()]
        layers += [group.get_vars() for group in ordered]
        layers.append(self.file_variables("group_vars", "all"))
        # Each source's files for all groups come before the next source's.
        for folder in self.folders["group_vars"]:
            layers += [self.folder_variables(folder, str(group.name)) for group in ordered]
        merged: dict[str, Any] = {}
        for layer in layers:
            merged = combine_vars(merged, layer)
        self.merged_groups[key] = merged
        return merged

    def file_variables(self, kind: str, name: str) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for folder in self.folders[kind]:
            merged = combine_vars(merged, self.folder_variables(folder, name))
        return merged

    def folder_variables(self, folder: Path, name: str) -> dict[str, Any]:
        key = (str(folder), name)
        if key not in self.file_cache:
            merged: dict[str, Any] = {}
            for found in self.loader.find_vars_files(str(folder.resolve()), name):
                path = Path(found)
                if str(path.resolve()) in self.bad_files:
                    continue
                try:
                    if is_vault_file(path):
                        continue
                    with captured():
                        content = self.loader.load_from_file(found, cache="all", trusted_as_template=True)
                    merged = combine_vars(merged, content or {})
                except OSError as error:
                    self.report_unreadable(path, error.strerror)
                except AnsibleError as error:
                    self.report_unreadable(path, sentence(error))
            self.file_cache[key] = merged
        return self.file_cache[key]

    def host_file_variables(self, name: str) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for folder in self.folders["host_vars"]:
            key = (str(folder), "")
            if key not in self.file_cache:
                self.file_cache[key] = {path.name.split(".")[0]: True for path in folder.iterdir()}
            # One listing instead of four look-ups a host.
            if name.split(".")[0] in self.file_cache[key]:
                merged = combine_vars(merged, self.folder_variables(folder, name))
        return merged

    def report_stray_files(self, manager: InventoryManager) -> None:
        """Files of group_vars and host_vars that belong to no group or host are usually misspelled."""
        known_by_kind: tuple[tuple[str, str, set[str]], ...] = (
            ("group_vars", "group", {str(name) for name in manager.groups}),
            ("host_vars", "host", {str(name) for name in manager.hosts}),
        )
        for kind, what, known in known_by_kind:
            for folder in self.folders[kind]:
                for path in sorted(folder.iterdir()):
                    name = path.name
                    stem = path.stem if path.suffix in _YAML_SUFFIXES else name
                    if (
                        name.startswith(".")
                        or name.endswith("~")
                        or name in known
                        or stem in known
                        or path.suffix == ".md"
                    ):
                        continue
                    best = names.closest(stem, known)
                    offer = f'; did you mean "{best}"?' if best else f"; rename it to a {what} or remove it"
                    self.raw.problems.append(
                        Problem(
                            "stray-variables",
                            f'belongs to no {what}: "{stem}" is not in the inventory{offer}',
                            "warning",
                            key="the file",
                            origin=Origin(self.shown(path)),
                        )
                    )

    # Values

    def template(self, value: Any, variables: Mapping[str, Any], path: KeyPath) -> Any:
        """Resolve Jinja in a description variable; each template that cannot be resolved becomes a problem."""
        if isinstance(value, Mapping):
            pairs = ((key, self.template(inner, variables, (*path, _plain(key)))) for key, inner in value.items())
            return {key: inner for key, inner in pairs if inner is not _UNREADABLE}
        if isinstance(value, list | tuple):
            items = (self.template(inner, variables, (*path, index)) for index, inner in enumerate(value))
            return [inner for inner in items if inner is not _UNREADABLE]
        if isinstance(value, EncryptedString):
            self.raw.complete = False
            message = "is encrypted; the description is no secret: write the value in the open"
            self.raw.problems.append(Problem("encrypted", message, key=dotted(path), origin=self.raw.origin_of(path)))
            return _UNREADABLE
        if not _may_be_template(value):
            return value
        try:
            return Templar(loader=self.loader, variables=dict(variables)).template(value)
        except AnsibleError as error:
            self.raw.complete = False
            self.raw.problems.append(
                Problem(
                    "template",
                    f"has a template that cannot be resolved from the variables of group all: {sentence(error)}; "
                    "define it there or write the value",
                    key=dotted(path),
                    origin=self.raw.origin_of(path),
                )
            )
            return _UNREADABLE

    def template_for_host(self, host: Host, key: str, value: Any, variables: Mapping[str, Any]) -> Any:
        context = {**variables, **host.get_magic_vars()}
        try:
            if isinstance(value, EncryptedString):
                raise AnsibleError("it is encrypted, and the description is no secret")
            return Templar(loader=self.loader, variables=context).template(value)
        except AnsibleError as error:
            self.raw.problems.append(
                Problem(
                    "template",
                    f"{key} cannot be resolved: {sentence(error)}; define it or write the value",
                    key=key,
                    hosts=(str(host.name),),
                    origin=self.origin_of(value) or self.definitions.hosts.get(str(host.name)),
                )
            )
            return _UNREADABLE

    def origins_of(self, values: Mapping[Any, Any]) -> dict[str, Origin]:
        found: dict[str, Origin] = {}
        for key, value in values.items():
            origin = self.origin_of(key) or self.origin_of(value)
            if origin is not None:
                found[str(key)] = origin
        return found

    def origin_of(self, value: Any) -> Origin | None:
        """Place that ansible noted for a value."""
        if _AnsibleOrigin is None or value is None:
            return None
        tag = value if isinstance(value, _AnsibleOrigin) else _AnsibleOrigin.get_tag(value)
        if tag is None or not tag.path:
            return None
        return Origin(self.shown(tag.path), tag.line_num)


_UNREADABLE = object()
"""Stands for a value whose template could not be resolved (None is a value)."""


def _is_list(source: str) -> bool:
    """Whether a source is a list of hosts (`gpu1,gpu2`); a path may hold a comma too."""
    return "," in source and not Path(source).exists()


def _is_described(name: Any) -> bool:
    return str(name).startswith("myriad_")


def _may_be_template(value: Any) -> bool:
    return isinstance(value, str) and ("{{" in value or "{%" in value)


def _plain(value: Any) -> Any:
    """The value without ansible's tags: plain dict, list, str, int, float, bool or None."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, EncryptedString):
        return "(encrypted)"  # never decrypted here
    if isinstance(value, Mapping):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, str):
        return str.__str__(value)[:]
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Sequence):
        return [_plain(inner) for inner in value]
    return str(value)
