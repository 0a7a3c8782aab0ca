"""Compares what the roles recorded with what the node is."""

from __future__ import annotations

import os
import subprocess

from ansible_collections.myriad.gpu.plugins.module_utils import fsops, kernel, packages, units
from ansible_collections.myriad.gpu.plugins.module_utils.record import below


class Comparison:
    """All differences between the records and the node, as dictionaries of role, kind, item, expected, found."""

    def __init__(self, records, root="/", full=False):
        self.records = records
        self.root = root
        self.full = full
        self.drift = []
        self.outputs = {}

    def run(self):
        for role, record in sorted(self.records.items()):
            for entry in record.get("files", ()):
                self.file(role, "file", entry)
            for entry in record.get("artifacts", ()):
                self.file(role, "artifact", entry)
            for entry in record.get("directories", ()):
                self.directory(role, entry)
            for entry in record.get("settings", ()):
                self.setting(role, entry)
            for entry in record.get("kernel_modules", ()):
                if not entry.get("optional") and not kernel.module_loaded(entry["name"], self.root):
                    self.differs(role, "kernel_module", entry["name"], "loaded", "absent")
            for entry in record.get("host", ()):
                self.host(role, entry)
        self.packages()
        self.images()
        if self.root in ("", "/"):
            self.units()
            self.checks()
        return self.drift

    def checks(self):
        for role, entry in self.of("checks"):
            try:
                done = subprocess.run(
                    entry["command"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=60,
                    check=False,
                )
                said = None if done.returncode == 0 else done.stdout
            except (OSError, subprocess.TimeoutExpired) as error:
                said = str(error)
            if said is not None:
                self.differs(role, "check", entry["name"], "as applied", " ".join(said.split())[:300])

    def differs(self, role, kind, item, expected, found):
        self.drift.append({"role": role, "kind": kind, "item": item, "expected": expected, "found": found})

    def of(self, kind):
        """Entries of a kind over all roles, with their role."""
        for role, record in sorted(self.records.items()):
            for entry in record.get(kind, ()):
                yield role, entry

    def file(self, role, kind, entry):
        path = below(self.root, entry["path"])
        found = fsops.describe(path)
        if found is None:
            self.differs(role, kind, entry["path"], "present", "absent")
            return
        if found["kind"] != "file":
            self.differs(role, kind, entry["path"], "file", found["kind"])
            return
        info = found["stat"]
        unchanged = kind == "artifact" and not self.full
        unchanged = unchanged and (entry.get("size"), entry.get("mtime_ns"), entry.get("inode")) == (
            info.st_size,
            info.st_mtime_ns,
            info.st_ino,
        )
        if not unchanged:
            digest = fsops.sha256_file(path)
            if digest != entry["sha256"]:
                self.differs(role, kind, entry["path"], "sha256 " + entry["sha256"], "sha256 " + digest)
        self.attributes(role, kind, entry, found)

    def directory(self, role, entry):
        path = below(self.root, entry["path"])
        found = fsops.describe(os.path.realpath(path))
        if found is None or found["kind"] != "directory":
            self.differs(role, "directory", entry["path"], "directory", found["kind"] if found else "absent")
            return
        self.attributes(role, "directory", entry, found)

    def attributes(self, role, kind, entry, found):
        if found["mode"] != entry["mode"]:
            self.differs(role, kind, entry["path"], "mode " + entry["mode"], "mode " + found["mode"])
        if not fsops.same_owner(found, entry["owner"], entry["group"]):
            self.differs(
                role,
                kind,
                entry["path"],
                "owner {}:{}".format(entry["owner"], entry["group"]),
                "owner {}:{}".format(found["owner"], found["group"]),
            )

    def setting(self, role, entry):
        found = kernel.read_setting(entry["name"], self.root)
        if found != entry["value"] and not entry.get("unwritable"):
            self.differs(role, "setting", entry["name"], entry["value"], found if found is not None else "absent")

    def host(self, role, entry):
        if entry["name"] == "hostname":
            for found in dict.fromkeys(kernel.hostname(self.root)):
                if found != entry["value"]:
                    self.differs(role, "hostname", "hostname", entry["value"], found)
        elif entry["name"] == "swap":
            active = kernel.swaps(self.root)
            if active:
                self.differs(role, "swap", "swap", "off", ", ".join(active))
            elif kernel.fstab_without_swap(self.root) is not None:
                self.differs(role, "swap", "/etc/fstab", "no swap line", "a swap line")

    def packages(self):
        wanted = list(self.of("packages"))
        found = kernel.package_versions([entry["name"] for _role, entry in wanted], self.root)
        for role, entry in wanted:
            version = found.get(entry["name"])
            if version != entry["version"]:
                self.differs(role, "package", entry["name"], entry["version"], version or "not installed")
        holds = list(self.of("holds"))
        if holds:
            held = packages.Database(self.root).held
            for role, entry in holds:
                if entry["name"] not in held:
                    self.differs(role, "hold", entry["name"], "held", "not held")

    def images(self):
        wanted = list(self.of("images"))
        if not wanted:
            return
        try:
            found = kernel.images()
        except kernel.SystemFault as fault:
            for role, entry in wanted:
                self.differs(role, "image", entry["ref"], entry.get("digest") or "present", str(fault))
            return
        for role, entry in wanted:
            differs = kernel.has_image(found, entry["ref"], entry.get("digest"))
            if differs:
                self.differs(role, "image", entry["ref"], entry.get("digest") or "present", differs)

    def units(self):
        wanted = list(self.of("units"))
        if not wanted:
            return
        found = units.show([entry["name"] for _role, entry in wanted])
        contents = units.Contents(self.records, {})
        for role, entry in wanted:
            name, values = entry["name"], found[entry["name"]]
            masked = values["UnitFileState"].startswith("masked") or values["LoadState"] == "masked"
            if bool(entry.get("masked")) != masked and (masked or entry.get("masked")):
                self.differs(
                    role, "unit", name, "masked" if entry.get("masked") else "not masked", values["UnitFileState"]
                )
                continue
            if entry.get("masked"):
                continue
            if values["LoadState"] == "not-found" and (entry.get("enabled") or entry.get("state") == "started"):
                self.differs(role, "unit", name, "present", "not found")
                continue
            enabled = values["UnitFileState"] in units.ENABLED
            if enabled and entry.get("enabled") is False:
                enabled = units.on_disk(name) in units.ENABLED
            if (
                entry.get("enabled") is not None
                and values["UnitFileState"] not in units.NOT_ENABLEABLE
                and enabled != entry["enabled"]
            ):
                self.differs(
                    role,
                    "unit",
                    name,
                    "enabled" if entry["enabled"] else "disabled",
                    values["UnitFileState"] or "disabled",
                )
            if entry.get("state") == "started":
                if not units.is_active(values):
                    self.differs(role, "unit", name, "active", values["ActiveState"])
                else:
                    self.started_with(role, entry, values, contents)
            elif entry.get("state") == "stopped" and units.is_active(values):
                self.differs(role, "unit", name, "inactive", values["ActiveState"])

    def started_with(self, role, entry, values, contents):
        """A unit runs with another content of its files than they have now."""
        expected = self.records[role].get("started", {}).get(entry["name"])
        if not expected:
            return
        paths = units.fragment_paths(entry["name"], values, {}) | set(entry.get("restart_on") or ())
        try:
            output = self.merged_output(entry)
        except units.UnitError as error:
            self.differs(role, "unit", entry["name"], "files that its program takes together", str(error))
            return
        if contents.of(paths, output) != expected:
            self.differs(
                role, "unit", entry["name"], "started with its files as they are", "a file changed after it was started"
            )

    def merged_output(self, entry):
        """What a unit's program makes of its files; asked once where several roles start the unit with them."""
        wanted = entry.get("merged") or {}
        key = (entry["name"], wanted.get("directory"), wanted.get("command"))
        if key not in self.outputs:
            self.outputs[key] = units.merged_output(entry)
        return self.outputs[key]
