"""Puts the parts together for the extension."""

from __future__ import annotations

import threading
from collections.abc import Callable

from myriad.scheduler.notices.aftermath import Aftermath
from myriad.scheduler.notices.book import Book
from myriad.scheduler.notices.courier import Courier
from myriad.scheduler.notices.gather import Estimator
from myriad.scheduler.notices.observer import Notices
from myriad.scheduler.notices.targets import Addresses
from myriad.scheduler.observers import Observing
from myriad.scheduler.shield import Shields
from myriad.scheduler.surroundings import Surroundings


def noticing(
    parts: Surroundings,
    book: Book,
    *,
    may_act: Callable[[], bool],
    stop: threading.Event,
    eta: Estimator | None = None,
) -> Observing:
    """The thread that tells of evictions: its own, because a notice has a second and other observers may take longer.

    Args:
        parts: of the extension.
        book: the records.
        may_act: True while this replica leads and its cache is in step.
        stop: ends it.
        eta: estimates when evicted gangs start again.
    """
    policy = parts.cache.policy
    namespace = parts.settings.namespace
    courier = Courier(
        address=Addresses(parts.api, lambda: policy().notify_targets, namespace=namespace),
        record=book.append,
        may_act=may_act,
    )
    url = parts.settings.page_url.rstrip("/")

    def details(of: str, job: str) -> str:
        return f"{url}/jobs/{of}/{job}" if url else f"myriad preemptions {of}/{job}"

    def counted(reason: str, after_s: float) -> None:
        parts.metrics.evictions.labels(reason).inc()
        parts.metrics.notice_seconds.observe(after_s)

    notices = Notices(
        api=parts.api,
        cache=parts.cache,
        book=book,
        courier=courier,
        policy=policy,
        eta=eta,
        details=details,
        counted=counted,
    )
    return Observing([notices], cache=parts.cache, may_act=may_act, stop=stop)


def tending(parts: Surroundings, book: Book, *, may_act: Callable[[], bool], stop: threading.Event) -> Observing:
    """The thread for what comes after evictions and for shields: neither has to be done within a second."""
    policy = parts.cache.policy
    aftermath = Aftermath(api=parts.api, cache=parts.cache, book=book, policy=policy)
    shields = Shields(api=parts.api, cache=parts.cache, policy=policy)
    return Observing([shields, aftermath], cache=parts.cache, may_act=may_act, stop=stop)
