"""What must not be in an image is found, and the seal removes exactly that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from myriad.nodeimage import hygiene
from myriad.nodeimage.contents import read_tree
from myriad.nodeimage.manifest import Entry, NodeManifest

EPOCH = 1_735_689_600
BAD = (
    "/etc/ssh/ssh_host_ed25519_key",
    "/root/.ssh/authorized_keys",
    "/home/ops/.ssh/id_rsa",
    "/var/lib/dkms/mok.key",
    "/var/lib/systemd/random-seed",
    "/var/log/apt/history.log",
    "/var/log/journal/0123/system.journal",
    "/var/lib/dhcp/dhclient.leases",
    "/var/lib/apt/lists/deb.debian.org_dists_bookworm_InRelease",
    "/var/cache/apt/archives/curl.deb",
    "/var/lib/cloud/instance/user-data.txt",
    "/etc/sudoers.d/90-cloud-init-users",
    "/etc/hostname",
    "/etc/ssh/sshd_config.d/50-cloud-init.conf",
    "/var/lib/containerd/io.containerd.grpc.v1.introspection/uuid",
    "/tmp/leftover",
    "/usr/sbin/policy-rc.d",
    "/root/.bash_history",
)
GOOD = (
    "/etc/ssh/sshd_config",
    "/etc/hosts",
    "/usr/bin/logger",
    "/var/lib/dpkg/status",
    "/var/lib/dkms/nvidia-current/535.309.01/source/Kbuild",
    "/etc/systemd/network/89-ethernet.network",
    "/var/lib/containerd/io.containerd.content.v1.content/blobs/sha256/ab",
    "/boot/initrd.img-6.1.0-57-amd64",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name in (*BAD, *GOOD, "/etc/machine-id"):
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}\n")
    return root


def files(root: Path) -> set[str]:
    return {f"/{path.relative_to(root)}" for path in root.rglob("*") if not path.is_dir() or path.is_symlink()}


def found(root: Path) -> set[str]:
    entries = [(path, entry.size, entry.has_key) for path, entry in read_tree(root) if entry.kind != "directory"]
    return {one.path for one in hygiene.findings(entries)}


def test_everything_that_must_not_be_there_is_found_and_nothing_else(tree: Path) -> None:
    assert found(tree) == {*BAD, "/etc/machine-id"}


def test_a_finding_says_what_and_why() -> None:
    (one,) = hygiene.findings([("/etc/ssh/ssh_host_rsa_key", 1800, True)])
    assert str(one) == (
        "/etc/ssh/ssh_host_rsa_key: ssh host key; whoever has the image can pose as every machine made from it"
    )


def test_the_seal_removes_what_is_found_and_leaves_the_rest(tree: Path) -> None:
    done = hygiene.seal(tree, EPOCH)
    assert set(done) == {*BAD, "/etc/machine-id"}
    assert files(tree) == {*GOOD, "/etc/machine-id"}
    assert (tree / "etc/machine-id").read_bytes() == b""
    assert found(tree) == set()
    assert hygiene.seal(tree, EPOCH) == [], "a second time there is nothing to do"


def test_folders_that_programs_expect_stay_and_those_of_one_boot_go(tree: Path) -> None:
    hygiene.seal(tree, EPOCH)
    assert (tree / "var/log/apt").is_dir()
    assert (tree / "var/lib/apt/lists").is_dir()
    assert not (tree / "var/log/journal/0123").exists()
    assert not (tree / "var/lib/cloud/instance").exists()


def test_a_machine_id_that_is_missing_is_made_empty(tree: Path) -> None:
    (tree / "etc/machine-id").unlink()
    hygiene.seal(tree, EPOCH)
    assert (tree / "etc/machine-id").stat().st_size == 0


def test_times_are_set_back_and_older_ones_stay(tree: Path) -> None:
    old = tree / "etc/hosts"
    os.utime(old, (1000, 1000))
    link = tree / "etc/localtime"
    link.symlink_to("/usr/share/zoneinfo/UTC")
    hygiene.seal(tree, EPOCH)
    assert int(old.stat().st_mtime) == 1000
    newest = max(int(path.lstat().st_mtime) for path in [tree, *tree.rglob("*")])
    assert newest == EPOCH


def test_a_link_out_of_the_tree_is_not_followed(tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "log").write_text("ours")
    (tree / "var/log/elsewhere").symlink_to(outside)
    hygiene.seal(tree, EPOCH)
    assert (outside / "log").read_text() == "ours"
    assert not (tree / "var/log/elsewhere").is_symlink(), "the link itself is in /var/log"


def test_records_of_roles_become_those_of_an_image(tree: Path) -> None:
    record = tree / "var/lib/myriad/state/container_runtime.json"
    record.parent.mkdir(parents=True)
    artifact = {"path": "/usr/local/bin/runc", "sha256": "ab", "size": 3, "mtime_ns": 5, "inode": 7, "run": "4711"}
    record.write_text(json.dumps({"role": "container_runtime", "artifacts": [artifact], "started": {"a": "b"}}))
    hygiene.seal(tree, EPOCH)
    assert json.loads(record.read_text()) == {
        "role": "container_runtime",
        "artifacts": [{"path": "/usr/local/bin/runc", "sha256": "ab", "run": "image"}],
    }


@pytest.mark.parametrize(
    ("content", "is_key"),
    [
        (b"-----BEGIN OPENSSH PRIVATE " + b"KEY-----\nb3BlbnNz\n", True),
        (b"-----BEGIN PRIVATE " + b"KEY-----\r\nMIIE\r\n", True),
        (b"-----BEGIN EC PRIVATE " + b"KEY-----\n", True),
        (b"cert\n-----BEGIN RSA PRIVATE " + b"KEY-----\n", True),
        (b"-----BEGIN CERTIFICATE-----\n", False),
        (b'if line == "-----BEGIN PRIVATE ' + b'KEY-----":\n', False),
        (b"", False),
    ],
)
def test_private_keys_are_known_by_their_line(content: bytes, is_key: bool) -> None:
    assert hygiene.has_private_key(content) is is_key


def test_a_key_in_an_unexpected_place_is_found(tree: Path) -> None:
    (tree / "etc/app.pem").write_text("-----BEGIN PRIVATE " + "KEY-----\nMIIE\n-----END PRIVATE KEY-----\n")
    assert "/etc/app.pem" in found(tree)


def test_the_file_runs_by_itself_as_packer_runs_it(tree: Path, tmp_path: Path) -> None:
    alone = tmp_path / "hygiene.py"
    alone.write_bytes(Path(hygiene.__file__).read_bytes())
    command = [sys.executable, "-I", "-B", str(alone), "--root", str(tree), "--epoch", str(EPOCH)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"sealed: {len(BAD) + 1} files removed or emptied\n"
    assert files(tree) == {*GOOD, "/etc/machine-id"}


def test_a_manifest_gives_its_findings() -> None:
    entry = Entry(kind="file", mode="0600", owner="0:0", size=9)
    manifest = NodeManifest(
        name="n", kernel="k", epoch=EPOCH, inputs={}, packages={}, programs={}, modules=[], images=[], blobs=[],
        left_out={}, files={"/var/lib/systemd/random-seed": entry, "/etc/hosts": entry},
    )  # fmt: skip
    assert [one.path for one in manifest.findings()] == ["/var/lib/systemd/random-seed"]
