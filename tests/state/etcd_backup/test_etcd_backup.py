"""Backups come by a timer, are whole, are for root alone, and old ones go."""

import json
from typing import Any

from testinfra.host import Host

testinfra_hosts = ["ansible://control_plane"]
PROGRAM = "/usr/local/lib/myriad/etcd-backup"
CONFIG = "/etc/myriad/etcd-backup.json"


def taken(host: Host) -> dict[str, Any]:
    found = host.run(f"{PROGRAM} take")
    assert found.rc == 0, found.stderr
    return dict(json.loads(found.stdout))


def test_the_timer_runs_and_starts_at_boot(host: Host) -> None:
    timer = host.service("myriad-etcd-backup.timer")
    assert timer.is_running
    assert timer.is_enabled


def test_an_archive_is_whole_and_holds_the_cluster_and_its_keys(host: Host) -> None:
    meta = taken(host)
    assert meta["revision"] > 0
    assert meta["keys"] > 100
    names = set(host.check_output(f"tar -tf {meta['archive']}").split())
    wanted = {"meta.json", "snapshot.db", "pki/ca.key", "pki/sa.key", "pki/etcd/ca.key", "pki/encryption.json"}
    assert wanted <= names
    assert json.loads(host.check_output(f"{PROGRAM} check {meta['archive']}"))["sha256"] == meta["sha256"]


def test_a_damaged_archive_is_found(host: Host) -> None:
    archive = taken(host)["archive"]
    host.check_output(f"cp {archive} /tmp/damaged.tar")
    host.check_output("printf x | dd of=/tmp/damaged.tar bs=1 seek=200000 conv=notrunc")
    found = host.run(f"{PROGRAM} check /tmp/damaged.tar")
    assert found.rc == 2
    assert "is not what was written" in found.stderr
    host.check_output("rm /tmp/damaged.tar")


def test_old_archives_go_and_no_more(host: Host) -> None:
    config = json.loads(host.file(CONFIG).content_string)
    host.check_output(f"rm -rf {config['folder']}")
    taken(host)
    first = sorted(host.file(config["folder"]).listdir())
    # Names have the second in which they were taken.
    for _ in range(config["keep_newest"] + 1):
        host.check_output("sleep 1.1")
        taken(host)
    left = sorted(host.file(config["folder"]).listdir())
    assert len([name for name in left if name.endswith(".tar")]) == max(config["keep_newest"], config["keep_days"])
    assert not set(first) & set(left)


def test_nobody_else_can_read_them(host: Host) -> None:
    archive = taken(host)["archive"]
    assert host.file(archive).mode == 0o600
    assert host.file(archive).user == "root"
    assert host.file(archive.rpartition("/")[0]).mode == 0o700
    assert host.file(CONFIG).mode == 0o600


def test_running_components_are_not_restored_over(host: Host) -> None:
    archive = taken(host)["archive"]
    found = host.run(f"{PROGRAM} restore {archive} {host.check_output('hostname')}=127.0.0.1 token")
    assert found.rc == 2
    assert "etcd runs here" in found.stderr
