"""Modules run out of code that a node keeps: what is sent, what it answers, and when all goes as ansible built it."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

MODULE = "ansible_collections.myriad.gpu.plugins.modules.sample"
LOADER = "ansible/module_utils/_internal/_ansiballz/_loader.py"
WRAPPER = """#!/usr/bin/python3
import datetime


def _ansiballz_main(**kwargs):
    pass


if __name__ == "__main__":
    _ansiballz_main(
ansible_module='sample',
module_fqn={module!r},
profile='legacy',
date_time=datetime.datetime(2026, 1, 1, 0, 0, tzinfo=datetime.timezone.utc),
rlimit_nofile={limit},
params={params!r},
extensions={extensions!r},
zip_data={packed!r},
)
"""
PLAYBOOK = """
- hosts: all
  gather_facts: false
  tasks:
    - {name: one, myriad.gpu.node_state: {state: check, state_dir: STATE}, register: one}
    - {name: two, myriad.gpu.node_state: {state: check, state_dir: STATE}, register: two}
    - ansible.builtin.assert:
        that:
          - one.drift | map(attribute='item') | list == ['run']
          - two.drift == one.drift
          - ansible_facts['system'] == 'Linux'
"""
# Another machine, as far as ansible can tell: the connection local under another name.
CONNECTION = '''
from ansible.plugins.connection.local import Connection as Local

DOCUMENTATION = """
name: elsewhere
short_description: local, told as if it were not
description: [local]
author: tests
options:
  pipelining: {default: true, description: x, env: [{name: ANSIBLE_PIPELINING}], type: boolean}
  become_success_timeout: {default: 10, type: int, description: x}
  become_strip_preamble: {default: true, type: bool, description: x}
"""


class Connection(Local):
    transport = "elsewhere"
    _remote_is_local = False
'''


def packed(files: dict[str, str]) -> str:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return base64.b64encode(stream.getvalue()).decode()


def payload(code: str, *, params: str = "{}", limit: int = 0, extensions: dict | None = None) -> bytes:
    return WRAPPER.format(module=MODULE, params=params, limit=limit, extensions=extensions or {}, packed=code).encode()


@pytest.fixture
def kept(plugin, tmp_path, monkeypatch):
    """The sender, with a process folder of its own."""
    context = plugin("plugin_utils.run_context")
    monkeypatch.setattr(context, "process_folder", lambda: tmp_path)
    return plugin("plugin_utils.kept_code")


@pytest.fixture
def on_node(plugin, tmp_path, monkeypatch):
    """The receiver, on a machine that runs systemd and has nothing yet."""
    module = plugin("module_utils.kept_code")
    (tmp_path / "booted").mkdir()
    monkeypatch.setattr(module, "FOLDER", str(tmp_path / "code"))
    monkeypatch.setattr(module, "BOOTED", str(tmp_path / "booted"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(module, "ROOT", os.getuid())
    return module


def test_a_known_payload_is_sent_without_its_code(kept):
    code = packed({LOADER: "x = 1\n" * 1000})
    whole = payload(code, params='{"ANSIBLE_MODULE_ARGS": {"state": "it\'s"}}')
    short = kept.shortened(whole, with_code=False)
    assert short.startswith(b"#!/usr/bin/python3\n")
    assert code.encode() not in short
    assert b"it\\'s" in short
    assert code.encode() in kept.shortened(whole, with_code=True)
    compile(short, "short", "exec")


@pytest.mark.parametrize(
    "whole",
    [
        b"#!/usr/bin/python3\nprint('a module of another kind')\n",
        b"#!powershell\nfunction {",
        b"",
        payload("", limit=1024),
        payload("", extensions={"debugpy": {"port": 1}}),
        payload("").replace(b"zip_data='',", b""),
        payload("").replace(b"_ansiballz_main(\nansible", b"_other_main(\nansible"),
    ],
    ids=["plain", "powershell", "empty", "limit", "debugger", "no code", "another wrapper"],
)
def test_what_is_not_known_goes_as_ansible_built_it(kept, whole):
    assert kept.shortened(whole, with_code=False) is None


def test_the_key_follows_the_code_and_the_version_of_ansible(kept, tmp_path, monkeypatch):
    first = kept.code_key()
    assert kept.code_key() == first
    (tmp_path / "myriad-code-key").unlink()
    monkeypatch.setattr(kept, "ansible_version", "2.99.0")
    assert kept.code_key() != first
    (tmp_path / "myriad-code-key").unlink()
    for folder in ("modules", "module_utils"):
        shutil.copytree(kept.PLUGINS / folder, tmp_path / "plugins" / folder)
    monkeypatch.setattr(kept, "PLUGINS", tmp_path / "plugins")
    unchanged = kept.code_key()
    (tmp_path / "myriad-code-key").unlink()
    (tmp_path / "plugins" / "module_utils" / "fsops.py").write_text("# changed\n")
    assert kept.code_key() != unchanged


def answer(capsys) -> str:
    return json.loads(capsys.readouterr().out)["myriad_code"]


def test_a_node_without_the_code_says_so_and_keeps_what_it_is_sent(on_node, tmp_path, capsys):
    on_node.main("k1", MODULE, "{}", "legacy")
    assert answer(capsys) == "lacking"
    folder = str(tmp_path / "code" / "k1")
    on_node.unpack(folder, MODULE, packed({"a/b.py": "one", "a/__init__.py": ""}))
    assert on_node.kept(folder, MODULE)
    assert (tmp_path / "code" / "k1" / "a" / "b.py").read_text() == "one"
    # Another module of the same key is not there by that.
    assert not on_node.kept(folder, MODULE + "_two")


def test_code_that_others_could_have_written_is_not_run(on_node, tmp_path, capsys):
    folder = tmp_path / "code" / "k1"
    on_node.unpack(str(folder), MODULE, packed({"a.py": ""}))
    folder.chmod(0o777)
    on_node.main("k1", MODULE, "{}", "legacy")
    assert answer(capsys) == "lacking"
    on_node.main("k1", MODULE, "{}", "legacy", packed({"a.py": ""}))
    assert answer(capsys) == "unsuitable"


@pytest.mark.parametrize("why", ["no systemd", "not root", "no space"])
def test_a_node_that_cannot_keep_code_says_so(on_node, tmp_path, capsys, monkeypatch, why):
    if why == "no systemd":
        (tmp_path / "booted").rmdir()
    elif why == "not root":
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
    else:
        (tmp_path / "code").write_text("a file stands in the way")
    on_node.main("k1", MODULE, "{}", "legacy", packed({"a.py": ""}))
    assert answer(capsys) == "unsuitable"


def test_an_unfinished_folder_counts_as_lacking(on_node, tmp_path):
    folder = str(tmp_path / "code" / "k1")
    broken = base64.b64encode(base64.b64decode(packed({"a.py": "x" * 5000}))[:-30]).decode()
    with pytest.raises(zipfile.BadZipFile):
        on_node.unpack(folder, MODULE, broken)
    assert not on_node.kept(folder, MODULE)
    on_node.unpack(folder, MODULE, packed({"a.py": "y"}))
    assert on_node.kept(folder, MODULE)


def test_code_of_yesterday_is_removed_when_new_code_comes(on_node, tmp_path):
    base = tmp_path / "code"
    for name, age in (("old", 2 * on_node.OLD_S), ("young", on_node.OLD_S // 2)):
        on_node.unpack(str(base / name), MODULE, packed({"a.py": ""}))
        stamp = (base / name).stat().st_mtime - age
        os.utime(base / name, (stamp, stamp))
    on_node.unpack(str(base / "new"), MODULE, packed({"a.py": ""}))
    assert sorted(path.name for path in base.iterdir()) == ["new", "young"]


def booted(words: list[str]) -> list[str]:
    """The command in a mount namespace whose /run looks like that of a machine with systemd."""
    own = [] if os.geteuid() == 0 else ["--map-root-user"]
    script = 'mount -t tmpfs none /run && mkdir -p /run/systemd/system && "$@"; code=$?; find /run/myriad; exit $code'
    return ["unshare", "--mount", "--propagation", "private", *own, "sh", "-c", script, "sh", *words]


@pytest.mark.parametrize(
    ("pipelining", "interpreter"), [("1", sys.executable), ("1", "auto_silent"), ("0", sys.executable)]
)
def test_two_tasks_of_a_real_run_share_the_code(collections, tmp_path, pipelining, interpreter):
    if subprocess.run(booted(["true"]), capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here")
    (tmp_path / "connections").mkdir()
    (tmp_path / "connections" / "elsewhere.py").write_text(CONNECTION)
    (tmp_path / "play.yml").write_text(PLAYBOOK.replace("STATE", str(tmp_path / "state")))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "MYRIAD_"))},
        "ANSIBLE_COLLECTIONS_PATH": str(collections),
        "ANSIBLE_CONNECTION_PLUGINS": str(tmp_path / "connections"),
        "ANSIBLE_PIPELINING": pipelining,
        "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
        "ANSIBLE_INJECT_FACT_VARS": "False",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_REMOTE_TMP": str(tmp_path / "remote"),
        # What `auto` may find: no shims of a version manager.
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    }
    program = shutil.which("ansible-playbook", path=str(Path(sys.executable).parent))
    inventory = "h1,h2,"
    words = [program, "-i", inventory, "-c", "elsewhere", "-e", f"ansible_python_interpreter={interpreter}",
             str(tmp_path / "play.yml")]  # fmt: skip
    done = subprocess.run(booted(words), capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok=3" in done.stdout
    assert ".complete-ansible_collections.myriad.gpu.plugins.modules.node_state" in done.stdout
    # It was compiled where it lies.
    assert "/module_utils/__pycache__/" in done.stdout
