"""Calls that outlive a restart of the API server: an upgrade and a reboot restart it themselves, the only one of a site
too."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from myriad.errors import MyriadError
from myriad.kube.client import ApiError, ClusterUnreachableError, KubeconfigError

T = TypeVar("T")


def is_away(error: MyriadError) -> bool:
    """Whether the API server restarts or has too much to do, and will answer later.

    One that has just started says 403 to everybody until it knows who may what.
    """
    if isinstance(error, ApiError):
        return error.status >= 500 or error.status in (403, 429)
    return isinstance(error, ClusterUnreachableError) and not isinstance(error, KubeconfigError)


def unless_away(call: Callable[[], T]) -> T | None:
    """What a call returns; None while the API server is away."""
    try:
        return call()
    except (ClusterUnreachableError, ApiError) as error:
        if is_away(error):
            return None
        raise


def patient(
    call: Callable[[], T],
    wait_s: float,
    poll_s: float = 2.0,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    say: Callable[[str], None] = lambda _text: None,
) -> T:
    """What a call returns that may be made again, asked again while the API server is away.

    The last error is raised after ``wait_s`` seconds.
    """
    end = clock() + wait_s
    said = False
    while True:
        try:
            return call()
        except (ClusterUnreachableError, ApiError) as error:
            if not is_away(error) or clock() >= end:
                raise
            if not said:
                say(f"{error.message}: waiting for it, {wait_s:.0f} s at most")
                said = True
            sleep(poll_s)
