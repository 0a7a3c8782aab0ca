"""What every role looks like: its files, its spec, its words, and what it may not know."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from myriad import docs
from myriad.roles import load_yaml

ROOT = Path(__file__).parents[2]
ROLES = sorted(folder.name for folder in (ROOT / "roles").iterdir() if (folder / "tasks").is_dir())
TASK_FILES = sorted((ROOT / "roles").glob("*/tasks/*.yml"))
TEMPLATES = sorted(path for path in (ROOT / "roles").glob("*/templates/**/*") if path.is_file())
COMMAND_MODULES = {"command", "shell", "raw", "script", "expect"}
TASK_KEYWORDS = {
    "args", "async", "become", "become_user", "block", "changed_when", "check_mode", "delay", "delegate_facts",
    "delegate_to", "diff", "environment", "failed_when", "loop", "loop_control", "name", "no_log", "notify", "poll",
    "register", "rescue", "always", "retries", "run_once", "tags", "throttle", "timeout", "until", "vars", "when",
}  # fmt: skip
#: Templates that cannot, or need not, say who manages them; each with its reason.
NO_HEADER = {
    "device_plugin/templates/objects.yaml.j2": "objects for the API server, no file of a host",
    "etcd_backup/templates/configure/etc/myriad/etcd-backup.json.j2": "JSON has no comments",
    "fabric/templates/configure/etc/myriad/fabric.json.j2": "JSON has no comments",
    "kubernetes_control_plane/templates/configure/etc/myriad/control-plane.json.j2": "JSON has no comments",
    "fabric/templates/objects.yaml.j2": "objects for the API server, no file of a host",
    "kueue/templates/values.yaml.j2": "values for helm, no file of a host",
    "metrics/templates/objects.yaml.j2": "objects for the API server, no file of a host",
    "node_portrait/templates/objects.yaml.j2": "objects for the API server, no file of a host",
    "scheduler_extension/templates/flow_control.yaml.j2": "objects for the API server, no file of a host",
    "scheduler_extension/templates/objects.yaml.j2": "objects for the API server, no file of a host",
    "training_operator/templates/kustomization.yaml.j2": "changes of manifests, no file of a host",
    "training_operator/templates/objects.yaml.j2": "objects for the API server, no file of a host",
    "volcano/templates/kustomization.yaml.j2": "changes of a manifest, no file of a host",
    "volcano/templates/objects.yaml.j2": "objects for the API server, no file of a host",
    "pod_network/templates/configure/etc/cni/net.d/10-myriad.conflist.j2": "JSON has no comments",
}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tasks_of(path: Path) -> Iterator[dict[str, Any]]:
    """Every task of a task file, those inside blocks too."""

    def walk(items: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for item in items:
            yield item
            for part in ("block", "rescue", "always"):
                yield from walk(item.get(part) or [])

    yield from walk(load_yaml(path) or [])


def module_of(task: dict[str, Any]) -> str | None:
    """The module a task calls, None for a block."""
    keys = [key for key in task if key not in TASK_KEYWORDS and not key.startswith("loop")]
    return keys[0] if keys else None


def without_comments(path: Path) -> str:
    """The text of a YAML or Jinja file without lines that are comments."""
    return "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))


def test_there_are_roles() -> None:
    assert {"node_base", "container_runtime", "kubernetes_node", "kueue", "cluster_policy"} <= set(ROLES)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_both_halves_scenario_state_test_readme_and_spec(role: str) -> None:
    wanted = [
        *(f"roles/{role}/tasks/{name}.yml" for name in ("main", "preflight", "install", "configure")),
        f"roles/{role}/defaults/main.yml",
        f"roles/{role}/meta/main.yml",
        f"roles/{role}/meta/argument_specs.yml",
        f"roles/{role}/README.md",
        f"molecule/{role}/molecule.yml",
        f"tests/state/{role}/test_{role}.py",
    ]
    assert [path for path in wanted if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize("role", ROLES)
def test_main_is_a_table_of_contents(role: str) -> None:
    tasks = list(tasks_of(ROOT / "roles" / role / "tasks" / "main.yml"))
    assert [module_of(task) for task in tasks] == ["ansible.builtin.import_tasks"] * len(tasks)
    files = [task["ansible.builtin.import_tasks"] for task in tasks]
    assert files == ["preflight.yml", "install.yml", "configure.yml"]


@pytest.mark.parametrize("role", ROLES)
def test_the_spec_equals_the_defaults(role: str) -> None:
    folder = ROOT / "roles" / role
    defaults = load_yaml(folder / "defaults" / "main.yml") or {}
    specs = load_yaml(folder / "meta" / "argument_specs.yml")["argument_specs"]
    assert {"main", "install", "configure"} <= set(specs)
    for entry in ("main", "install", "configure"):
        options = specs[entry]["options"]
        optional = {name: option for name, option in options.items() if not option.get("required")}
        assert {name: option.get("default") for name, option in optional.items()} == defaults, entry
        assert not [name for name in options if name in defaults and options[name].get("required")], entry


@pytest.mark.parametrize("role", ROLES)
def test_every_option_is_typed_and_told_in_a_sentence(role: str) -> None:
    specs = load_yaml(ROOT / "roles" / role / "meta" / "argument_specs.yml")["argument_specs"]
    for entry, spec in specs.items():
        assert spec["short_description"] and spec["description"], entry
        for name, option in (spec.get("options") or {}).items():
            assert name.startswith(f"{role}_"), f"{name} does not carry the role's name"
            assert "type" in option, f"{name} has no type"
            text = " ".join(docs.sentences(option["description"]))
            assert text.endswith(".") and len(text) > 10, f"{name}: {text!r} is no sentence"


@pytest.mark.parametrize("role", ROLES)
def test_every_further_entry_point_has_a_spec(role: str) -> None:
    """Files that tasks of the role itself include are parts of an entry point and may be one; the others are."""
    folder = ROOT / "roles" / role / "tasks"
    specs = load_yaml(folder.parent / "meta" / "argument_specs.yml")["argument_specs"]
    inner = set()
    for path in folder.glob("*.yml"):
        for task in tasks_of(path):
            for module in ("ansible.builtin.import_tasks", "ansible.builtin.include_tasks"):
                if module in task:
                    value = task[module]
                    inner.add(Path(value["file"] if isinstance(value, dict) else value).stem)
    files = {path.stem for path in folder.glob("*.yml")}
    assert files - (inner - {"install", "configure"}) <= set(specs) <= files


@pytest.mark.parametrize("role", ROLES)
def test_a_spec_never_renders_its_defaults(role: str) -> None:
    """Ansible renders the whole spec before it looks at it, so a default that holds a template must be !unsafe."""
    text = (ROOT / "roles" / role / "meta" / "argument_specs.yml").read_text()
    assert [line for line in text.splitlines() if "{{" in line and "!unsafe" not in line] == []


@pytest.mark.parametrize("role", ROLES)
def test_the_short_description_stands_once(role: str) -> None:
    folder = ROOT / "roles" / role / "meta"
    spec = load_yaml(folder / "argument_specs.yml")["argument_specs"]["main"]
    assert load_yaml(folder / "main.yml")["galaxy_info"]["description"] == spec["short_description"]


def test_readmes_are_what_the_specs_say() -> None:
    assert [relative(path) for path in docs.outdated(ROOT)] == [], "run `python -m myriad.docs`"


@pytest.mark.parametrize("role", ROLES)
def test_every_variable_of_the_role_is_declared(role: str) -> None:
    """A name in the role's own space is a default, or a register behind two underscores."""
    folder = ROOT / "roles" / role
    declared = set(load_yaml(folder / "defaults" / "main.yml") or {})
    longer = [other for other in ROLES if other.startswith(f"{role}_")]
    unknown = set()
    for path in [*folder.glob("tasks/*.yml"), *folder.glob("templates/**/*"), *folder.glob("vars/*.yml")]:
        if not path.is_file():
            continue
        for name in re.findall(rf"(?<![\w./-]){role}_\w+", without_comments(path)):
            if name not in declared and not any(name.startswith(f"{other}_") for other in longer):
                unknown.add(f"{name} in {relative(path)}")
    assert sorted(unknown) == []


@pytest.mark.parametrize("role", ROLES)
def test_a_role_knows_no_other_role_group_or_lab(role: str) -> None:
    folder = ROOT / "roles" / role
    found = []
    others = sorted((other for other in ROLES if other != role), key=len, reverse=True)
    foreign = re.compile(r"(?<![\w./-])(?:__)?(?:" + "|".join(others) + r")_[a-z]\w*")
    for path in [*folder.rglob("*.yml"), *folder.glob("templates/**/*")]:
        if not path.is_file() or path.name == "argument_specs.yml":
            continue
        text = without_comments(path)
        for name in foreign.findall(text):
            if not name.removeprefix("__").startswith(f"{role}_"):
                found.append(f"{relative(path)}: {name} is a variable of another role")
        for pattern, why in (
            (r"\bgroups\s*[\[.]|\bgroup_names\b", "names inventory groups"),
            (r"\blab\b|\blab_|myriad-lab", "knows the lab"),
            (r"virtualization_type", "guesses where it runs"),
        ):
            found += [f"{relative(path)}: {hit.group()!r} {why}" for hit in re.finditer(pattern, text)]
        if path.parent.name != "defaults":
            found += [
                f"{relative(path)}: {name} is bound in defaults only"
                for name in re.findall(r"\b(?:myriad|site)_\w+", text)
            ]
    assert found == []


@pytest.mark.parametrize("path", TASK_FILES, ids=relative)
def test_k3_tasks_name_modules_in_full_and_ignore_no_error(path: Path) -> None:
    for task in tasks_of(path):
        module = module_of(task)
        if module is None:
            assert "block" in task, f"{task.get('name')} calls nothing"
        else:
            assert module.count(".") >= 2, f"{module} is not a full name"
        assert not {"ignore_errors", "ignore_unreachable"} & set(task), task.get("name")
        assert module != "ansible.builtin.set_fact" or all(name.startswith("__") for name in task[module]), (
            "set_fact over an input"
        )


@pytest.mark.parametrize("path", TASK_FILES, ids=relative)
def test_a_role_never_loops_a_task(path: Path) -> None:
    """The number of tasks is the cost of a run: lists go to modules that take lists."""
    looped = [
        task.get("name") for task in tasks_of(path) if "loop" in task or any(key.startswith("with_") for key in task)
    ]
    assert looped == []


@pytest.mark.parametrize("path", TASK_FILES, ids=relative)
def test_a_command_says_why_and_whether_it_changed_something(path: Path) -> None:
    lines = path.read_text().splitlines()
    for task in tasks_of(path):
        module = module_of(task)
        if module is None or module.rsplit(".", 1)[-1] not in COMMAND_MODULES:
            continue
        arguments = {**(task[module] if isinstance(task[module], dict) else {}), **task.get("args", {})}
        honest = "changed_when" in task or {"creates", "removes"} & set(arguments)
        assert honest, f"{task['name']}: nobody knows whether it changes something"
        at = next(number for number, line in enumerate(lines) if line.strip().startswith(f"- name: {task['name']}"))
        assert lines[at - 1].lstrip().startswith("#"), f"{task['name']}: no comment says why no module serves"


def test_commands_are_rare() -> None:
    commands = [
        f"{relative(path)}: {task['name']}"
        for path in TASK_FILES
        for task in tasks_of(path)
        if (module_of(task) or "").rsplit(".", 1)[-1] in COMMAND_MODULES
    ]
    lines = sum(len(path.read_text().splitlines()) for path in (ROOT / "roles").rglob("*.yml"))
    assert len(commands) <= max(8, 3 * lines // 1000), commands


@pytest.mark.parametrize("path", TEMPLATES, ids=relative)
def test_a_template_says_who_manages_the_file_and_holds_no_date(path: Path) -> None:
    text = path.read_text()
    head = text.splitlines()[:2]
    first = head[1] if head[0].startswith("#!") else head[0]
    if relative(path).removeprefix("roles/") not in NO_HEADER and path.suffix == ".j2":
        assert re.match(r"\{\{ ansible_managed \| comment(\('\w+'\))? \}\}$", first), first
    dates = re.compile(r"strftime|date_time|\bnow\(|template_run_date|template_mtime|ansible_host_uuid|lookup\('pipe'")
    assert dates.search(text) is None


def test_every_excused_template_exists_or_is_gone_from_the_list() -> None:
    present = {relative(path).removeprefix("roles/") for path in TEMPLATES}
    assert sorted(name for name in NO_HEADER if name not in present) == []


@pytest.mark.parametrize("path", sorted((ROOT / "roles").glob("*/defaults/main.yml")), ids=relative)
def test_defaults_are_public_and_named_after_the_role(path: Path) -> None:
    role = path.parents[1].name
    assert [name for name in load_yaml(path) or {} if not name.startswith(f"{role}_")] == []


def test_role_files_are_yaml_that_a_plain_reader_takes() -> None:
    for path in (ROOT / "roles").glob("*/tasks/*.yml"):
        assert isinstance(yaml.safe_load(path.read_text()), list), relative(path)
