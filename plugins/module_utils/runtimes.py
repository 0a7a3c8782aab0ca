"""Container runtimes that are on a node: units, sockets, programs, and what its kubelet uses. Read only."""

from __future__ import annotations

import os
import re
import socket
import subprocess

from ansible_collections.myriad.gpu.plugins.module_utils import host, units
from ansible_collections.myriad.gpu.plugins.module_utils.record import below, load_all

CONFIG = "/etc/containerd/config.toml"
# Where a kubelet is told which runtime to use, besides its command line.
KUBELET_FILES = (
    ("/var/lib/kubelet/config.yaml", r"^containerRuntimeEndpoint:\s*[\"']?([^\"'\s]+)"),
    ("/var/lib/kubelet/kubeadm-flags.env", r"--container-runtime-endpoint[= ]([^\"'\s]+)"),
    ("/etc/default/kubelet", r"--container-runtime-endpoint[= ]([^\"'\s]+)"),
)


def look(unit_names, socket_paths, root="/", state_dir="/var/lib/myriad/state"):
    """Everything that decides what becomes of a runtime which is already there.

    Args:
        unit_names: units that would be one, or would use one.
        socket_paths: where one would answer.
    """
    found = {}
    for name, values in units.show(unit_names).items():
        if values["LoadState"] == "not-found":
            continue
        fragment = values["FragmentPath"]
        masked = values["LoadState"] == "masked"
        found[name] = {
            "load": values["LoadState"],
            "active": values["ActiveState"],
            "enabled": values["UnitFileState"],
            "fragment": "" if masked else fragment,
            "package": "" if masked else package_of(fragment),
            "program": "" if masked else program_of(fragment),
        }
    own_files = {
        entry["path"] for record in load_all(below(root, state_dir)).values() for entry in record.get("files", ())
    }
    containerd = found.get("containerd.service", {})
    own = bool(containerd.get("fragment")) and containerd["fragment"] in own_files
    program = containerd.get("program")
    return {
        "units": found,
        "sockets": [path for path in socket_paths if listens(path)],
        "versions": {program: version_of(program)} if program else {},
        "kubelet": kubelet(root),
        "config": CONFIG if CONFIG not in own_files and os.path.exists(below(root, CONFIG)) else "",
        "own": own,
    }


def listens(path):
    """Whether somebody answers at a socket; a file that a killed program left does not count."""
    if not os.path.exists(path):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def output(words):
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def package_of(path):
    """The package that brought a file; empty for none."""
    if not path:
        return ""
    # dpkg records paths as packages name them, before /lib became a link to /usr/lib.
    other = path[len("/usr") :] if path.startswith("/usr/lib/") else "/usr" + path
    for name in (path, other):
        owner = output(["dpkg-query", "--search", name]).partition(":")[0]
        if owner and not owner.startswith("diversion"):
            return owner
    return ""


def program_of(fragment):
    """The program that a unit file starts."""
    found = re.findall(r"^ExecStart=[-@:+!]*(\S+)", host.read(fragment) if fragment else "", re.MULTILINE)
    return found[-1] if found else ""


def version_of(program):
    """Version of a containerd as it prints it: `containerd <package> <version> <revision>`."""
    words = output([program, "--version"]).split()
    return words[2].lstrip("v") if len(words) > 2 else ""


def kubelet(root="/"):
    """Whether a kubelet runs, the runtime endpoint that it uses, and where that is set."""
    for pid in os.listdir("/proc"):
        if not pid.isdigit():
            continue
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as stream:
                words = stream.read().decode("utf-8", "replace").split("\0")
        except OSError:
            continue
        if os.path.basename(words[0]) != "kubelet":
            continue
        line = " ".join(words)
        match = re.search(r"--container-runtime-endpoint[= ](\S+)", line)
        if match:
            return {"running": True, "endpoint": match.group(1), "source": "its command line"}
        for path, pattern in KUBELET_FILES:
            match = re.search(pattern, host.read(below(root, path)), re.MULTILINE)
            if match:
                return {"running": True, "endpoint": match.group(1), "source": path}
        return {"running": True, "endpoint": "", "source": ""}
    return {"running": False, "endpoint": "", "source": ""}
