"""Packages resolved by the real apt from a small signed archive on loopback, frozen, indexed and signed again."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from myriad.errors import InputError
from myriad.stack import apt_repo
from myriad.stack.apt_repo import AptError, Resolver, Signer, distribution, repository_files, wanted_packages
from myriad.stack.bundle_offline import OfflineWish, gather
from myriad.stack.events import Event
from myriad.stack.lock import Lock, load_lock
from myriad.stack.settings import Mirrors, Settings
from myriad.stack.store import Store
from tests.unit.stack.offline_bundle import DATE, HAS_APT, make_deb, resolved

pytestmark = pytest.mark.skipif(not HAS_APT, reason="needs dpkg-deb, apt-get and gpg, as Debian and Ubuntu have them")


@dataclass
class Archive:
    """A Debian archive with three suites of the same packages."""

    root: Path
    url: str
    key: Path
    server: http.server.ThreadingHTTPServer

    def settings(self, folder: Path) -> Settings:
        mirrors = Mirrors(apt=self.url, apt_security=self.url, no_proxy="127.0.0.1")
        return Settings(cache=folder / "cache", mirrors=mirrors, retries=0)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    root = tmp_path / "archive"
    (tmp_path / "debs").mkdir()
    found = []
    for name, version, depends in (
        ("lead", "1:2.0-1", "follow (>= 1.0)"),
        ("follow", "1.0-1", ""),
        ("chrony", "4.3-2", "follow"),
        ("unwanted", "1", ""),
    ):
        deb = make_deb(tmp_path / "debs", name, version, depends=depends)
        item = resolved(deb)
        found.append(item)
        target = root / apt_repo.pool_path(item)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(deb.read_bytes())
    signer = Signer(tmp_path / "archive-key")
    for suite in ("bookworm", "bookworm-updates", "bookworm-security"):
        for path, data in repository_files(suite, "amd64", found, date=DATE).items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
            if path.endswith("/Release"):
                (root / path).with_name("InRelease").write_bytes(signer.sign(data, date=DATE)[0])
    key = tmp_path / "archive.asc"
    key.write_text(signer.public_key())
    signer.close()
    handler = functools.partial(_Quiet, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield Archive(root, f"http://127.0.0.1:{server.server_address[1]}", key, server)
        server.shutdown()
        thread.join()


def _lock(**packages: str) -> Lock:
    """The project's lock with one set of packages instead of its own."""
    value = load_lock().model_dump(mode="json", by_alias=True)
    for component in value["components"].values():
        component["package_sets"] = []
    if packages:
        value["components"]["lldpd"]["package_sets"] = [
            {"channel": "distribution", "distribution": "debian12", "packages": packages}
        ]
    return Lock.model_validate(value)


def _roles(folder: Path, *packages: str) -> Path:
    path = folder / "roles" / "node_base" / "defaults" / "main.yml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump({"node_base_packages": list(packages)}))
    return folder / "roles"


def test_a_closed_set_with_what_each_package_needs(archive: Archive, tmp_path: Path) -> None:
    resolver = Resolver(distribution("debian12"), archive.settings(tmp_path), keyring=archive.key)
    resolver.update()
    found = {item.name: item for item in resolver.resolve(["lead"])}
    assert sorted(found) == ["follow", "lead"]
    assert found["lead"].version == "1:2.0-1" and found["lead"].size > 0 and len(found["lead"].sha256) == 64
    assert resolver.date == DATE
    assert [item.name for item in resolver.resolve(["follow=1.0-1"])] == ["follow"]
    with pytest.raises(AptError, match=r"Version '1\.1' for 'follow' was not found"):
        resolver.resolve(["follow=1.1"])
    with pytest.raises(AptError, match="Unable to locate package nothing"):
        resolver.resolve(["nothing"])


def test_an_archive_that_somebody_else_signed_is_refused(archive: Archive, tmp_path: Path) -> None:
    other = Signer(tmp_path / "other")
    key = tmp_path / "other.asc"
    key.write_text(other.public_key())
    other.close()
    with pytest.raises(AptError, match="NO_PUBKEY"):
        Resolver(distribution("debian12"), archive.settings(tmp_path), keyring=key).update()
    with pytest.raises(AptError, match="the keys of Debian's archive are not here"):
        Resolver(distribution("debian12"), archive.settings(tmp_path), keyring=tmp_path / "none.gpg").update()


def test_an_index_that_was_changed_on_the_way_is_refused(archive: Archive, tmp_path: Path) -> None:
    for path in (archive.root / "dists" / "bookworm").rglob("Packages*"):
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(AptError):
        Resolver(distribution("debian12"), archive.settings(tmp_path), keyring=archive.key).update()


def _gather(archive: Archive, wish: OfflineWish, lock: Lock, folder: Path, events: list[Event] | None = None) -> object:
    settings = archive.settings(folder)
    return gather(wish, lock, Store(settings.store_root), settings, (events if events is not None else []).append)


def test_the_set_is_frozen_until_it_is_refreshed(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(self: Resolver, item: apt_repo.Distribution, settings: Settings, *, keyring: Path | None = None) -> None:
        real(self, item, settings, keyring=archive.key)

    real = Resolver.__init__
    monkeypatch.setattr(Resolver, "__init__", init)
    wish = OfflineWish(
        distributions=("debian12",), roles=_roles(tmp_path, "lead"), signing_home=tmp_path / "bundle-key"
    )
    first = _gather(archive, wish, _lock(), tmp_path)
    assert [item.name for item in first.packages] == ["chrony", "follow", "lead"]  # type: ignore[attr-defined]
    assert first.apt.fingerprint and "BEGIN PGP PUBLIC KEY" in first.apt.key  # type: ignore[attr-defined]
    paths = {item.path for item in first.served}  # type: ignore[attr-defined]
    assert {f"apt/dists/bookworm/{name}" for name in ("Release", "InRelease", "Release.gpg")} <= paths
    # The archive has nothing any more: the frozen set needs it no longer.
    for path in archive.root.rglob("*"):
        if path.is_file():
            path.unlink()
    again = _gather(archive, wish, _lock(), tmp_path)
    assert again == first
    with pytest.raises(AptError):
        _gather(archive, OfflineWish(**{**vars(wish), "refresh": True}), _lock(), tmp_path)
    with pytest.raises(AptError):
        _gather(archive, wish, _lock(follow="1.0-1"), tmp_path)


def test_what_roles_and_lock_ask_for(tmp_path: Path) -> None:
    groups = wanted_packages(_lock(follow="1.0-1"), _roles(tmp_path, "lead", "socat"), "debian12", extra=["b=1", "a"])
    assert groups == [["lead", "socat", "chrony"], ["follow=1.0-1"], ["a", "b=1"]]
    with pytest.raises(InputError, match="does not tell node_base_packages"):
        wanted_packages(_lock(), tmp_path / "nowhere", "debian12")
    with pytest.raises(InputError, match="'fedora41' is no distribution"):
        distribution("fedora41")


def test_the_projects_own_roles_and_lock_give_exact_versions() -> None:
    groups = wanted_packages(load_lock(), Path("roles"), "debian12")
    assert "conntrack" in groups[0] and "chrony" in groups[0]
    assert all("=" in package for group in groups[1:] for package in group) and len(groups) >= 4


def test_the_same_packages_give_the_same_bytes_signed_or_not(tmp_path: Path) -> None:
    items = [resolved(make_deb(tmp_path, "lead", "1:2.0-1")), resolved(make_deb(tmp_path, "follow", "1.0-1"))]
    first = repository_files("bookworm", "amd64", items, date=DATE)
    assert first == repository_files("bookworm", "amd64", reversed(items), date=DATE)
    index = first["dists/bookworm/main/binary-amd64/Packages"].decode()
    assert index.count("Filename: ") == 2 and "pool/elsewhere.deb" not in index and "more of it" in index
    signer = Signer(tmp_path / "key")
    try:
        release = first["dists/bookworm/Release"]
        assert signer.sign(release, date=DATE) == signer.sign(release, date=DATE)
    finally:
        signer.close()


def test_keys_go_along_and_private_ones_do_not(archive: Archive, tmp_path: Path) -> None:
    parts = _gather(archive, OfflineWish(keys=(archive.key,)), _lock(), tmp_path)
    assert [item.path for item in parts.served] == ["keys/archive.asc"]  # type: ignore[attr-defined]
    secret = tmp_path / "key.pem"
    secret.write_text("-----BEGIN " + "PRIVATE KEY-----\n")
    with pytest.raises(InputError, match="is a private key"):
        _gather(archive, OfflineWish(keys=(secret,)), _lock(), tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        _gather(archive, OfflineWish(keys=(tmp_path / "none",)), _lock(), tmp_path)
