"""Every role as its developer tests it: predict, converge, converge again, look at the hosts. Times are printed.

Once with all scenarios on one pair of nodes, each building on the one before (`make molecule`), and once each from bare
nodes. A change passes the first few of them and the whole site in tests/e2e; the rest is for the night.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def site_order() -> list[str]:
    """Every role once, in the order in which the site comes to it."""
    plays = yaml.safe_load((ROOT / "playbooks" / "site.yml").read_text())
    names = [item["role"] if isinstance(item, dict) else item for play in plays for item in play.get("roles", [])]
    order = list(dict.fromkeys(name.removeprefix("myriad.gpu.") for name in names))
    # The role of the nodes stands in the play of the control plane too; its scenario joins a cluster.
    order.remove("kubernetes_node")
    order.insert(order.index("kubernetes_control_plane") + 1, "kubernetes_node")
    return order


def molecule(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run molecule as a person does in an activated environment."""
    environment = {**os.environ, "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]), "NO_COLOR": "1"}
    command = [str(BIN / "molecule"), *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def check_scenario(role: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
    started = time.monotonic()
    done = molecule("test", "-s", role, *arguments)
    seconds = time.monotonic() - started
    with capsys.disabled():
        print(f"\nmolecule test -s {role}: {seconds:.0f} s ", end="", flush=True)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-6000:]
    # A verifier that found no test, or tests that found no host, would end well too.
    lacking = re.search(r"SKIPPED \[\d+\] .*: (the bundle holds no .*)", output)
    passed = re.search(r"=+ (\d+) passed", output)
    if lacking and not passed:
        pytest.skip(lacking.group(1))
    assert passed and int(passed.group(1)) > 0, output[-3000:]


@pytest.fixture(scope="module")
def nodes() -> Iterator[None]:
    """Nodes that the scenarios share; made by the first one."""
    molecule("destroy", "-s", "default")
    yield
    done = molecule("destroy", "-s", "default")
    assert done.returncode == 0, done.stdout + done.stderr


#: Scenarios of every change: enough to know that scenarios work. All sixteen would take longer than all other tests.
FIRST = ("node_base", "registry", "container_runtime")


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize(
    "role", [role if role in FIRST else pytest.param(role, marks=pytest.mark.slow) for role in site_order()]
)
def test_scenarios_one_after_the_other_on_the_same_nodes(role: str, capsys: pytest.CaptureFixture[str]) -> None:
    check_scenario(role, capsys, "--destroy=never")


@pytest.mark.slow
@pytest.mark.parametrize("role", site_order())
def test_a_scenario_alone_from_bare_nodes(role: str, capsys: pytest.CaptureFixture[str]) -> None:
    check_scenario(role, capsys)
