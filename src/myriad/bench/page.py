"""`make bench-page`: the page of 1,250 nodes in a real browser, and many clients on the stream, as JSON lines.

First content: from the start of the navigation until the browser painted the first content (the browser's own clock).
Interaction: from the event of the user until the next frame is on the screen, for typing into the filter, choosing a
node on the map and switching to dark. Stream: clients that follow in a process of their own; how long a change takes to
reach the first, the median and the last of them, and what memory they cost the server.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import httpx

from myriad.bench.lines import emit
from myriad.bench.page_serve import Served, record, serve
from myriad.bench.page_world import fill, node
from myriad.errors import MyriadError
from myriad.kube.kinds import NODES

CHROMIUM = "/usr/bin/chromium"
BROWSER_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
AIMS = {"first_content_ms": 1000.0, "interaction_ms": 100.0}
_PAINT = "performance.getEntriesByName('first-contentful-paint').map((e) => e.startTime)[0] || null"
_FRAME = """async ([what, id, text]) => {
  const begun = performance.now();
  if (what === "type") {
    const box = document.getElementById(id);
    box.value = text;
    box.dispatchEvent(new Event("input", { bubbles: true }));
  } else if (what === "key") {
    const event = new KeyboardEvent("keydown", { key: text, bubbles: true, cancelable: true });
    document.getElementById(id).dispatchEvent(event);
  } else {
    document.getElementById(id).click();
  }
  await new Promise((next) => requestAnimationFrame(() => setTimeout(next, 0)));
  return performance.now() - begun;
}"""


def _rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def browser_figures(served: Served) -> None:
    """First content of each view, and interactions."""
    from playwright.sync_api import sync_playwright

    view = next(v for v in served.cache.views() if v.quota_reserved and len(v.nodes) > 8)
    views = {
        "queue": "/",
        "map": "/map",
        "job": f"/jobs/{view.gang.namespace}/{view.gang.name}",
        "decisions": "/decisions",
    }
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(BROWSER_ARGUMENTS))
        page = browser.new_page(viewport={"width": 1360, "height": 900})
        for name, path in views.items():
            figures = []
            for _ in range(5):
                page.goto(served.url + path)
                page.wait_for_function(f"() => {_PAINT}")
                figures.append(float(page.evaluate(_PAINT)))
            emit(
                what="first_content", view=name, nodes=1250, median_ms=round(statistics.median(figures), 1),
                worst_ms=round(max(figures), 1), aim_ms=AIMS["first_content_ms"],
            )  # fmt: skip
        for name, path, acts in (
            ("queue", "/", [("type", "find", "vision"), ("type", "find", ""), ("click", "theme", "")]),
            ("map", "/map", [("key", "map", "ArrowDown"), ("key", "map", "ArrowRight"), ("key", "map", "End"),
                             ("type", "find-node", "hall2"), ("type", "find-node", ""), ("click", "theme", "")]),
        ):  # fmt: skip
            page.goto(served.url + path)
            page.wait_for_selector("#live[data-state=on]", state="attached")
            page.wait_for_timeout(1500)
            for act in acts:
                figures = [float(page.evaluate(_FRAME, list(act))) for _ in range(7)]
                emit(
                    what="interaction", view=name, act=" ".join(a for a in act if a), nodes=1250,
                    median_ms=round(statistics.median(figures), 1), worst_ms=round(max(figures), 1),
                    aim_ms=AIMS["interaction_ms"],
                )  # fmt: skip
        browser.close()


def _follow(url: str, count: int, pipe: Connection) -> None:
    """Follow the stream with many clients; send the time of each change of a node as it arrives."""

    async def one(client: httpx.AsyncClient, ready: asyncio.Semaphore, arrived: list[tuple[str, float]]) -> None:
        async with client.stream("GET", url + "/v1/stream?sections=nodes", timeout=None) as answer:
            async for line in answer.aiter_lines():
                if not line.startswith("data:"):
                    continue
                change = json.loads(line[5:])
                if change.get("full"):
                    ready.release()
                else:
                    arrived.extend((name, time.time()) for name in change["set"])

    async def run() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(limits=limits) as client:
            ready, arrived = asyncio.Semaphore(0), list[tuple[str, float]]()
            tasks = [asyncio.create_task(one(client, ready, arrived)) for _ in range(count)]
            for _ in range(count):
                await ready.acquire()
            pipe.send("ready")
            while not pipe.poll():
                await asyncio.sleep(0.1)
            pipe.send(arrived)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())


def stream_figures(served: Served, *, clients: int = 200, changes: int = 10) -> None:
    """Memory and latency with many clients."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    before = _rss_mb()
    follower = context.Process(target=_follow, args=(served.url, clients, theirs), daemon=True)
    follower.start()
    if not mine.poll(120) or mine.recv() != "ready":
        raise MyriadError(f"{clients} clients did not all get the whole within 120 s", where=served.url)
    connected = _rss_mb()
    changed: dict[str, float] = {}
    for i in range(changes):
        body = node(i, state="cordoned" if i % 2 else "not_ready")
        changed[body["metadata"]["name"]] = time.time()
        served.cache.upsert(NODES.plural, body)
        time.sleep(2.0)
    time.sleep(4.0)
    mine.send("end")
    arrived: list[tuple[str, float]] = mine.recv()
    follower.join(timeout=10)
    took = sorted(at - changed[name] for name, at in arrived if name in changed)
    if not took:
        raise MyriadError("no change arrived", where=served.url)
    health = time.monotonic()
    httpx.get(served.url + "/healthz").raise_for_status()
    emit(
        what="stream", clients=clients, changes=changes, arrived=len(took), expected=clients * changes,
        first_s=round(took[0], 3), median_s=round(statistics.median(took), 3),
        p99_s=round(took[int(0.99 * len(took))], 3), last_s=round(took[-1], 3), dropped=served.server.hub.dropped,
        memory_mb_before=round(before, 1), memory_mb_with_clients=round(connected, 1),
        memory_kb_a_client=round((connected - before) * 1024 / clients, 1),
        health_ms=round((time.monotonic() - health) * 1000, 1),
    )  # fmt: skip


def main() -> int:
    """Entry point."""
    with tempfile.TemporaryDirectory() as folder, serve(Path(folder)) as served:
        fill(served.cache)
        for i, view in enumerate(served.cache.views()[:100]):
            record(served.book, i, view.gang.namespace, view.gang.name, reason="fits one block")
        begun = time.monotonic()
        httpx.get(served.url + "/", timeout=60).raise_for_status()
        emit(what="first_page_after_start", nodes=1250, waiting=300, seconds=round(time.monotonic() - begun, 2))
        if Path(CHROMIUM).exists():
            browser_figures(served)
        else:
            print(f"{CHROMIUM} is not there: `apt-get install chromium`; the stream alone is measured", file=sys.stderr)
        stream_figures(served)
    return 0


if __name__ == "__main__":
    sys.exit(main())
