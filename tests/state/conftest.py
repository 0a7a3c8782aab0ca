"""State tests: what must be true of a host after its roles, whoever brought it there.

    pytest tests/state --ansible-inventory inventories/lab
    pytest tests/state/container_runtime --hosts ssh://root@gpu1 --ssh-config FILE

Without hosts they fail: a test of nothing must not look like a pass.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

# testinfra looks for ansible-inventory on PATH; it is the one of this environment that knows the collection.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def pytest_configure(config: pytest.Config) -> None:
    if not config.option.hosts and not config.option.ansible_inventory:
        raise pytest.UsageError(
            "state tests need hosts: give --ansible-inventory inventories/lab, or --hosts ssh://USER@HOST. "
            "Without them they would look at this machine."
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    empty = sorted(
        {item.nodeid.split("::")[0] for item in items if "[NOTSET]" in item.name or "_testinfra_host0" in item.name}
    )
    if empty:
        raise pytest.UsageError(f"no host of the inventory is one that these tests are about: {', '.join(empty)}")


class Cluster:
    """The cluster as its control plane sees it, through kubectl on the host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def kubectl(self, arguments: str, *, stdin: str = "") -> str:
        """Output of kubectl; a failure is a failed assertion with what kubectl said."""
        done = self.run(arguments, stdin=stdin)
        assert done.rc == 0, f"kubectl {arguments}: {done.stderr or done.stdout}"
        return str(done.stdout)

    def run(self, arguments: str, *, stdin: str = "") -> Any:
        """kubectl with its return code; `stdin` is handed over as a document."""
        command = f"/usr/local/bin/kubectl --kubeconfig /etc/kubernetes/admin.conf {arguments}"
        if not stdin:
            return self._host.run(command)
        return self._host.run(f"printf '%%s' %s | {command}", stdin)

    def get(self, kind: str, name: str = "", namespace: str = "") -> Any:
        """One object, or the list of all of a kind, as the API returns them."""
        where = f"-n {namespace}" if namespace else "" if name else "-A"
        answer = json.loads(self.kubectl(f"get {kind} {name} {where} -o json"))
        return answer if name else answer["items"]

    def names(self, kind: str, namespace: str = "") -> set[str]:
        """Names of all objects of a kind."""
        return {item["metadata"]["name"] for item in self.get(kind, namespace=namespace)}


@pytest.fixture
def cluster(host: Host) -> Cluster:
    return Cluster(host)


@pytest.fixture
def variables(host: Host) -> dict[str, Any]:
    """The host's variables in the inventory, as they are written there."""
    if not hasattr(host.backend, "get_variables"):
        pytest.fail("this test compares the host with its description: give --ansible-inventory")
    return dict(host.backend.get_variables())


@pytest.fixture
def eventually() -> Callable[..., None]:
    """Repeat a check until it passes: controllers take a moment after the role that asked them."""

    def wait(check: Callable[[], None], timeout_s: float = 90.0) -> None:
        until = time.monotonic() + timeout_s
        while True:
            try:
                check()
                return
            except AssertionError:
                if time.monotonic() > until:
                    raise
                time.sleep(2)

    return wait
