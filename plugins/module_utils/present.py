"""Brings a node to the state that a role's last task names, and records it."""

from __future__ import annotations

import glob
import os
import time

from ansible_collections.myriad.gpu.plugins.module_utils import busy, goodfiles, kernel, merged, units
from ansible_collections.myriad.gpu.plugins.module_utils.record import Record, below, load_all

# Where unit files stand; the first goes before the others.
UNIT_FOLDERS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
# What a person does about pods that hold devices.
DRAIN = (
    "Drain this node (kubectl drain NODE --ignore-daemonsets --delete-emptydir-data) and run again with --limit NODE"
)


class Present:
    """The work of one task on one node."""

    def __init__(self, params, check):
        self.params = params
        self.check = check
        self.root = params["root"]
        self.live = self.root in ("", "/")
        self.directory = directory = below(self.root, params["state_dir"])
        self.record = Record(directory, params["role"], params["run_id"])
        self.contents = units.Contents(load_all(directory), params["predicted"] if check else {})
        self.done = {
            key: [] for key in ("restarted", "started", "stopped", "enabled", "disabled", "masked", "unmasked")
        }
        self.changed_items = []
        self.diff = []
        self.notes = []
        self.reloaded = False

    def result(self):
        return dict(
            self.done,
            changed=bool(self.changed_items),
            changed_items=self.changed_items,
            reloaded=self.reloaded,
            notes=self.notes,
            diff=self.diff,
        )

    def run(self):
        self.hostname()
        self.swap()
        self.modules()
        self.settings()
        self.packages()
        for path in self.params["data"]:
            self.record.put("data", {"path": path})
        self.units()
        self.images()
        self.save()
        return self.result()

    def save(self):
        if not self.check:
            self.record.save()

    def change(self, item, before, after):
        if not self.check:
            self.record.begin_change()
        self.changed_items.append(f"{item} {after}")
        self.diff.append({"before_header": item, "after_header": item, "before": f"{before}\n", "after": f"{after}\n"})

    def hostname(self):
        name = self.params["hostname"]
        if not name:
            return
        running, configured = kernel.hostname(self.root)
        if configured != name or (self.live and running != name):
            self.change("hostname", configured if configured != name else running, name)
            if not self.check:
                kernel.set_hostname(name, self.root)
        self.record.put("host", {"name": "hostname", "value": name})

    def swap(self):
        wanted = self.params["swap"]
        if wanted is None or wanted == "":
            return
        if str(wanted).lower() not in ("off", "false", "no"):
            raise kernel.SystemFault("swap takes off only; to leave swap alone do not give it")
        active = kernel.swaps(self.root) if self.live else []
        if active or kernel.fstab_without_swap(self.root) is not None:
            self.change("swap", ", ".join(active) or "a line in /etc/fstab", "off")
            if not self.check:
                kernel.swap_off(self.root)
        self.record.put("host", {"name": "swap", "value": "off"})

    def modules(self):
        optional = set(self.params["kernel_modules_optional"])
        for name in [*self.params["kernel_modules"], *sorted(optional - set(self.params["kernel_modules"]))]:
            if self.live and not kernel.module_loaded(name):
                reason = kernel.modprobe(name, dry_run=self.check)
                if reason is None:
                    self.change("kernel module " + name, "absent", "loaded")
                elif name in optional:
                    self.notes.append(f"kernel module {name} is not loaded: {reason}")
                else:
                    raise kernel.SystemFault(
                        f"kernel module {name} cannot be loaded: {reason}. Install the kernel's module package for "
                        f"{os.uname().release}, or list it under "
                        "kernel_modules_optional where the machine does without."
                    )
            self.record.put("kernel_modules", {"name": name, "optional": name in optional})

    def settings(self):
        optional = set(self.params["settings_optional"])
        loading = any(item.startswith("kernel module ") for item in self.changed_items)
        faults = []
        for name, raw in sorted(self.params["settings"].items()):
            value = " ".join(setting_text(raw).split())
            entry = {"name": name, "value": value, "optional": name in optional}
            if self.live:
                reason = self.setting(name, value, loading)
                if reason is not None and name in optional:
                    self.notes.append(f"setting {name} stays: {reason}")
                    entry["unwritable"] = True
                elif reason is not None:
                    faults.append(f"setting {name} cannot be {value}: {reason}")
            self.record.put("settings", entry)
        if faults:
            raise kernel.SystemFault(
                "\n".join(
                    [*faults, "List it under settings_optional where the machine keeps it read-only (a container)."]
                )
            )

    def setting(self, name, value, loading):
        """None when the setting has its value (or would have it), else why not."""
        found = kernel.read_setting(name)
        if found == value:
            return None
        if self.check:
            path = kernel.setting_path(name)
            if found is None and not loading:
                return "this kernel has no such setting"
            if found is not None and not os.access(path, os.W_OK):
                return f"{path} is read-only"
        else:
            reason = kernel.write_setting(name, value) if found is not None else "this kernel has no such setting"
            if reason is not None:
                return reason
        self.change("setting " + name, found if found is not None else "absent", value)
        return None

    def packages(self):
        names = self.params["packages"]
        if not names:
            return
        versions = kernel.package_versions(names, self.root)
        missing = [name for name in names if name not in versions]
        if missing and not self.check:
            raise kernel.SystemFault(
                "not installed: {}. The role must install what it records.".format(", ".join(missing))
            )
        for name in names:
            if name in versions:
                self.record.put("packages", {"name": name, "version": versions[name]})

    def images(self):
        wanted = self.params["images"]
        if not wanted:
            return
        try:
            found = kernel.images()
        except kernel.SystemFault as fault:
            if not self.check:
                raise
            # The runtime itself is only predicted.
            self.notes.append(str(fault))
            found = {}
        for image in wanted:
            differs = kernel.has_image(found, image["ref"], image["digest"])
            if differs:
                self.change("image {} pulled".format(image["ref"]), differs, image["digest"] or "present")
                if self.check:
                    continue
                kernel.pull_image(image["ref"], image["digest"])
            self.record.put("images", {"ref": image["ref"], "digest": image["digest"]})

    # --- units -----------------------------------------------------------------------------------------------------

    def units(self):
        wanted = self.params["units"]
        if not wanted:
            return
        found = units.show([unit["name"] for unit in wanted]) if self.live else {}
        stale = [unit["name"] for unit in wanted if self.live and self.needs_reload(unit["name"], found[unit["name"]])]
        if stale and not self.check:
            self.reload(stale)
            found = units.show([unit["name"] for unit in wanted])
        for unit in wanted:
            self.remember(unit, found.get(unit["name"]))
        # Known before anything is touched: a reset after a killed run still finds the units.
        self.save()
        self.enablement(wanted, found)
        if self.live:
            for unit in wanted:
                self.activity(unit, found[unit["name"]])

    def needs_reload(self, name, values):
        """Whether the unit's files changed since systemd read them.

        systemd does not notice by itself that a unit which it remembers as missing has a file by now, that a file came
        in a folder that goes before the one it read, or that the first drop-in of a unit came: it looks for new names
        only when it reloads.
        """
        if values["NeedDaemonReload"] == "yes":
            return True
        if values["LoadState"] == "not-found":
            return any(os.path.exists(os.path.join(folder, name)) for folder in UNIT_FOLDERS)
        own = os.path.join(UNIT_FOLDERS[0], name)
        if os.path.exists(own) and os.path.realpath(values["FragmentPath"] or own) != os.path.realpath(own):
            return True
        known = {os.path.basename(path) for path in values["DropInPaths"].split()}
        present = {
            os.path.basename(path)
            for folder in UNIT_FOLDERS
            for path in glob.glob(os.path.join(folder, name + ".d", "*.conf"))
            # An empty one, or a link to /dev/null, takes away the drop-in of this name from another folder.
            if os.path.isfile(path) and os.path.getsize(path)
        }
        return not present <= known

    def reload(self, names):
        """systemd reads its unit files again, unless a running container would lose its devices by that."""
        exposed = [holder for holder in busy.holders(self.root) if holder.exposed]
        if exposed:
            raise units.UnitError(
                "systemd must read {} again, but `systemctl daemon-reload` takes the devices from containers that have "
                "them neither by CDI nor as device nodes with a link in /dev/char; such containers run here: {}. {}; "
                "a device plugin with the device list strategy cdi-cri does away with it.".format(
                    ", ".join(names), ", ".join(str(holder) for holder in exposed), DRAIN
                )
            )
        units.systemctl("daemon-reload")
        self.reloaded = True

    def remember(self, unit, values):
        entry = {key: unit[key] for key in ("name", "enabled", "state", "masked", "restart_on")}
        if unit["merged"]:
            entry["merged"] = unit["merged"]
        known = self.record.find("units", unit["name"])
        if known and "before" in known:
            entry["before"] = known["before"]
        elif values:
            # What a reset restores, for units that were there before the role.
            entry["before"] = {
                "enabled": values["UnitFileState"],
                "active": values["ActiveState"],
                "load": values["LoadState"],
            }
        self.record.put("units", entry)

    def enablement(self, wanted, found):
        todo = {"enable": [], "disable": [], "mask": [], "unmask": []}
        for unit in wanted:
            name = unit["name"]
            state = found[name]["UnitFileState"] if self.live else units.on_disk(name, self.root)
            masked = state.startswith("masked") or (self.live and found[name]["LoadState"] == "masked")
            if unit["masked"] is True:
                if not masked:
                    todo["mask"].append((name, state))
                continue
            if masked and unit["masked"] is False:
                todo["unmask"].append((name, state))
                masked, state = False, "disabled"
            if masked and (unit["enabled"] or unit["state"] == "started"):
                raise units.UnitError(
                    f"{name} is masked on this node, so it can be neither enabled nor started. "
                    "Someone decided that it must not run: "
                    f"find out who, then `systemctl unmask {name}`, or set masked: false for it."
                )
            if unit["enabled"] is None or masked:
                continue
            if state in units.NOT_ENABLEABLE:
                if unit["enabled"]:
                    self.notes.append(f"{name} is {state}: there is nothing to enable")
            elif unit["enabled"] and state not in units.ENABLED:
                todo["enable"].append((name, state))
            elif not unit["enabled"] and state in units.ENABLED and units.on_disk(name, self.root) in units.ENABLED:
                todo["disable"].append((name, state))
        past = {"enable": "enabled", "disable": "disabled", "mask": "masked", "unmask": "unmasked"}
        for verb in ("unmask", "mask", "enable", "disable"):
            if not todo[verb]:
                continue
            for name, state in todo[verb]:
                self.change("unit " + name, state or "not enabled", past[verb])
                self.done[past[verb]].append(name)
            if not self.check:
                # Not reloading: running GPU containers can lose their devices at a daemon-reload.
                units.systemctl(verb, "--no-reload", "--", *[name for name, _state in todo[verb]], root=self.root)
                if verb in ("unmask", "mask") and self.live:
                    self.reload([name for name, _state in todo[verb]])
                    found.update(units.show([name for name, _state in todo[verb]]))

    def activity(self, unit, values):
        name = unit["name"]
        if unit["state"] == "stopped" or unit["masked"]:
            if values["ActiveState"] in ("active", "reloading", "activating"):
                self.change("unit " + name, values["ActiveState"], "stopped")
                self.done["stopped"].append(name)
                if not self.check:
                    units.systemctl("stop", "--", name)
            self.record.started.pop(name, None)
            return
        if unit["state"] != "started":
            return
        paths = units.fragment_paths(name, values, self.params["predicted"] if self.check else {}) | set(
            unit["restart_on"]
        )
        output = self.merged_output(unit)
        digest = self.contents.of(paths, output)
        verb = self.verb(unit, values, paths, digest)
        if verb == "restart" and not self.may_restart(unit, output):
            return
        if verb is not None:
            past = {"start": "started", "restart": "restarted"}[verb]
            self.change("unit " + name, values["ActiveState"] if verb == "start" else "running with older files", past)
            self.done[past].append(name)
            if not self.check:
                self.bring_up(verb, unit, output)
        elif unit["wait_for"] and not self.check:
            units.wait_for(name, unit["wait_for"])
        self.record.started[name] = digest
        self.save()
        if not self.check:
            if verb is not None:
                self.tell_other_roles(unit, values, output)
            if output is not None:
                self.good(unit).keep(output)

    def merged_output(self, unit):
        """What the unit's program makes of its files; in check mode a stand-in where they are only predicted."""
        if not unit["merged"]:
            return None
        directory = unit["merged"]["directory"]
        if self.check and self.contents.predicts_change([directory]):
            return "predicted " + self.contents.digest(directory)
        return units.merged_output(unit)

    def good(self, unit):
        return goodfiles.GoodFiles(self.directory, unit["name"], unit["merged"]["directory"])

    def may_restart(self, unit, output):
        """Whether a running unit may be restarted now.

        Raises:
            UnitError: pods hold devices of this node.
        """
        name = unit["name"]
        if unit["restart"] == "always":
            return True
        why = self.changed_keys(unit, output)
        if unit["restart"] == "never":
            self.notes.append(f"{name}: a restart is pending{why}; it was asked never to be restarted")
            return False
        held = busy.holders(self.root)
        if held:
            role = self.params["role"]
            raise units.UnitError(
                "{} has to be restarted{}, but pods with devices of this node run here: {}. It was left alone. {}, "
                "or set {}_restart: now for a restart under running pods, or never to leave it pending.".format(
                    name, why, ", ".join(str(holder) for holder in held), DRAIN, role
                )
            )
        return True

    def changed_keys(self, unit, output, limit=6):
        """In words, which keys differ from those with which the unit last came up."""
        if output is None:
            return ""
        before = self.good(unit).output()
        found = merged.differences(before, output) if before else []
        words = [merged.told(item) for item in found[:limit]]
        more = f", and {len(found) - limit} more" if len(found) > limit else ""
        return f" (its configuration {', '.join(words)}{more})" if words else ""

    def bring_up(self, verb, unit, output):
        """Start or restart a unit; one that does not come up gets back the files with which it last did.

        Raises:
            UnitError: it did not come up, with the files and keys that differ.
        """
        name = unit["name"]
        try:
            self.start(verb, unit)
            return
        except units.UnitError as error:
            good = self.good(unit) if output is not None else None
            differing = good.differing() if good is not None and good.read() is not None else []
            if not differing:
                raise
            what = ", ".join(differing) + self.changed_keys(unit, output)
            good.put_back(
                {entry["path"] for record in load_all(self.directory).values() for entry in record.get("files", ())}
            )
            try:
                self.start("restart", unit)
            except units.UnitError as second:
                raise units.UnitError(
                    f"{error}\nDiffering from what it last came up with: {what}.\n"
                    f"Those files are back, but it does not come up with them either:\n{second}"
                ) from second
            raise units.UnitError(
                f"{error}\nDiffering from what it last came up with: {what}.\n"
                f"Those files are back and {name} runs with them. A new file that no role wrote now ends with "
                f"{goodfiles.ASIDE}. Repair what differs, then run again."
            ) from error

    def start(self, verb, unit):
        units.systemctl("reset-failed", "--", unit["name"], check=False)
        units.act(verb, unit["name"], unit["timeout_s"])
        if unit["wait_for"]:
            units.wait_for(unit["name"], unit["wait_for"])

    def tell_other_roles(self, unit, values, output):
        """Other roles that restart the same unit need not do it again for what it just started with."""
        name = unit["name"]
        for role, record in load_all(self.directory).items():
            if role == self.params["role"] or name not in record.get("started", {}):
                continue
            entry = next((entry for entry in record.get("units", ()) if entry["name"] == name), {})
            paths = units.fragment_paths(name, values, {}) | set(entry.get("restart_on") or ())
            other = Record(self.directory, role)
            same = entry.get("merged") == unit["merged"]
            other.started[name] = self.contents.of(paths, output if same else units.merged_output(entry))
            other.save()

    def verb(self, unit, values, paths, digest):
        name = unit["name"]
        if values["ActiveState"] == "activating" and values["SubState"] != "auto-restart" and not self.check:
            deadline = time.monotonic() + 60
            while values["ActiveState"] == "activating" and time.monotonic() < deadline:
                time.sleep(0.2)
                values.update(units.show([name])[name])
        if not units.is_active(values):
            return "start" if values["ActiveState"] != "activating" else "restart"
        known = self.record.started.get(name)
        if known is None:
            paths = paths | ({unit["merged"]["directory"]} if unit["merged"] else set())
            fresh = units.started_after(values, paths) and not self.contents.predicts_change(paths)
            return None if fresh else "restart"
        return None if known == digest else "restart"


def setting_text(value):
    """A YAML value as the kernel takes it."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)
