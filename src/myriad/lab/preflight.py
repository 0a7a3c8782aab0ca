"""Looks at this machine before anything is changed, and tells all that is wrong at once, each with what to do.

`make` runs this file with whatever `python3` there is, before any environment exists: so it needs the standard library
only and runs on Python 3.6, to be able to say "Python is too old". Looking (`gather`) and judging (`judge`) are apart:
judging is pure and tested for every branch.
"""

# Old spellings because Python 3.6 must be able to read this file; plain strings for paths of /proc, /sys and sockets.
# ruff: noqa: UP006, UP032, UP035, UP045
# ruff: noqa: PTH110, PTH111, PTH112, PTH118, PTH119, PTH120, PTH123

import hashlib
import http.client
import ipaddress
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

GIB = 1 << 30
PYTHON_MIN, PYTHON_MAX = (3, 11), (3, 13)
#: Free disk and memory that a lab takes, in bytes. Cold: Go caches, store, bundle, environment, images, four nodes.
DISK_COLD, DISK_WARM = 25 * GIB, 8 * GIB
MEMORY = 4 * GIB
#: Subnets that are tried, in this order.
SUBNETS = tuple("10.{}.0.0/24".format(second) for second in range(77, 100))
SOCKETS = ("/var/run/docker.sock", "/run/docker.sock")


class Interpreter(NamedTuple):
    """One Python found on PATH."""

    path: str
    version: Tuple[int, int]


class Engine(NamedTuple):
    """What answers as a container engine.

    kind: docker | stopped | none | denied | rootless | podman | podman-alias | desktop | remote
    """

    kind: str
    version: str = ""
    cgroup: int = 0
    networks: Tuple[Tuple[str, str], ...] = ()
    detail: str = ""


class Facts(NamedTuple):
    """The machine as seen; everything that `judge` needs and nothing else."""

    os_id: str
    os_version: str
    os_name: str
    machine: str
    kernel: str
    pythons: Tuple[Interpreter, ...]
    disk_path: str
    disk_free: int
    warm: bool
    memory_available: int
    memory_total: int
    engine: Engine
    cgroup: int
    routes: Tuple[str, ...]
    root: bool
    sudo: str  # none | password | free
    terminal: bool
    programs: Tuple[str, ...]
    network: str = ""  # name of this clone's own lab network, which may keep its subnet


class Check(NamedTuple):
    """One thing looked at. level: ok | note | error; text: what is; fix: what to do, empty where nothing is."""

    name: str
    level: str
    text: str
    fix: str = ""


class Verdict(NamedTuple):
    """All checks, the subnet that the lab takes (empty: none is free) and the Python to use (empty: none fits)."""

    checks: Tuple[Check, ...]
    subnet: str
    python: str

    @property
    def errors(self) -> List[Check]:
        """The checks that stop the lab."""
        return [check for check in self.checks if check.level == "error"]


# ---------------------------------------------------------------------------------------------------------- judging


def judge(facts: Facts) -> Verdict:
    """Judge the whole machine. Pure."""
    python = pick_python(facts.pythons)
    subnet, subnet_check = judge_subnet(facts)
    checks = [
        judge_os(facts),
        judge_machine(facts),
        judge_python(facts, python),
        judge_memory(facts),
        judge_disk(facts),
        judge_engine(facts),
        judge_cgroup(facts),
        subnet_check,
    ]
    checks += [check for check in (judge_sudo(facts), judge_wsl(facts)) if check]
    checks += judge_programs(facts)
    return Verdict(tuple(checks), subnet, python.path if python else "")


def judge_os(facts: Facts) -> Check:
    """Debian 12 or 13, Ubuntu 22.04 or 24.04 and newer."""
    name = "{} {}".format(facts.os_name or facts.os_id or "unknown system", facts.os_version).strip()
    wanted = "Debian 12 or 13, or Ubuntu 22.04, 24.04 or newer"
    if facts.os_id == "debian":
        if facts.os_version in ("12", "13"):
            return Check("system", "ok", name)
        if not facts.os_version:
            return Check("system", "note", "Debian testing or unstable: not tested, tried all the same")
    elif facts.os_id == "ubuntu":
        number = _number(facts.os_version)
        if number in ((22, 4), (24, 4)) or number > (24, 4):
            return Check("system", "ok", name)
        if (22, 4) < number < (24, 4):
            return Check("system", "note", f"{name} is an interim release: not tested, tried all the same")
    return Check("system", "error", f"{name} is not supported", f"Use {wanted}; a virtual machine will do.")


def judge_machine(facts: Facts) -> Check:
    """x86_64 is what the artifacts are built for."""
    if facts.machine in ("x86_64", "amd64"):
        return Check("architecture", "ok", "x86_64")
    return Check(
        "architecture",
        "error",
        f"{facts.machine} is not supported: the artifacts of this lock are for x86_64",
        "Use an x86_64 machine.",
    )


def judge_python(facts: Facts, python: Optional[Interpreter]) -> Check:
    """3.11 to 3.13, the newest one on PATH."""
    if python:
        return Check("python", "ok", "Python {}.{}".format(*python.version))
    found = ", ".join(sorted({"{}.{}".format(*item.version) for item in facts.pythons})) or "none"
    if facts.pythons and min(item.version for item in facts.pythons) > PYTHON_MAX:
        return Check(
            "python",
            "error",
            f"Python {found} is newer than what the locked packages support (3.11 to 3.13)",
            "Install Python 3.13 beside it; it only needs to be on PATH as python3.13.",
        )
    fix = "Install Python 3.11, 3.12 or 3.13; it only needs to be on PATH (python3.12, for example)."
    if facts.os_id == "ubuntu" and _number(facts.os_version) == (22, 4):
        fix = "apt-get install python3.11 (in Ubuntu's universe component); it only needs to be on PATH as python3.11."
    return Check("python", "error", f"Python 3.11 to 3.13 is needed; found {found}", fix)


def judge_memory(facts: Facts) -> Check:
    """Memory that is available now, not installed."""
    free, need = facts.memory_available / GIB, MEMORY / GIB
    if facts.memory_available >= MEMORY:
        return Check("memory", "ok", f"{facts.memory_total / GIB:.0f} GiB memory")
    return Check(
        "memory",
        "error",
        f"{free:.1f} GiB of memory is available, {need:.0f} GiB is needed",
        "Close something, add memory, or list fewer nodes in inventories/lab/hosts.yml.",
    )


def judge_disk(facts: Facts) -> Check:
    """Room for caches, images and nodes; less once the caches are filled."""
    need = DISK_WARM if facts.warm else DISK_COLD
    if facts.disk_free >= need:
        return Check("disk", "ok", f"{facts.disk_free / GIB:.0f} GB free")
    return Check(
        "disk",
        "error",
        f"{facts.disk_free / GIB:.0f} GB is free below {facts.disk_path}, {need / GIB:.0f} GB is needed",
        "Free some, or point XDG_CACHE_HOME and Docker's data-root to a larger disk.",
    )


def judge_engine(facts: Facts) -> Check:
    """A Docker engine of the system; anything else gets one sentence."""
    engine = facts.engine
    if engine.kind == "docker":
        if _number(engine.version) < (20, 10):
            return Check(
                "engine",
                "error",
                f"Docker {engine.version} is too old: nodes need private cgroup namespaces (20.10)",
                "Upgrade Docker.",
            )
        return Check("engine", "ok", f"Docker {engine.version}")
    if engine.kind == "stopped":
        return Check("engine", "ok", "Docker is installed but does not run: it will be started, not replaced")
    if engine.kind == "none":
        if "apt-get" not in facts.programs:
            return Check("engine", "error", "no Docker engine answers and there is no apt-get", "Install Docker.")
        return Check("engine", "ok", "no Docker engine yet: docker.io will be installed")
    answers = {
        "denied": (
            f"Docker runs, but this user may not use {engine.detail}",
            "Run `sudo usermod -aG docker $USER`, log in again, and repeat; or run make as root.",
        ),
        "rootless": (
            "Docker runs rootless: a kubelet inside a node needs real root and its own devices",
            "Use the system's engine beside it: DOCKER_HOST=unix:///var/run/docker.sock make lab",
        ),
        "podman": (
            "Podman answers on Docker's socket: it does not run systemd nodes with fixed addresses as the lab needs",
            "Stop podman.socket and install docker.io, or set DOCKER_HOST to a Docker engine.",
        ),
        "podman-alias": (
            "`docker` is Podman's alias here and no Docker engine answers",
            "Remove the package podman-docker, then run make lab again: it installs docker.io beside Podman.",
        ),
        "desktop": (
            "Docker Desktop runs containers in a virtual machine: their addresses are not reachable from here",
            "Use Docker Engine (docker.io) of the system, or run the lab inside a Linux virtual machine.",
        ),
        "remote": (
            f"DOCKER_HOST points to another machine ({engine.detail}): nodes must be reachable by their addresses",
            "Unset DOCKER_HOST, or run make lab on that machine.",
        ),
    }
    text, fix = answers[engine.kind]
    if engine.kind == "denied" and facts.sudo == "free":
        return Check("engine", "note", "Docker is root's here: this user gets access to its socket through sudo")
    return Check("engine", "error", text, fix)


def judge_cgroup(facts: Facts) -> Check:
    """Both versions work; an unknown layout does not."""
    version = facts.engine.cgroup or facts.cgroup
    if version in (1, 2):
        return Check("cgroup", "ok", f"cgroup v{version}")
    return Check(
        "cgroup",
        "error",
        "no cgroup file system is mounted at /sys/fs/cgroup",
        "Boot with systemd, or mount it: mount -t cgroup2 none /sys/fs/cgroup",
    )


def judge_subnet(facts: Facts) -> Tuple[str, Check]:
    """The first candidate that neither a route nor another engine network uses."""
    own = [subnet for name, subnet in facts.engine.networks if facts.network and name == facts.network]
    if own:
        return own[0], Check("subnet", "ok", f"{own[0]} (this lab's)")
    taken = [(subnet, f"Docker's network {name}") for name, subnet in facts.engine.networks]
    taken += [(subnet, f"a route to {subnet}") for subnet in facts.routes]
    for candidate in SUBNETS:
        if not _overlap(candidate, taken):
            if candidate == SUBNETS[0]:
                return candidate, Check("subnet", "ok", f"{candidate} free")
            holder = _overlap(SUBNETS[0], taken)
            return candidate, Check("subnet", "ok", f"{candidate} free ({SUBNETS[0]} is taken by {holder})")
    return "", Check(
        "subnet",
        "error",
        "every subnet from {} to {} is taken".format(SUBNETS[0], SUBNETS[-1]),
        "Remove Docker networks that nobody uses: docker network prune",
    )


def judge_sudo(facts: Facts) -> Optional[Check]:
    """Root is needed only where a package is installed or an engine started."""
    if facts.root or facts.engine.kind == "docker":
        return None
    if facts.engine.kind not in ("none", "stopped", "denied"):
        return None
    if facts.sudo == "free":
        return None
    if facts.sudo == "none":
        return Check(
            "root", "error", "Docker must be set up, but this is not root and there is no sudo", "Run as root."
        )
    if facts.terminal:
        return Check("root", "note", "sudo will ask for your password to set Docker up")
    return Check(
        "root",
        "error",
        "Docker must be set up, but sudo asks for a password and there is no terminal",
        "Run `sudo -v` in a terminal first, allow it without a password, or install and start Docker before.",
    )


def judge_wsl(facts: Facts) -> Optional[Check]:
    """WSL2 gets its sentence; with an engine of its own it is a Linux like any other."""
    if "microsoft" not in facts.kernel.lower():
        return None
    return Check(
        "wsl",
        "note",
        "this is WSL2: it works with Docker Engine inside the distribution and systemd=true in /etc/wsl.conf,"
        " not with Docker Desktop's integration",
    )


def judge_programs(facts: Facts) -> List[Check]:
    """Programs that make lab calls and does not install."""
    packages = {"git": "git", "make": "make", "ssh": "openssh-client", "ssh-keygen": "openssh-client"}
    missing = sorted({package for program, package in packages.items() if program not in facts.programs})
    if not missing:
        return []
    text = "missing on PATH: " + ", ".join(sorted(name for name in packages if name not in facts.programs))
    return [Check("programs", "error", text, "apt-get install " + " ".join(missing))]


def pick_python(pythons: Tuple[Interpreter, ...]) -> Optional[Interpreter]:
    """The newest interpreter that the locked packages support."""
    good = [item for item in pythons if PYTHON_MIN <= item.version <= PYTHON_MAX]
    return max(good, key=lambda item: item.version) if good else None


def _overlap(subnet: str, taken: List[Tuple[str, str]]) -> str:
    """Who holds the first of these (subnet, holder) that overlaps, or an empty string."""
    network = ipaddress.ip_network(subnet)
    for other, holder in taken:
        try:
            if ipaddress.ip_network(other, strict=False).overlaps(network):
                return holder
        except (ValueError, TypeError):
            continue  # an IPv6 network cannot overlap an IPv4 one
    return ""


def _number(version: str) -> Tuple[int, int]:
    """`22.04` or `20.10.24+dfsg1` as (22, 4) or (20, 10); (0, 0) where there is none."""
    match = re.match(r"(\d+)(?:\.(\d+))?", version)
    return (int(match.group(1)), int(match.group(2) or 0)) if match else (0, 0)


# ---------------------------------------------------------------------------------------------------------- looking


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over the engine's socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=10)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(10)
        self.sock.connect(self.path)


def _get(path: str, url: str) -> Any:
    """JSON answer of the engine."""
    connection = _UnixConnection(path)
    try:
        connection.request("GET", url)
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise OSError(f"{url}: HTTP {response.status}")
        return json.loads(body.decode())
    finally:
        connection.close()


def probe_engine(environ: Dict[str, str]) -> Engine:
    """What answers as a container engine, by its socket."""
    host = environ.get("DOCKER_HOST", "")
    if host and not host.startswith("unix://"):
        return Engine("remote", detail=host)
    paths = [host[len("unix://") :]] if host else [path for path in SOCKETS if os.path.exists(path)][:1]
    for path in paths:
        try:
            version, info = _get(path, "/version"), _get(path, "/info")
            networks = _get(path, "/networks")
        except PermissionError:
            return Engine("denied", detail=path)
        except (OSError, ValueError, http.client.HTTPException):
            continue
        return classify_engine(version, info, networks)
    if shutil.which("dockerd") or os.path.exists("/usr/sbin/dockerd"):
        return Engine("stopped")
    docker = shutil.which("docker")
    if docker and _is_podman(docker):
        return Engine("podman-alias")
    return Engine("none")


def classify_engine(version: Dict[str, Any], info: Dict[str, Any], networks: List[Dict[str, Any]]) -> Engine:
    """The engine's kind from its own answers. Pure."""
    names = " ".join(str(part.get("Name", "")) for part in version.get("Components") or [])
    kind = "docker"
    if "podman" in names.lower():
        kind = "podman"
    elif "Docker Desktop" in str(info.get("OperatingSystem", "")):
        kind = "desktop"
    elif any("rootless" in str(option) for option in info.get("SecurityOptions") or []):
        kind = "rootless"
    subnets = []
    for network in networks:
        for config in (network.get("IPAM") or {}).get("Config") or []:
            if config.get("Subnet"):
                subnets.append((str(network.get("Name", "")), str(config["Subnet"])))
    cgroup = str(info.get("CgroupVersion") or "")
    return Engine(kind, str(version.get("Version", "")), int(cgroup) if cgroup.isdigit() else 0, tuple(subnets))


def _is_podman(path: str) -> bool:
    """podman-docker is a link to podman, or a shell script that calls it."""
    if os.path.basename(os.path.realpath(path)).startswith("podman"):
        return True
    try:
        with open(path, "rb") as file:
            head = file.read(4096)
    except OSError:
        return False
    return head.startswith(b"#!") and b"podman" in head


def _routes() -> Tuple[str, ...]:
    """IPv4 networks of the routing table, without the default route."""
    found = []
    try:
        with open("/proc/net/route") as file:
            for line in file.read().splitlines()[1:]:
                parts = line.split()
                address, mask = (int.from_bytes(bytes.fromhex(parts[i]), "little") for i in (1, 7))
                if mask:
                    found.append(str(ipaddress.ip_network((address, bin(mask).count("1")), strict=False)))
    except (OSError, ValueError, IndexError):
        return tuple(found)
    return tuple(found)


def _pythons() -> Tuple[Interpreter, ...]:
    """Interpreters on PATH that really start (a version manager's shim may not)."""
    found = []
    for name in ("python3.13", "python3.12", "python3.11", "python3"):
        path = shutil.which(name)
        if not path:
            continue
        code = "import sys; print(sys.executable, *sys.version_info[:2])"
        try:
            done = subprocess.run([path, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20)
        except (OSError, subprocess.SubprocessError):
            continue
        parts = done.stdout.decode().rsplit(maxsplit=2)
        if done.returncode == 0 and len(parts) == 3:
            found.append(Interpreter(parts[0], (int(parts[1]), int(parts[2]))))
    return tuple(found)


def _memory() -> Tuple[int, int]:
    """(available, total) in bytes."""
    values = {}
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                key, _, rest = line.partition(":")
                values[key] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        return 0, 0
    return values.get("MemAvailable", 0), values.get("MemTotal", 0)


def _os_release() -> Dict[str, str]:
    values = {}
    try:
        with open("/etc/os-release") as file:
            for line in file:
                key, _, value = line.strip().partition("=")
                values[key] = value.strip("\"'")
    except OSError:
        return values
    return values


def _cgroup_version() -> int:
    """2 where the unified hierarchy is mounted, 1 for controllers of their own, 0 for none."""
    if os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
        return 2
    return 1 if os.path.isdir("/sys/fs/cgroup/memory") or os.path.isdir("/sys/fs/cgroup/devices") else 0


def _sudo() -> str:
    path = shutil.which("sudo")
    if not path:
        return "none"
    try:
        done = subprocess.run([path, "-n", "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return "none"
    return "free" if done.returncode == 0 else "password"


def cache_dir(environ: Dict[str, str]) -> str:
    """The cache folder that all clones of a user share."""
    base = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "myriad")


def lab_name(clone: str) -> str:
    """`myriad-` and six hex digits of the clone's path: a second clone or user gets a lab of its own."""
    return "myriad-" + hashlib.sha256(os.path.realpath(clone).encode()).hexdigest()[:6]


def gather(environ: Dict[str, str], network: str = "") -> Facts:
    """Look at the machine; changes nothing.

    Args:
        environ: the environment variables.
        network: name of this clone's lab network; it may keep its subnet.
    """
    release, memory, cache = _os_release(), _memory(), cache_dir(environ)
    place = cache
    while not os.path.exists(place):
        place = os.path.dirname(place)
    programs = [name for name in ("git", "make", "ssh", "ssh-keygen", "apt-get") if shutil.which(name)]
    return Facts(
        os_id=release.get("ID", ""),
        os_version=release.get("VERSION_ID", ""),
        os_name=release.get("NAME", "").replace(" GNU/Linux", ""),
        machine=platform.machine(),
        kernel=platform.release(),
        pythons=_pythons(),
        disk_path=place,
        disk_free=shutil.disk_usage(place).free,
        warm=os.path.isdir(os.path.join(cache, "bundles")),
        memory_available=memory[0],
        memory_total=memory[1],
        engine=probe_engine(environ),
        cgroup=_cgroup_version(),
        routes=_routes(),
        root=os.geteuid() == 0,
        sudo=_sudo() if os.geteuid() else "free",
        terminal=sys.stdin.isatty(),
        programs=tuple(programs),
        network=network,
    )


def summary(verdict: Verdict) -> str:
    """The one line of a machine on which all is well, and the list of what is wrong below it."""
    good = ", ".join(check.text for check in verdict.checks if check.level == "ok")
    notes = [check for check in verdict.checks if check.level == "note"]
    lines = ["{:<16} {}   {}".format("preflight", good, "not ok" if verdict.errors else "ok")]
    lines += ["{:<16} {}".format("", check.text) for check in notes]
    if verdict.errors:
        lines.append("")
        for check in verdict.errors:
            lines += ["  {:<13} {}".format(check.name, check.text), "  {:<13} {}".format("", check.fix)]
        count = len(verdict.errors)
        lines.append("{} thing{} to put right, nothing was changed.".format(count, "" if count == 1 else "s"))
    return "\n".join(lines)


def main(arguments: List[str]) -> int:
    """`--pick-python` prints the interpreter to use, `--json` the verdict, nothing the summary. Exit 0 or 1."""
    if "--pick-python" in arguments:
        chosen = pick_python(_pythons())
        if chosen:
            print(chosen.path)
            return 0
        print("Python 3.11, 3.12 or 3.13 is needed on PATH (python3.12, for example).", file=sys.stderr)
        return 1
    clone = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
    verdict = judge(gather(dict(os.environ), network=lab_name(clone)))
    if "--json" in arguments:
        print(
            json.dumps(
                {
                    "ok": not verdict.errors,
                    "subnet": verdict.subnet,
                    "python": verdict.python,
                    "checks": [check._asdict() for check in verdict.checks],
                },
                indent=2,
            )
        )
    else:
        print(summary(verdict))
    return 1 if verdict.errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
