"""What somebody changed on a node beside what the roles recorded, and who did it, as far as the node knows.

Differences are dictionaries of role, kind, item, expected, found (and by), as those of drift.py.
"""

from __future__ import annotations

import os
import re
import time

from ansible_collections.myriad.gpu.plugins.module_utils import fsops
from ansible_collections.myriad.gpu.plugins.module_utils.record import below

# Files that kubeadm wrote on this node and their sums at that time (`sha256sum`); kubeadm-once makes it.
MADE = "/var/lib/myriad/kubeadm.sums"
# Programs that read every file of a directory: one more is a change, whoever put it there.
READ_WHOLE = {
    "/etc/kubernetes/manifests": "static_pod",
    "/etc/kubernetes/kubelet.conf.d": "file",
    "/etc/cni/net.d": "file",
    "/etc/containerd/conf.d": "file",
}
# The order in which systemd-sysctl reads: of one name the first directory, of all names the last one wins.
SYSCTL_DIRECTORIES = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d")
APT_HISTORY = "/var/log/apt/history.log"
DPKG_LOG = "/var/log/dpkg.log"
_LOG_BYTES = 512 * 1024
_KINDS_OF_PATHS = ("file", "artifact", "directory", "made", "static_pod")


def look(records, drift, root="/"):
    """Further differences; those of `drift` learn who made them.

    Args:
        records: all records by role.
        drift: what the comparison with the records found; changed in place.
        root: where the node's files lie.
    """
    found = [*made(root), *extra_files(records, root), *settings_at_boot(records, root)]
    tell_who([*drift, *found], root)
    return found


def made(root="/"):
    """Files of kubeadm that are not as it wrote them."""
    found = []
    for digest, path in _sums(root):
        here = below(root, path)
        if not os.path.isfile(here):
            found.append(_entry("made", path, "as kubeadm wrote it", "absent"))
        elif fsops.sha256_file(here) != digest:
            found.append(_entry("made", path, "as kubeadm wrote it", "changed since"))
    return found


def _sums(root):
    try:
        with open(below(root, MADE), encoding="utf-8") as stream:
            lines = stream.read().splitlines()
    except OSError:
        return []
    return [(parts[0], parts[1].strip()) for parts in (line.split(None, 1) for line in lines) if len(parts) == 2]


def extra_files(records, root="/"):
    """Files in directories that a program reads as a whole, and that neither a role nor kubeadm put there."""
    known = {entry["path"] for record in records.values() for entry in record.get("files", ())}
    known |= {entry["path"] for record in records.values() for entry in record.get("artifacts", ())}
    known |= {path for _digest, path in _sums(root)}
    found = []
    for directory, kind in sorted(READ_WHOLE.items()):
        # Without a record of kubeadm's own files nothing is known of its manifests.
        if kind == "static_pod" and not _sums(root):
            continue
        try:
            names = sorted(os.listdir(below(root, directory)))
        except OSError:
            continue
        for name in names:
            path = os.path.join(directory, name)
            # Hidden files are read by none of them.
            if path not in known and not name.startswith(".") and os.path.isfile(below(root, path)):
                found.append(_entry(kind, path, "absent", "present"))
    return found


def settings_at_boot(records, root="/"):
    """Kernel settings that a file would set to another value at the next boot."""
    wanted = {
        entry["name"]: (role, entry["value"])
        for role, record in records.items()
        for entry in record.get("settings", ())
        if not entry.get("unwritable")
    }
    found = []
    for name, (value, path) in sorted(_sysctl_files(root).items()):
        role, expected = wanted.get(name, ("", None))
        if expected is not None and value.split() != str(expected).split():
            entry = _entry("setting", name, str(expected), f"{value} at the next boot, by {path}")
            found.append(dict(entry, role=role))
    return found


def _sysctl_files(root):
    """Setting to (value, file) as systemd-sysctl would set them at boot."""
    files = {}
    for directory in SYSCTL_DIRECTORIES:
        try:
            names = os.listdir(below(root, directory))
        except OSError:
            continue
        for name in names:
            if name.endswith(".conf"):
                files.setdefault(name, os.path.join(directory, name))
    settings = {}
    for _name, path in sorted(files.items()):
        for line in _text(below(root, path)).splitlines():
            key, separator, value = line.partition("=")
            key = key.strip().lstrip("-")
            if separator and key and not key.startswith(("#", ";")):
                settings[key.replace("/", ".")] = (value.strip(), path)
    return settings


def tell_who(drift, root="/"):
    """Add `by` to differences: the log of the package manager, or when a file was changed."""
    if any(entry["kind"] == "package" for entry in drift):
        history = _package_history(root)
        for entry in drift:
            if entry["kind"] == "package" and entry["item"] in history:
                entry["by"] = history[entry["item"]]
    for entry in drift:
        if entry["kind"] in _KINDS_OF_PATHS and not entry.get("by"):
            try:
                changed = os.stat(below(root, entry["item"])).st_mtime
            except OSError:
                continue
            entry["by"] = "written " + time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(changed))


def _package_history(root):
    """Package to who changed it last and when: apt's own history, dpkg's log for what went past apt."""
    found = {}
    for line in _text(below(root, DPKG_LOG)).splitlines():
        # 2026-11-30 08:12:01 upgrade libnvidia-ml1:amd64 580.126.20-1 580.142.09-1
        words = line.split()
        if len(words) >= 5 and words[2] in ("install", "upgrade", "remove", "purge"):
            found[words[3].partition(":")[0]] = f"dpkg, {words[0]} {words[1]}"
    for block in _text(below(root, APT_HISTORY)).split("\n\n"):
        values = dict(line.partition(": ")[::2] for line in block.splitlines() if ": " in line)
        command = values.get("Commandline", "apt")
        if "unattended-upgrade" in command:
            command = "unattended-upgrade"
        if values.get("Requested-By"):
            command += " by " + values["Requested-By"].split()[0]
        when = " ".join(values.get("Start-Date", "").split())
        for verb in ("Install", "Upgrade", "Downgrade", "Remove", "Purge"):
            for name in re.findall(r"([^\s,():]+):[a-z0-9]+ \(", values.get(verb, "")):
                found[name] = f"{command}, {when}"
    return found


def _text(path):
    try:
        with open(path, "rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - _LOG_BYTES))
            return stream.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _entry(kind, item, expected, found):
    return {"role": "", "kind": kind, "item": item, "expected": expected, "found": found}
