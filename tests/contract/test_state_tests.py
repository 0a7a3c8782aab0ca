"""A state test that looks at no host must not look like a pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def collect(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "tests/state/node_base", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_without_hosts_they_refuse() -> None:
    done = collect()
    assert done.returncode == 4
    assert "state tests need hosts" in done.stderr


def test_an_inventory_without_the_hosts_that_they_are_about_is_refused(tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text("all: {children: {web: {hosts: {www1: {}}}}}\n")
    done = collect("--ansible-inventory", str(inventory))
    assert done.returncode not in (0, 5)
    assert "no host of the inventory is one that these tests are about" in done.stdout + done.stderr


def test_an_empty_inventory_is_refused(tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text("all: {}\n")
    assert collect("--ansible-inventory", str(inventory)).returncode not in (0, 5)


def test_every_module_says_which_hosts_it_is_about() -> None:
    for path in sorted((ROOT / "tests" / "state").glob("*/test_*.py")):
        assert "\ntestinfra_hosts = [" in path.read_text(), path.name
