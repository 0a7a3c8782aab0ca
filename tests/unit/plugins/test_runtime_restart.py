"""When a unit that reads a whole directory restarts, when it must not, and what is put back when it fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

UNIT = "demo.service"


@pytest.fixture
def folder(tmp_path):
    home = tmp_path / "etc" / "demo"
    (home / "conf.d").mkdir(parents=True)
    (home / "main").write_text("one = 1\n")
    return home


@pytest.fixture
def state_dir(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def present(plugin, node, state_dir, folder, monkeypatch):
    """state: present for one unit over a fake systemctl; the program prints all lines that are no comments."""
    module = plugin("module_utils.present")
    merged = plugin("module_utils.merged")
    busy = plugin("module_utils.busy")
    empty = plugin("modules.node_state").ARGUMENTS

    def ask(self, staged):
        lines = [line for path in sorted(merged.inside(staged)) for line in Path(path).read_text().splitlines()]
        if "broken" in lines:
            raise merged.Refused("no value for broken")
        return "".join(f"{line}\n" for line in sorted(lines) if not line.startswith("#"))

    monkeypatch.setattr(merged.Directory, "ask", ask)
    held = []
    monkeypatch.setattr(busy, "holders", lambda root="/": [busy.Holder(*values) for values in held])

    def run(*, check=False, role="demo", predicted=None, **unit):
        values = {key: option.get("default") for key, option in empty.items()}
        values.update(role=role, state_dir=str(state_dir), run_id="r1", predicted=predicted or {})
        values["units"] = [
            {
                "name": UNIT, "enabled": None, "state": "started", "masked": None, "restart_on": [], "timeout_s": 2,
                "wait_for": None, "restart": "drained", "merged": {"directory": str(folder), "command": "true"}, **unit,
            }
        ]  # fmt: skip
        return module.Present(values, check).run()

    run.UnitError = plugin("module_utils.units").UnitError
    run.held = held
    node.unit_file(UNIT)
    return run


@pytest.fixture
def look(plugin, node, state_dir):
    """Drift, as state: check finds it."""
    record = plugin("module_utils.record")
    drift = plugin("module_utils.drift")
    return lambda: drift.Comparison(record.load_all(str(state_dir))).run()


def starts(node) -> int:
    return int(node.unit(UNIT).get("starts", 0))


def test_a9_what_the_program_makes_of_the_files_decides_not_the_files(present, node, folder, look):
    assert present()["started"] == [UNIT]
    (folder / "conf.d" / "50").write_text("# a word\n")
    assert present()["changed"] is False
    assert look() == []
    (folder / "conf.d" / "50").write_text("two = 2\n")
    assert [item["found"] for item in look()] == ["a file changed after it was started"]
    assert present()["restarted"] == [UNIT]
    assert starts(node) == 2


def test_a2_a_strangers_broken_file_stops_before_the_restart(present, node, folder, look):
    present()
    (folder / "conf.d" / "90").write_text("broken\n")
    with pytest.raises(present.UnitError, match=r"demo.service was left alone.*") as error:
        present()
    assert f"Without {folder}/conf.d/90 it takes the rest" in str(error.value)
    assert starts(node) == 1
    (found,) = look()
    assert f"{folder}/conf.d/90" in found["found"]


def test_d4_pods_with_devices_are_named_and_nothing_is_restarted(present, node, folder):
    present()
    (folder / "main").write_text("one = 2\n")
    present.held.append(("vision/bert-0", "nvidia.com/gpu", 8, False))
    with pytest.raises(present.UnitError) as error:
        present()
    said = str(error.value)
    assert "demo.service has to be restarted (its configuration changes one from 1 to 2)" in said
    assert "vision/bert-0 (8 nvidia.com/gpu)" in said and "kubectl drain" in said and "demo_restart: now" in said
    with pytest.raises(present.UnitError):
        present(check=True)
    assert starts(node) == 1
    present.held.clear()
    assert present()["restarted"] == [UNIT]


def test_d4_never_leaves_it_pending_and_says_so_until_it_is_done(present, node, folder, look):
    present()
    (folder / "main").write_text("one = 2\n")
    done = present(restart="never")
    assert (done["changed"], starts(node)) == (False, 1)
    assert done["notes"] == [
        "demo.service: a restart is pending (its configuration changes one from 1 to 2); "
        "it was asked never to be restarted"
    ]
    assert len(look()) == 1, "the node does not count as converged"
    assert present()["restarted"] == [UNIT]


def test_d4_a_first_start_and_an_unchanged_unit_ask_nobody(present, node):
    present.held.append(("vision/bert-0", "nvidia.com/gpu", 8, True))
    assert present()["started"] == [UNIT]
    assert present()["changed"] is False


def test_a1_what_another_role_restarted_is_not_restarted_again(present, node, folder, look):
    present(role="owner")
    present(role="guest")
    (folder / "conf.d" / "50").write_text("two = 2\n")
    assert present(role="guest")["restarted"] == [UNIT]
    assert present(role="owner")["changed"] is False
    assert look() == []
    assert starts(node) == 2


def test_a2_the_last_good_files_are_back_when_it_does_not_come_up(present, node, folder, tmp_path):
    sign = tmp_path / "up"
    sign.write_text("")
    waits = {"wait_for": {"path": str(sign), "timeout_s": 1}}
    present(**waits)
    (folder / "main").write_text("one = 2\n")
    (folder / "conf.d" / "90").write_text("three = 3\n")
    sign.unlink()
    # It answers again once it reads the files that it knows.
    units_start = node.unit(UNIT)["starts"]
    original = os.replace

    def moved(source, target):
        original(source, target)
        sign.write_text("")

    os_module = pytest.MonkeyPatch()
    os_module.setattr(os, "replace", moved)
    try:
        with pytest.raises(present.UnitError) as error:
            present(**waits)
    finally:
        os_module.undo()
    said = str(error.value)
    assert f"{folder}/conf.d/90 is new, {folder}/main is different" in said
    assert "changes one from 1 to 2, sets three to 3" in said
    assert "Those files are back and demo.service runs with them" in said
    assert (folder / "main").read_text() == "one = 1\n"
    assert (folder / "conf.d" / "90.refused").read_text() == "three = 3\n", "a stranger's file is not lost"
    assert node.unit(UNIT)["starts"] == units_start + 2


def test_a2_when_the_old_files_do_not_help_both_failures_are_told(present, folder, tmp_path):
    sign = tmp_path / "up"
    sign.write_text("")
    waits = {"wait_for": {"path": str(sign), "timeout_s": 1}}
    present(**waits)
    (folder / "main").write_text("one = 2\n")
    sign.unlink()
    with pytest.raises(present.UnitError, match="Those files are back, but it does not come up with them either"):
        present(**waits)


def test_a_first_start_that_fails_has_nothing_to_put_back(present, folder, tmp_path):
    with pytest.raises(present.UnitError) as error:
        present(wait_for={"path": str(tmp_path / "never"), "timeout_s": 1})
    assert "are back" not in str(error.value)
    assert (folder / "main").read_text() == "one = 1\n"


def test_a11_no_reload_under_a_container_that_would_lose_its_devices(present, node):
    present()
    node.unit_file(UNIT, "[Service]\nNice=5\n")
    present.held.append(("vision/old-0", "nvidia.com/gpu", 1, True))
    present.held.append(("vision/new-0", "nvidia.com/gpu", 1, False))
    node.calls()
    with pytest.raises(present.UnitError) as error:
        present()
    said = str(error.value)
    assert "daemon-reload" in said and "vision/old-0" in said and "vision/new-0" not in said and "cdi-cri" in said
    assert node.calls("systemctl daemon-reload") == []
    present.held.pop(0)
    assert present(restart="always")["reloaded"] is True


def test_the_prediction_of_a_restart_follows_from_what_would_land(present, folder):
    present()
    done = present(check=True, predicted={f"{folder}/conf.d/50": "00"})
    assert done["restarted"] == [UNIT]
    assert present(check=True)["changed"] is False


def test_a11_what_systemd_does_not_notice_by_itself_makes_it_read_its_files_again(
    present, plugin, node, tmp_path, monkeypatch
):
    """The first drop-in of a unit, and a file that goes before the one it knows (seen with systemd 252)."""
    module = plugin("module_utils.present")
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    monkeypatch.setattr(module, "UNIT_FOLDERS", (str(first), str(second)))
    work = module.Present(
        {"root": "/", "state_dir": str(tmp_path / "s"), "role": "r", "run_id": "1", "predicted": {}}, False
    )
    (second / UNIT).write_text("[Service]\n")
    known = {"NeedDaemonReload": "no", "LoadState": "loaded", "FragmentPath": str(second / UNIT), "DropInPaths": ""}
    assert work.needs_reload(UNIT, known) is False
    assert work.needs_reload(UNIT, {**known, "NeedDaemonReload": "yes"}) is True
    assert work.needs_reload(UNIT, {**known, "LoadState": "not-found", "FragmentPath": ""}) is True
    drop_in = second / f"{UNIT}.d" / "10-a.conf"
    drop_in.parent.mkdir()
    drop_in.write_text("")
    assert work.needs_reload(UNIT, known) is False, "an empty one takes away another"
    drop_in.write_text("[Service]\nNice=1\n")
    assert work.needs_reload(UNIT, known) is True
    read = {**known, "DropInPaths": str(drop_in)}
    assert work.needs_reload(UNIT, read) is False
    (first / UNIT).symlink_to(second / UNIT)
    assert work.needs_reload(UNIT, read) is False, "the same file by another name"
    (first / UNIT).unlink()
    (first / UNIT).write_text("[Service]\nNice=2\n")
    assert work.needs_reload(UNIT, read) is True
