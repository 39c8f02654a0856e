"""Which log lines of an app arrive."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from local.functions_host import FunctionsHost
from local.functions_host.logs import arrives
from tests.local.polling import until

SAMPLE_APP = Path(__file__).parent / "sample_app"
SETTINGS = {
    "AzureWebJobsStorage": "UseDevelopmentStorage=true",
    "WorkQueue": "work",
    "OutputQueue": "out",
    "TickSchedule": "0 0 0 1 1 *",
}
SECONDS_MAX = 30.0


class Arriving(logging.Handler):
    """Records the texts of the lines that the real host would keep."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.addFilter(arrives)

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.fixture
def log() -> Iterator[Arriving]:
    handler = Arriving()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


async def test_lines_of_the_app_outside_an_invocation_do_not_arrive(log: Arriving) -> None:
    async with FunctionsHost(SAMPLE_APP, settings=SETTINGS, listeners={}) as host:
        journal = sys.modules["function_app"].journal
        async with aiohttp.ClientSession(host.url) as http:
            for path in ("/api/talk", "/api/talk-synchronously"):
                url = f"{path}?code={host.keys.host}"
                async with http.post(url, data="") as answer:
                    assert answer.status == 200
        await until(lambda: {"talked": True} in journal, SECONDS_MAX)
    said = [text for text in log.texts if text.startswith(("in ", "during", "after"))]
    assert said == ["in the invocation", "in a task", "in a synchronous function"]


def test_lines_of_the_host_itself_arrive(log: Arriving) -> None:
    logging.getLogger("functions_host").warning("in the host")
    logging.getLogger("shared").warning("in the app")
    assert log.texts == ["in the host"]
