"""The program of backups: which archives stay, what it finds in damaged ones, and whom it refuses to give keys."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import tarfile
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[3] / "roles/etcd_backup/templates/install/usr/local/lib/myriad/etcd-backup"


@pytest.fixture
def backup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The program, with its folders below a temporary one. tests/api asks etcd's own programs."""
    loader = SourceFileLoader("myriad_etcd_backup_program", str(PROGRAM))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    for name in ("PKI", "MANIFESTS", "WAITING", "DATA"):
        monkeypatch.setattr(module, name, str(tmp_path / name.lower()))
    config = {
        "name": "cp1", "cluster": "lab", "kubernetes": "1.35.4", "port": 6443, "folder": str(tmp_path / "backups"),
        "targets": [], "keep_newest": 2, "keep_days": 1, "ssh_key": "/none", "ssh_known_hosts": "/none",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(module, "CONFIG", str(tmp_path / "config.json"))
    return module


STAMPS = [
    "20261128T010000Z", "20261128T230000Z", "20261129T010000Z", "20261129T230000Z",
    "20261130T010000Z", "20261130T020000Z",
]  # fmt: skip


def test_the_newest_stay_and_the_last_of_each_day(backup: ModuleType) -> None:
    assert backup.kept(STAMPS, 1, 3) == {"20261130T020000Z", "20261129T230000Z", "20261128T230000Z"}
    assert backup.kept(STAMPS, 3, 1) == {"20261130T020000Z", "20261130T010000Z", "20261129T230000Z"}
    assert backup.kept(STAMPS, 100, 0) == set(STAMPS)


def test_days_without_a_backup_do_not_shorten_what_is_kept(backup: ModuleType) -> None:
    """A cluster that was off for a month still has its last days."""
    assert len(backup.kept(["20260901T000000Z", "20261130T020000Z"], 1, 14)) == 2


def made(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def test_an_archive_whose_key_differs_or_is_missing_is_refused(backup: ModuleType, tmp_path: Path) -> None:
    """Found on a new machine, that would be a cluster that nobody trusts."""
    sums = {"sha256": hashlib.sha256(b"x").hexdigest(), "keys_sha256": {"ca.key": hashlib.sha256(b"K").hexdigest()}}
    meta = json.dumps(sums).encode()
    for files in ({"pki/ca.key": b"L"}, {}):
        path = made(tmp_path / "a.tar", {"meta.json": meta, "snapshot.db": b"x", **files})
        with pytest.raises(backup.Failed, match=r"pki/ca\.key is not what was written"):
            backup.check(str(path), str(tmp_path / f"work{len(files)}"))


def test_an_archive_whose_database_is_damaged_is_refused(backup: ModuleType, tmp_path: Path) -> None:
    path = made(
        tmp_path / "a.tar",
        {"meta.json": json.dumps({"sha256": "0" * 64, "keys_sha256": {}}).encode(), "snapshot.db": b"x"},
    )
    with pytest.raises(backup.Failed, match=r"snapshot\.db is not what was written"):
        backup.check(str(path), str(tmp_path / "work"))


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "pki/../../outside", "other"])
def test_an_archive_that_holds_something_else_is_refused(backup: ModuleType, tmp_path: Path, name: str) -> None:
    path = made(tmp_path / "a.tar", {"meta.json": b"{}", "snapshot.db": b"x", name: b"x"})
    with pytest.raises(backup.Failed, match="holds files that no backup of Myriad has"):
        backup.check(str(path), str(tmp_path / "work"))
    assert not (tmp_path / "outside").exists()


def test_what_is_no_archive_is_named(backup: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"nothing")
    with pytest.raises(backup.Failed, match="is no archive"):
        backup.check(str(tmp_path / "a.tar"), str(tmp_path / "work"))


def keys(folder: Path, authority: bytes = b"A") -> Path:
    (folder / "etcd").mkdir(parents=True)
    for name in ("ca.crt", "etcd/ca.crt", "front-proxy-ca.crt"):
        (folder / name).write_bytes(authority)
    for name in ("ca.key", "sa.key", "etcd/ca.key"):
        (folder / name).write_bytes(b"K")
    return folder


def test_a_new_machine_gets_the_clusters_keys_for_root_alone(backup: ModuleType, tmp_path: Path) -> None:
    placed = backup.place_keys(str(keys(tmp_path / "from")))
    assert set(placed) == {"ca.crt", "ca.key", "sa.key", "etcd/ca.crt", "etcd/ca.key", "front-proxy-ca.crt"}
    assert (tmp_path / "pki/ca.key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "pki/ca.crt").stat().st_mode & 0o777 == 0o644
    assert backup.place_keys(str(tmp_path / "from")) == []


def test_a_host_of_another_cluster_is_refused(backup: ModuleType, tmp_path: Path) -> None:
    keys(tmp_path / "pki", b"B")
    with pytest.raises(backup.Failed, match="belongs to another cluster"):
        backup.place_keys(str(keys(tmp_path / "from")))


def test_the_list_is_newest_first_and_tells_what_runs_here(
    backup: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    for stamp in STAMPS[:2]:
        meta: dict[str, Any] = {"cluster": "lab", "revision": 7}
        made(folder / f"etcd-cp1-{stamp}.tar", {"meta.json": json.dumps(meta).encode()})
    (folder / "etcd-cp1-20270101T000000Z.tar").write_bytes(b"half")
    (folder / ".part-x").write_bytes(b"half")
    assert backup.listing() == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["at"] for entry in found["archives"]] == STAMPS[1::-1]
    assert found["runs"] is False
    (tmp_path / "waiting").mkdir()
    (tmp_path / "waiting/etcd.yaml").write_text("")
    backup.listing()
    assert json.loads(capsys.readouterr().out)["runs"] is True


@pytest.fixture
def ssh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An ssh that runs here what it should run there, and keeps its options in a file."""
    program = tmp_path / "bin/ssh"
    program.parent.mkdir()
    said = tmp_path / "said"
    program.write_text(f'#!/bin/bash\necho "$@" > {said}\nexec sh -c "${{@: -1}}"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return said


def test_a_copy_goes_into_a_folder_of_any_name_and_takes_away_what_broke_off(
    backup: ModuleType, tmp_path: Path, ssh: Path
) -> None:
    folder = tmp_path / "its folder; echo $HOME"
    folder.mkdir()
    (folder / ".etcd-cp1-20261128T010000Z.tar").write_bytes(b"half")
    (folder / ".etcd-cp1-2-20261128T010000Z.tar").write_bytes(b"another host's, on its way")
    (folder / "etcd-cp1-20261128T020000Z.tar").write_bytes(b"whole")
    archive = tmp_path / "etcd-cp1-20261130T010000Z.tar"
    archive.write_bytes(b"x")
    backup.copy(str(archive), f"backup@store:{folder}")
    assert (folder / archive.name).read_bytes() == b"x" and (folder / archive.name).stat().st_mode & 0o777 == 0o600
    assert {path.name for path in folder.iterdir()} == {
        archive.name, "etcd-cp1-20261128T020000Z.tar", ".etcd-cp1-2-20261128T010000Z.tar",
    }  # fmt: skip
    # A line that falls silent ends it; without, the timer's unit would wait for ever and take no other backup.
    assert "ServerAliveInterval=15" in ssh.read_text()


def restorable(backup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Path, list[str]]:
    """An archive, and a host on which nothing runs; etcd's own programs are asked in tests/api."""
    meta = {"sha256": hashlib.sha256(b"new").hexdigest(), "keys_sha256": {}, "source": "snapshot"}
    archive = made(tmp_path / "a.tar", {"meta.json": json.dumps(meta).encode(), "snapshot.db": b"new"})

    def run(*command: str) -> str:
        folder = Path(command[command.index("--data-dir") + 1]) / "member"
        folder.mkdir(parents=True)
        (folder / "db").write_text("new")
        return ""

    monkeypatch.setattr(backup, "run", run)
    monkeypatch.setattr(backup, "running", lambda component: [])
    monkeypatch.setattr(backup, "status_of", lambda path: {})
    (tmp_path / "data/member").mkdir(parents=True)
    (tmp_path / "data/member/db").write_text("now")
    return archive, ["cp1=10.0.0.1", "token"]


def held(tmp_path: Path) -> list[str]:
    """What the old data beside the member's holds."""
    return [(path / "db").read_text() for path in (tmp_path / "data").glob("before-*")]


def test_the_old_data_stays_until_other_data_is_in_its_place(
    backup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive, arguments = restorable(backup, monkeypatch, tmp_path)
    before = tmp_path / "data/before-20261101T000000Z"
    before.mkdir()
    (before / "db").write_text("first")
    damaged = made(tmp_path / "b.tar", {"meta.json": b'{"sha256": "0", "keys_sha256": {}}', "snapshot.db": b"x"})
    with pytest.raises(backup.Failed, match="not what was written"):
        backup.restore(str(damaged), *arguments)
    assert held(tmp_path) == ["first"]
    assert backup.restore(str(archive), *arguments) == 0
    assert held(tmp_path) == ["now"] and (tmp_path / "data/member/db").read_text() == "new"


def test_a_restore_that_was_killed_between_two_steps_loses_nothing(
    backup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive, arguments = restorable(backup, monkeypatch, tmp_path)
    (tmp_path / "data/member").rename(tmp_path / "data/before-20261101T000000Z")
    assert backup.restore(str(archive), *arguments) == 0
    assert held(tmp_path) == ["now"] and (tmp_path / "data/member/db").read_text() == "new"


def test_a_copy_on_the_same_disk_is_refused(backup: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"x")
    (tmp_path / "target").mkdir()
    with pytest.raises(backup.Failed, match="on the same disk"):
        backup.copy(str(tmp_path / "a.tar"), str(tmp_path / "target"))
