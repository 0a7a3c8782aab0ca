"""One node of its own for the driver: made by the lab's code, without a cluster, removed at the end."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from myriad.bench.bringup import fresh_state
from myriad.lab import nodes
from myriad.lab.display import Display
from myriad.lab.preflight import lab_name
from myriad.lab.state import LabPaths, LabState
from myriad.lab.topology import LabNode
from myriad.lab.up import Bringup
from myriad.stack.settings import read_settings

CLONE = Path(__file__).parents[3]
FIXTURES = CLONE / "tests" / "fixtures" / "driver"
STATE = "/var/lib/myriad/state/gpu_driver.json"


@dataclass(frozen=True)
class Run:
    """A finished playbook run."""

    code: int
    output: str

    def count(self, word: str) -> int:
        """A number of the recap (`changed`, `failed`), over all hosts."""
        return sum(int(number) for number in re.findall(rf"{word}=(\d+)", self.output))

    @property
    def said(self) -> str:
        """What was printed, with every run of white space as one blank: messages are wrapped and escaped."""
        return " ".join(self.output.replace("\\n", " ").split())


class Node:
    """The node, as a test reaches it."""

    def __init__(self, container: Any, paths: LabPaths, address: str, folder: Path) -> None:
        self.container = container
        self.folder = folder
        self.inventory = folder / "hosts.yml"
        variables = {
            "ansible_host": address,
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(paths.ssh_key),
            "ansible_ssh_common_args": (
                f"-o UserKnownHostsFile={paths.known_hosts} -o StrictHostKeyChecking=yes -o IdentitiesOnly=yes"
            ),
        }
        self.inventory.write_text(yaml.safe_dump({"all": {"children": {"gpu_nodes": {"hosts": {"gpu1": variables}}}}}))

    def sh(self, script: str, *, check: bool = True) -> str:
        """Output of a shell script on the node."""
        code, output = self.container.exec_run(["bash", "-c", script])
        text = bytes(output).decode(errors="replace")
        assert code == 0 or not check, f"{script}\n{text[-3000:]}"
        return text

    def put(self, files: Mapping[str, bytes]) -> None:
        """Write files, with the folders above them."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for path, content in files.items():
                info = tarfile.TarInfo(path.strip("/"))
                info.size, info.mode = len(content), 0o644
                tar.addfile(info, io.BytesIO(content))
        self.container.put_archive("/", buffer.getvalue())

    def packages(self) -> dict[str, str]:
        """Installed packages with their versions."""
        text = self.sh("dpkg-query -W -f '${Package}\\t${Version}\\t${db:Status-Status}\\n'")
        rows = (line.split("\t") for line in text.splitlines())
        return {name: version for name, version, status in rows if status == "installed"}

    def record(self) -> dict[str, Any]:
        """What the role recorded."""
        return dict(json.loads(self.sh(f"cat {STATE}")))

    def role(self, variables: Mapping[str, Any], *arguments: str) -> Run:
        """The role on the node, as the site runs it: look, role, record."""
        roles = [{"role": "myriad.gpu.gpu_driver", **variables}]
        look = {"name": "look", "myriad.gpu.node_state": {"state": "check"}}
        done = {"name": "record", "myriad.gpu.node_state": {"state": "converged"}}
        play = {"name": "driver", "hosts": "gpu_nodes", "gather_facts": False}
        return self.play([{**play, "pre_tasks": [look], "roles": roles, "post_tasks": [done]}], *arguments)

    def task(self, module: str, arguments: Mapping[str, Any]) -> Run:
        """One task, its result printed as JSON."""
        tasks = [
            {"name": "task", f"myriad.gpu.{module}": dict(arguments), "register": "result"},
            {"name": "show", "ansible.builtin.debug": {"var": "result"}},
        ]
        return self.play([{"name": "task", "hosts": "gpu_nodes", "gather_facts": False, "tasks": tasks}])

    def play(self, plays: list[dict[str, Any]], *arguments: str) -> Run:
        """A playbook on the node."""
        path = self.folder / "play.yml"
        path.write_text(yaml.safe_dump(plays, sort_keys=False))
        return self._run(str(path), *arguments)

    def playbook(self, name: str, *arguments: str) -> Run:
        """One of the project's playbooks."""
        return self._run(f"playbooks/{name}.yml", *arguments)

    def _run(self, path: str, *arguments: str) -> Run:
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(CLONE / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
            "MYRIAD_EVENTS": str(self.folder / "events.jsonl"),
        }
        command = [str(Path(sys.executable).with_name("ansible-playbook")), path, "-i", str(self.inventory), *arguments]
        done = subprocess.run(
            command, cwd=CLONE, env=environment, capture_output=True, text=True, timeout=2300, check=False
        )
        return Run(done.returncode, done.stdout + done.stderr)


@contextmanager
def driver_node(folder: Path, kind: str) -> Iterator[Node]:
    """A fresh node that answers over ssh; `kind` tells those of several test files apart."""
    display = Display(Console(stderr=True, highlight=False, soft_wrap=True))
    paths = LabPaths(CLONE, folder=f".lab-{kind}")
    name = f"{lab_name(str(CLONE))}-{kind}"
    settings = read_settings()
    base = LabState(name=lab_name(str(CLONE)))
    client, image = Bringup(CLONE, display, paths=paths).bare(base, settings)
    nodes.remove_lab(client, name)
    state = fresh_state(paths, name, base)
    address = state.subnet.rsplit(".", 1)[0] + ".11"
    try:
        nodes.ensure_nodes(
            client,
            state,
            paths,
            [LabNode("gpu1", address)],
            image=image,
            proxies=settings.mirrors.proxy_environment(),
        )
        yield Node(client.containers.get(f"{name}-gpu1"), paths, address, folder)
    finally:
        nodes.remove_lab(client, name)
        shutil.rmtree(paths.dir, ignore_errors=True)
