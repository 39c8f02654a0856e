"""``python -m local.picture``: make the picture in the README from a run of the demo.

Beside it, the texts of the page are kept, so that a test fails once the page has other texts.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path

from playwright.async_api import async_playwright

from backtest.traces.reading import BUNDLED, load_trace
from local.demo.profile import SECONDS_PER_TRACE_MINUTE
from local.demo.system import local_system

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "dashboard.png"
TEXTS = PICTURE.with_suffix(".json")
WEB = ROOT / "shared" / "web"
TEMPLATES = [WEB / "templates" / name for name in ("dashboard.html", "live.html")]
SCRIPT = WEB / "static" / "dashboard.js"
MINUTES = 390
WINDOW_HOURS = 0.1
SIZE = {"width": 1100, "height": 1000}


def labels() -> list[str]:
    """The texts that the page's templates and its charts always have."""
    found = set[str]()
    for template in TEMPLATES:
        text = re.sub(r"<style.*?</style>", "", template.read_text(encoding="utf-8"), flags=re.S)
        pieces = re.split(r"<[^>]*>|\{%.*?%\}|\{\{.*?\}\}", text, flags=re.S)
        found |= {piece.strip() for piece in pieces if re.search(r"[A-Za-z]{2}", piece)}
    script = SCRIPT.read_text(encoding="utf-8")
    found |= set(re.findall(r'label: "([a-z ]+)"', script))
    found |= set(re.findall(r'chart\(card, ["`]([a-z ]+)', script))
    return sorted(found)


async def make() -> None:
    """Run the demo for as long as the picture shows, and write the picture and its texts."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    async with local_system(load_trace(BUNDLED), MINUTES + 60) as system:
        system.seconds.start()
        await asyncio.sleep(MINUTES * SECONDS_PER_TRACE_MINUTE)
        async with async_playwright() as playwright:
            flags = ["--no-sandbox", "--disable-gpu"]
            browser = await playwright.chromium.launch(executable_path=chromium, args=flags)
            page = await browser.new_page(viewport=SIZE)  # type: ignore[arg-type]
            await page.goto(f"{system.page}&hours={WINDOW_HOURS}")
            await page.locator("canvas").nth(2).wait_for()
            await page.screenshot(path=PICTURE)
            shown = (await page.locator("body").inner_text()).splitlines()
            await browser.close()
    texts = {"labels": labels(), "shown": [line.strip() for line in shown if line.strip()]}
    TEXTS.write_text(f"{json.dumps(texts, indent=1, ensure_ascii=False)}\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(make())
