"""The wheel and the collection, built, installed into an empty folder's environment, and used from there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from myriad.stack.settings import read_mirrors

pytestmark = pytest.mark.network

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
EXAMPLE = "inventories/example"
MODULES = ("files", "artifacts", "kube_objects", "node_state")
#: What a collection holds; caches, tests and the Python package are not for it.
COLLECTION_TOP = {
    "MANIFEST.json", "FILES.json", "README.md", "CHANGELOG.md", "LICENSE", "requirements.yml",
    "changelogs", "docs", "meta", "playbooks", "plugins", "roles",
}  # fmt: skip


def environment(**extra: str) -> dict[str, str]:
    """An environment in which nothing of this clone is found by accident."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "PYTHON", "VIRTUAL_"))}
    return {**kept, **read_mirrors().python_environment(), "ANSIBLE_NOCOLOR": "1", **extra}


def run(*command: str | Path, cwd: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; a failure shows what it said."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment(**extra),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(BIN / "uv", "build", "--wheel", "--out-dir", folder, cwd=ROOT)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("collection")
    run(BIN / "ansible-galaxy", "collection", "build", "--output-path", folder, cwd=ROOT)
    return next(folder.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder with an environment that holds the wheel and what uv.lock says it needs, and the example."""
    folder = tmp_path_factory.mktemp("site")
    locked = folder / "requirements.txt"
    uv = BIN / "uv"
    run(uv, "export", "-q", "--frozen", "--no-dev", "--no-emit-project", "-o", locked, cwd=ROOT)
    run(uv, "venv", "-q", "--python", sys.executable, folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    run(uv, "pip", "install", "-q", "--python", python, "--require-hashes", "-r", locked, cwd=folder)
    run(uv, "pip", "install", "-q", "--python", python, "--no-deps", wheel, cwd=folder)
    shutil.copytree(ROOT / EXAMPLE, folder / EXAMPLE)
    return folder


def test_the_wheel_holds_roles_playbooks_plugins_and_the_lock(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    base = "ansible_collections/myriad/gpu"
    roles = {path.name for path in (ROOT / "roles").iterdir() if (path / "tasks").is_dir()}
    assert {f"{base}/roles/{role}/tasks/main.yml" for role in roles} <= names
    assert {f"{base}/roles/{role}/meta/argument_specs.yml" for role in roles} <= names
    assert {f"{base}/playbooks/{path.name}" for path in (ROOT / "playbooks").glob("*.yml")} <= names
    assert f"{base}/playbooks/vars/stack.yml" in names
    assert {
        f"{base}/plugins/modules/{name}.py" for name in ("files", "artifacts", "kube_objects", "node_state")
    } <= names
    assert "myriad/data/stack.lock.yml" in names
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests/")]


def test_the_collection_holds_what_a_collection_holds(collection: Path) -> None:
    with tarfile.open(collection) as archive:
        top = {name.split("/")[0] for name in archive.getnames()}
    assert sorted(top - COLLECTION_TOP) == []
    assert {"roles", "playbooks", "plugins", "meta"} <= top


def test_the_wheel_validates_the_example_from_an_empty_folder(installed: Path) -> None:
    done = run(installed / "venv/bin/myriad", "validate", "-i", EXAMPLE, cwd=installed)
    assert "10,000" in done.stdout or "10000" in done.stdout
    report = json.loads(run(installed / "venv/bin/myriad", "validate", "-i", EXAMPLE, "--json", cwd=installed).stdout)
    assert report["errors"] == []


def test_the_wheel_renders_the_example(installed: Path) -> None:
    run(installed / "venv/bin/myriad", "render", "-i", EXAMPLE, "--out", "objects", cwd=installed)
    assert list((installed / "objects").rglob("*.yml")) or list((installed / "objects").rglob("*.yaml"))


@pytest.mark.parametrize("playbook", ["site", "validate", "reset"])
def test_the_playbooks_of_the_wheel_pass_the_syntax_check(installed: Path, playbook: str) -> None:
    program = installed / "venv/bin/ansible-playbook"
    run(program, f"myriad.gpu.{playbook}", "--syntax-check", "-i", EXAMPLE, cwd=installed)


def test_a_playbook_of_the_wheel_runs(installed: Path) -> None:
    """validate touches no host, so it can run to its end here."""
    run(installed / "venv/bin/ansible-playbook", "myriad.gpu.validate", "-i", EXAMPLE, cwd=installed)


@pytest.mark.parametrize("module", MODULES)
def test_the_modules_of_the_wheel_are_documented(installed: Path, module: str) -> None:
    done = run(installed / "venv/bin/ansible-doc", "-t", "module", "--json", f"myriad.gpu.{module}", cwd=installed)
    document = json.loads(done.stdout)[f"myriad.gpu.{module}"]
    assert document["doc"]["short_description"]
    assert document["examples"]
    assert document["return"]


def test_the_collection_is_installed_and_its_playbook_runs(installed: Path, collection: Path) -> None:
    """From Ansible's own place for collections, beside the Python package that its plugins call."""
    folder = installed / "collections"
    galaxy = installed / "venv/bin/ansible-galaxy"
    # Forced: the wheel beside it holds the same version already.
    run(galaxy, "collection", "install", "--no-deps", "--offline", "--force", "-p", folder, collection, cwd=installed)
    path = {"ANSIBLE_COLLECTIONS_PATH": str(folder)}
    doc = run(installed / "venv/bin/ansible-doc", "--json", "myriad.gpu.files", cwd=installed, **path)
    assert json.loads(doc.stdout)["myriad.gpu.files"]["doc"]["filename"].startswith(str(folder))
    program = installed / "venv/bin/ansible-playbook"
    run(program, "myriad.gpu.validate", "-i", EXAMPLE, cwd=installed, **path)
    run(program, "myriad.gpu.site", "--syntax-check", "-i", EXAMPLE, cwd=installed, **path)
