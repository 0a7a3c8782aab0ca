"""The content-addressed store."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from myriad.stack.store import Store, StoreError, link_or_copy, plain_hex


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_blob_lies_under_its_digest(tmp_path: Path) -> None:
    store = Store(tmp_path)
    value = store.put_bytes(b"hello")
    assert value == _digest(b"hello")
    assert store.path(value) == tmp_path / "sha256" / value[:2] / value
    assert store.read_bytes(f"sha256:{value}") == b"hello"


def test_a_blob_is_read_only_and_runs_from_where_it_lies(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.path(store.put_bytes(b"x")).stat().st_mode & 0o777 == 0o555


def test_put_file_refuses_another_digest_and_keeps_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    source = tmp_path / "file"
    source.write_bytes(b"content")
    with pytest.raises(StoreError, match="expected sha256:" + "0" * 64):
        store.put_file(source, expect="0" * 64)
    assert not store.has(_digest(b"content"))


def test_put_file_moves_when_asked(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for _ in range(2):  # the second time the blob is there already
        source = tmp_path / "file"
        source.write_bytes(b"content")
        value = store.put_file(source, move=True)
        assert not source.exists()
        assert store.read_bytes(value) == b"content"


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(RuntimeError), store.writer() as writer:
        writer.write(b"half")
        raise RuntimeError
    assert not store.has(_digest(b"half"))
    assert list((tmp_path / "tmp").iterdir()) == []


def test_need_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="myriad bundle build"):
        Store(tmp_path).need("a" * 64)


@pytest.mark.parametrize("bad", ["", "sha256:12", "g" * 64, "../../etc/passwd", "sha512:" + "a" * 64])
def test_only_sha256_names_a_blob(bad: str) -> None:
    with pytest.raises(StoreError, match="is not a sha256 digest"):
        plain_hex(bad)


def test_check_finds_a_damaged_blob(tmp_path: Path) -> None:
    store = Store(tmp_path)
    value = store.put_bytes(b"good")
    assert store.check(value)
    path = store.path(value)
    path.chmod(0o644)
    path.write_bytes(b"evil")
    assert not store.check(value)
    store.discard(value)
    assert not store.has(value)


def test_threads_that_store_the_same_blobs_agree(tmp_path: Path) -> None:
    store = Store(tmp_path)
    data = [bytes([number]) * 200_000 for number in range(8)]
    with ThreadPoolExecutor(max_workers=16) as pool:
        values = list(pool.map(store.put_bytes, data * 8))
    assert set(values) == {_digest(item) for item in data}
    assert all(store.check(value) for value in values)
    assert list((tmp_path / "tmp").iterdir()) == []


_STORE_MANY = """
import sys
from pathlib import Path
from myriad.stack.store import Store
store = Store(Path(sys.argv[1]))
for number in range(20):
    store.put_bytes(bytes([number]) * 50_000)
"""


def test_processes_that_store_the_same_blobs_agree(tmp_path: Path) -> None:
    workers = [subprocess.Popen([sys.executable, "-c", _STORE_MANY, str(tmp_path)]) for _ in range(4)]
    assert [worker.wait(timeout=60) for worker in workers] == [0] * 4
    store = Store(tmp_path)
    assert all(store.check(_digest(bytes([number]) * 50_000)) for number in range(20))
    assert list((tmp_path / "tmp").iterdir()) == []


def test_link_or_copy_replaces_what_is_there(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "deep" / "target"
    source.write_bytes(b"new")
    link_or_copy(source, target)
    assert target.samefile(source)
    other = tmp_path / "other"
    other.write_bytes(b"newer")
    link_or_copy(other, target)
    assert target.read_bytes() == b"newer"
    assert [path.name for path in target.parent.iterdir()] == ["target"]
