"""The page in a real browser, served by the local system while it runs."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, BrowserContext, Page, Route, async_playwright, expect

from local.demo.system import LocalSystem, local_system
from shared.web import panels
from shared.web.board import Shown
from shared.wiring.app import App
from tests.local.test_system import PATIENT, TraceClock, follow, step_trace
from tests.web.test_panels import STREAM, days, shown_letter

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
MINUTES = 600
expect.set_options(timeout=30_000)  # it only ends the wait for something that never appears
LAYOUTS = [("light", 360), ("dark", 1280)]

REFRESH = "document.dispatchEvent(new Event('visibilitychange'))"
CHANGE_A_PART_AND_REFRESH = f"""
    document.querySelector('[data-live]').dataset.live = 'head-gone';
    {REFRESH}
"""
NO_TIMERS = "window.setInterval = () => 0"
"""Without a refresh, a chart does not move before it is clicked."""
MARK_NEAREST_THE_MIDDLE = """() => {
    const {points, marks, since, end} = JSON.parse(document.querySelector(".card script").text);
    const [first, last] = [location.search.includes("before=") ? since
        : points[0].time > since ? points[0].time : since, end].map(Date.parse);
    return marks.map(mark => (Date.parse(mark[0]) - first) / (last - first))
        .sort((a, b) => Math.abs(a - 0.5) - Math.abs(b - 0.5))[0];
}"""

pytestmark = [
    pytest.mark.skipif(not CHROMIUM, reason="no chromium in PATH: apt-get install chromium"),
    pytest.mark.asyncio(loop_scope="module"),
]


@dataclass
class Tab:
    """A browser tab, and the errors and warnings on its console."""

    page: Page
    complaints: list[str]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system() -> AsyncIterator[LocalSystem]:
    clock = TraceClock()
    async with local_system(
        step_trace(), MINUTES, monotonic=clock, other_settings=PATIENT
    ) as running:
        await follow(running, clock, lambda: running.workload.minute > 6 and bool(running.arm.puts))
        clock.run_on()
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        await launched.close()


async def open_tab(
    browser: Browser, system: LocalSystem, scheme: str, width: int, script: str = ""
) -> Tab:
    assert system.host is not None
    viewport = {"width": width, "height": 900}
    context: BrowserContext = await browser.new_context(color_scheme=scheme, viewport=viewport)  # type: ignore[arg-type]
    tab = Tab(await context.new_page(), [])
    tab.page.on("console", lambda m: tab.complaints.append(m.text) if m.type != "log" else None)
    tab.page.on("pageerror", lambda error: tab.complaints.append(str(error)))
    await tab.page.add_init_script(script)
    await tab.page.goto(f"{system.page}&hours=0.1")
    await expect(tab.page.locator("canvas")).to_have_count(3)
    return tab


@pytest.mark.parametrize(("scheme", "width"), LAYOUTS)
async def test_the_page_is_accessible_and_fits_every_screen(
    browser: Browser, system: LocalSystem, scheme: str, width: int
) -> None:
    tab = await open_tab(browser, system, scheme, width)
    for part in (".change-rules", ".events details"):
        await tab.page.locator(f"{part} summary").first.click()
    results = await Axe().run(tab.page)
    assert results.violations_count == 0, results.generate_report()
    assert await tab.page.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.complaints == []
    await tab.page.context.close()


async def test_a_click_on_a_mark_of_the_chart_opens_the_recommendations_of_all_rules(
    browser: Browser, system: LocalSystem
) -> None:
    tab = await open_tab(browser, system, "light", 1280, NO_TIMERS)
    share = await tab.page.evaluate(MARK_NEAREST_THE_MIDDLE)
    over = tab.page.locator(".u-over").first
    box = await over.bounding_box()
    assert box is not None
    await over.click(position={"x": box["width"] * share, "y": box["height"] / 2})
    line = tab.page.locator(".events details[open]")
    await expect(line).to_have_count(1)
    await expect(line.locator("table")).to_contain_text("queue_age")
    assert tab.complaints == []
    await tab.page.context.close()


async def test_an_override_set_on_the_page_is_shown_and_can_be_cleared(
    browser: Browser, system: LocalSystem
) -> None:
    tab = await open_tab(browser, system, "light", 1280)
    form = tab.page.locator("form.override")
    await tab.page.locator(".change-rules summary").click()
    await form.locator("[name=by]").fill("anna")
    await form.locator("button").press("Enter")
    await expect(form.locator("output")).to_contain_text("reason: must be 1 to 500 characters")
    await form.locator("[name=reason]").fill("<b>incident</b> & co")
    await form.locator("button").press("Enter")
    await expect(tab.page.locator("[data-resource] .chip")).to_contain_text("paused until")
    await expect(tab.page.locator(".attention li.info")).to_contain_text("paused until")
    logged = tab.page.locator("details summary", has_text="<b>incident</b> & co")
    await expect(logged.first).to_be_visible()  # decisions while it is paused name it, too
    await form.locator("[name=what]").select_option("clear")
    await form.locator("button").press("Enter")
    await expect(tab.page.locator("[data-resource] .chip")).to_have_text("active")
    await expect(tab.page.locator(".attention")).to_have_text("Nothing needs attention")
    assert tab.complaints == [
        "Failed to load resource: the server responded with a status of 400 (Bad Request)"
    ]
    await tab.page.context.close()


async def test_a_range_is_chosen_by_drag_and_a_mark_that_is_not_listed_opens_its_entry(
    browser: Browser, system: LocalSystem
) -> None:
    tab = await open_tab(browser, system, "light", 1280, NO_TIMERS)
    box = await tab.page.locator(".u-over").first.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    await tab.page.mouse.move(box["x"] + box["width"] * 0.2, y)
    await tab.page.mouse.down()
    await tab.page.mouse.move(box["x"] + box["width"] - 5, y, steps=5)
    async with tab.page.expect_navigation():
        await tab.page.mouse.up()
    assert "before=" in tab.page.url
    await expect(tab.page.locator("#fresh")).to_contain_text("a past time")
    await tab.page.locator(".filter [name=text]").fill("nothing is like this")
    async with tab.page.expect_navigation():
        await tab.page.locator(".filter button").click()
    await expect(tab.page.locator(".events")).to_contain_text("No such entries in this time")
    share = await tab.page.evaluate(MARK_NEAREST_THE_MIDDLE)
    over = tab.page.locator(".u-over").first
    box = await over.bounding_box()
    assert box is not None
    async with tab.page.expect_navigation():
        await over.click(position={"x": box["width"] * share, "y": box["height"] / 2})
    await expect(tab.page.locator(".events details[open]")).to_have_count(1)
    assert "text=" not in tab.page.url
    assert "code=" in tab.page.url
    await tab.page.locator(".filter [type=datetime-local]").fill("2020-01-01T00:00:00")
    async with tab.page.expect_navigation():
        await tab.page.locator(".filter button").click()
    assert "before=2020-01-01T" in tab.page.url, "a time outside the range moves the range"
    await expect(tab.page.locator("dl.figures")).to_have_count(0)  # they are of now
    await tab.page.context.close()


async def test_an_open_breaker_needs_attention_and_is_closed_by_a_button(
    browser: Browser, system: LocalSystem
) -> None:
    tab = await open_tab(browser, system, "light", 1280)
    assert system.host is not None
    isolate = f"{system.host.url}/api/breakers/metric_ingest/isolate"
    await tab.page.request.post(
        isolate,
        data={"reason": "trying it"},
        headers={"x-functions-key": system.host.keys.function("breaker_isolate")},
    )
    await tab.page.evaluate(REFRESH)
    said = "Circuit breaker metric_ingest is isolated: trying it"
    problem = tab.page.locator(".attention li.bad").filter(has_text=said)
    await expect(problem).to_have_count(1)
    results = await Axe().run(tab.page)
    assert results.violations_count == 0, results.generate_report()
    await tab.page.locator("a.button").click()
    await tab.page.locator("button").click()
    await expect(tab.page.locator("body")).to_contain_text("Events flow again")
    await tab.page.goto(f"{system.page}&hours=0.1")
    await expect(tab.page.locator(".attention")).to_be_visible()
    await expect(problem).to_have_count(0)
    assert tab.complaints == []
    await tab.page.context.close()


async def test_a_page_that_cannot_refresh_shows_since_when_it_is_out_of_date(
    browser: Browser, system: LocalSystem
) -> None:
    """A sign-in page instead of the parts is a failure, too."""
    sign_in = "<!doctype html><title>Sign in</title>"
    for answer in (
        lambda route: route.abort(),
        lambda route: route.fulfill(body=sign_in, content_type="text/html"),
    ):
        tab = await open_tab(browser, system, "light", 1280)
        await expect(tab.page.locator("#fresh")).to_contain_text("updates automatically")
        await tab.page.route("**/*", answer)
        await tab.page.evaluate(REFRESH)
        await expect(tab.page.locator("#fresh")).to_contain_text("Out of date since")
        await expect(tab.page.locator(".attention")).to_contain_text("Not known since")
        await expect(tab.page.locator(".attention")).not_to_contain_text("Nothing needs attention")
        results = await Axe().run(tab.page)
        assert results.violations_count == 0, results.generate_report()
        await tab.page.context.close()


async def test_the_page_reloads_itself_when_its_parts_have_changed(
    browser: Browser, system: LocalSystem
) -> None:
    tab = await open_tab(browser, system, "light", 1280)
    async with tab.page.expect_navigation():  # the page may refresh itself before the script ends
        await tab.page.evaluate(CHANGE_A_PART_AND_REFRESH)
    await expect(tab.page.locator("[data-live=head-gone]")).to_have_count(0)
    assert tab.complaints == []
    await tab.page.context.close()


async def test_the_link_to_all_series_carries_the_key_of_the_page(
    browser: Browser, system: LocalSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    series = [replace(day, event=f"event-{n}") for n in range(21) for day in days(2)]

    async def trends() -> Shown:
        return Shown(panels.trends(series))

    app = running_app()
    shown = replace(app.web.board, panels={**app.web.board.panels, "trends": trends})
    monkeypatch.setattr(app.web, "board", shown)
    context = await browser.new_context()
    linking = await context.new_page()
    await linking.goto(system.page)
    async with linking.expect_navigation() as navigation:
        await linking.get_by_role("link", name="the JSON").click()
    answer = await navigation.value
    assert answer is not None
    assert answer.status == 200
    assert len(await answer.json()) == 21
    await context.close()


async def test_dead_letters_are_found_processed_again_and_deleted_after_the_number_is_typed(
    browser: Browser, system: LocalSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = [shown_letter(sequence=n, error=f"error {n}") for n in range(3)]

    async def shown() -> Shown:
        return Shown(letters)

    app, sent, typed = running_app(), list[str](), ["2", "3"]
    changed = {**app.web.board.panels, "dead-letters": shown}
    monkeypatch.setattr(app.web, "board", replace(app.web.board, panels=changed))

    async def answer(route: Route) -> None:
        sent.append(f"{route.request.method} {route.request.url.partition('/api/')[2]}")
        sent.append(route.request.post_data or "")
        found = [{"failed_at": "2020-01-01T00:00:00Z"}] * 3
        done: dict[str, Any] = {"done": found, "failed": [], "gone": [], "dead_letters": found}
        await route.fulfill(json=done)

    tab = await open_tab(browser, system, "light", 1280)
    await tab.page.route("**/dead-letters**", answer)
    tab.page.on("dialog", lambda dialog: dialog.accept(typed.pop(0)))
    letter, output = tab.page.locator("[id^='dead/']"), tab.page.locator("form.purge output")
    await expect(letter).to_have_count(3)
    await expect(tab.page.locator("form.purge")).to_be_visible()
    await tab.page.get_by_label("Find among those above").fill("error 2")
    await expect(letter.locator("visible=true").locator("summary")).to_have_count(1)
    await tab.page.locator("form.purge [name=by]").fill("anna")
    await letter.nth(2).locator("summary").click()
    await letter.nth(2).locator("button").click()
    await expect(output).to_have_text("3 done")
    for told in ("nothing was deleted", "3 done"):
        await tab.page.locator("form.purge button").click()
        await expect(output).to_have_text(told)
    stream = urlencode({"hub": STREAM.hub, "group": STREAM.consumer_group, "by": "anna"})
    place = f"{STREAM.partition_id}/2/redrive?{stream}"
    assert sent[0] == f"POST dead-letters/{place}"
    assert [each for each in sent if "purge" in each] == ["POST dead-letters/purge"]
    assert json.loads(sent[-1]) == {"older_than_days": 30, "limit": 3, "by": "anna"}
    await tab.page.context.close()


def running_app() -> App:
    app: App = sys.modules["function_app"].app
    return app
