"""What a role recorded on a node: one JSON file a role, written atomically.

The shape of ``<state_dir>/<role>.json``::

    {"version": 1, "role": "container_runtime",
     "files":          [{"path", "sha256", "mode", "owner", "group", "tree", "run"}],
     "directories":    [{"path", "mode", "owner", "group", "made", "tree", "run"}],
     "artifacts":      [{"name", "path", "sha256", "mode", "owner", "group", "size", "mtime_ns", "inode", "run"}],
     "units":          [{"name", "enabled", "state", "masked", "run"}],
     "settings":       [{"name", "value", "optional", "run"}],
     "kernel_modules": [{"name", "optional", "run"}],
     "packages":       [{"name", "version", "brought", "run"}],
     "brought":        [{"name", "version", "run"}],   what came along with packages; removed by a reset, not compared
     "holds":          [{"name", "ours", "run"}],
     "images":         [{"ref", "digest", "run"}],
     "host":           [{"name": "hostname" | "swap", "value", "run"}],
     "data":           [{"path", "run"}],
     "checks":         [{"name", "command", "run"}],   a command that ends well while what the role made stands
     "started":        {unit: hash of what it was last started with},
     "retired":        [paths that an earlier version of the role wrote; reset removes them]}

Every entry carries the run in which it was last asked for. Several tasks of one run add up; what a complete run no
longer asked for is pruned at its end (``prune``).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

SITE_FILE = "_site.json"
# Folder of what stood at a path before a role first wrote it, by digest.
ORIGINALS = "originals"
VERSION = 1
# The key of an entry within its kind.
KEYS = {
    "files": "path",
    "directories": "path",
    "artifacts": "path",
    "units": "name",
    "settings": "name",
    "kernel_modules": "name",
    "packages": "name",
    "brought": "name",
    "holds": "name",
    "images": "ref",
    "host": "name",
    "data": "path",
    "checks": "name",
}

STATE_OPTIONS = {
    "role": {"type": "str"},
    "state_dir": {"type": "path", "default": "/var/lib/myriad/state"},
    "root": {"type": "path", "default": "/"},
    "run_id": {"type": "str", "default": ""},
    "predicted": {"type": "dict", "default": {}},
}


class RecordError(Exception):
    """A record cannot be read; the message names the file and what to do."""


def below(root, path):
    """The path as it is found below another root."""
    if root in ("", "/"):
        return path
    return str(Path(root) / str(path).lstrip("/"))


def write_atomic(path, data, mode=0o600):
    """Write bytes next to the target and rename: a killed run leaves the old file or the new one."""
    directory = os.path.dirname(path)
    os.makedirs(directory, mode=0o755, exist_ok=True)
    temporary = os.path.join(directory, f".{os.path.basename(path)}.myriad-{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        os.rename(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


class Record:
    """One role's record. Load, change, save; ``save`` writes only when something differs."""

    def __init__(self, state_dir, role, run_id=""):
        self.path = os.path.join(state_dir, role + ".json")
        self.role = role
        self.run_id = run_id
        self.data = load(self.path)
        self.data.setdefault("version", VERSION)
        self.data["role"] = role
        self._before = json.dumps(self.data, sort_keys=True)
        self._begun = False

    def entries(self, kind):
        return self.data.setdefault(kind, [])

    def find(self, kind, key):
        for entry in self.entries(kind):
            if entry.get(KEYS[kind]) == key:
                return entry
        return None

    def put(self, kind, entry):
        """Record an entry as asked for in this run, in place of an earlier one with the same key."""
        entry = dict(entry, run=self.run_id)
        entries = self.entries(kind)
        for index, old in enumerate(entries):
            if old.get(KEYS[kind]) == entry[KEYS[kind]]:
                entries[index] = entry
                return
        entries.append(entry)

    def drop(self, kind, key):
        self.data[kind] = [entry for entry in self.entries(kind) if entry.get(KEYS[kind]) != key]

    @property
    def started(self):
        return self.data.setdefault("started", {})

    def prune(self):
        """Forget what this run did not ask for; paths stay known as retired so that a reset removes them."""
        touched = any(entry.get("run") == self.run_id for kind in KEYS for entry in self.entries(kind))
        if not touched:
            return
        retired = self.data.setdefault("retired", [])
        for kind in KEYS:
            kept = []
            for entry in self.entries(kind):
                if entry.get("run") == self.run_id:
                    kept.append(entry)
                elif kind in ("artifacts", "data", "directories") and entry["path"] not in retired:
                    if kind != "directories" or entry.get("made"):
                        retired.append(entry["path"])
                elif kind == "files":
                    kept.append(entry)  # the files task of the same tree removes them, and only it
            self.data[kind] = kept
        live = {entry["path"] for kind in ("files", "artifacts", "data", "directories") for entry in self.entries(kind)}
        self.data["retired"] = [path for path in retired if path not in live]

    def begin_change(self):
        """Call before the first change: until a run ends the host does not count as converged.

        Else a run that is broken off after its inputs changed, and then rerun with the old inputs, would be taken
        for converged: the records hold the new content, the site's record the old inputs.
        """
        if not self._begun:
            self._begun = True
            site = os.path.join(os.path.dirname(self.path), SITE_FILE)
            if os.path.exists(site):
                os.unlink(site)

    def save(self):
        after = json.dumps(self.data, sort_keys=True)
        if after != self._before or not os.path.exists(self.path):
            write_atomic(self.path, (json.dumps(self.data, sort_keys=True, indent=1) + "\n").encode())
            self._before = after


def load(path):
    """Read one record; an absent one is empty."""
    try:
        with open(path, encoding="utf-8") as stream:
            data = json.load(stream)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RecordError(
            f"{path} cannot be read: {error}. "
            "Remove it and run again: the roles then look at everything on this node once."
        ) from error
    if not isinstance(data, dict):
        raise RecordError(f"{path} holds no record. Remove it and run again.")
    return data


def load_all(state_dir):
    """All records by role, in order of the roles' names."""
    records = {}
    if os.path.isdir(state_dir):
        for name in sorted(os.listdir(state_dir)):
            if name.endswith(".json") and not name.startswith((".", "_")):
                records[name[:-5]] = load(os.path.join(state_dir, name))
    return records
