"""Faults on the lab's own nodes, and how each is taken back: through the engine, which no cut network stands before.

Every way back may be gone any number of times, by whoever finds the fault: the run that made it, its end after Ctrl-C,
or the next soak after one that was killed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import docker
from docker.errors import APIError, DockerException, NotFound

from myriad.errors import InputError, MyriadError
from myriad.kube.client import Api
from myriad.kube.kinds import LEASES, PODS
from myriad.lab.nodes import LABEL, exec_text, exec_whole
from myriad.lab.soak.plan import Fault
from myriad.lab.soak.seen import moment
from myriad.lab.state import LabState
from myriad.scheduler.policy import NAMESPACE as SYSTEM

MARK = "MYRIAD-SOAK"
"""Name of the chain of packet filters and of the mount that a soak makes; nobody else's is touched."""
LEASE = "myriad-scheduler"
REGISTRY_UNIT = "myriad-registry.service"
FULL = "/var/log"
"""What is full where a disk is: the logs have a file system of their own then, as on many sites."""

SWEEP_S = 60.0

LEFT_OUT: Mapping[str, str] = {
    "clock": "containers have the clock of the machine under them: a step would reach every lab and program there, "
    "and a time namespace moves the monotonic and the boot clock alone (time_namespaces(7))",
    "postgresql": "the lab keeps its ledger in SQLite, so there is no PostgreSQL to stop",
}
"""Kinds that a lab of containers cannot have, with the reason."""


def cut_script(sources: tuple[str, ...]) -> str:
    """Shell that lets a node hear nothing more from these addresses and networks. Running it again changes nothing."""
    run = "iptables -w 10 -t mangle"
    return "\n".join(
        [
            "set -e",
            f"{run} -N {MARK} 2>/dev/null || {run} -F {MARK}",
            *(f"{run} -A {MARK} -s {source} -j DROP" for source in sources),
            # Before anything else looks at a packet: what a pod of this node would get is dropped as well.
            f"{run} -C PREROUTING -j {MARK} 2>/dev/null || {run} -I PREROUTING 1 -j {MARK}",
        ]
    )


def heal_script() -> str:
    """Shell that takes a cut back, whatever was cut."""
    run = "iptables -w 10 -t mangle"
    steps = (f"-D PREROUTING -j {MARK}", f"-F {MARK}", f"-X {MARK}")
    return "\n".join(
        [
            *(f"{run} {step} 2>/dev/null || true" for step in steps),
            # Steps fail where there is nothing to do, and where somebody holds the lock: what stands there tells which.
            f"if iptables-save -t mangle 2>/dev/null | grep -q {MARK}; then echo 'it is still cut off' >&2; exit 1; fi",
        ]
    )


def fill_script() -> str:
    """Shell that puts a full file system over the logs: neither a byte nor a folder finds room. Files that are open
    below it stay so."""
    return "\n".join(
        [
            "set -e",
            f"! grep -q '^{MARK} {FULL} ' /proc/mounts || exit 0",
            # One inode for its root and one for what fills it.
            f"mount -t tmpfs -o size=64k,nr_inodes=2,mode=0755 {MARK} {FULL}",
            f"dd if=/dev/zero of={FULL}/.full bs=4k count=64 2>/dev/null || true",
            f"if mkdir {FULL}/.room 2>/dev/null; then umount -l {FULL}; echo 'it did not fill up' >&2; exit 1; fi",
        ]
    )


def empty_script() -> str:
    """Shell that takes the full file system away."""
    return f"while grep -q '^{MARK} {FULL} ' /proc/mounts; do umount -l {FULL} || exit 1; done"


def kill_unit_script(unit: str) -> str:
    """Shell that kills the main process of a unit with -9, and no other: containers live on in their shims."""
    return f'set -e\npid=$(systemctl show -p MainPID --value {unit})\n[ "${{pid:-0}}" -gt 0 ]\nkill -9 "$pid"'


def kill_containers_script(*selection: str) -> str:
    """Shell that kills the running containers that crictl selects, at once."""
    words = " ".join(selection)
    found = f'ids=$(crictl ps -q {words})\n[ -n "$ids" ] || {{ echo "no container runs: {words}" >&2; exit 1; }}'
    return f"{found}\ncrictl stop -t 0 $ids"


SWEEP = "\n".join(
    [
        "set -e",
        heal_script(),
        empty_script(),
        "systemctl start containerd.service kubelet.service",
        f"! systemctl cat {REGISTRY_UNIT} >/dev/null 2>&1 || systemctl start {REGISTRY_UNIT}",
    ]
)
"""Takes back on one node whatever a soak may have left there."""


class Nodes:
    """The containers that are the lab's nodes, and no other.

    Args:
        client: the engine.
        state: the lab.
    """

    def __init__(self, client: docker.DockerClient, state: LabState) -> None:
        self._client = client
        self._state = state
        self.names = tuple(state.hosts)

    def container(self, node: str) -> Any:
        """The container of a node.

        Raises:
            InputError: the lab has no such node.
            MyriadError: its container is gone, or belongs to somebody else.
        """
        if node not in self._state.hosts:
            raise InputError(f'there is no node "{node}" in this lab', hint=f"It has {', '.join(self.names)}.")
        name = f"{self._state.name}-{node}"
        try:
            found = self._client.containers.get(name)
        except NotFound as error:
            raise MyriadError("its container is gone", where=node, hint="`make lab` makes it anew.") from error
        except DockerException as error:
            raise MyriadError(f"the engine does not answer: {error}", where=node) from error
        if found.labels.get(LABEL) != self._state.name:
            raise MyriadError(f"the container {name} is not of this lab: it is left alone", where=node)
        return found

    def run(self, node: str, script: str) -> str:
        """Run a shell script in a node.

        Raises:
            MyriadError: it failed, or the node does not run.
        """
        try:
            code, said = exec_text(self.container(node), script)
        except (APIError, TypeError) as error:  # the engine knows no exit code of what a dying node ran
            raise MyriadError(f"the node does not run a command: {error}", where=node) from error
        if code != 0:
            raise MyriadError(f"exit {code}: {said.strip() or 'no word'}", where=node)
        return said

    def read(self, node: str, path: str) -> str:
        """A file of a node; empty where the node does not run or has no such file."""
        with contextlib.suppress(MyriadError, DockerException, TypeError):
            code, said = exec_whole(self.container(node), f"cat {path}")
            return said if code == 0 else ""
        return ""

    def started(self) -> dict[str, float]:
        """When each node was started last (seconds since the epoch); 0 where that is not known."""
        found = {}
        for node in self.names:
            found[node] = 0.0
            with contextlib.suppress(MyriadError):
                found[node] = moment(self.container(node).attrs["State"].get("StartedAt"))
        return found

    def kill(self, node: str) -> None:
        """The power goes."""
        try:
            self.container(node).kill()
        except APIError as error:
            raise MyriadError(f"it was not killed: {error.explanation}", where=node) from error

    def start(self, node: str) -> None:
        """The power comes back; a node that runs is left alone."""
        container = self.container(node)
        if container.status != "running":
            try:
                container.start()
            except APIError as error:
                raise MyriadError(f"it does not start: {error.explanation}", where=node) from error


@dataclass(frozen=True, slots=True)
class _Way:
    there: Callable[[Fault], None]
    back: Callable[[Fault], None]


class Injector:
    """Makes faults and takes them back.

    Args:
        nodes: the lab's.
        api: to find who leads the extension.
        networks: node -> addresses and networks that it and its pods send from.
    """

    def __init__(self, nodes: Nodes, api: Api, networks: Mapping[str, tuple[str, ...]]) -> None:
        self._nodes = nodes
        self._api = api
        self._networks = networks
        self._ways: Mapping[str, _Way] = {
            "node": _Way(lambda f: nodes.kill(f.node), lambda f: nodes.start(f.node)),
            "containerd": _Way(
                self._runs(kill_unit_script("containerd.service")), self._runs("systemctl start containerd.service")
            ),
            "network": _Way(self._cut, self._heal),
            "disk": _Way(self._runs(fill_script()), self._runs(empty_script())),
            "api": _Way(self._runs(kill_containers_script("--name '^kube-apiserver$'")), self._nothing),
            "leader": _Way(self._kill_leader, self._nothing),
            "registry": _Way(
                self._runs(f"systemctl stop {REGISTRY_UNIT}"), self._runs(f"systemctl start {REGISTRY_UNIT}")
            ),
        }

    def inject(self, fault: Fault) -> None:
        """Make it.

        Raises:
            MyriadError: it could not be made. What of it may be there is for `undo`.
        """
        self._way(fault).there(fault)

    def undo(self, fault: Fault) -> None:
        """Take it back; once more is fine.

        Raises:
            MyriadError: it could not be taken back.
        """
        self._way(fault).back(fault)

    def sweep(self) -> list[str]:
        """Take back on every node what any soak may have left. Returns what did not work, in sentences."""

        def one(node: str) -> str:
            # A node that was just started takes seconds until its systemd listens.
            end = time.monotonic() + SWEEP_S
            while True:
                try:
                    self._nodes.start(node)
                    self._nodes.run(node, SWEEP)
                    return ""
                except MyriadError as error:
                    if time.monotonic() > end:
                        return f"{node}: {error.message}"
                time.sleep(1.0)

        with ThreadPoolExecutor(max_workers=8) as pool:
            return [text for text in pool.map(one, self._nodes.names) if text]

    def _way(self, fault: Fault) -> _Way:
        if fault.kind not in self._ways:
            raise MyriadError(f"{fault.kind} is not possible here: {LEFT_OUT.get(fault.kind, 'nobody wrote it')}")
        return self._ways[fault.kind]

    def _runs(self, script: str) -> Callable[[Fault], None]:
        def run(fault: Fault) -> None:
            self._nodes.run(fault.node, script)

        return run

    def _nothing(self, fault: Fault) -> None:
        """It ends by itself: its kubelet starts it again."""

    def _cut(self, fault: Fault) -> None:
        # Each end hears nothing of the other, so nothing gets through either way.
        for here, there in ((fault.node, fault.peer), (fault.peer, fault.node)):
            self._nodes.run(here, cut_script(self._networks[there]))

    def _heal(self, fault: Fault) -> None:
        failed: MyriadError | None = None
        for end in (fault.node, fault.peer):
            try:
                self._nodes.run(end, heal_script())
            except MyriadError as error:
                failed = error
        if failed is not None:
            raise failed

    def _kill_leader(self, fault: Fault) -> None:
        lease = self._api.get(LEASES, LEASE, namespace=SYSTEM)
        leader = str(lease["spec"].get("holderIdentity") or "")
        if not leader:
            raise MyriadError("nobody leads the extension, so no leader can be killed")
        node = str(self._api.get(PODS, leader, namespace=SYSTEM)["spec"].get("nodeName") or "")
        labels = (f"--label io.kubernetes.pod.namespace={SYSTEM}", f"--label io.kubernetes.pod.name={leader}")
        self._nodes.run(node, kill_containers_script(*labels))
