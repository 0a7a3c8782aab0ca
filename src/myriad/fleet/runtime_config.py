"""Container runtimes: versions of containerd's configuration, and what becomes of a runtime that is there (pure).

Also what the device plugins of vendors read of the choices that follow from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Existing = Literal["refuse", "adopt", "replace"]

#: Oldest containerd that reads each version of its configuration, newest first. Source: containerd's
#: version/version.go (ConfigVersion) of 2.0 and of 2.3.
CONFIG_VERSIONS = (((2, 3), 4), ((2, 0), 3))
OLDEST = "2.0"

#: Where the runtime that Myriad configures answers.
SOCKET = "/run/containerd/containerd.sock"

#: Distributions of Kubernetes that carry a containerd of their own: their units, sockets, and what removes them.
#: Sources: docs.k3s.io (advanced options, uninstall), docs.rke2.io (install/uninstall), docs.k0sproject.io (reset).
WHOLE_CLUSTERS = {
    "k3s": (
        ("k3s.service", "k3s-agent.service"),
        "/run/k3s/containerd/containerd.sock",
        "k3s-uninstall.sh (k3s-agent-uninstall.sh)",
    ),
    "rke2": (("rke2-server.service", "rke2-agent.service"), "/run/k3s/containerd/containerd.sock", "rke2-uninstall.sh"),
    "k0s": (("k0scontroller.service", "k0sworker.service"), "/run/k0s/containerd.sock", "k0s stop && k0s reset"),
    "microk8s": (
        ("snap.microk8s.daemon-containerd.service",),
        "/var/snap/microk8s/common/run/containerd.sock",
        "snap remove microk8s",
    ),
}
#: Runtimes other than containerd that a kubelet could be using.
OTHER_RUNTIMES = {
    "CRI-O": ("crio.service", "/var/run/crio/crio.sock"),
    "cri-dockerd": ("cri-docker.service", "/var/run/cri-dockerd.sock"),
}
UNITS = (
    "containerd.service",
    "docker.service",
    *(unit for units, _socket, _remove in WHOLE_CLUSTERS.values() for unit in units),
    *(unit for unit, _socket in OTHER_RUNTIMES.values()),
)
SOCKETS = tuple(
    dict.fromkeys(
        (
            SOCKET,
            *(socket for _units, socket, _remove in WHOLE_CLUSTERS.values()),
            *(socket for _unit, socket in OTHER_RUNTIMES.values()),
        )
    )
)


class RuntimeConfigError(ValueError):
    """A containerd whose configuration nobody here can write; the text is a sentence."""


def release(version: str) -> tuple[int, int]:
    """Major and minor number of a version as programs and packages write it: `v2.3.4`, `1.6.20~ds1`, `2.0.0-rc.3`.

    Raises:
        RuntimeConfigError: it is no version.
    """
    match = re.match(r"v?(\d+)\.(\d+)", version.strip())
    if match is None:
        raise RuntimeConfigError(f'"{version}" is no version of containerd; it begins with MAJOR.MINOR, as in 2.3.4')
    return int(match.group(1)), int(match.group(2))


def config_version(version: str) -> int:
    """The version of the configuration that a containerd reads without migrating it.

    Raises:
        RuntimeConfigError: it is older than 2.0.
    """
    found = release(version)
    for oldest, number in CONFIG_VERSIONS:
        if found >= oldest:
            return number
    raise RuntimeConfigError(
        f"containerd {version} reads configuration up to version 2, whose plugins have other names; "
        f"{OLDEST} is the oldest that Myriad configures"
    )


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What becomes of the runtime on one host.

    Attributes:
        action: `install` (nothing is there), `own` (Myriad's own is there), `adopt`, `replace`, or `refuse`.
        refusals: sentences, for `refuse`.
        version: of the containerd that will run; empty where it is the lock's.
        program: path of an adopted containerd, else empty.
        stop: units of other runtimes that are stopped and disabled.
        unmask: whether containerd.service is unmasked.
    """

    action: Literal["install", "own", "adopt", "replace", "refuse"]
    refusals: tuple[str, ...] = ()
    version: str = ""
    program: str = ""
    stop: tuple[str, ...] = ()
    unmask: bool = False


def decide(facts: Mapping[str, Any], existing: Existing) -> Decision:
    """What becomes of the runtimes that were found.

    Args:
        facts: what `runtime_facts` reads: `units` (name -> load, active, enabled, fragment, program, package),
            `sockets` (those that something listens on), `versions` (program -> version), `kubelet` (endpoint, running),
            `own` (whether containerd.service is one that Myriad wrote).
        existing: what the description says about a runtime that is already there.
    """
    units: Mapping[str, Any] = facts["units"]
    refusals = [*_whole_clusters(facts), *_kubelet(facts)]
    stop: list[str] = []
    for name, (unit, socket) in OTHER_RUNTIMES.items():
        if existing == "replace" and unit in units:
            # Also when it is stopped by now: what a role no longer asks for is forgotten, and no reset restores it.
            stop.append(unit)
        elif _is_used(units.get(unit)) or socket in facts["sockets"]:
            refusals.append(
                f"{name} is on this node ({_where(units.get(unit), unit, socket)}), and Myriad's kubelet uses "
                "containerd. container_runtime_existing: replace stops and disables it (a reset brings it back); "
                "it cannot be adopted."
            )
    if facts["own"]:
        decision = Decision(action="own", stop=tuple(stop))
    else:
        decision = _containerd(facts, existing, refusals, tuple(stop))
    if refusals:
        return Decision(action="refuse", refusals=tuple(refusals))
    return decision


def _is_used(unit: Mapping[str, Any] | None) -> bool:
    return unit is not None and (unit["active"] == "active" or unit["enabled"] in ("enabled", "enabled-runtime"))


def _where(unit: Mapping[str, Any] | None, name: str, socket: str) -> str:
    words = []
    if unit is not None:
        package = f" of package {unit['package']}" if unit.get("package") else ""
        words.append(f"{name} in {unit['fragment'] or 'systemd'}{package}, {unit['active']}")
    if socket:
        words.append(f"socket {socket}")
    return ", ".join(words)


def _whole_clusters(facts: Mapping[str, Any]) -> list[str]:
    found = []
    used = {
        name: [unit for unit in units if _is_used(facts["units"].get(unit))]
        for name, (units, _socket, _remove) in WHOLE_CLUSTERS.items()
    }
    told: set[str] = set()
    # Those with a unit first: k3s and rke2 share a socket, which alone does not tell whose it is.
    for name in sorted(WHOLE_CLUSTERS, key=lambda name: not used[name]):
        _units, socket, remove = WHOLE_CLUSTERS[name]
        listening = socket in facts["sockets"]
        if not used[name] and (not listening or socket in told):
            continue
        told.add(socket)
        unit = used[name][0] if used[name] else ""
        where = _where(facts["units"].get(unit), unit, socket if listening else "")
        found.append(
            f"{name} is on this node ({where}): a whole Kubernetes with a containerd of its own, which can be neither "
            f"adopted nor replaced here. Remove it with `{remove}`, or take this host out of the inventory."
        )
    return found


def _kubelet(facts: Mapping[str, Any]) -> list[str]:
    kubelet = facts["kubelet"]
    endpoint = str(kubelet.get("endpoint") or "")
    path = endpoint.removeprefix("unix://")
    known = {socket for _units, socket, _remove in WHOLE_CLUSTERS.values()} | {
        socket for _unit, socket in OTHER_RUNTIMES.values()
    }
    if not kubelet.get("running") or not path or _same(path, SOCKET):
        return []
    if any(_same(path, socket) for socket in known & set(facts["sockets"])):
        return []  # Told already, by the name of what serves it.
    return [
        f"the kubelet that runs on this node uses {endpoint} (set in {kubelet.get('source') or 'its command line'}), "
        f"not unix://{SOCKET}. Drain the node and stop that kubelet (`kubeadm reset` where kubeadm made it), "
        "then run again."
    ]


def _same(one: str, other: str) -> bool:
    return one.removeprefix("/var") == other.removeprefix("/var")


def _containerd(facts: Mapping[str, Any], existing: Existing, refusals: list[str], stop: tuple[str, ...]) -> Decision:
    unit = facts["units"].get("containerd.service")
    if unit is None:
        return Decision(action="replace" if stop else "install", stop=stop)
    users = " docker.service uses it." if _is_used(facts["units"].get("docker.service")) else ""
    program = unit.get("program") or ""
    version = str(facts["versions"].get(program, ""))
    masked = unit["load"] == "masked"
    if existing == "replace":
        return Decision(action="replace", stop=stop, unmask=masked)
    if masked:
        refusals.append(
            "containerd.service is masked on this node: somebody decided that it must not run. "
            "Find out who, then `systemctl unmask containerd.service` and run again, or set "
            "container_runtime_existing: replace, which unmasks it."
        )
        return Decision(action="refuse")
    where = _where(unit, "containerd.service", "")
    config = f" Its configuration is {facts['config']}." if facts.get("config") else ""
    try:
        number = config_version(version) if version else 0
    except RuntimeConfigError as error:
        adoptable = f"It cannot be adopted: {error}."
        number = 0
    else:
        adoptable = (
            f"adopt keeps containerd {version} and takes over its configuration "
            f"(version {number}; a reset brings the present one back)."
            if number
            else f"It cannot be adopted: `{program or 'containerd'} --version` told no version."
        )
    if existing == "adopt" and number:
        return Decision(action="adopt", version=version, program=program, stop=stop)
    refusals.append(
        f"containerd {version or '(unknown version)'} is already on this node ({where}).{users}{config} "
        f"Say with container_runtime_existing what is to become of it: {adoptable} "
        "replace puts the lock's containerd in its place under the same unit name; containers under it keep running."
    )
    return Decision(action="refuse")


def plugin_environment(vendor: str, mig_strategy: str, list_strategy: str) -> dict[str, str]:
    """Environment of a vendor's device plugin; empty for one that Myriad does not know.

    Source: NVIDIA's k8s-device-plugin, README ("As command line flags or envvars") and its chart's daemonset.
    """
    if vendor != "nvidia":
        return {} if mig_strategy == "none" else {"MIG_STRATEGY": mig_strategy}
    environment = {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "MIG_STRATEGY": mig_strategy,
        "DEVICE_LIST_STRATEGY": list_strategy,
    }
    if mig_strategy != "none":
        # Health of MIG devices is read through a capability that only SYS_ADMIN opens.
        environment["NVIDIA_MIG_MONITOR_DEVICES"] = "all"
    return environment


def plugin_host_paths(vendor: str, list_strategy: str) -> dict[str, str]:
    """Folders of the node (path -> ro or rw) that a vendor's device plugin needs for a strategy."""
    # It writes CDI descriptions of its own, under a kind of its own.
    return {"/var/run/cdi": "rw"} if vendor == "nvidia" and list_strategy.startswith("cdi") else {}
