"""The module files on folders of a test."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

USER, GROUP = str(os.getuid()), str(os.getgid())


@pytest.fixture
def land(plugin, tmp_path):
    """Run the module's work: files by path below ``root``; returns the finished work."""
    module = plugin("modules.files")
    (tmp_path / "root").mkdir(mode=0o755)

    def run(files, *, check=False, tree="configure", run_id="r1", predicted=None, directories=None, **params):
        rendered = []
        for path, item in files.items():
            item = {"content": item} if isinstance(item, str) else item
            defaults = {"mode": "0644", "owner": USER, "group": GROUP, "validate": None, "secret": False}
            rendered.append({"path": path, "encoding": "text", **defaults, **item})
        owned = {path: {"owner": USER, "group": GROUP, **(entry or {})} for path, entry in (directories or {}).items()}
        work = module.Tree(
            {
                "role": "demo",
                "tree": tree,
                "root": str(tmp_path / "root"),
                "state_dir": "/state",
                "run_id": run_id,
                "predicted": predicted or {},
                "rendered": rendered,
                "directories": owned,
                "absent": [],
                **params,
            },
            check,
        )
        work.failure = module.Failure
        work.run()
        return work

    run.module = module
    return run


def root(tmp_path: Path, path: str) -> Path:
    return tmp_path / "root" / path.lstrip("/")


ETC = {"/etc": {}}


def test_lands_reports_and_is_idempotent(land, tmp_path):
    first = land({"/etc/a": "hello\n", "/etc/b": {"content": "x", "mode": "0600"}}, directories=ETC)
    assert first.changed_paths == ["/etc", "/etc/a", "/etc/b"]
    assert root(tmp_path, "/etc/a").read_text() == "hello\n"
    assert root(tmp_path, "/etc/b").stat().st_mode & 0o7777 == 0o600
    second = land({"/etc/a": "hello\n", "/etc/b": {"content": "x", "mode": "0600"}}, directories=ETC)
    assert second.changed_paths == []
    assert second.diff == []


def test_prediction_equals_the_run_on_a_fresh_host_and_writes_nothing(land, tmp_path):
    files = {"/etc/x/y/a": "hello\n"}
    directories = {"/etc": {}, "/etc/x": {}, "/etc/x/y": {"mode": "0700"}}
    predicted = land(files, check=True, directories=directories)
    assert list((tmp_path / "root").iterdir()) == []
    done = land(files, directories=directories)
    assert predicted.changed_paths == done.changed_paths
    assert predicted.diff == done.diff
    assert predicted.content == done.content


def test_a_directory_that_an_earlier_task_would_make_is_not_predicted_twice(land):
    first = land({"/etc/a": "x"}, check=True, directories=ETC)
    second = land({}, check=True, directories=ETC, tree="other", predicted=first.content)
    assert second.changed_paths == []


def test_mode_alone_is_a_change_of_its_own(land, tmp_path):
    land({"/etc/a": "x"}, directories=ETC)
    work = land({"/etc/a": {"content": "x", "mode": "0640"}}, directories=ETC)
    assert work.changed_paths == ["/etc/a"]
    assert "mode 0644" in work.diff[0]["before"]
    assert "mode 0640" in work.diff[0]["after"]
    assert root(tmp_path, "/etc/a").stat().st_mode & 0o7777 == 0o640


def test_a_file_that_left_the_tree_is_removed_and_another_trees_is_not(land, tmp_path):
    land({"/etc/a": "x", "/etc/b": "gone soon\n"}, directories=ETC)
    land({"/etc/other": "x"}, tree="install", directories=ETC)
    predicted = land({"/etc/a": "x"}, check=True, directories=ETC)
    assert root(tmp_path, "/etc/b").exists()
    work = land({"/etc/a": "x"}, directories=ETC)
    assert predicted.removed == work.removed == ["/etc/b"]
    assert work.diff[-1]["before"] == "gone soon\n"
    assert work.diff[-1]["after"] == ""
    assert not root(tmp_path, "/etc/b").exists()
    assert root(tmp_path, "/etc/other").exists()
    state = json.loads(root(tmp_path, "/state/demo.json").read_text())
    assert sorted(entry["path"] for entry in state["files"]) == ["/etc/a", "/etc/other"]


def test_absent_takes_a_file_away_once(land, tmp_path):
    land({"/etc/a": "x"}, directories=ETC)
    root(tmp_path, "/etc/old").write_text("old")
    assert land({"/etc/a": "x"}, directories=ETC, absent=["/etc/old"]).removed == ["/etc/old"]
    assert land({"/etc/a": "x"}, directories=ETC, absent=["/etc/old"]).changed_paths == []


def test_nothing_lands_when_one_of_the_files_is_refused(land, tmp_path):
    land({"/etc/a": "old"}, directories=ETC)
    with pytest.raises(land.module.Failure) as caught:
        land(
            {
                "/etc/a": "new",
                "/etc/bad.conf": {"content": "x", "validate": "sh -c 'echo line 3: no such key >&2; exit 1' %s"},
                "/etc/worse.conf": {"content": "x", "validate": "false %s"},
            },
            directories=ETC,
        )
    assert "line 3: no such key" in str(caught.value)
    assert "/etc/worse.conf" in str(caught.value)
    assert "No file of this task was changed" in str(caught.value)
    assert root(tmp_path, "/etc/a").read_text() == "old"
    assert not root(tmp_path, "/etc/bad.conf").exists()


def test_a_validator_sees_the_new_content_under_the_files_own_name(land):
    command = """sh -c 'grep -q new "$1" && case "$1" in */a.service) exit 0;; esac; exit 1' - %s"""
    work = land({"/etc/a.service": {"content": "new", "validate": command}}, directories=ETC)
    assert "/etc/a.service" in work.changed_paths


def test_a_validator_that_is_not_installed_is_a_note_in_check_mode_and_an_error_else(land, tmp_path):
    files = {"/etc/a": {"content": "x", "validate": "/nowhere/containerd --config %s"}}
    work = land(files, check=True, directories=ETC)
    assert work.notes == ["/etc/a: not validated, /nowhere/containerd is not installed yet"]
    with pytest.raises(land.module.Failure, match="nothing was changed"):
        land(files, directories=ETC)
    assert not root(tmp_path, "/etc/a").exists()


def test_an_unchanged_file_is_not_validated_again(land, tmp_path):
    marker = tmp_path / "asked"
    files = {"/etc/a": {"content": "x", "validate": f"sh -c 'echo x >> {marker}' %s"}}
    land(files, directories=ETC)
    land(files, directories=ETC)
    assert marker.read_text() == "x\n"


def test_a_killed_run_leaves_no_temporary_file_after_the_next_one(land, tmp_path):
    land({"/etc/a": "x"}, directories=ETC)
    leftover = root(tmp_path, "/etc/.a.myriad-4711.tmp")
    leftover.write_text("half")
    land({"/etc/a": "x"}, directories=ETC)
    assert not leftover.exists()


def test_what_is_about_to_land_is_recorded_before_it_lands(land, tmp_path, monkeypatch):
    """A run that is killed between the two leaves nothing that a reset does not know."""

    def killed(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(land.module.fsops, "land", killed)
    with pytest.raises(KeyboardInterrupt):
        land({"/etc/a": "x"}, directories=ETC)
    monkeypatch.undo()
    state = json.loads(root(tmp_path, "/state/demo.json").read_text())
    assert [entry["path"] for entry in state["files"]] == ["/etc/a"]
    assert land({"/etc/a": "x"}, directories=ETC).changed_paths == ["/etc/a"]
    assert root(tmp_path, "/etc/a").read_text() == "x"


def test_a_run_killed_right_after_making_a_directory_leaves_one_that_is_known_and_right(land, tmp_path, monkeypatch):
    def killed(*_arguments):
        raise KeyboardInterrupt

    before = os.umask(0o077)
    monkeypatch.setattr(land.module.fsops, "set_attributes", killed)
    try:
        with pytest.raises(KeyboardInterrupt):
            land({"/etc/a": "x"}, directories=ETC)
    finally:
        os.umask(before)
        monkeypatch.undo()
    assert root(tmp_path, "/etc").stat().st_mode & 0o7777 == 0o755
    assert json.loads(root(tmp_path, "/state/demo.json").read_text())["directories"][0]["made"] is True
    land({"/etc/a": "x"}, directories=ETC)
    assert json.loads(root(tmp_path, "/state/demo.json").read_text())["directories"][0]["made"] is True


def test_content_of_a_secret_is_in_no_diff(land):
    work = land({"/etc/a": {"content": "hunter2", "secret": True}}, directories=ETC)
    assert "hunter2" not in json.dumps(work.diff)
    assert "/etc/a" in json.dumps(work.diff)


def test_binary_content_is_not_shown(land, tmp_path):
    work = land({"/etc/a": {"content": "AAEC", "encoding": "base64"}}, directories=ETC)
    assert root(tmp_path, "/etc/a").read_bytes() == b"\0\1\2"
    assert "binary" in work.diff[-1]["prepared"]


def test_a_link_is_replaced_and_its_target_is_left_alone(land, tmp_path):
    land({"/etc/b": "x"}, directories=ETC)
    target = tmp_path / "target"
    target.write_text("theirs")
    root(tmp_path, "/etc/a").symlink_to(target)
    assert land({"/etc/a": "ours"}, directories=ETC, tree="other").changed_paths == ["/etc/a"]
    assert not root(tmp_path, "/etc/a").is_symlink()
    assert target.read_text() == "theirs"


def test_a_directory_in_the_way_is_an_error_that_says_so(land, tmp_path):
    root(tmp_path, "/etc/a").mkdir(parents=True)
    with pytest.raises(land.module.Failure, match="/etc/a is a directory where the role wants a file"):
        land({"/etc/a": "x"}, directories=ETC)


def test_what_stood_there_before_is_kept_for_a_reset(land, tmp_path):
    land({}, directories=ETC)
    root(tmp_path, "/etc/a").write_text("the distribution's")
    land({"/etc/a": "ours"}, directories=ETC)
    land({"/etc/a": "ours, second"}, directories=ETC)
    state = json.loads(root(tmp_path, "/state/demo.json").read_text())
    original = next(entry for entry in state["files"] if entry["path"] == "/etc/a")["original"]
    assert root(tmp_path, f"/state/originals/{original['sha256']}").read_text() == "the distribution's"


def test_a_change_takes_back_that_the_host_is_converged(land, tmp_path):
    land({"/etc/a": "x"}, directories=ETC)
    site = root(tmp_path, "/state/_site.json")
    site.write_text("{}")
    land({"/etc/a": "x"}, directories=ETC)
    land({"/etc/a": "y"}, directories=ETC, check=True)
    assert site.exists()
    land({"/etc/a": "y"}, directories=ETC)
    assert not site.exists()


def test_an_unknown_user_is_named(land):
    with pytest.raises(LookupError, match="user nobody-such is not on this node"):
        land({"/etc/a": {"content": "x", "owner": "nobody-such"}}, directories=ETC)


ROLE_TASK = """
- name: Files of the role
  myriad.gpu.files:
    tree: configure
    state_dir: {tmp}/state
    manifest:
      {tmp}/out/a.conf: {{mode: "0600", owner: "{user}", group: "{group}", validate: "grep -q world %s"}}
      {tmp}/out/plain: {{owner: "{user}", group: "{group}"}}
      {tmp}/out/optional: {{owner: "{user}", group: "{group}", present: "{{{{ optional }}}}"}}
    extra:
      - path: "{tmp}/out/{{{{ inventory_hostname }}}}.toml"
        template: named.toml.j2
        vars: {{port: 5000}}
        owner: "{user}"
        group: "{group}"
"""
PLAY = """
- hosts: all
  connection: local
  gather_facts: false
  vars: {greeting: world, optional: true}
  roles: [demo]
"""


@pytest.fixture
def role(tmp_path):
    """A role with a tree of templates in tmp_path."""
    tree = tmp_path / "roles" / "demo" / "templates" / "configure" / str(tmp_path / "out").lstrip("/")
    tree.mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tree / "a.conf.j2").write_text("{{ ansible_managed | comment }}\nhello {{ greeting }}\n")
    (tree / "plain").write_text("{{ not a template }}\n")
    (tree / "optional").write_text("optional\n")
    (
        tree.parents[len(tree.relative_to(tmp_path / "roles" / "demo" / "templates").parts) - 1] / "named.toml.j2"
    ).write_text("port = {{ port }}\n")
    tasks = tmp_path / "roles" / "demo" / "tasks"
    tasks.mkdir()
    (tasks / "main.yml").write_text(ROLE_TASK.format(tmp=tmp_path, user=USER, group=GROUP))
    return tree


def test_a_role_through_ansible_playbook(ansible, role, tmp_path):
    predicted = ansible(PLAY, "--check", "--diff")
    assert predicted.returncode == 0, predicted.stdout + predicted.stderr
    assert list((tmp_path / "out").iterdir()) == []
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    foretold = next(event for event in events if event["event"] == "result")["changed_items"]
    done = ansible(PLAY, "--diff")
    assert done.returncode == 0, done.stdout + done.stderr
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    result = next(event for event in events if event["event"] == "result")
    assert (result["role"], result["task"], result["changed_items"]) == ("demo", "Files of the role", foretold)
    assert len(foretold) == 4
    text = (tmp_path / "out" / "a.conf").read_text()
    assert text.startswith("#\n# Managed by Myriad, role demo.")
    assert text.endswith("hello world\n")
    assert (tmp_path / "out" / "plain").read_text() == "{{ not a template }}\n"
    assert (tmp_path / "out" / "node1.toml").read_text() == "port = 5000\n"
    assert "+hello world" in done.stdout
    again = ansible(PLAY)
    assert "changed 0" in again.stdout
    without = ansible(PLAY, "-e", '{"optional": false}')
    assert without.returncode == 0
    assert not (tmp_path / "out" / "optional").exists()


def test_an_error_in_a_template_names_file_and_line(ansible, role):
    (role / "a.conf.j2").write_text("one\ntwo {{ nowhere.at_all }}\n")
    done = ansible(PLAY)
    assert done.returncode == 2
    assert f"{role}/a.conf.j2:2" in done.stdout
    assert "'nowhere' is undefined" in done.stdout


def test_a_path_that_the_tree_does_not_hold_is_an_error(ansible, role):
    (role / "plain").unlink()
    done = ansible(PLAY)
    assert done.returncode == 2
    assert "The manifest names" in done.stdout
    assert "/out/plain" in done.stdout
