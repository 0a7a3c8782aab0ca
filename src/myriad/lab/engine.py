"""The Docker engine under the lab: found, started or installed, and stopped again by the lab that started it."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, DockerException

from myriad.errors import MyriadError
from myriad.lab.machine import Say, as_root, install_packages, read_record, write_record
from myriad.lab.nodes import LABEL
from myriad.lab.preflight import SOCKETS, probe_engine
from myriad.lab.state import Detected

PACKAGES = ("docker.io", "containerd", "runc", "iptables")
START_TIMEOUT_S = 60.0
PID_FILE = Path("/var/run/docker.pid")


def connect() -> docker.DockerClient:
    """A client for the engine that answers.

    Raises:
        MyriadError: when none answers.
    """
    try:
        client = docker.from_env(timeout=300)
        client.ping()
    except (DockerException, OSError) as error:
        raise MyriadError(
            f"no Docker engine answers: {error}", hint="`make lab` starts or installs one; `docker info` tells more."
        ) from error
    return client


def ensure_engine(lab: str, log: Path, say: Say) -> docker.DockerClient:
    """A running engine: the one that answers, a stopped one started, or docker.io installed and started.

    Args:
        lab: name of the lab, for the record of who started it.
        log: file for the output of an engine that is started by hand.
        say: told before a package is installed or an engine started.

    Raises:
        MyriadError: when no engine answers afterwards.
    """
    kind = probe_engine(dict(os.environ)).kind
    if kind == "none":
        say("no Docker engine answers; installing docker.io and starting it (make lab-down stops it again)")
        installed = install_packages(PACKAGES, why="for the engine", say=say)
        record = read_record()
        record["packages"] = sorted({*record.get("packages", []), *installed})
        # The package starts its service where an init runs: then it is this lab that started it.
        if probe_engine(dict(os.environ)).kind in ("docker", "denied"):
            record["engine"] = {"lab": lab, "method": "systemd"}
        write_record(record)
        kind = probe_engine(dict(os.environ)).kind
    elif kind == "stopped":
        say("Docker is installed but does not run; starting it (make lab-down stops it again)")
    if kind in ("stopped", "none"):
        _start(lab, log)
        kind = probe_engine(dict(os.environ)).kind
    if kind == "denied":
        _grant_socket(say)
    return connect()


def _systemd() -> bool:
    """Whether systemd runs this machine."""
    return Path("/run/systemd/system").is_dir() and shutil.which("systemctl") is not None


def _start(lab: str, log: Path) -> None:
    if _systemd():
        as_root(["systemctl", "start", "docker"])
        method = "systemd"
    else:
        method = "hand"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            # A session of its own: Ctrl-C in make lab does not end the engine under other labs.
            prefix = [] if os.geteuid() == 0 else ["sudo", "-n"]
            subprocess.run(
                [*prefix, "setsid", "--fork", shutil.which("dockerd") or "/usr/sbin/dockerd"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=True,
            )
    until = time.monotonic() + START_TIMEOUT_S
    while probe_engine(dict(os.environ)).kind not in ("docker", "denied"):
        if time.monotonic() > until:
            tail = "\n  ".join(log.read_text(errors="replace").splitlines()[-4:]) if log.exists() else ""
            where = "journalctl -u docker" if method == "systemd" else str(log)
            raise MyriadError(
                f"the Docker engine did not answer within {START_TIMEOUT_S:.0f} s\n  {tail}", hint=f"See {where}."
            )
        time.sleep(0.3)
    record = read_record()
    record["engine"] = {"lab": lab, "method": method}
    if method == "hand":
        pid = int(PID_FILE.read_text())
        record["engine"].update(pid=pid, started=process_start(pid), log=str(log))
    write_record(record)


def process_start(pid: int) -> str:
    """Start time of a process in clock ticks since boot: with the pid it names one process, also after pids wrap.

    Returns:
        An empty string when there is no such process.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _grant_socket(say: Say) -> None:
    """Give this user the engine's socket until the engine restarts; needs sudo."""
    path = next((path for path in SOCKETS if Path(path).exists()), SOCKETS[0])
    user = getpass.getuser()
    say(f"giving {user} access to {path} through sudo, until the engine restarts")
    install_packages(["acl"], why="for that", say=say)
    as_root(["setfacl", "-m", f"u:{user}:rw", path])


def stop_engine(lab: str) -> list[str]:
    """Stop the engine when a lab started it and nothing runs on it any more. Returns sentences about what was done."""
    record = read_record()
    engine: dict[str, Any] = record.get("engine") or {}
    if not engine:
        return []
    if engine["method"] == "hand" and process_start(int(engine["pid"])) != engine["started"]:
        record.pop("engine")
        write_record(record)
        return ["the engine that make lab started has ended already"]
    try:
        client = connect()
        others = [container.name for container in client.containers.list()]
    except MyriadError:
        others = []
    if others:
        return [f"the engine that make lab started keeps running: {', '.join(sorted(map(str, others))[:4])} use it"]
    if engine["method"] == "systemd":
        as_root(["systemctl", "stop", "docker.socket", "docker"])
    else:
        pid = int(engine["pid"])
        as_root(["kill", f"-{signal.SIGTERM.value}", str(pid)])
        until = time.monotonic() + START_TIMEOUT_S
        while process_start(pid) == engine["started"] and not _zombie(pid):
            if time.monotonic() > until:
                return [f"the engine (pid {pid}) was told to stop and has not ended yet"]
            time.sleep(0.2)
    record.pop("engine")
    packages = record.pop("packages", [])
    write_record(record)
    said = ["the Docker engine that make lab started is stopped"]
    if packages:
        said.append(f"installed packages stay ({', '.join(packages)}): apt-get remove takes them away")
    return said


def _zombie(pid: int) -> bool:
    """An ended child that its parent has not collected yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return True


def detect(client: docker.DockerClient, image: str) -> Detected:
    """Find out by trying what this engine's containers can have: each answer becomes a role input of the lab.

    Raises:
        MyriadError: when no combination starts.
    """
    info = client.info()
    cgroup = int(info.get("CgroupVersion") or 1)
    kmsg = Path("/dev/kmsg").exists()
    last = ""
    for capability in (True, False):
        for device in (True, False) if kmsg else (False,):
            options: dict[str, Any] = {
                "cap_add": ["ALL"],
                "cap_drop": [] if capability else ["SYS_RESOURCE"],
                "security_opt": ["seccomp=unconfined", "apparmor=unconfined"],
                "devices": ["/dev/kmsg:/dev/kmsg:rwm"] if device else [],
                "device_cgroup_rules": ["a *:* rwm"],
                "cgroupns": "private",
                "labels": {LABEL: "probe"},
            }
            container = client.containers.create(image, entrypoint=["/bin/true"], command=[], **options)
            try:
                container.start()
                if container.wait(timeout=60)["StatusCode"] == 0:
                    return Detected(
                        cgroup_version=cgroup,
                        cap_sys_resource=capability,
                        dev_kmsg=device,
                        engine_version=str(info.get("ServerVersion", "")),
                    )
            except APIError as error:
                last = str(error.explanation)
            finally:
                container.remove(force=True, v=True)
    raise MyriadError(
        f"this engine does not start a container with the rights of a node: {last}",
        hint="Use Docker Engine on a machine or virtual machine of its own.",
    )
