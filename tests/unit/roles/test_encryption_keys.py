"""The keys of Secrets in etcd: made once, root's alone, lent sealed, changed without loss, restored with an archive."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "roles/kubernetes_control_plane/templates/install/usr/local/lib/myriad/encryption-keys"
BACKUP = ROOT / "roles/etcd_backup/templates/install/usr/local/lib/myriad/etcd-backup"


def load(program: Path, name: str) -> ModuleType:
    loader = SourceFileLoader(name, str(program))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


class Host:
    """The program on one host, with its files below a folder, and an etcd that holds what a test puts there."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.mkdir()
        self.file, self.asked = folder / "pki/encryption.json", folder / "ask.pem"
        self.lies: list[bytes] = []
        self.program = load(PROGRAM, f"encryption_keys_{folder.name}")
        monkeypatch.setattr(self.program, "KEYS", str(self.file))
        monkeypatch.setattr(self.program, "ASKED", str(self.asked))
        monkeypatch.setattr(self.program.shared, "etcd", self._etcd)

    def _etcd(self, address: str, path: str, body: dict[str, Any], timeout_s: float = 0.0) -> dict[str, Any]:
        """Two a page, by key, as the gateway answers: base64, and `more` where there is more."""
        begin, end = (base64.b64decode(body[name]).decode() for name in ("key", "range_end"))
        found = [
            (f"/registry/secrets/a/{n}", v)
            for n, v in enumerate(self.lies)
            if begin <= f"/registry/secrets/a/{n}" < end
        ]
        kvs = [
            {"key": base64.b64encode(k.encode()).decode(), "value": base64.b64encode(v).decode()} for k, v in found[:2]
        ]
        return {"kvs": kvs, **({"more": True} if len(found) > 2 else {})}

    @property
    def keys(self) -> list[dict[str, str]]:
        return list(json.loads(self.file.read_text())["resources"][0]["providers"][0]["secretbox"]["keys"])


@pytest.fixture
def cp1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path / "cp1", monkeypatch)


@pytest.fixture
def cp2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path / "cp2", monkeypatch)


def under(name: str) -> bytes:
    return f"k8s:enc:secretbox:v1:{name}:".encode() + bytes(range(256))


def test_the_key_is_made_once_and_is_for_root_alone(cp1: Host) -> None:
    assert cp1.program.make() == {"changed": True}
    assert cp1.file.stat().st_mode & 0o777 == 0o600
    (key,) = cp1.keys
    assert len(base64.b64decode(key["secret"])) == 32
    text = cp1.file.read_text()
    assert cp1.program.make() == {"changed": False}
    assert cp1.file.read_text() == text


def test_what_is_written_encrypts_secrets_and_reads_what_was_plain(cp1: Host) -> None:
    cp1.program.make()
    found = json.loads(cp1.file.read_text())
    assert (found["apiVersion"], found["kind"]) == ("apiserver.config.k8s.io/v1", "EncryptionConfiguration")
    (entry,) = found["resources"]
    assert entry["resources"] == ["secrets"]
    assert [next(iter(provider)) for provider in entry["providers"]] == ["secretbox", "identity"]


def test_a_host_that_asks_gets_the_same_keys_and_nobody_between_sees_one(cp1: Host, cp2: Host) -> None:
    cp1.program.make()
    cp1.program.add()
    public = cp2.program.ask()["public"]
    assert cp2.asked.stat().st_mode & 0o777 == 0o600
    lent = cp1.program.lend(public)
    assert not any(key["secret"] in json.dumps(lent) or key["name"] in json.dumps(lent) for key in cp1.keys)
    assert cp2.program.take(lent["sealed"]) == {"changed": True}
    assert cp2.file.read_text() == cp1.file.read_text()
    assert cp2.file.stat().st_mode & 0o777 == 0o600
    assert not cp2.asked.exists()
    with pytest.raises(cp2.program.shared.Refused, match="has not asked"):
        cp2.program.take(lent["sealed"])


def test_what_is_sealed_for_one_host_is_none_for_another(cp1: Host, cp2: Host) -> None:
    cp1.program.make()
    public = cp2.program.ask()["public"]
    sealed = cp1.program.lend(public)["sealed"]
    cp2.program.ask()
    with pytest.raises(cp2.program.shared.Refused, match="pkeyutl"):
        cp2.program.take(sealed)
    assert not cp2.file.exists()


def test_a_cluster_without_keys_lends_none_and_nothing_is_taken(cp1: Host, cp2: Host) -> None:
    assert cp1.program.lend(cp2.program.ask()["public"]) == {"sealed": []}
    assert cp2.program.take([]) == {"changed": False}
    assert not cp2.file.exists()


def test_a_key_under_which_secrets_lie_is_not_lost_to_a_host_that_lends_the_wrong_way(cp1: Host, cp2: Host) -> None:
    cp1.program.make()
    cp2.program.take(cp1.program.lend(cp2.program.ask()["public"])["sealed"])
    cp1.program.add()
    cp1.program.promote()
    keys = cp1.keys
    cp1.lies = [under(keys[0]["name"])] * 3
    sealed = cp2.program.lend(cp1.program.ask()["public"])["sealed"]
    with pytest.raises(cp1.program.shared.Refused, match=f"lie under {keys[0]['name']}, which was not lent"):
        cp1.program.take(sealed)
    assert cp1.keys == keys
    # One under which nothing lies goes, as when it was retired on the host that lends.
    cp1.lies = [under(keys[1]["name"])] * 3
    assert cp1.program.take(sealed) == {"changed": True}
    assert cp1.keys == cp2.keys == keys[1:]


def test_a_host_whose_etcd_cannot_be_asked_keeps_its_keys_for_reading(
    cp1: Host, cp2: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> Any:
        raise ConnectionRefusedError("nobody listens")

    cp1.program.make()
    cp2.program.make()
    lent, own = cp1.keys, cp2.keys
    monkeypatch.setattr(cp2.program.shared, "etcd", away)
    cp2.program.take(cp1.program.lend(cp2.program.ask()["public"])["sealed"])
    assert cp2.keys == lent + own


def test_a_key_is_on_the_disk_before_its_name_is(cp1: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def noted_sync(handle: int) -> None:
        done.append("synced")
        sync(handle)

    def noted_replace(old: str, new: str) -> None:
        done.append("named")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "replace", noted_replace)
    cp1.program.make()
    assert done == ["synced", "named"]


def test_only_one_control_plane_adds_a_key(cp1: Host) -> None:
    cp1.program.make()
    with pytest.raises(cp1.program.shared.Refused, match="on one control plane; the others take it over"):
        cp1.program.promote()


def test_how_many_secrets_lie_under_which_key(cp1: Host) -> None:
    cp1.lies = [b"k8s\x00plain", under("k1"), under("k2"), under("k2"), under("k1"), b'{"kind":"Secret"}']
    assert cp1.program.lying() == {"plain": 2, "k1": 2, "k2": 2}


def test_a_key_goes_only_when_no_secret_lies_under_it(cp1: Host) -> None:
    cp1.program.make()
    (first,) = [key["name"] for key in cp1.keys]
    cp1.lies = [under(first)] * 3
    cp1.program.add()
    assert cp1.keys[0]["name"] == first, "a new key must be known everywhere before one writes with it"
    cp1.program.promote()
    second = cp1.keys[0]["name"]
    assert [key["name"] for key in cp1.keys] == [second, first]
    with pytest.raises(cp1.program.shared.Refused, match="rewrite` first"):
        cp1.program.retire()
    assert len(cp1.keys) == 2
    cp1.lies = [under(second)] * 3
    assert cp1.program.retire() == {"changed": True}
    assert [key["name"] for key in cp1.keys] == [second]


def test_rewriting_is_done_when_etcd_says_so(cp1: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """An API server that has not read the new key yet writes with the old one, and kubectl sees no difference."""
    cp1.program.make()
    name = cp1.keys[0]["name"]
    sent: list[str] = []

    def run(*command: str, stdin: str | None = None) -> str:
        sent.append(" ".join(command))
        return json.dumps({"items": [{}, {}]})

    monkeypatch.setattr(cp1.program.shared, "run", run)
    cp1.lies = [under(name), b"plain"]
    with pytest.raises(cp1.program.shared.Refused, match=r"1 under plain.*once more in a minute"):
        cp1.program.rewrite()
    cp1.lies = [under(name)] * 2
    assert cp1.program.rewrite() == {"changed": True, "written": 2, "key": name}
    assert sent[-1] == "kubectl replace -f -"


def test_a_file_of_somebody_else_is_left_alone(cp1: Host) -> None:
    cp1.file.parent.mkdir()
    cp1.file.write_text('{"resources": [{"providers": [{"kms": {}}]}]}')
    with pytest.raises(cp1.program.shared.Refused, match="not what this program writes"):
        cp1.program.make()


def test_the_program_says_what_it_can_do() -> None:
    done = subprocess.run([sys.executable, PROGRAM, "show"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "encryption-keys rewrite" in done.stderr
    assert not (PROGRAM.parent / "__pycache__").exists()


def test_a_restored_host_reads_with_the_archives_keys_too_and_writes_with_its_own(
    cp1: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive was taken before the key was changed: without its key its Secrets could not be read."""
    backup = load(BACKUP, "backup_for_keys")
    monkeypatch.setattr(backup, "PKI", str(cp1.file.parent))
    cp1.program.make()
    archive = tmp_path / "archive"
    archive.mkdir()
    (archive / "encryption.json").write_bytes(cp1.file.read_bytes())
    (old,) = cp1.keys
    cp1.program.write([{"name": "new", "secret": "bmV3"}])
    assert backup.place_keys(str(archive)) == ["encryption.json"]
    assert cp1.keys == [{"name": "new", "secret": "bmV3"}, old]
    assert cp1.file.stat().st_mode & 0o777 == 0o600
    assert backup.place_keys(str(archive)) == []
    # A machine that is new gets the archive's.
    cp1.file.unlink()
    assert backup.place_keys(str(archive)) == ["encryption.json"]
    assert cp1.keys == [old] and cp1.file.stat().st_mode & 0o777 == 0o600
