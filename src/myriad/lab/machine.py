"""What the lab changes on the machine itself, with a machine-wide record of it.

Several clones and users share one engine and one set of kernel settings. The record (`/run`, so it ends with the boot
that it describes) tells what a lab changed, so that the last `make lab-down` puts it back and no earlier one does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from myriad.errors import MyriadError

RECORD = Path("/run/myriad-lab.json")

#: Kernel settings that every node shares with this machine: name -> least value for a lab of some tens of nodes.
#: The default of 128 inotify instances is used up by about three kubelets with systemd.
SETTINGS = {"fs.inotify.max_user_instances": 1024, "fs.inotify.max_user_watches": 262144}

Say = Callable[[str], None]


def as_root(command: Sequence[str], *, input_text: str | None = None, check: bool = True) -> str:
    """Run a command with root's rights: directly, or through sudo (which may ask where there is a terminal).

    Raises:
        MyriadError: when it fails, with its last lines.
    """
    argv = list(command)
    if os.geteuid() != 0:
        sudo = shutil.which("sudo")
        if sudo is None:
            raise MyriadError(f"root is needed for `{' '.join(argv)}` and there is no sudo", hint="Run as root.")
        argv = [sudo, *([] if sys.stdin.isatty() else ["-n"]), *argv]
    done = subprocess.run(argv, input=input_text, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        tail = "\n  ".join((done.stderr or done.stdout).strip().splitlines()[-4:])
        raise MyriadError(f"`{' '.join(command)}` failed:\n  {tail}")
    return done.stdout


def read_record() -> dict[str, Any]:
    """What labs changed on this machine since it booted."""
    try:
        record = json.loads(RECORD.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def write_record(record: dict[str, Any]) -> None:
    """Write the record, or remove it where nothing is left to put back."""
    if not any(record.values()):
        if RECORD.exists():
            as_root(["rm", "-f", str(RECORD)])
        return
    text = json.dumps(record, indent=2) + "\n"
    temporary = f"{RECORD}.new"
    as_root(["tee", temporary], input_text=text)
    as_root(["mv", temporary, str(RECORD)])


def _sysctl_path(name: str) -> Path:
    return Path("/proc/sys") / name.replace(".", "/")


def settings_to_raise(current: dict[str, int], wanted: dict[str, int] | None = None) -> dict[str, int]:
    """Which settings are below what a lab needs. Pure."""
    return {name: value for name, value in (wanted or SETTINGS).items() if current.get(name, value) < value}


def raise_settings(say: Say) -> None:
    """Raise the kernel settings that are too low, where this is allowed, and record what they were."""
    current: dict[str, int] = {}
    for name in SETTINGS:
        try:
            current[name] = int(_sysctl_path(name).read_text())
        except (OSError, ValueError):
            continue
    record = read_record()
    kept = record.setdefault("settings", {})
    for name, value in settings_to_raise(current).items():
        try:
            as_root(["tee", str(_sysctl_path(name))], input_text=f"{value}\n")
        except MyriadError:
            say(f"{name} is {current[name]} and may not be raised here: enough for this lab, low for many nodes")
            continue
        kept.setdefault(name, {"before": current[name], "set": value})
        kept[name]["set"] = value
        say(f"{name} raised from {current[name]} to {value} (make lab-down puts it back)")
        write_record(record)


def restore_settings() -> list[str]:
    """Put back what was raised, unless somebody changed it since. Returns one sentence for each."""
    record, said = read_record(), []
    for name, values in record.pop("settings", {}).items():
        now = int(_sysctl_path(name).read_text())
        if now == values["set"]:
            as_root(["tee", str(_sysctl_path(name))], input_text=f"{values['before']}\n")
            said.append(f"{name} back to {values['before']}")
        else:
            said.append(f"{name} is {now}, changed by somebody else since: left alone")
    if said:
        write_record(record)
    return said


def missing_packages(packages: Sequence[str]) -> list[str]:
    """Those of the Debian packages that are not installed."""
    missing = []
    for package in packages:
        query = ["dpkg-query", "-W", "-f", "${db:Status-Status}", package]
        done = subprocess.run(query, capture_output=True, text=True, check=False)
        if done.stdout.strip() != "installed":
            missing.append(package)
    return missing


def install_packages(packages: Sequence[str], *, why: str, say: Say) -> list[str]:
    """Install the missing ones of these packages, after saying so. Returns those that were installed now.

    Raises:
        MyriadError: with apt's last lines.
    """
    missing = missing_packages(packages)
    if not missing:
        return []
    say(f"{why}: installing {', '.join(missing)} with apt")
    apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-o", "DPkg::Lock::Timeout=300", "-qq", "-y"]
    # An engine that its package starts by itself is started once more below, and recorded there.
    try:
        as_root([*apt, "install", "--no-install-recommends", *missing])
    except MyriadError:
        as_root([*apt, "update"])
        as_root([*apt, "install", "--no-install-recommends", *missing])
    return missing
