"""A secret that is planted where a run handles secrets is in nothing that the run says, at -vvv and with --diff.

The same run shows what is planted beside it and is no secret: the look would find it.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

SECRET, OTHER, OPEN = "planted-7f3a-secret", "planted-7f3b-secret", "shown-4c1d-text"


def coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.fixture
def kubeconfig(fake_api: Any, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    cluster = {"clusters": [{"name": "c", "cluster": {"server": fake_api.url}}]}
    user = {"users": [{"name": "u", "user": {"token": SECRET}}]}
    context = {"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **cluster, **user, **context}))
    return path


def play(kubeconfig: Path, root: Path, secret: str, data: str = "", **more: Any) -> str:
    """What roles do with secrets: a Secret, a file, a program that answers with one, and one that is handed one."""
    metadata = {"name": "pull", "namespace": "team"}
    objects = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"password": data or coded(secret)}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"open": OPEN}},
    ]
    file = {"path": "/etc/access.json", "content": secret, "mode": "0600", "secret": True, **more}
    shown = {"path": "/etc/open.json", "content": f"{OPEN}\n", "mode": "0644"}
    program = root / "lend"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!{sys.executable}\nimport json\nprint(json.dumps({{'key': {secret!r}}}))\n")
    program.chmod(0o755)
    handed = {"argv": ["sh", "-c", "cat > /dev/null"], "stdin": "{{ __lent.answer.key | default('-') }}"}
    tasks: list[dict[str, Any]] = [
        {"myriad.gpu.kube_objects": {"kubeconfig": str(kubeconfig), "set": "s", "objects": objects, "prune": True}},
        {
            "myriad.gpu.files": {
                "tree": "none", "role": "r", "root": str(root), "state_dir": str(root / "state"),
                "directories": {"/etc": {"mode": "0755"}}, "extra": [file, shown],
            }
        },
        {"myriad.gpu.host_program": {"name": str(program)}, "no_log": True, "register": "__lent"},
        {"ansible.builtin.command": handed, "changed_when": False, "no_log": True},
    ]  # fmt: skip
    named = [{"name": f"step {number}", **task} for number, task in enumerate(tasks)]
    return yaml.safe_dump([{"name": "p", "hosts": "all", "connection": "local", "gather_facts": False, "tasks": named}])


def everything(done: Any, tmp_path: Path) -> str:
    """All that a run says and leaves on the controller."""
    left = [tmp_path / "events.jsonl", *(path for path in (tmp_path / "ansible-tmp").rglob("*") if path.is_file())]
    return str(done.stdout + done.stderr) + "".join(path.read_text(errors="replace") for path in left if path.exists())


def leaks(text: str) -> list[str]:
    return [word for secret in (SECRET, OTHER) for word in (secret, coded(secret)) if word in text]


@pytest.mark.parametrize("arguments", [("--check", "--diff", "-vvv"), ("--diff", "-vvv")], ids=["foretold", "done"])
def test_a_run_shows_everything_but_the_secret(
    ansible: Callable[..., Any], fake_api: Any, kubeconfig: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for secret in (SECRET, OTHER):
        done = ansible(play(kubeconfig, root, secret), *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        text = everything(done, tmp_path)
        assert OPEN in text or secret == OTHER
        assert leaks(text) == []
    if "--check" not in arguments:
        assert fake_api.get("secrets", "pull", namespace="team")["data"]["password"] == coded(OTHER)
        assert (root / "etc/access.json").read_text() == OTHER
        rows = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
        changed = {row["task"] for row in rows if row["event"] == "result" and row["changed"]}
        assert changed >= {"step 0", "step 1"}, "that a secret is another one is said, without it"


def test_an_error_shows_everything_but_the_secret(
    ansible: Callable[..., Any], fake_api: Any, kubeconfig: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    done = ansible(play(kubeconfig, root, SECRET, validate="sh -c 'echo it is wrong; exit 1' %s"), "--diff", "-vvv")
    assert done.returncode != 0
    text = everything(done, tmp_path)
    assert "it is wrong" in text
    assert leaks(text) == []


def test_a_value_of_the_vault_is_used_and_not_shown(
    ansible: Callable[..., Any], fake_api: Any, kubeconfig: Path, tmp_path: Path
) -> None:
    """As a description keeps one: encrypted in group_vars, the password in a file that no run names."""
    root, password = tmp_path / "root", tmp_path / "vault-password"
    root.mkdir()
    password.write_text("correct horse\n")
    encrypted = subprocess.run(
        [str(Path(sys.executable).with_name("ansible-vault")), "encrypt_string", SECRET, "--name", "planted"],
        env={**os.environ, "ANSIBLE_VAULT_PASSWORD_FILE": str(password)}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/all.yml").write_text(encrypted)
    # Beside the playbook, as ansible finds it; the text of the play holds an expression instead of the secret.
    text = play(kubeconfig, root, "{{ planted }}", "{{ planted | b64encode }}")
    assert leaks(text + encrypted) == []
    done = ansible(text, "--diff", "-vvv", ANSIBLE_VAULT_PASSWORD_FILE=str(password))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (root / "etc/access.json").read_text() == SECRET
    assert fake_api.get("secrets", "pull", namespace="team")["data"]["password"] == coded(SECRET)
    assert leaks(everything(done, tmp_path)) == []
