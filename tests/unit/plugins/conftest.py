"""What the tests of the plugins share: the collection on the path, fake programs of a node, an API server."""

from __future__ import annotations

import grp
import importlib
import importlib.util
import os
import pwd
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
USER = pwd.getpwuid(os.getuid()).pw_name
GROUP = grp.getgrgid(os.getgid()).gr_name


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"myriad_plugin_tests_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[str(spec.name)] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def collections(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A collections folder with this repository as myriad.gpu, importable and for ansible-playbook."""
    folder = tmp_path_factory.mktemp("collections")
    (folder / "ansible_collections" / "myriad").mkdir(parents=True)
    (folder / "ansible_collections" / "myriad" / "gpu").symlink_to(REPOSITORY)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture
def plugin(collections: Path) -> Callable[[str], ModuleType]:
    """Import a file of plugins/, as ``plugin("modules.files")``."""
    return lambda name: importlib.import_module(f"ansible_collections.myriad.gpu.plugins.{name}")


@pytest.fixture
def fake_api() -> Iterator[Any]:
    with _load("fake_api").FakeApi() as fake:
        yield fake


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A node of fake programs: systemctl, journalctl, dpkg-query, crictl, modprobe."""
    return _load("fake_node").FakeNode(tmp_path / "node", monkeypatch)


@pytest.fixture
def ansible(collections: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ansible-playbook on a playbook in tmp_path, with this collection and the plain callback."""

    def run(playbook: str, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "play.yml"
        path.write_text(playbook)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "MYRIAD_"))},
            "ANSIBLE_COLLECTIONS_PATH": str(collections),
            "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
            "ANSIBLE_PIPELINING": "1",
            "ANSIBLE_INJECT_FACT_VARS": "False",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCALHOST_WARNING": "False",
            "ANSIBLE_STDOUT_CALLBACK": "myriad.gpu.progress",
            "ANSIBLE_LOCAL_TEMP": str(tmp_path / "ansible-tmp"),
            "ANSIBLE_HOME": str(tmp_path / "ansible-home"),
            "MYRIAD_EVENTS": str(tmp_path / "events.jsonl"),
            **extra,
        }
        (tmp_path / "events.jsonl").unlink(missing_ok=True)
        return subprocess.run(
            [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "node1,", str(path), *arguments],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    return run
