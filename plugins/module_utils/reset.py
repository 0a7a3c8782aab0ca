"""Removes from a node what the roles recorded, and nothing of the path by which the node is managed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time

from ansible_collections.myriad.gpu.plugins.module_utils import fsops, kept_code, packages, units
from ansible_collections.myriad.gpu.plugins.module_utils.record import ORIGINALS, SITE_FILE, below, load_all

# Never removed, whoever recorded it: how the node is reached, by whom, and with what.
MANAGEMENT_PATHS = (
    "/etc/ssh",
    "/root/.ssh",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/pam.d",
    "/etc/passwd",
    "/etc/shadow",
    "/etc/group",
    "/etc/gshadow",
    "/etc/network",
    "/etc/netplan",
    "/etc/systemd/network",
    "/etc/NetworkManager",
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/fstab",
    "/usr/bin/python3",
    "/usr/bin/sudo",
    "/usr/sbin/sshd",
)
MANAGEMENT_UNITS = (
    "ssh.service",
    "ssh.socket",
    "sshd.service",
    "networking.service",
    "systemd-networkd.service",
    "systemd-resolved.service",
    "NetworkManager.service",
    "dbus.service",
    "systemd-logind.service",
    "systemd-journald.service",
    "systemd-udevd.service",
)
# Packages without which nobody gets onto the node again, or nothing can be removed from it.
MANAGEMENT_PACKAGES = (
    "openssh-server",
    "python3",
    "python3-apt",
    "sudo",
    "systemd",
    "systemd-sysv",
    "dbus",
    "apt",
    "dpkg",
)
# Data directories that can only be a mistake.
TOO_HIGH = (
    "/",
    "/etc",
    "/usr",
    "/var",
    "/var/lib",
    "/var/log",
    "/home",
    "/root",
    "/opt",
    "/boot",
    "/srv",
    "/tmp",
    "/run",
    "/lib",
    "/bin",
)


def under(path, folders):
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def is_management(path):
    return under(path, MANAGEMENT_PATHS) or "/.ssh/" in path or os.path.basename(path).startswith("python3")


def was_active(before):
    """Whether a unit ran before the role, by what was remembered of it."""
    return before.get("active") in ("active", "reloading", "activating")


class Reset:
    """The work of one task on one node."""

    def __init__(self, params, check):
        self.params = params
        self.check = check
        self.root = params["root"]
        self.live = self.root in ("", "/")
        self.state_dir = below(self.root, params["state_dir"])
        records = load_all(self.state_dir)
        if params["role"]:
            records = {role: record for role, record in records.items() if role == params["role"]}
        self.records = {role: record for role, record in records.items() if role not in params["keep"]}
        self.keep_paths = [word for word in params["keep"] if word.startswith("/")]
        self.removed, self.leftovers, self.kept, self.diff = [], [], [], []
        self.reread, self.again = [], []

    def result(self):
        return {
            "changed": bool(self.removed),
            "changed_items": self.removed,
            "removed": self.removed,
            "leftovers": self.leftovers,
            "kept": self.kept,
            "diff": self.diff,
        }

    def of(self, kind):
        for role, record in sorted(self.records.items()):
            for entry in record.get(kind, ()):
                yield role, entry

    def gone(self, item):
        self.removed.append(item)
        self.diff.append({"before_header": item, "after_header": item, "before": f"{item}\n", "after": ""})

    def allowed(self, path):
        """Whether a recorded path may be removed; a refusal is told."""
        if under(path, self.keep_paths):
            self.kept.append(f"{path}: asked to be kept")
            return False
        if is_management(path):
            self.kept.append(f"{path}: part of the management path")
            return False
        return True

    def run(self):
        programs = {entry["path"] for _role, entry in self.of("artifacts")}
        files = {entry["path"] for _role, entry in self.of("files")}
        unit_names = self.units(files)
        data = [path for path in dict.fromkeys(entry["path"] for _role, entry in self.of("data")) if self.allowed(path)]
        too_high = [path for path in data if os.path.normpath(path) in TOO_HIGH]
        if too_high:
            raise LookupError(
                "{} is recorded as data of a role, which would remove the system; nothing was removed".format(
                    ", ".join(too_high)
                )
            )
        self.processes({path for path in programs if not under(path, self.keep_paths)})
        self.packages()
        for path in data:
            self.tree(path)
        for _role, entry in self.of("artifacts"):
            self.file(entry)
        for _role, entry in self.of("files"):
            self.file(entry)
        for role, record in sorted(self.records.items()):
            for path in record.get("retired", ()):
                if self.allowed(path) and path not in data:
                    self.retired(path, role)
        self.directories()
        if not self.check:
            if unit_names and self.live:
                units.systemctl("daemon-reload")
                units.systemctl("reset-failed", check=False)
            for name in self.reread:
                units.systemctl("restart", "--", name, check=False)
            for name, before in self.again:
                if before.get("enabled") in units.ENABLED:
                    units.systemctl("enable", "--no-reload", "--", name, check=False)
                if was_active(before):
                    units.systemctl("start", "--", name, check=False)
            unit_names = [name for name in unit_names if name not in {known for known, _before in self.again}]
            self.check_gone(unit_names, data, programs, files)
            if not self.leftovers:
                self.forget()
        return self.result()

    # --- parts -----------------------------------------------------------------------------------------------------

    def units(self, files):
        """Stop and disable units of the roles; bring units of the system back to what they were."""
        if not self.live:
            return []
        own, restored = [], []
        names = [entry["name"] for _role, entry in self.of("units")]
        found = units.show(names)
        for _role, entry in self.of("units"):
            name = entry["name"]
            if name in MANAGEMENT_UNITS or name in self.params["keep"]:
                self.kept.append(
                    "{}: {}".format(
                        name, "asked to be kept" if name in self.params["keep"] else "part of the management path"
                    )
                )
                continue
            values = found[name]
            before = entry.get("before") or {}
            fragment = values["FragmentPath"]
            ours = (
                fragment in files
                or os.path.realpath(fragment or "/nowhere") in files
                or before.get("load") == "not-found"
            )
            chosen = own if ours else restored
            # Several roles may restart one unit; it is stopped once.
            if name not in {known[0] for known in chosen}:
                chosen.append((name, entry, values, before))
        # The last ones started are stopped first.
        stop = [
            name
            for name, _entry, values, _before in reversed(own)
            if values["ActiveState"] not in ("inactive", "failed")
        ]
        disable = [name for name, _entry, values, _before in own if values["UnitFileState"] in units.ENABLED]
        for name in stop:
            self.gone(f"unit {name} stopped")
            if not self.check:
                units.systemctl("stop", "--", name, check=False)
        for name in disable:
            self.gone(f"unit {name} disabled")
        if disable and not self.check:
            units.systemctl("disable", "--no-reload", "--", *disable, check=False)
        for name, entry, values, before in restored:
            self.restore(name, entry, values, before)
        # They run on, with the files that stood there before the roles.
        self.reread = [name for name, entry, _values, before in restored if entry.get("merged") and was_active(before)]
        # A role's file took the name of a unit of the system, whose own file counts again when it is gone.
        self.again = [(name, before) for name, _entry, _values, before in own if before.get("load") == "loaded"]
        return [name for name, _entry, _values, _before in own]

    def restore(self, name, entry, values, before):
        """A unit that was there before: only what the role set is taken back."""
        was_masked = before.get("load") == "masked"
        steps = []
        if entry.get("masked") and not was_masked and values["LoadState"] == "masked":
            steps.append(("unmask", "unmasked"))
        was_enabled = before.get("enabled") in units.ENABLED
        if entry.get("enabled") and not was_enabled and values["UnitFileState"] in units.ENABLED:
            steps.append(("disable", "disabled"))
        if entry.get("enabled") is False and was_enabled and values["UnitFileState"] not in units.ENABLED:
            steps.append(("enable", "enabled again"))
        if entry.get("state") == "started" and before and not was_active(before) and units.is_active(values):
            steps.append(("stop", "stopped"))
        if (
            (entry.get("state") == "stopped" or entry.get("masked"))
            and was_active(before)
            and not units.is_active(values)
        ):
            steps.append(("start", "started again"))
        for verb, past in steps:
            self.gone(f"unit {name} {past}")
            if not self.check:
                units.systemctl(verb, "--", name, check=False)

    def processes(self, programs):
        """End what still runs from recorded programs, and its children (containers live below their shim)."""
        if not self.live:
            return
        for _attempt in range(20):
            victims = running(programs)
            if not victims:
                return
            if self.check:
                self.gone(f"{len(victims)} processes of recorded programs ended")
                return
            for pid in victims:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.2)
        self.leftovers.extend(f"process {pid}" for pid in running(programs))

    def packages(self):
        """Let holds go, and remove what came with the roles' packages; what others need by now stays."""
        holds = [entry["name"] for _role, entry in self.of("holds") if entry.get("ours")]
        brought = [entry["name"] for _role, entry in self.of("packages") if entry.get("brought")]
        brought += [entry["name"] for _role, entry in self.of("brought")]
        if not self.live or not (holds or brought):
            return
        database = packages.Database()
        held = sorted({name for name in holds if name in database.held})
        for name in held:
            self.gone(f"hold of {name}")
        names = {name for name in brought if name in database.versions or name in database.unfinished}
        staying = {*MANAGEMENT_PACKAGES, *self.params["keep"]}
        for name in sorted(names & staying):
            why = "asked to be kept" if name in self.params["keep"] else "part of the management path"
            self.kept.append(f"package {name}: {why}")
        going, needed = packages.purge_plan(names - staying)
        for name, by in sorted(needed.items()):
            self.kept.append(f"package {name}: needed by {by}, which no role installed")
        for name in going:
            self.gone(f"package {name}")
        if self.check:
            return
        packages.hold(held, wanted=False)
        if going:
            packages.purge(going)
            left = packages.Database().versions
            self.leftovers.extend(f"package {name}" for name in going if name in left)

    def tree(self, path):
        real = below(self.root, path)
        if not os.path.lexists(real):
            return
        mounts = mounts_below(real)
        for mount in mounts:
            self.gone("mount " + mount)
            if not self.check:
                unmount(mount)
        inside = not os.path.ismount(real)
        if self.check:
            self.gone(path)
            return
        left = mounts_below(real)
        if left:
            # Going on would delete what is mounted there: a volume of a pod, a disk of somebody else.
            self.leftovers += [f"mount {mount}: it cannot be unmounted, so {path} was left as it is" for mount in left]
            return
        if inside:
            if os.path.islink(real) or not os.path.isdir(real):
                os.unlink(real)
            else:
                shutil.rmtree(real, onerror=self.not_removed)
            self.gone(path)
            return
        # The directory is a mount itself (a disk, a volume): it stays, its content goes.
        names = os.listdir(real)
        for name in names:
            child = os.path.join(real, name)
            if os.path.isdir(child) and not os.path.islink(child):
                shutil.rmtree(child, onerror=self.not_removed)
            else:
                os.unlink(child)
        if names:
            self.gone(path + "/*")

    def not_removed(self, _function, path, error):
        if not isinstance(error[1], FileNotFoundError):
            self.leftovers.append("{}: {}".format(path, getattr(error[1], "strerror", error[1])))

    def file(self, entry):
        path = entry["path"]
        real = below(self.root, path)
        if not self.allowed(path):
            return
        original = entry.get("original")
        if original:
            source = os.path.join(self.state_dir, ORIGINALS, original["sha256"])
            if os.path.exists(source):
                self.gone(f"{path} (what stood there before is back)")
                if not self.check:
                    with open(source, "rb") as stream:
                        data = stream.read()
                    os.makedirs(os.path.dirname(real), exist_ok=True)
                    fsops.land(real, data, original["mode"], *fsops.resolve_ids(original["owner"], original["group"]))
                return
        if not self.check and os.path.isdir(os.path.dirname(real)):
            fsops.clean_leftovers(real)
        if os.path.lexists(real):
            self.gone(path)
            if not self.check:
                os.unlink(real)

    def retired(self, path, _role):
        real = below(self.root, path)
        if os.path.isdir(real) and not os.path.islink(real):
            if not os.listdir(real):
                self.gone(path)
                if not self.check:
                    os.rmdir(real)
        elif os.path.lexists(real):
            self.gone(path)
            if not self.check:
                os.unlink(real)

    def directories(self):
        """Directories that the roles made, deepest first, when nothing else is in them."""
        made = {entry["path"] for _role, entry in self.of("directories") if entry.get("made")}
        for path in sorted(made, key=lambda path: path.count("/"), reverse=True):
            real = below(self.root, path)
            if not os.path.isdir(real) or not self.allowed(path):
                continue
            if os.listdir(real):
                self.kept.append(f"{path}: holds files that no role wrote")
                continue
            self.gone(path)
            if not self.check:
                os.rmdir(real)

    def check_gone(self, unit_names, data, programs, files):
        originals = {entry["path"] for _role, entry in self.of("files") if entry.get("original")}
        for path in sorted(programs | files | set(data)):
            real = below(self.root, path)
            if under(path, self.keep_paths) or is_management(path) or path in originals or not os.path.lexists(real):
                continue
            if os.path.ismount(real) and not os.listdir(real):
                continue
            self.leftovers.append(path)
        if self.live and unit_names:
            for name, values in units.show(unit_names).items():
                if units.is_active(values):
                    self.leftovers.append(f"unit {name} is active")
        self.leftovers = list(dict.fromkeys(self.leftovers))

    def forget(self):
        for role in self.records:
            os.unlink(os.path.join(self.state_dir, role + ".json"))
        site = os.path.join(self.state_dir, SITE_FILE)
        if os.path.exists(site):
            os.unlink(site)
        if not load_all(self.state_dir):
            shutil.rmtree(self.state_dir, ignore_errors=True)
            parent = os.path.dirname(self.state_dir)
            if os.path.basename(parent) == "myriad" and os.path.isdir(parent) and not os.listdir(parent):
                os.rmdir(parent)
            if self.live:
                self.code()

    def code(self):
        """Forget the code of the modules; the task of a reset brings its own along."""
        shutil.rmtree(kept_code.FOLDER, ignore_errors=True)
        above = os.path.dirname(kept_code.FOLDER)
        if os.path.isdir(above) and not os.listdir(above):
            os.rmdir(above)


def running(programs):
    """Processes of these programs and everything below them; never this one or those above it."""
    parents, roots = {}, []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stream:
                after = stream.read().rpartition(")")[2].split()
            executable = os.readlink(f"/proc/{name}/exe")
        except OSError:
            continue
        if after[0] == "Z":
            continue
        parents[int(name)] = int(after[1])
        if executable.replace(" (deleted)", "") in programs:
            roots.append(int(name))
    above = set()
    pid = os.getpid()
    while pid and pid not in above:
        above.add(pid)
        pid = parents.get(pid, 0)
    found = set(roots)
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return sorted(found - above)


def mounts_below(path):
    """Mount points below a path, deepest first; not the path itself."""
    prefix = os.path.realpath(path).rstrip("/") + "/"
    found = []
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as stream:
            for line in stream:
                point = line.split()[4].encode().decode("unicode_escape")
                if point.startswith(prefix):
                    found.append(point)
    except FileNotFoundError:
        return []
    return sorted(found, key=lambda point: point.count("/"), reverse=True)


def unmount(point):
    for words in ((), ("--lazy",)):
        done = subprocess.run(
            ["umount", *words, "--", point],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode == 0:
            return
