"""Kernel settings, modules, swap, host name, installed packages and images: read and set."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import subprocess

from ansible_collections.myriad.gpu.plugins.module_utils.host import read
from ansible_collections.myriad.gpu.plugins.module_utils.record import below, write_atomic

# Where a feature shows itself when it is built in and has no parameters (then /sys/module does not name it).
MODULE_SIGNS = {
    "br_netfilter": "/proc/sys/net/bridge",
    "nf_conntrack": "/proc/sys/net/netfilter/nf_conntrack_max",
    "ip_vs": "/proc/net/ip_vs",
    "tun": "/dev/net/tun",
    "fuse": "/dev/fuse",
}


class SystemFault(Exception):
    """Something of the host cannot be read or set."""


def setting_path(name, root="/"):
    """The file of a kernel setting; a name with slashes may hold dots (an interface's name)."""
    relative = name if "/" in name else name.replace(".", "/")
    return below(root, os.path.join("/proc/sys", relative))


def read_setting(name, root="/"):
    """Value with its white space normalised; None when the kernel has no such setting."""
    try:
        with open(setting_path(name, root), encoding="utf-8") as stream:
            return " ".join(stream.read().split())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SystemFault(f"setting {name} cannot be read: {error.strerror}") from error


def write_setting(name, value, root="/"):
    """None when it took, else why not."""
    try:
        with open(setting_path(name, root), "w", encoding="utf-8") as stream:
            stream.write(value + "\n")
    except OSError as error:
        return error.strerror or str(error)
    found = read_setting(name, root)
    if found != " ".join(value.split()):
        return f"the kernel keeps {found}"
    return None


def module_loaded(name, root="/"):
    plain = name.replace("-", "_")
    if os.path.isdir(below(root, "/sys/module/" + plain)):
        return True
    sign = MODULE_SIGNS.get(plain)
    if sign and os.path.exists(below(root, sign)):
        return True
    if re.search(rf"^\S*\s+{re.escape(plain)}$", read(below(root, "/proc/filesystems")), re.MULTILINE):
        return True
    listing = read(below(root, f"/lib/modules/{os.uname().release}/modules.builtin"))
    return any(os.path.basename(line).replace("-", "_") == plain + ".ko" for line in listing.splitlines())


def modprobe(name, dry_run):
    """None when the module is there (or could be loaded), else why not."""
    if shutil.which("modprobe") is None:
        return "modprobe is not installed"
    command = ["modprobe", *(["--dry-run"] if dry_run else []), "--", name]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return None if done.returncode == 0 else (done.stdout.strip() or f"modprobe ends with {done.returncode}")


def swaps(root="/"):
    """Active swap devices and files."""
    return [line.split()[0] for line in read(below(root, "/proc/swaps")).splitlines()[1:] if line.split()]


def fstab_without_swap(root="/"):
    """The text of fstab with its swap lines commented out; None when there is nothing to change."""
    path = below(root, "/etc/fstab")
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as stream:
        text = stream.read()
    changed = re.sub(r"(?m)^([^#\s]\S*\s+\S+\s+swap\s.*)$", r"# swap is off (Myriad): \1", text)
    return changed if changed != text else None


def swap_off(root="/"):
    for device in swaps(root):
        done = subprocess.run(
            ["swapoff", device],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise SystemFault(f"swap on {device} cannot be turned off: {done.stdout.strip()}")
    text = fstab_without_swap(root)
    if text is not None:
        write_in_place(below(root, "/etc/fstab"), text)


def write_in_place(path, text):
    """Write a file atomically; in place where it is a mount of its own (a container's /etc/hostname)."""
    mode = os.stat(path).st_mode & 0o7777 if os.path.exists(path) else 0o644
    try:
        write_atomic(path, text.encode(), mode)
        os.chmod(path, mode)
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.EXDEV):
            raise
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(text)


def hostname(root="/"):
    """Names of the running kernel and of /etc/hostname."""
    return os.uname().nodename, read(below(root, "/etc/hostname"))


def set_hostname(name, root="/"):
    write_in_place(below(root, "/etc/hostname"), name + "\n")
    if root in ("", "/") and os.uname().nodename != name:
        try:
            socket.sethostname(name)
        except OSError as error:
            raise SystemFault(f"the host name cannot be set to {name}: {error.strerror}") from error


def package_versions(names, root="/"):
    """Installed versions by package; one call. A package that is not installed is left out.

    A name without architecture is the host's own: the same library of i386 does not stand for it.
    """
    if not names:
        return {}
    command = [
        "dpkg-query",
        *(["--admindir=" + below(root, "/var/lib/dpkg")] if root not in ("", "/") else []),
        "--show",
        "--showformat=${Package}\\t${Architecture}\\t${Version}\\t${db:Status-Status}\\n",
        "--",
        *sorted({*names, "dpkg"}),
    ]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise SystemFault(
            "dpkg-query is not on this node; recorded packages can be looked at on Debian and Ubuntu only"
        ) from error
    rows = [columns for columns in (line.split("\t") for line in done.stdout.splitlines()) if len(columns) == 4]
    # dpkg itself is of the host's architecture.
    own = {"all", *(row[1] for row in rows if row[0] == "dpkg")}
    versions = {}
    for package, architecture, version, status in rows:
        if status != "installed":
            continue
        versions[f"{package}:{architecture}"] = version
        if architecture in own or len(own) == 1:
            versions[package] = version
    return {name: versions[name] for name in names if name in versions}


def _runtime_environment():
    """The environment for crictl: on a node without a crictl.yaml it is told where the runtime listens."""
    environment = dict(os.environ)
    if not os.path.exists("/etc/crictl.yaml"):
        environment.setdefault("CONTAINER_RUNTIME_ENDPOINT", "unix:///run/containerd/containerd.sock")
    return environment


def images():
    """Images that the container runtime has for Kubernetes: digests by reference.

    Raises:
        SystemFault: the runtime does not answer.
    """
    said = []
    for command, parse in (
        (["crictl", "images", "--output", "json"], _crictl),
        (["ctr", "--namespace", "k8s.io", "images", "list"], _ctr),
    ):
        program = shutil.which(command[0], path=os.environ.get("PATH", "") + ":/usr/local/bin:/usr/local/sbin:/usr/bin")
        if program is None:
            continue
        environment = _runtime_environment()
        try:
            done = subprocess.run(
                [program, *command[1:]],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env=environment,
                timeout=30,
                check=False,
            )
        except subprocess.TimeoutExpired:
            said.append(f"{command[0]}: no answer within 30 s")
            continue
        if done.returncode == 0:
            return parse(done.stdout)
        said.append(f"{command[0]}: {done.stderr.strip()[-300:]}")
    raise SystemFault(
        "the images of the container runtime cannot be listed: %s"
        % ("; ".join(said) or "neither crictl nor ctr is installed")
    )


def pull_image(reference, digest):
    """Pull an image into the container runtime, by digest where one is given (the name then comes with it).

    Raises:
        SystemFault: the runtime did not get it; with its words.
    """
    names = [reference]
    if digest and "@" not in reference:
        # A pull by digest brings the content, the one by name the name that others ask for.
        repository, colon, tag = reference.rpartition(":")
        names.insert(0, f"{repository if colon and '/' not in tag else reference}@{digest}")
    program = shutil.which("crictl", path=os.environ.get("PATH", "") + ":/usr/local/bin:/usr/local/sbin:/usr/bin")
    if program is None:
        raise SystemFault("crictl is not installed, and images are pulled with it")
    for name in names:
        done = subprocess.run(
            [program, "pull", name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=_runtime_environment(),
            check=False,
        )
        if done.returncode != 0:
            raise SystemFault(f"{name} was not pulled: {done.stderr.strip()[-400:]}")


def _crictl(text):
    found = {}
    for image in json.loads(text).get("images", ()):
        digests = {digest.rsplit("@", 1)[-1] for digest in image.get("repoDigests") or ()}
        digests.add(image.get("id", ""))
        for reference in [*(image.get("repoTags") or ()), *(image.get("repoDigests") or ())]:
            found.setdefault(reference, set()).update(digests)
    return found


def _ctr(text):
    found = {}
    for line in text.splitlines()[1:]:
        columns = line.split()
        if len(columns) >= 3:
            found.setdefault(columns[0], set()).add(columns[2])
    return found


def has_image(found, reference, digest):
    """None when the image is there (with the digest, when one is asked for), else what was found."""
    digests = found.get(reference)
    if digests is None and digest:
        repository = reference.rsplit("@", 1)[0]
        digests = found.get(f"{repository}@{digest}")
    if digests is None:
        return "absent"
    if digest and digest not in digests:
        return ", ".join(sorted(digests))
    return None
