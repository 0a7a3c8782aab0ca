"""Slots that hosts of one run share: never more than the limit, free again however their holder ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from ansible_collections.myriad.gpu.plugins.plugin_utils import slots

HOLD = """
import sys, time
from pathlib import Path
from ansible_collections.myriad.gpu.plugins.plugin_utils import slots
with slots.held(Path(sys.argv[1]), [("rack r", 1)]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_no_rack_and_no_registry_has_more_than_its_limit(tmp_path: Path) -> None:
    limits = {"rack a": 2, "rack b": 1, "registry x": 2}
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()
    lock = threading.Lock()

    def host(rack: str) -> None:
        wanted = [(rack, limits[rack]), ("registry x", limits["registry x"])]
        with slots.held(tmp_path / "slots", wanted):
            with lock:
                for kind, _ in wanted:
                    now[kind] += 1
                    most[kind] = max(most[kind], now[kind])
            time.sleep(0.03)
            with lock:
                for kind, _ in wanted:
                    now[kind] -= 1

    threads = [threading.Thread(target=host, args=(rack,)) for rack in ("rack a", "rack b") * 6]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert all(most[kind] <= limit for kind, limit in limits.items()), most
    assert most["registry x"] == 2, "what is free is used"


def test_zero_is_no_limit(tmp_path: Path) -> None:
    with slots.held(tmp_path, [("rack a", 0)]), slots.held(tmp_path, [("rack a", 0)]) as waited:
        assert waited < 1


def test_a_holder_that_was_killed_leaves_its_slot(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        taken = threading.Event()

        def wait() -> None:
            with slots.held(tmp_path, [("rack r", 1)]):
                taken.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not taken.wait(1)
        os.kill(holder.pid, signal.SIGKILL)
        assert taken.wait(20)
        waiting.join()
