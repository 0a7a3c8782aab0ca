"""The module node_state over a node of fake programs."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

OSTYPE = Path("/proc/sys/kernel/ostype")
USER, GROUP = str(os.getuid()), str(os.getgid())
UNIT = "demo.service"


@pytest.fixture
def state_dir(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def present(plugin, node, state_dir):
    """state: present on the fake node; returns the module's result."""
    module = plugin("module_utils.present")
    empty = plugin("modules.node_state").ARGUMENTS

    def run(*, check=False, role="demo", run_id="r1", units=(), **params):
        values = {key: option.get("default") for key, option in empty.items()}
        defaults = {"enabled": None, "state": None, "masked": None, "restart_on": [], "wait_for": None, "timeout_s": 3}
        defaults.update(merged=None, restart="always")
        values.update(role=role, state_dir=str(state_dir), run_id=run_id, **params)
        values["units"] = [{**defaults, **unit} for unit in units]
        return module.Present(values, check).run()

    run.UnitError = plugin("module_utils.units").UnitError
    run.SystemFault = plugin("module_utils.kernel").SystemFault
    return run


@pytest.fixture
def look(plugin, node, state_dir):
    """state: check on the fake node."""
    module = plugin("modules.node_state")

    def run(inputs_hash="i1", full=False):
        return module.check({"root": "/", "state_dir": str(state_dir), "full": full, "inputs_hash": inputs_hash})

    return run


@pytest.fixture
def end(plugin, node, state_dir):
    """state: converged on the fake node."""
    module = plugin("modules.node_state")

    def run(inputs_hash="i1", *, complete=True, check=False, run_id="r1"):
        params = {"root": "/", "state_dir": str(state_dir), "complete": complete, "run_id": run_id}
        return module.converged({**params, "inputs_hash": inputs_hash}, check)

    return run


def running(**more):
    return [{"name": UNIT, "enabled": True, "state": "started", **more}]


def test_enables_and_starts_once(present, node):
    node.unit_file(UNIT)
    first = present(units=running())
    assert (first["enabled"], first["started"], first["restarted"]) == ([UNIT], [UNIT], [])
    assert first["changed_items"] == [f"unit {UNIT} enabled", f"unit {UNIT} started"]
    node.calls()
    second = present(units=running())
    assert second["changed"] is False
    assert node.calls("systemctl") == [f"systemctl show {UNIT}"]


def test_prediction_on_a_fresh_host_without_the_unit_equals_the_run(present, node, state_dir):
    predicted = present(check=True, units=running())
    assert not state_dir.exists()
    node.unit_file(UNIT)
    done = present(units=running())
    assert predicted["changed_items"] == done["changed_items"]


def test_a_changed_file_restarts_once(present, node, tmp_path):
    node.unit_file(UNIT)
    config = tmp_path / "config.toml"
    config.write_text("a")
    present(units=running(restart_on=[str(config)]))
    config.write_text("b")
    assert present(units=running(restart_on=[str(config)]))["restarted"] == [UNIT]
    assert present(units=running(restart_on=[str(config)]))["changed"] is False
    assert node.unit(UNIT)["starts"] == 2


def test_the_same_content_written_again_restarts_nothing(present, node, tmp_path):
    node.unit_file(UNIT)
    config = tmp_path / "config.toml"
    config.write_text("a")
    present(units=running(restart_on=[str(config)]))
    config.unlink()
    config.write_text("a")
    assert present(units=running(restart_on=[str(config)]))["changed"] is False


def test_a_run_killed_between_writing_and_restarting_is_repaired(present, node, tmp_path, monkeypatch, plugin):
    node.unit_file(UNIT)
    config = tmp_path / "config.toml"
    config.write_text("a")
    present(units=running(restart_on=[str(config)]))
    config.write_text("b")
    units = plugin("module_utils.units")
    monkeypatch.setattr(units, "act", lambda *_arguments: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        present(units=running(restart_on=[str(config)]))
    monkeypatch.undo()
    monkeypatch.setenv("PATH", f"{node.folder / 'bin'}:{os.environ['PATH']}")
    assert present(units=running(restart_on=[str(config)]))["restarted"] == [UNIT]


def test_check_mode_foretells_a_restart_from_what_an_earlier_task_would_write(present, node, tmp_path):
    node.unit_file(UNIT)
    folder = tmp_path / "conf.d"
    folder.mkdir()
    (folder / "a.toml").write_text("a")
    unit = running(restart_on=[str(folder)])
    present(units=unit)
    assert present(check=True, units=unit, predicted={str(folder / "b.toml"): "00"})["restarted"] == [UNIT]
    same = {str(folder / "a.toml"): "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"}
    assert present(check=True, units=unit, predicted=same)["changed"] is False
    assert present(check=True, units=unit, predicted={str(folder / "a.toml"): None})["restarted"] == [UNIT]
    drop_in = {str(node.units / f"{UNIT}.d" / "10-limits.conf"): "00"}
    assert present(check=True, units=unit, predicted=drop_in)["restarted"] == [UNIT]


def test_a_changed_unit_file_reloads_and_restarts_and_nothing_else_reloads(present, node):
    node.unit_file(UNIT)
    present(units=running())
    node.calls()
    node.unit_file(UNIT, "[Service]\nNice=1\n")
    result = present(units=running())
    assert (result["reloaded"], result["restarted"]) == (True, [UNIT])
    assert len(node.calls("systemctl daemon-reload")) == 1
    assert present(units=running())["reloaded"] is False
    node.unit_file(f"{UNIT}.d/10-limits.conf", "[Service]\n")
    assert present(units=running())["restarted"] == [UNIT]


def test_a_running_unit_is_adopted_when_its_files_are_older_than_it(present, node, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text("a")
    os.utime(config, (1, 1))
    os.utime(node.unit_file(UNIT), (1, 1))
    node.set_unit(UNIT, active="active", enabled=True, since=__import__("time").monotonic())
    assert present(units=running(restart_on=[str(config)]))["changed"] is False


def test_a_running_unit_is_restarted_when_its_files_are_newer_than_it(present, node, tmp_path):
    node.unit_file(UNIT)
    node.set_unit(UNIT, active="active", enabled=True, since=0.001)
    assert present(units=running())["restarted"] == [UNIT]


def test_k2_a_unit_that_does_not_start_tells_its_journal_and_a_guess(present, node):
    node.unit_file(UNIT, "BROKEN\n")
    with pytest.raises(present.UnitError) as caught:
        present(units=running())
    text = str(caught.value)
    assert f"{UNIT} did not start" in text
    assert "bind: address already in use" in text
    assert "another program listens on its port" in text
    assert f"journalctl -u {UNIT}" in text


def test_a_unit_that_does_not_answer_is_an_error_with_what_was_asked(present, node, tmp_path):
    node.unit_file(UNIT)
    missing = str(tmp_path / "missing.sock")
    with pytest.raises(present.UnitError, match=r"is up but does not answer: .*missing.sock"):
        present(units=running(wait_for={"path": missing, "timeout_s": 0.1}))


def test_a_port_that_answers_ends_the_waiting(present, node):
    node.unit_file(UNIT)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        present(units=running(wait_for={"port": listener.getsockname()[1], "timeout_s": 5}))


def test_a_masked_unit_is_refused_unless_asked_for(present, node):
    node.unit_file(UNIT)
    node.set_unit(UNIT, masked=True)
    with pytest.raises(present.UnitError, match="is masked on this node"):
        present(units=running())
    result = present(units=running(masked=False))
    assert (result["unmasked"], result["started"]) == ([UNIT], [UNIT])


def test_stops_disables_and_masks(present, node):
    node.unit_file(UNIT)
    node.set_unit(UNIT, active="active", enabled=True)
    result = present(units=[{"name": UNIT, "enabled": False, "state": "stopped"}])
    assert (result["disabled"], result["stopped"]) == ([UNIT], [UNIT])
    assert present(units=[{"name": UNIT, "enabled": False, "state": "stopped"}])["changed"] is False
    assert present(units=[{"name": UNIT, "masked": True}])["masked"] == [UNIT]
    assert present(units=[{"name": UNIT, "masked": True}])["changed"] is False


def test_a_static_unit_is_a_note_not_a_change_every_time(present, node):
    node.unit_file(UNIT)
    node.set_unit(UNIT, file_state="static", active="active")
    result = present(units=[{"name": UNIT, "enabled": True}])
    assert result["changed"] is False
    assert "nothing to enable" in result["notes"][0]


def test_a_module_that_is_missing_is_an_error_or_a_note(present, node):
    with pytest.raises(present.SystemFault, match="kernel module no_such_module cannot be loaded"):
        present(kernel_modules=["no_such_module"])
    result = present(kernel_modules=["no_such_module"], kernel_modules_optional=["no_such_module"])
    assert result["changed"] is False
    assert "no_such_module" in result["notes"][0]
    node.write(modules=["no_such_module"])
    assert present(kernel_modules=["no_such_module"])["changed_items"] == ["kernel module no_such_module loaded"]


def test_a_setting_that_has_its_value_is_no_change_and_one_that_is_missing_is_an_error(present):
    value = OSTYPE.read_text().strip()
    assert present(settings={"kernel.ostype": value})["changed"] is False
    with pytest.raises(present.SystemFault, match=r"setting no\.such cannot be 1: this kernel has no such setting"):
        present(settings={"no.such": "1"})
    result = present(settings={"no.such": "1"}, settings_optional=["no.such"])
    assert "setting no.such stays" in result["notes"][0]


@pytest.mark.parametrize("check", [False, True])
def test_a_read_only_setting_is_told_the_same_way_by_prediction_and_run(present, check):
    with pytest.raises(present.SystemFault, match=r"kernel\.ostype cannot be Plan9"):
        present(check=check, settings={"kernel.ostype": "Plan9"})
    result = present(check=check, settings={"kernel.ostype": "Plan9"}, settings_optional=["kernel.ostype"])
    assert result["changed"] is False


def test_a_package_that_is_not_installed_cannot_be_recorded(present, node):
    node.write(packages={"runc": "1.1.5"})
    present(packages=["runc"])
    with pytest.raises(present.SystemFault, match="not installed: conntrack"):
        present(packages=["runc", "conntrack"])
    assert present(check=True, packages=["runc", "conntrack"])["changed"] is False


IMAGE = {
    "id": "sha256:cc",
    "repoTags": ["10.0.0.1:5000/pause:3.10.1"],
    "repoDigests": ["10.0.0.1:5000/pause@sha256:dd"],
}


def test_a_missing_image_is_pulled_by_digest_and_recorded(present, node):
    other = {**IMAGE, "repoDigests": ["10.0.0.1:5000/pause@sha256:ee"]}
    node.write(images=[IMAGE], registry=[other])
    assert present(images=[{"ref": "10.0.0.1:5000/pause:3.10.1", "digest": "sha256:dd"}])["changed"] is False
    wanted = [{"ref": "10.0.0.1:5000/pause:3.10.1", "digest": "sha256:ee"}]
    assert present(check=True, images=wanted)["changed_items"] == ["image 10.0.0.1:5000/pause:3.10.1 pulled sha256:ee"]
    assert present(images=wanted)["changed"] is True
    assert present(images=wanted)["changed"] is False


def test_an_image_that_no_registry_has_is_an_error_with_the_runtimes_words(present, node):
    node.write(images=[], registry=[])
    with pytest.raises(present.SystemFault, match=r"pause@sha256:ee was not pulled: .*not found"):
        present(images=[{"ref": "10.0.0.1:5000/pause:3.10.1", "digest": "sha256:ee"}])


def site(present, end, node, tmp_path, **more):
    """A converged node with one of everything."""
    node.unit_file(UNIT)
    node.write(packages={"runc": "1.1.5"}, images=[IMAGE])
    config = tmp_path / "config.toml"
    config.write_text("a")
    value = OSTYPE.read_text().strip()
    present(
        units=running(restart_on=[str(config)]),
        packages=["runc"],
        images=[{"ref": "10.0.0.1:5000/pause:3.10.1", "digest": "sha256:dd"}],
        settings={"kernel.ostype": value},
        **more,
    )
    end()
    return config


def test_a_converged_node_has_no_drift_and_the_facts_that_roles_read(present, look, end, node, tmp_path):
    site(present, end, node, tmp_path)
    result = look()
    assert result["drift"] == []
    assert result["converged"] is True
    assert result["changed"] is False
    facts = result["ansible_facts"]
    assert facts["myriad_node"]["converged"] is True
    for name in ("distribution", "distribution_major_version", "architecture", "kernel", "hostname", "default_ipv4"):
        assert name in facts


def test_looking_costs_one_call_of_each_program(present, look, end, node, tmp_path):
    site(present, end, node, tmp_path)
    node.calls()
    look()
    state = node.read()
    assert sorted(call.split()[0] for call in state["calls"]) == ["crictl", "dpkg-query", "systemctl"]


def drift_of(result):
    return [(entry["kind"], entry["item"]) for entry in result["drift"]]


@pytest.mark.parametrize(
    ("change", "kind", "item"),
    [
        (lambda node, config: node.write(packages={"runc": "1.1.6"}), "package", "runc"),
        (lambda node, config: node.write(packages={}), "package", "runc"),
        (lambda node, config: node.write(images=[]), "image", "10.0.0.1:5000/pause:3.10.1"),
        (lambda node, config: node.write(runtime_down=True), "image", "10.0.0.1:5000/pause:3.10.1"),
        (lambda node, config: node.set_unit(UNIT, enabled=False), "unit", UNIT),
        (lambda node, config: node.set_unit(UNIT, active="failed"), "unit", UNIT),
        (lambda node, config: node.set_unit(UNIT, masked=True), "unit", UNIT),
        (lambda node, config: config.write_text("b"), "unit", UNIT),
        (lambda node, config: node.unit_file(UNIT, "[Service]\nNice=1\n"), "unit", UNIT),
        (lambda node, config: (node.units / UNIT).unlink(), "unit", UNIT),
    ],
    ids=[
        "package",
        "package-gone",
        "image",
        "runtime-down",
        "disabled",
        "failed",
        "masked",
        "config",
        "unit-file",
        "unit-gone",
    ],
)
def test_each_kind_of_change_by_hand_is_found(present, look, end, node, tmp_path, change, kind, item):
    config = site(present, end, node, tmp_path)
    change(node, config)
    result = look()
    assert drift_of(result) == [(kind, item)]
    assert result["drift"][0]["role"] == "demo"
    assert result["converged"] is False


def test_a_setting_changed_by_hand_is_found(present, look, end, node, tmp_path, monkeypatch, plugin):
    site(present, end, node, tmp_path)
    kernel = plugin("module_utils.kernel")
    monkeypatch.setattr(kernel, "read_setting", lambda name, root="/": "Plan9")
    assert drift_of(look()) == [("setting", "kernel.ostype")]


def test_files_and_artifacts_changed_by_hand_are_found(plugin, look, end, node, tmp_path, state_dir):
    module = plugin("module_utils.record")
    text, program, folder = tmp_path / "text", tmp_path / "program", tmp_path / "folder"
    text.write_text("a")
    program.write_text("a")
    folder.mkdir(mode=0o755)
    for path in (text, program):
        path.chmod(0o644)
    digest = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
    info = program.stat()
    common = {"sha256": digest, "mode": "0644", "owner": USER, "group": GROUP}
    record = module.Record(str(state_dir), "demo", "r1")
    record.put("files", {"path": str(text), "tree": "t", **common})
    record.put(
        "artifacts",
        {"name": "p", "path": str(program), **common, "size": 1, "mtime_ns": info.st_mtime_ns, "inode": info.st_ino},
    )
    record.put("directories", {"path": str(folder), "mode": "0755", "owner": USER, "group": GROUP, "made": True})
    record.save()
    end()
    assert drift_of(look(full=True)) == []
    text.write_text("b")
    folder.chmod(0o700)
    program.write_text("b")
    os.utime(program, ns=(info.st_mtime_ns, info.st_mtime_ns))
    # Same size, time and inode: only reading it shows the difference.
    assert drift_of(look()) == [("file", str(text)), ("directory", str(folder))]
    assert drift_of(look(full=True)) == [("file", str(text)), ("artifact", str(program)), ("directory", str(folder))]
    text.unlink()
    program.chmod(0o755)
    assert ("file", str(text)) in drift_of(look())
    assert ("artifact", str(program)) in drift_of(look())


def test_other_inputs_are_a_difference_and_so_is_a_run_that_never_ended(present, look, end, node, tmp_path, state_dir):
    site(present, end, node, tmp_path)
    assert drift_of(look("i2")) == [("inputs", "inputs")]
    (state_dir / "_site.json").unlink()
    assert drift_of(look()) == [("site", "run")]


def test_a_change_takes_back_that_the_host_is_converged(present, look, end, node, tmp_path):
    """Inputs change, the run is killed, the inputs change back: the records alone would say converged."""
    config = site(present, end, node, tmp_path)
    config.write_text("b")
    present(units=running(restart_on=[str(config)]))
    assert ("site", "run") in drift_of(look())


def test_only_a_complete_run_is_recorded(present, look, end, node, tmp_path, state_dir):
    node.unit_file(UNIT)
    present(units=running())
    assert end(complete=False)["recorded"] is False
    assert end(check=True)["recorded"] is True
    assert not (state_dir / "_site.json").exists()


def test_what_a_role_no_longer_asks_for_is_forgotten_at_the_end_of_a_complete_run(present, look, end, node, state_dir):
    node.write(packages={"runc": "1.1.5", "conntrack": "1.4"})
    present(run_id="r1", packages=["runc"], data=["/var/lib/demo"])
    present(run_id="r1", packages=["conntrack"])
    end(run_id="r1")
    record = json.loads((state_dir / "demo.json").read_text())
    assert sorted(entry["name"] for entry in record["packages"]) == ["conntrack", "runc"]
    present(run_id="r2", packages=["runc"])
    end(run_id="r2")
    record = json.loads((state_dir / "demo.json").read_text())
    assert [entry["name"] for entry in record["packages"]] == ["runc"]
    assert record["retired"] == ["/var/lib/demo"]


def test_a_broken_record_is_an_error_that_says_what_to_do(plugin, look, state_dir):
    state_dir.mkdir()
    (state_dir / "demo.json").write_text("{half")
    with pytest.raises(plugin("module_utils.record").RecordError, match="Remove it and run again"):
        look()
