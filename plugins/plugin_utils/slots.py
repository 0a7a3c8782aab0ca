"""Slots that the hosts of one ansible-playbook process share: no more of them at a time than a limit says.

Ansible works on each host in a process of its own. A slot is a lock on a file in the folder that those processes share,
so it is free again however its holder ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

WAIT_S = (0.1, 0.4)


@contextlib.contextmanager
def held(folder: Path, wanted: Sequence[tuple[str, int]]) -> Iterator[float]:
    """Hold one slot of each kind, waited for together: nobody holds one while it waits for the other.

    Args:
        folder: shared by all that count together.
        wanted: kinds, each with the number of its slots; 0 is no limit.

    Yields:
        Seconds that were waited.
    """
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    while True:
        with contextlib.ExitStack() as stack:
            if all(_take(folder, kind, count, stack) for kind, count in wanted if count > 0):
                yield time.monotonic() - began
                return
        time.sleep(random.uniform(*WAIT_S))  # noqa: S311 - spreads those who wait, no secret


def _take(folder: Path, kind: str, count: int, stack: contextlib.ExitStack) -> bool:
    name = hashlib.sha256(kind.encode()).hexdigest()[:16]
    for number in range(count):
        descriptor = os.open(folder / f"{name}-{number}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            continue
        stack.callback(os.close, descriptor)
        return True
    return False
