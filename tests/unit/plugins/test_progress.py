"""The callback progress, through ansible-playbook."""

from __future__ import annotations

import json

from myriad.runs import parse, result_of

PLAY = """
- name: runtime
  hosts: all
  connection: local
  gather_facts: false
  tasks:
    - name: Fine
      ansible.builtin.command: "true"
      changed_when: false
    - name: Changes
      ansible.builtin.command: "true"
    - name: Hidden
      ansible.builtin.debug: {msg: "hunter2"}
      no_log: true
    - name: Left out
      ansible.builtin.command: "true"
      when: false
    - name: Breaks
      ansible.builtin.shell: "echo the disk is full >&2; exit 3"
    - name: Never reached
      ansible.builtin.command: "true"
"""


def test_lines_errors_recap_and_events(ansible, tmp_path):
    done = ansible(PLAY)
    assert done.returncode == 2
    out = done.stdout
    assert "hunter2" not in out
    lines = out.splitlines()
    assert any("runtime · Fine" in line and line.endswith("ok 1") for line in lines)
    assert any("runtime · Changes" in line and line.endswith("changed 1 (node1)") for line in lines)
    assert not any("Left out" in line for line in lines)
    assert "FAILED  node1 · Breaks" in out
    assert "    the disk is full" in out
    assert "a host saw 4 tasks at most (node1)" in out
    assert "--limit node1" in out
    text = (tmp_path / "events.jsonl").read_text()
    assert "hunter2" not in text
    found = result_of(parse(text.splitlines()))
    assert found.exit_code == 2
    assert found.task_counts() == {"node1": 4}
    assert found.hosts["node1"].skipped == 1
    assert found.hosts["node1"].changed == [("", "Changes"), ("", "Breaks")] or found.hosts["node1"].changed == [
        ("", "Changes")
    ]
    assert "runtime" in found.play_seconds


def test_a_known_symptom_is_explained_under_what_was_said(ansible, tmp_path):
    said = "failed to run Kubelet: running with swap on is not supported, please disable swap"
    done = ansible(PLAY.replace("echo the disk is full >&2", f"echo '{said}' >&2"))
    assert "  cause  swap is on, and the kubelet refuses to start with it" in done.stdout
    assert "  next   swapon --show; grep swap /etc/fstab    # on node1" in done.stdout
    assert "cause" not in ansible(PLAY).stdout


def test_listing_tasks_stays_ansibles_own(ansible, tmp_path):
    done = ansible(PLAY, "--list-tasks")
    assert done.returncode == 0
    assert "Never reached" in done.stdout
    assert "slowest" not in done.stdout


def test_every_event_is_one_json_object_a_line(ansible, tmp_path):
    ansible(PLAY, "--check")
    rows = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [row["event"] for row in rows[:3]] == ["start", "play", "task"]
    assert rows[0]["check"] is True
    assert rows[-1]["event"] == "stats"
    assert all("time" in row for row in rows)


def test_d8_hosts_that_need_a_reboot_are_named_at_the_end_with_the_reason(ansible, tmp_path):
    reason = "the loaded module is 535.309.01, the installed one 580.126.20"
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "installs.py").write_text(
        f"#!/usr/bin/python\nimport json\nprint(json.dumps({{'changed': True, 'reboot_required': ['{reason}']}}))\n"
    )
    play = "- {name: driver, hosts: all, connection: local, gather_facts: false, tasks: [{name: Driver, installs: }]}"
    done = ansible(play)
    assert done.returncode == 0, done.stdout
    assert f"reboot   node1: {reason}" in done.stdout
    assert "next: myriad reboot -i INVENTORY node1" in done.stdout
    found = result_of(parse((tmp_path / "events.jsonl").read_text().splitlines()))
    assert found.hosts["node1"].reboot == [reason]


TALK = """
- name: talk
  hosts: all
  connection: local
  gather_facts: false
  tasks:
    - name: Lines
      ansible.builtin.debug: {msg: [first words, second words]}
    - name: A variable
      ansible.builtin.debug: {var: inventory_hostname}
    - name: In a loop
      ansible.builtin.debug: {msg: "item {{ item }}"}
      loop: [1, 2]
    - name: Hidden
      ansible.builtin.debug: {msg: hunter2}
      no_log: true
    - name: Only with -v
      ansible.builtin.debug: {msg: for developers, verbosity: 1}
"""


def test_what_a_task_of_debug_says_can_be_read(ansible):
    done = ansible(TALK)
    assert done.returncode == 0, done.stdout
    for words in ("first words", "second words", '"inventory_hostname": "node1"', "item 1", "item 2"):
        assert done.stdout.count(words) == 1, done.stdout
    assert "hunter2" not in done.stdout and "for developers" not in done.stdout
    assert "    first words\n    second words\n" in done.stdout
