"""state: absent over a node of fake programs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

USER, GROUP = str(os.getuid()), str(os.getgid())
UNIT = "demo.service"


@pytest.fixture
def site(plugin, node, tmp_path):
    """A role's files, program, data directory and unit, recorded; returns the folder of the records."""
    record = plugin("module_utils.record").Record(str(tmp_path / "state"), "demo", "r1")
    common = {"sha256": "00", "mode": "0755", "owner": USER, "group": GROUP}
    for folder in ("etc", "etc/sub", "bin", "data"):
        (tmp_path / folder).mkdir()
    for name in ("etc/a", "etc/sub/b"):
        (tmp_path / name).write_text("x")
        record.put("files", {"path": str(tmp_path / name), "tree": "t", **common})
    (tmp_path / "bin" / "program").write_bytes(Path("/bin/sleep").read_bytes())
    (tmp_path / "bin" / "program").chmod(0o755)
    record.put("artifacts", {"name": "program", "path": str(tmp_path / "bin" / "program"), **common})
    for folder in ("etc", "etc/sub"):
        record.put("directories", {"path": str(tmp_path / folder), **common, "made": True})
    record.put("data", {"path": str(tmp_path / "data")})
    unit = node.unit_file(UNIT)
    record.put("files", {"path": str(unit), "tree": "t", **common})
    record.put("units", {"name": UNIT, "enabled": True, "state": "started", "before": {"load": "not-found"}})
    node.set_unit(UNIT, active="active", enabled=True)
    record.save()
    (tmp_path / "data" / "member").mkdir()
    (tmp_path / "data" / "member" / "wal").write_text("x")
    return record


@pytest.fixture
def reset(plugin, node, tmp_path):
    module = plugin("module_utils.reset")

    def run(*, check=False, keep=(), role=None):
        params = {"root": "/", "state_dir": str(tmp_path / "state"), "keep": list(keep), "role": role}
        return module.Reset(params, check).run()

    return run


def left(tmp_path):
    return sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if "node" not in path.parts)


def test_removes_what_was_recorded_and_leaves_nothing(site, reset, node, tmp_path):
    result = reset()
    assert result["leftovers"] == []
    assert result["changed"] is True
    assert [name for name in left(tmp_path) if not name.startswith("node")] == ["bin"]
    assert node.unit(UNIT)["active"] == "inactive"
    assert node.unit(UNIT)["enabled"] is False
    assert f"unit {UNIT} stopped" in result["removed"]
    again = reset()
    assert (again["changed"], again["leftovers"]) == (False, [])


def test_the_prediction_touches_nothing_and_names_the_same(site, reset, node, tmp_path):
    before = left(tmp_path)
    predicted = reset(check=True)
    assert left(tmp_path) == before
    assert node.unit(UNIT)["active"] == "active"
    done = reset()
    # Directories are found empty only once their files are gone.
    assert set(predicted["removed"]) <= set(done["removed"])
    assert str(tmp_path / "etc" / "a") in predicted["removed"]


def test_what_else_lies_in_a_directory_stays(site, reset, tmp_path):
    (tmp_path / "etc" / "theirs").write_text("x")
    result = reset()
    assert (tmp_path / "etc" / "theirs").exists()
    assert any("holds files that no role wrote" in line for line in result["kept"])
    assert result["leftovers"] == []


def test_keep_keeps(site, reset, tmp_path):
    result = reset(keep=[str(tmp_path / "data")])
    assert (tmp_path / "data" / "member" / "wal").exists()
    assert any("asked to be kept" in line for line in result["kept"])


def test_the_management_path_is_never_removed(site, reset, plugin, tmp_path):
    site.put(
        "files", {"path": "/etc/ssh/sshd_config.d/x.conf", "sha256": "0", "mode": "0644", "owner": "0", "group": "0"}
    )
    site.put("units", {"name": "ssh.service", "enabled": True, "state": "started", "before": {"load": "not-found"}})
    site.save()
    result = reset()
    assert any(line.startswith("/etc/ssh/sshd_config.d/x.conf: part of the management path") for line in result["kept"])
    assert any(line.startswith("ssh.service: part of the management path") for line in result["kept"])
    assert plugin("module_utils.reset").is_management("/usr/bin/python3.11")
    assert plugin("module_utils.reset").is_management("/home/ops/.ssh/authorized_keys")
    assert not plugin("module_utils.reset").is_management("/etc/containerd/config.toml")


def test_data_that_would_take_the_system_along_is_refused(site, reset, tmp_path):
    site.put("data", {"path": "/var/lib/"})
    site.save()
    with pytest.raises(LookupError, match="nothing was removed"):
        reset()
    assert (tmp_path / "data").exists()


def test_what_stood_there_before_comes_back(site, reset, tmp_path):
    (tmp_path / "state" / "originals").mkdir()
    (tmp_path / "state" / "originals" / "aa").write_text("theirs")
    entry = next(entry for entry in site.entries("files") if entry["path"].endswith("etc/a"))
    entry["original"] = {"sha256": "aa", "mode": "0640", "owner": USER, "group": GROUP}
    site.save()
    result = reset()
    assert (tmp_path / "etc" / "a").read_text() == "theirs"
    assert (tmp_path / "etc" / "a").stat().st_mode & 0o7777 == 0o640
    assert result["leftovers"] == []


def test_a_unit_of_the_system_goes_back_to_what_it_was(site, reset, node):
    node.unit_file("chrony.service")
    before = {"load": "loaded", "enabled": "enabled", "active": "active"}
    site.put("units", {"name": "chrony.service", "enabled": False, "state": "stopped", "before": before})
    site.save()
    node.set_unit("chrony.service", active="inactive", enabled=False)
    result = reset()
    assert "unit chrony.service enabled again" in result["removed"]
    assert "unit chrony.service started again" in result["removed"]
    assert node.unit("chrony.service")["active"] == "active"


def test_programs_that_still_run_are_ended(site, reset, tmp_path):
    process = subprocess.Popen([str(tmp_path / "bin" / "program"), "60"])
    try:
        result = reset()
        assert process.wait(timeout=10) == -9
        assert result["leftovers"] == []
    finally:
        process.kill()
        process.wait()


def test_a_data_directory_that_cannot_go_is_a_leftover_and_the_record_stays(site, reset, plugin, tmp_path, monkeypatch):
    module = plugin("module_utils.reset")

    def refuses(path, onerror):
        onerror(os.rmdir, path, (OSError, OSError(16, "Device or resource busy"), None))

    monkeypatch.setattr(module.shutil, "rmtree", refuses)
    result = reset()
    assert f"{tmp_path / 'data'}: Device or resource busy" in result["leftovers"]
    assert json.loads((tmp_path / "state" / "demo.json").read_text())["data"]


def test_what_is_mounted_in_a_data_directory_and_does_not_go_is_not_deleted(site, reset, plugin, tmp_path, monkeypatch):
    """A pod's volume below the kubelet's directory, on a server that does not answer: its files are not the node's."""
    module = plugin("module_utils.reset")
    volume = str(tmp_path / "data" / "member")
    asked = []
    monkeypatch.setattr(module, "mounts_below", lambda path: [volume] if path == str(tmp_path / "data") else [])
    monkeypatch.setattr(module, "unmount", asked.append)
    result = reset()
    assert asked == [volume] and (tmp_path / "data" / "member" / "wal").read_text() == "x"
    assert any("cannot be unmounted" in words for words in result["leftovers"])
    assert (tmp_path / "state" / "demo.json").exists(), "the next reset goes on"


def test_only_the_named_role_is_removed(site, reset, plugin, tmp_path):
    other = plugin("module_utils.record").Record(str(tmp_path / "state"), "other", "r1")
    other.save()
    reset(role="demo")
    assert not (tmp_path / "state" / "demo.json").exists()
    assert (tmp_path / "state" / "other.json").exists()
