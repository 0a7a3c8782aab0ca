"""Templates of a role as ansible renders them for a host of an inventory, with the site's own variables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]


def rendered(
    work: Path,
    *,
    role: str,
    inventory: str,
    templates: Mapping[str, str],
    expressions: Mapping[str, str] | None = None,
    given: Mapping[str, Any] | None = None,
    host: str = "control_plane[0]",
) -> dict[str, Any]:
    """What the templates and expressions become.

    Args:
        work: a folder for the play and its answer.
        role: whose templates and defaults.
        inventory: folder below inventories.
        templates: path below the role's templates, by the name of the answer.
        expressions: expressions of the site's variables, by the name of the answer.
        given: extra variables: what comes from a bundle, which a description has not.
        host: for whom.
    """
    folder = ROOT / "roles" / role
    said = {
        name: f"{{{{ lookup('ansible.builtin.template', '{folder}/templates/{path}') }}}}"
        for name, path in templates.items()
    }
    said |= {name: f"{{{{ {text} }}}}" for name, text in (expressions or {}).items()}
    copy = {"content": "{{ said | to_json }}", "dest": str(work / "said.json"), "mode": "0600"}
    play = {
        "name": "what is rendered",
        "hosts": host,
        "connection": "local",
        "gather_facts": False,
        "vars_files": [str(ROOT / "playbooks/vars/stack.yml"), str(folder / "defaults/main.yml")],
        "tasks": [{"name": "write it", "ansible.builtin.copy": copy, "vars": {"said": said}}],
    }
    # Templates that look for others find them beside the play.
    (work / "templates").symlink_to(folder / "templates")
    (work / "play.yml").write_text(yaml.safe_dump([play]))
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("ansible-playbook")), str(work / "play.yml"),
            "-i", str(ROOT / "inventories" / inventory), "-e", json.dumps(given or {}),
            "-e", f"ansible_python_interpreter={sys.executable}",
        ],
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}, cwd=ROOT,
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads((work / "said.json").read_text()))
