"""systemd units: what they are, what they were started with, and why one does not start."""

from __future__ import annotations

import hashlib
import os
import shlex
import socket
import subprocess
import time

from ansible_collections.myriad.gpu.plugins.module_utils import fsops, merged

PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "UnitFileState",
    "FragmentPath",
    "DropInPaths",
    "NeedDaemonReload",
    "ActiveEnterTimestampMonotonic",
    "Type",
    "Result",
    "ExecMainStatus",
)
ENABLED = ("enabled", "enabled-runtime", "linked", "linked-runtime")
# States of a unit file that has no [Install] section or is made by a generator: there is nothing to enable.
NOT_ENABLEABLE = ("static", "generated", "indirect", "alias", "transient")
# What a prediction says of a directory that would be made.
DIRECTORY = "directory"
# Words in a journal and what they mean. First match wins.
CAUSES = (
    ("address already in use", "another program listens on its port; `ss -ltnp` names it"),
    ("executable file not found", "a program that it calls is not installed or not on its PATH"),
    ("no such file or directory", "a file that it needs is missing; the journal line names it"),
    ("unknown config version", "its configuration file is of another version than the program reads"),
    ("unsupported config version", "its configuration file is of another version than the program reads"),
    ("strict decoding error", "its configuration has a field that this version does not know"),
    ("cannot unmarshal", "its configuration file is not valid for this version"),
    ("failed to load toml", "its configuration file is not valid TOML"),
    ("running with swap on is not supported", "swap is on; set swap: off for this node"),
    ("permission denied", "it may not read or write a file; look at owner and mode of the one named"),
    ("operation not permitted", "it lacks a capability, or the machine forbids what it tries (a container?)"),
    ("no space left on device", "a disk is full; `df -h` shows which"),
    ("too many open files", "limit of open files or of inotify instances; see fs.inotify.max_user_instances"),
    ("certificate has expired", "a certificate has expired"),
    ("x509", "a certificate is not valid for this name or is signed by another authority"),
    ("cgroup", "cgroup version or driver does not fit; compare the runtime's and the kubelet's cgroup driver"),
    ("connection refused", "what it connects to does not listen yet"),
    ("out of memory", "memory ran out"),
    ("exec format error", "the program is for another architecture"),
)


class UnitError(Exception):
    """A unit is not as asked for; the text holds the journal's tail and a guess."""


def systemctl(*words, root="/", check=True):
    command = ["systemctl", *(["--root=" + root] if root not in ("", "/") else []), *words]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise UnitError("systemctl is not on this node; Myriad's roles need systemd") from error
    if check and done.returncode != 0:
        raise UnitError("`{}` failed: {}".format(" ".join(command), (done.stderr or done.stdout).strip()))
    return done


def show(names):
    """Properties of units by the name asked for; one call."""
    names = list(dict.fromkeys(names))
    if not names:
        return {}
    done = systemctl("show", "--property=" + ",".join(PROPERTIES), "--", *names)
    blocks = list(done.stdout.strip("\n").split("\n\n"))
    if len(blocks) != len(names):
        said = done.stderr.strip()
        raise UnitError(f"`systemctl show` answered for {len(blocks)} of {len(names)} units: {said}")
    found = {}
    for name, block in zip(names, blocks):
        values = dict.fromkeys(PROPERTIES, "")
        for line in block.splitlines():
            key, separator, value = line.partition("=")
            if separator:
                values[key] = value
        found[name] = values
    # `show` answers from the manager's memory, which learns of links made behind it (kubeadm, `enable --no-reload`)
    # only at its next reload; `is-enabled` looks at the disk.
    doubtful = [name for name, values in found.items() if values["UnitFileState"] == "disabled"]
    if doubtful:
        answers = systemctl("is-enabled", "--", *doubtful, check=False).stdout.split()
        if len(answers) == len(doubtful):
            for name, answer in zip(doubtful, answers):
                found[name]["UnitFileState"] = answer
    return found


def on_disk(name, root="/"):
    """State of a unit file as its links on the disk have it; the manager's memory may be older (`--no-reload`)."""
    return systemctl("is-enabled", "--", name, root=root, check=False).stdout.strip()


def is_active(values):
    return values["ActiveState"] in ("active", "reloading")


def fragment_paths(name, values, predicted):
    """The unit's own file and drop-ins: those systemd knows and those that check mode would have written."""
    paths = {values["FragmentPath"]} if values["FragmentPath"] else set()
    paths.update(path for path in values["DropInPaths"].split() if path)
    for path in predicted:
        directory, base = os.path.split(path)
        if (directory.endswith("/systemd/system") and base == name) or (
            directory.endswith(f"/systemd/system/{name}.d") and base.endswith(".conf")
        ):
            paths.add(path)
    # systemd reads these through links; the content is what counts.
    return paths


class Contents:
    """Digests of files, trusting what is already recorded of large ones, and what check mode predicts."""

    def __init__(self, records, predicted):
        self.predicted = predicted
        self.known = {}
        for record in records.values():
            for entry in record.get("artifacts", ()):
                self.known[entry["path"]] = entry

    def digest(self, path):
        if path in self.predicted and self.predicted[path] != DIRECTORY:
            return self.predicted[path] or "absent"
        if os.path.isdir(path) or self.predicted.get(path) == DIRECTORY:
            inside = sorted(self.inside(path))
            lines = [f"{name} {self.digest(name)}" for name in inside if self.digest(name) != "absent"]
            return hashlib.sha256("\n".join(lines).encode()).hexdigest()
        try:
            info = os.stat(path)
        except OSError:
            return "absent"
        known = self.known.get(path)
        if known and (known.get("size"), known.get("mtime_ns"), known.get("inode")) == (
            info.st_size,
            info.st_mtime_ns,
            info.st_ino,
        ):
            return known["sha256"]
        try:
            return fsops.sha256_file(path)
        except OSError:
            return "absent"

    def inside(self, directory):
        """Files below a directory, those included that check mode would have put there; hidden ones are not read."""
        found = set()
        for folder, folders, names in os.walk(directory):
            folders[:] = [name for name in folders if not name.startswith(".")]
            found.update(os.path.join(folder, name) for name in names if not name.startswith("."))
        prefix = directory.rstrip("/") + "/"
        found.update(
            path for path, content in self.predicted.items() if path.startswith(prefix) and content != DIRECTORY
        )
        return found

    def of(self, paths, output=None):
        """One digest of what a unit is started with.

        Args:
            paths: files and directories.
            output: what a program makes of further files, where that counts and not the files themselves.
        """
        lines = [f"{path} {self.digest(path)}" for path in sorted(set(paths))]
        if output is not None:
            lines.append("output " + hashlib.sha256(output.encode()).hexdigest())
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def predicts_change(self, paths):
        """Whether check mode would have given one of the paths another content."""
        here = Contents({}, {})
        here.known = self.known
        return any(here.digest(path) != self.digest(path) for path in paths)


def merged_output(unit):
    """What the unit's program makes of the files of its directory; None for a unit without such a program.

    Raises:
        UnitError: it refuses them; the text names the file.
    """
    wanted = unit.get("merged")
    if not wanted or merged.program_missing(wanted["command"]):
        return None
    directory = merged.Directory(wanted["directory"], wanted["command"])
    try:
        return directory.output()
    except merged.Refused as refused:
        said = merged.refusal(directory, refused)
        raise UnitError("{} was left alone. {}".format(unit["name"], said)) from refused


def started_after(values, paths):
    """Whether a running unit was started after all these files were last written (first adoption)."""
    try:
        entered = int(values["ActiveEnterTimestampMonotonic"] or 0) / 1e6
    except ValueError:
        entered = 0.0
    started = time.time() - (time.monotonic() - entered)
    newest = 0.0
    for path in paths:
        for name in [path, *(Contents({}, {}).inside(path) if os.path.isdir(path) else ())]:
            try:
                newest = max(newest, os.stat(name).st_mtime)
            except OSError:
                continue
    return newest <= started


def journal(name, lines=15):
    try:
        done = subprocess.run(
            ["journalctl", "--unit=" + name, f"--lines={lines}", "--no-pager", "--output=cat"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"(the journal cannot be read: {error})"
    return done.stdout.strip() or "(the journal has no line of it)"


def guess(text):
    lowered = text.lower()
    for words, cause in CAUSES:
        if words in lowered:
            return cause
    return None


def failure(name, what, values=None, said=""):
    """The error of a unit: what happened, the journal's tail, a guess, and what to do."""
    tail = journal(name)
    lines = [f"{name} {what}."]
    if values:
        lines[0] = "{} {} ({}, result {}, exit status {}).".format(
            name,
            what,
            values["ActiveState"],
            values["Result"] or "none",
            values["ExecMainStatus"] or "none",
        )
    if said:
        lines.append(said.strip())
    cause = guess(tail + "\n" + said)
    if cause:
        lines.append("Probably: " + cause + ".")
    lines.append("Last lines of its journal:")
    lines.extend("  " + line for line in tail.splitlines())
    lines.append(f"Look further with: journalctl -u {name} -b")
    return UnitError("\n".join(lines))


def act(verb, name, timeout_s):
    """start or restart a unit and see it active."""
    done = systemctl(verb, "--", name, check=False)
    if done.returncode != 0:
        raise failure(name, f"did not {verb}", show([name])[name], done.stderr)
    deadline = time.monotonic() + timeout_s
    settled = False
    while True:
        values = show([name])[name]
        if is_active(values):
            if values["Type"] not in ("simple", "exec", "idle") or settled:
                return
            # systemd calls these active before the program has done anything: look once more.
            settled = True
            time.sleep(0.4)
            continue
        if values["ActiveState"] == "failed" or values["SubState"] == "auto-restart" or time.monotonic() > deadline:
            raise failure(name, "does not stay up", values)
        if values["ActiveState"] == "inactive" and values["Result"] == "success" and values["Type"] == "oneshot":
            return
        time.sleep(0.2)


def wait_for(name, wait):
    """Wait until a unit answers: a port, a socket, a path or an address."""
    deadline = time.monotonic() + (wait.get("timeout_s") or 60)
    reason = ""
    while True:
        reason = not_answering(wait)
        if reason is None:
            return
        if time.monotonic() > deadline:
            raise failure(name, f"is up but does not answer: {reason}, waited {wait.get('timeout_s') or 60} s")
        time.sleep(0.2)


def not_answering(wait):
    """None when it answers, else what is missing."""
    if wait.get("command"):
        try:
            done = subprocess.run(
                shlex.split(wait["command"]),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return "`{}`: {}".format(wait["command"], error)
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines()
            return "`{}`: {}".format(wait["command"], said[-1] if said else f"exit code {done.returncode}")
    if wait.get("path") and not os.path.exists(wait["path"]):
        return "{} does not exist".format(wait["path"])
    if wait.get("socket"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(5)
            try:
                probe.connect(wait["socket"])
            except OSError as error:
                return "socket {}: {}".format(wait["socket"], error.strerror or error)
    if wait.get("port"):
        address = (wait.get("host") or "127.0.0.1", int(wait["port"]))
        try:
            socket.create_connection(address, timeout=5).close()
        except OSError as error:
            return f"port {address[0]}:{address[1]}: {error.strerror or error}"
    if wait.get("url"):
        return not_served(wait["url"])
    return None


def not_served(url):
    """None when an address answers without an error."""
    # Here: they bring in TLS and mail, a quarter of what starting this module costs, and few tasks ask for an address.
    import http.client
    import urllib.error
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(url, timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
        return f"{url}: {error.code} {error.reason}"
    except (OSError, http.client.HTTPException) as error:
        return f"{url}: {error}"
    return None
