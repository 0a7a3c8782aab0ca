"""Images in a real containerd: pulled by digest, pinned, proven, refused before any byte, taken up after a kill."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.myriad.gpu.plugins.module_utils import warm_keep
from ansible_collections.myriad.gpu.plugins.module_utils.warm_disk import Disk

from .conftest import Daemon, SmallRegistry

MB = 1_000_000


def reference(image: dict[str, Any]) -> str:
    return f"{image['ref']}@{image['digest']}"


def test_an_image_becomes_warm_once_and_stays_so(daemon: Daemon, registry: SmallRegistry) -> None:
    image = registry.image("team/model", [MB, 2 * MB])
    (first,) = daemon.warming([image], registry.url).run()
    assert (first["outcome"], first["pinned"], first["sentence"]) == ("pulled", True, "")
    assert first["fetched_bytes"] == sum(layer["size"] for layer in image["layers"])
    reported = daemon.runtime().reported(reference(image))
    assert reported is not None and reported["pinned"] and image["digest"] in reported["digests"]
    assert daemon.runtime().images()[f"{image['ref']}:1"][0] == image["digest"], "pods may ask by the tag as well"
    sent = dict(registry.sent)
    work = daemon.warming([image], registry.url)
    (again,) = work.run()
    assert (again["outcome"], work.changed, registry.sent) == ("warm", [], sent)
    state = json.loads((daemon.images / "warm.json").read_text())
    assert state["images"][image["digest"]]["warm"] is True


def test_a_pin_that_was_taken_off_is_found_and_comes_back(daemon: Daemon, registry: SmallRegistry) -> None:
    image = registry.image("team/model", [MB])
    daemon.warming([image], registry.url).run()
    daemon.runtime().unpin(reference(image))
    assert daemon.runtime().images()[reference(image)][1] is False
    (look,) = daemon.warming([image], registry.url, check=True).run()
    assert look["outcome"] == "pinned" and "was not pinned" in look["sentence"]
    assert daemon.runtime().images()[reference(image)][1] is False, "a look changes nothing"
    (found,) = daemon.warming([image], registry.url).run()
    assert found["outcome"] == "pinned" and found["pinned"] is True


@pytest.mark.slow
def test_between_two_runs_the_node_itself_looks_after_pins(
    daemon: Daemon, registry: SmallRegistry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    image, other = registry.image("team/model", [MB]), registry.image("team/other", [MB])
    daemon.warming([image, other], registry.url).run()
    path = str(daemon.images / "warm.json")
    monkeypatch.setattr(warm_keep, "PATH", f"{daemon.programs}:{warm_keep.PATH}")
    monkeypatch.setattr(warm_keep, "LOCK", str(daemon.images / "lock"))
    monkeypatch.setattr(warm_keep.load, "__defaults__", (path,))
    monkeypatch.setattr(warm_keep.save, "__defaults__", (path,))
    monkeypatch.setattr(warm_keep.Locked.__init__, "__defaults__", (warm_keep.LOCK, True))
    assert warm_keep.main(["check"]) == 0
    daemon.runtime().unpin(reference(image))
    assert warm_keep.main(["check"]) == 1
    assert warm_keep.main(["keep"]) == 0
    assert "it is pinned again" in capsys.readouterr().out
    assert daemon.runtime().images()[reference(image)][1] is True
    for name in (reference(other), f"{other['ref']}:1"):
        daemon.runtime().ctr("images", "remove", "--sync", name)
    assert warm_keep.main(["keep"]) == 1
    assert "is gone from containerd" in capsys.readouterr().out
    assert warm_keep.load(path)["images"][other["digest"]]["warm"] is False


def test_a_killed_containerd_is_taken_up_again_and_nothing_is_fetched_twice(
    daemon: Daemon, registry: SmallRegistry
) -> None:
    image = registry.image("team/model", [3 * MB, 9 * MB])
    small, large = (layer["digest"] for layer in image["layers"])
    registry.bytes_per_s = 4 * MB
    results: list[dict[str, Any]] = []
    work = threading.Thread(target=lambda: results.extend(daemon.warming([image], registry.url).run()))
    work.start()
    until = time.monotonic() + 20
    while registry.sent.get(large, 0) < 5 * MB and time.monotonic() < until:
        time.sleep(0.05)
    daemon.kill()
    daemon.start()
    work.join(60)
    (result,) = results
    assert (result["outcome"], result["resumed"]) == ("pulled", 1), result
    assert "taken up again" in result["sentence"]
    assert registry.sent[small] < 1.1 * image["layers"][0]["size"], "what was complete came once"
    assert registry.ranges.get(large), "what was half there was asked for from where it broke off"
    assert registry.sent[large] < 1.5 * image["layers"][1]["size"]


@pytest.mark.slow
def test_a_pull_that_stands_still_is_given_up_and_one_that_is_slow_is_not(
    daemon: Daemon, registry: SmallRegistry
) -> None:
    image = registry.image("team/model", [4 * MB])
    registry.stop_after = MB
    registry.bytes_per_s = 4 * MB
    (result,) = daemon.warming([image], registry.url, stall_s=2, least_rate=1000).run()
    assert (result["outcome"], result["cause"]) == ("failed", "stalled")
    assert "moved in 2 s" in result["sentence"] and "of 8 MB were done" in result["sentence"]
    registry.stop_after, registry.bytes_per_s = 0, MB
    (slow,) = daemon.warming([image], registry.url, stall_s=2, least_rate=1000).run()
    assert slow["outcome"] == "pulled", "four times as long as the limit, but it moves"


def test_a_full_disk_refuses_before_any_byte_with_the_numbers(
    programs: Path, registry: SmallRegistry, tmp_path: Path
) -> None:
    root = tmp_path / "small"
    root.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(root)], check=False)
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount a tmpfs")
    daemon = Daemon(programs, tmp_path, root=root)
    try:
        daemon.start()
        image = registry.image("team/model", [20 * MB])
        (result,) = daemon.warming([image], registry.url, kubelet={"evictionHard": {"imagefs.available": "50%"}}).run()
        free = Disk.at(str(root)).free
        assert (result["outcome"], result["cause"]) == ("refused", "refused")
        assert registry.sent == {}, "a refusal costs no byte"
        assert "20 MB to fetch (of 20 MB), 20 MB unpacked" in result["sentence"]
        assert "evictionHard imagefs.available 50%" in result["sentence"]
        (fits,) = daemon.warming([image], registry.url, kubelet={"evictionHard": {"imagefs.available": "1Mi"}}).run()
        assert fits["outcome"] == "pulled", fits["sentence"]
        assert free - Disk.at(str(root)).free >= 40 * MB, "compressed and unpacked, both are really there"
        (root / "filler").write_bytes(os.urandom(1000))
        more = registry.image("team/more", [20 * MB])
        (full,) = daemon.warming(
            [image, more], registry.url, kubelet={"evictionHard": {"imagefs.available": "1Mi"}}
        ).run()[1:]
        assert full["cause"] == "refused" and "too few" in full["sentence"]
    finally:
        daemon.stop()


@pytest.mark.slow
def test_an_image_whose_layers_hold_something_else_is_not_called_warm(daemon: Daemon, registry: SmallRegistry) -> None:
    image = registry.image("team/model", [MB], sound=False)
    (result,) = daemon.warming([image], registry.url).run()
    assert (result["outcome"], result["cause"]) == ("failed", "content"), result["sentence"]
    assert "what came is not what the digest names" in result["sentence"]
    assert warm_keep.load(str(daemon.images / "warm.json"))["images"] == {}


@pytest.mark.slow
def test_a_registry_that_is_not_there_is_told_as_that(daemon: Daemon, registry: SmallRegistry) -> None:
    image = registry.image("team/model", [MB])
    gone = {**image, "digest": f"sha256:{'0' * 64}"}
    (missing,) = daemon.warming([gone], registry.url).run()
    assert (missing["outcome"], missing["cause"]) == ("failed", "missing")
    (silent,) = daemon.warming([image], "http://127.0.0.1:9").run()
    assert (silent["outcome"], silent["cause"]) == ("failed", "registry"), silent["sentence"]


@pytest.mark.slow
def test_images_that_nobody_wants_any_more_lose_their_pin(daemon: Daemon, registry: SmallRegistry) -> None:
    old, new = registry.image("team/old", [MB]), registry.image("team/new", [MB])
    daemon.warming([old], registry.url).run()
    daemon.warming([new], registry.url).run()
    assert daemon.runtime().images()[reference(old)][1] is True, "another set does not touch it unasked"
    daemon.warming([new], registry.url, release=True).run()
    assert daemon.runtime().images()[reference(old)][1] is False
    assert set(warm_keep.load(str(daemon.images / "warm.json"))["images"]) == {new["digest"]}
