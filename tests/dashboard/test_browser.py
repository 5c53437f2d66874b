"""The pages in a real browser: they fit the screen, follow the cluster, and show hostile names as text."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from milligpu.status.picture import Picture, WaitingRequest
from testing.dashboard import PAGES, SIZES, MadeUpCluster, RunningDashboard, dashboard

CHROMIUM = Path("/usr/bin/chromium")
HOSTILE = (
    "<script>document.title='hit'</script>",
    '"><img src=x onerror="document.title=`hit`">',
    "'><svg onload=document.title='hit'>",
    "javascript:document.title='hit'",
    "{{7*7}}{% raw %}",
    "</title><script>document.title='hit'</script>",
    "' hx-get='/logout' hx-trigger='load",
    "\u202egnirts desrever\u0000",
    "x" * 300,
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM.exists(), "run: tools/need debian chromium"
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def served() -> Iterator[RunningDashboard]:
    cluster = MadeUpCluster(started=time.time() - 700)
    with dashboard(cluster.picture, past_s=600) as running:
        yield running


@pytest.fixture(scope="module")
def page(browser: Browser, served: RunningDashboard) -> Iterator[Page]:
    context = browser.new_context()
    found = context.new_page()
    found.goto(served.opened)
    yield found
    context.close()


def complaints_of(page: Page) -> list[str]:
    """What the browser says about errors and refused loads, from now on."""
    found: list[str] = []

    def say(message: Any) -> None:
        if message.type in {"error", "warning"}:
            found.append(message.text)

    page.on("console", say)
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("request", lambda request: None if "127.0.0.1" in request.url else found.append(request.url))
    return found


@pytest.mark.parametrize("size", SIZES)
def test_every_page_fits_the_screen_without_errors(page: Page, served: RunningDashboard, size: str) -> None:
    width, height = SIZES[size]
    page.set_viewport_size({"width": width, "height": height})
    complaints = complaints_of(page)
    for name, path in PAGES.items():
        page.goto(served.url + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.locator("h1").count() == 1, name
    assert complaints == []


def test_charts_are_drawn_from_the_history(page: Page, served: RunningDashboard) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(served.url + PAGES["gpu"])
    expect(page.locator(".uplot canvas")).to_have_count(5)
    page.get_by_role("button", name="1 day").click()
    expect(page.locator(".uplot canvas")).to_have_count(5)


def test_a_saved_report_draws_its_charts_from_a_file_and_asks_nobody(
    browser: Browser, served: RunningDashboard, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    file.write_text(served.report(), encoding="utf-8")
    found = browser.new_page(viewport={"width": 390, "height": 844})
    asked: list[str] = []
    found.on("request", lambda request: asked.append(request.url))
    found.goto(file.as_uri())
    expect(found.locator(".uplot canvas").first).to_be_visible()
    assert found.evaluate("document.documentElement.scrollWidth") <= 390
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert found.locator("main a").count() == 0, "there is no other page to go to"
    found.close()


def test_a_page_follows_the_cluster_without_a_reload_and_keeps_the_filter(
    browser: Browser, page: Page, served: RunningDashboard
) -> None:
    page.goto(served.url + "/waiting")
    page.get_by_role("searchbox").fill("later")
    before = served.read[0]
    late = WaitingRequest("vision", "came-later", "", "", "InsufficientGPUCore", 3)

    def more(at: float) -> Picture:
        picture = before(at)
        return replace(picture, waiting=[*picture.waiting, late])

    try:
        served.read[0] = more
        page.get_by_text("vision/came-later").wait_for()
        assert page.get_by_role("searchbox").input_value() == "later"
        assert not page.get_by_text("speech/decode-eval").is_visible()
    finally:
        served.read[0] = before
    page.get_by_text("vision/came-later").wait_for(state="detached")


def test_keys_open_pages_filter_and_switch_the_theme(page: Page, served: RunningDashboard) -> None:
    page.goto(served.url + "/")
    page.keyboard.press("3")
    page.wait_for_url("**/shares")
    page.keyboard.press("/")
    page.keyboard.type("notebook")
    expect(page.locator("tbody tr:visible", has_not_text="notebook")).to_have_count(0)
    expect(page.locator("tbody tr:visible", has_text="notebook")).not_to_have_count(0)
    page.keyboard.press("Escape")
    page.keyboard.press("t")
    theme = page.evaluate("document.documentElement.dataset.theme")
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    page.keyboard.press("t")


def test_hostile_names_are_text_on_every_page(browser: Browser) -> None:
    cluster = MadeUpCluster(nodes=1, started=time.time() - 60)

    def hostile(at: float) -> Picture:
        picture = cluster.picture(at)
        shares = [
            msgspec.structs.replace(use, namespace=text, pod=text, container=text)
            for use, text in zip(list(picture.shares) * 9, HOSTILE, strict=False)
        ]
        waiting = [WaitingRequest(text, text, text, text, text, 1) for text in HOSTILE]
        gpus = [
            msgspec.structs.replace(gpu, state="unhealthy", message=HOSTILE[0], model=HOSTILE[1], node=HOSTILE[2])
            for gpu in picture.gpus
        ]
        return replace(picture, name=HOSTILE[1], gpus=gpus, shares=shares, waiting=waiting, problems=list(HOSTILE))

    with dashboard(hostile, past_s=30, explain=lambda _n, _p: (HOSTILE[0], list(HOSTILE))) as served:
        page = browser.new_context(viewport={"width": 390, "height": 844}).new_page()
        page.goto(served.opened)
        complaints = complaints_of(page)
        links = set(PAGES.values())
        for path in ("/shares", "/gpus", "/health"):
            page.goto(served.url + path)
            links |= {each.get_attribute("href") or "" for each in page.locator("main a").all()}
        assert len(links) > 15
        for path in sorted(links):
            if not path.startswith("/") or path.endswith((".csv", ".json")):
                assert path.endswith((".csv", ".json")), path
                continue
            page.goto(served.url + path)
            assert "hit" not in page.title().replace(HOSTILE[0], "").split(" · ")[-1], path
            assert page.locator("main script, main img, main [onload], main [hx-get='/logout']").count() == 0, path
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        assert [each for each in complaints if "404" not in each] == []
        page.context.close()


def test_a_lost_connection_is_shown(browser: Browser) -> None:
    cluster = MadeUpCluster(started=time.time() - 60)
    page = browser.new_context().new_page()
    with dashboard(cluster.picture) as first:
        page.goto(first.opened)
        page.locator("#live:not(.off)").wait_for()
        first.stop()
        page.locator("#lost").wait_for(state="visible")
        assert "Connection lost" in page.locator("#lost").inner_text()
    page.context.close()


def test_without_an_identity_the_browser_sees_how_to_get_one(browser: Browser, served: RunningDashboard) -> None:
    page = browser.new_context().new_page()
    page.goto(served.url + "/gpus")
    assert "milligpu dashboard" in page.locator("main").inner_text()
    assert "gpu-node" not in page.content()
    page.context.close()


@pytest.mark.long
@pytest.mark.alone
def test_five_thousand_gpus_are_one_page_that_fits(browser: Browser) -> None:
    cluster = MadeUpCluster(nodes=625, per_node=8, started=time.time() - 60)
    with dashboard(cluster.picture, interval_s=5.0) as served:
        page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
        page.goto(served.opened)
        complaints = complaints_of(page)
        page.goto(served.url + "/gpus")
        assert page.locator("h1").inner_text() == "5000 GPUs"
        assert page.locator(".node-row rect").count() == 5000
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280
        page.get_by_role("searchbox").fill("gpu-node-625")
        expect(page.locator(".node-row:visible")).to_have_count(1)
        assert complaints == []
        page.context.close()


AXE = Path(__file__).with_name("vendor") / "axe-4.14.0.min.js"
FIND = "axe.run(document).then(found => found.violations.map(each => [each.id, each.nodes[0].html]))"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_page_has_a_fault_for_people_who_use_a_screen_reader_or_need_contrast(
    browser: Browser, page: Page, served: RunningDashboard, theme: Literal["light", "dark"]
) -> None:
    # The checker itself is an inline script, which the pages do not allow.
    context = browser.new_context(color_scheme=theme, bypass_csp=True, storage_state=page.context.storage_state())
    checked = context.new_page()
    # Colors are all that differs in the dark, and these pages have all of them.
    for name in PAGES if theme == "light" else ("overview", "pod", "shares"):
        checked.goto(served.url + PAGES[name])
        checked.evaluate(AXE.read_text())
        assert checked.evaluate(FIND) == [], name
    context.close()
