"""What a user does with the page, in a real browser: finds a job, sees why and where, by mouse and by keys."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from myriad.bench.page import BROWSER_ARGUMENTS, CHROMIUM
from myriad.bench.page_serve import Served, record, serve
from myriad.bench.page_world import fill, node, workload
from myriad.kube.kinds import CONFIG_MAPS, NODES, WORKLOADS
from myriad.scheduler.ledger.store import Correction

playwright_api = pytest.importorskip("playwright.sync_api")
expect = playwright_api.expect

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=f"{CHROMIUM} is not there: apt-get install chromium"),
    # The browser's driver leaves its own pipes to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("browser")) as found:
        fill(found.cache, nodes=96, teams=3, waiting=20)
        for i, view in enumerate(found.cache.views()[:20]):
            record(found.book, i, view.gang.namespace, view.gang.name, reason="fits one rack")
        yield found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(BROWSER_ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """A page on which no script may fail and no rule of its own policy may be broken."""
    opened = chromium.new_page(viewport={"width": 1280, "height": 800})
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("console", lambda m: faults.append(m.text) if m.type == "error" and "401" not in m.text else None)
    opened.set_default_timeout(10_000)
    yield opened
    opened.close()
    assert not faults


def test_a_user_finds_a_job_sees_why_and_sees_it_on_the_map(page: Any, shown: Served) -> None:
    waits = next(v for v in shown.cache.views() if v.waiting)
    page.goto(shown.url + "/")
    rows = page.locator("#waiting tbody tr:visible")
    expect(rows).to_have_count(20)
    page.get_by_label("Find a job, team, pool or reason").fill(waits.gang.name)
    expect(rows).to_have_count(1)
    expect(page.locator("#said")).to_have_text(re.compile("rows"))
    page.get_by_role("link", name=f"{waits.gang.namespace}/{waits.gang.name}").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"{waits.gang.namespace}/{waits.gang.name}")
    expect(page.locator(".lead")).not_to_be_empty()
    expect(page.locator("#timeline tbody")).to_contain_text("queued")
    runs = next(v for v in shown.cache.views() if v.quota_reserved and len(v.nodes) > 2)
    page.goto(f"{shown.url}/jobs/{runs.gang.namespace}/{runs.gang.name}")
    expect(page.locator("figure.map canvas")).to_be_visible()
    expect(page.locator("#placement tbody tr")).to_have_count(len(runs.nodes))


def test_the_map_is_used_by_keys_alone_and_leads_to_the_job(page: Any, shown: Served) -> None:
    page.goto(shown.url + "/map")
    words = page.locator("#map-node")
    page.locator("#map").focus()
    expect(words).to_contain_text("gpu0001, hall1/b1/r1")
    steps = {"ArrowDown": 2, "ArrowRight": 10, "PageDown": 17, "PageUp": 9, "End": 96, "ArrowLeft": 88, "Home": 1}
    for key, number in steps.items():
        there = f"gpu{number:04d}"
        page.keyboard.press(key)
        expect(words).to_contain_text(there)
    expect(words).to_contain_text("GPUs:")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs/**")
    box = page.get_by_role("heading", level=1)
    expect(box).to_have_text(re.compile(r"^\w+/\w+-\d+$"))


def test_the_whole_page_is_reached_by_the_tab_key(page: Any, shown: Served) -> None:
    page.goto(shown.url + "/")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator("#find")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(page.locator("#waiting tbody a").first).to_be_focused()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "what has the focus can be seen"


def test_dark_is_chosen_kept_and_followed(page: Any, shown: Served) -> None:
    page.emulate_media(color_scheme="light")
    page.goto(shown.url + "/map")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    page.get_by_role("button", name="Dark").click()
    dark = page.evaluate(ground)
    assert dark != "rgb(255, 255, 255)"
    page.reload()
    assert page.evaluate(ground) == dark
    page.evaluate("localStorage.clear()")
    page.emulate_media(color_scheme="dark")
    page.reload()
    assert page.evaluate(ground) == dark, "without a choice the system's is followed"


def test_what_changes_is_seen_without_a_reload(page: Any, shown: Served) -> None:
    from datetime import UTC, datetime

    page.goto(shown.url + "/")
    expect(page.locator("#live")).to_have_text("live")
    shown.cache.upsert(WORKLOADS.plural, workload("vision", "brand-new", 1, 8, created=datetime.now(UTC), nodes=None))
    expect(page.get_by_role("link", name="vision/brand-new")).to_be_visible()
    page.goto(shown.url + "/map")
    expect(page.locator("#live")).to_have_text("live")
    row = page.locator('#nodes tr[data-key="gpu0005"]')
    shown.cache.upsert(NODES.plural, node(4, state="not_ready"))
    expect(row).to_contain_text("NotReady")
    shown.cache.upsert(NODES.plural, node(4))
    expect(row).to_contain_text("takes work")


def test_without_scripts_every_table_is_there(chromium: Any, shown: Served) -> None:
    plain = chromium.new_context(java_script_enabled=False).new_page()
    plain.goto(shown.url + "/")
    assert plain.locator("#waiting tbody tr").count() >= 20 and plain.locator("#quotas tbody tr").count() == 3
    plain.goto(shown.url + "/map")
    assert plain.locator("#nodes tbody tr").count() == 96
    plain.close()


def test_a_narrow_screen_scrolls_down_and_not_sideways(page: Any, shown: Served) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    for path in ("/", "/map", "/decisions", "/login"):
        page.goto(shown.url + path)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 360, f"{path} is {wide} wide"


def test_text_stands_out_from_its_ground_in_both_schemes(page: Any, shown: Served) -> None:
    """WCAG AA: 4.5:1 for text, 3:1 for signs."""
    ratio = """(names) => {
      const style = getComputedStyle(document.documentElement);
      const light = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
        .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
      return names.map(([a, b]) => {
        const [x, y] = [a, b].map((n) => light(style.getPropertyValue(n).trim()) + 0.05);
        return Math.max(x, y) / Math.min(x, y);
      });
    }"""
    text = [["--ink", "--ground"], ["--dim", "--raised"], ["--dim", "--ground"], ["--accent", "--raised"],
            ["--accent-ink", "--accent"], ["--bad", "--bad-ground"], ["--bad", "--ground"]]  # fmt: skip
    signs = [[f"--s-{s}", "--ground"] for s in ("ok", "reserved", "cordoned", "gate_closed", "unhealthy", "not_ready")]
    signs += [
        ["--gpu-used", "--ground"],
        ["--gpu-line", "--ground"],
        ["--gpu-stop", "--ground"],
        ["--focus", "--ground"],
    ]
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.goto(shown.url + "/login")
        for pairs, least in ((text, 4.5), (signs, 3.0)):
            for pair, found in zip(pairs, page.evaluate(ratio, pairs), strict=True):
                assert found >= least, f"{scheme}: {pair} is {found:.2f}:1"


def test_everything_has_a_name_and_a_place(page: Any, shown: Served) -> None:
    """Landmarks, one h1, headings in order, labels of inputs, names of tables and regions."""
    for path in ("/", "/map", "/decisions", "/login"):
        page.goto(shown.url + path)
        assert page.locator("main").count() == page.locator("header").count() == page.locator("h1").count() == 1
        assert page.locator("html[lang=en]").count() == 1
        levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map((h) => +h.tagName[1])")
        assert all(b - a <= 1 for a, b in itertools.pairwise(levels)), levels
        assert page.evaluate("[...document.querySelectorAll('table')].every((t) => t.caption && t.tHead)")
        unnamed = """[...document.querySelectorAll('input,textarea,canvas,[role=region],nav')].filter((e) =>
          !(e.labels && e.labels.length) && !e.ariaLabel && !e.getAttribute('aria-labelledby')).length"""
        assert page.evaluate(unnamed) == 0


def test_the_gpu_hours_of_a_team_are_shown_and_followed(page: Any, shown: Served) -> None:
    budget = {"h100": {"budget": 1000, "period": "year"}}
    policy = {"teams": {"vision": {"namespaces": ["vision"], "gpu_hours": budget}}}
    rules = {
        "metadata": {"name": "myriad-policy", "namespace": "myriad-system"},
        "data": {"policy.json": json.dumps(policy)},
    }

    def uses(hours: int) -> None:
        now = shown.ledger.now()
        shown.ledger.store.correct(Correction(f"c-{hours}", now, "vision", "h100", "", hours * 3600, "ann", "a test"))

    uses(100)
    shown.cache.upsert(CONFIG_MAPS.plural, rules)
    page.goto(shown.url + "/")
    expect(page.get_by_role("heading", name="GPU-hours")).to_be_visible()
    row = page.locator('#budgets tr[data-key="vision//h100"]')
    expect(row).to_contain_text("100.0 of 1,000")
    expect(row).to_contain_text("900.0")
    expect(page.locator("#live")).to_have_text("live")
    uses(20)
    # The stream looks at everything every fifteen seconds, also where nothing else happens.
    expect(row).to_contain_text("120.0 of 1,000", timeout=30_000)
    expect(row).to_contain_text("880.0")
