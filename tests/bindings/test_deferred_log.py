"""What is logged while no invocation runs is dropped by the host, so it is said in the next one."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest
from azure_functions_runtime import invocation_id_cv

from local.demo.system import APP_DIR
from local.functions_host.worker import Invocation, Worker, text_datum
from shared.adapters.azure.deferred_log import WAITING_MAX, LogLine, lines
from shared.adapters.azure.telemetry import export
from tests.bindings.test_doors import EVERYTHING, HTTP, OTHERS
from tests.builders import resource


class Log(logging.Handler):
    """Each line of this app with the invocation that it was written in, as the host files it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str | None]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.getMessage(), invocation_id_cv.get()))

    def of(self, action: str) -> list[tuple[str, str | None]]:
        return [line for line in self.lines if line[0].startswith(f"[{action}]")]


@pytest.fixture
def log() -> Iterator[Log]:
    handler = Log()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


class App:
    """The app in the official worker library."""

    def __init__(self, worker: Worker, ids: Mapping[str, str]) -> None:
        self._worker = worker
        self._ids = ids

    async def invoke(self, name: str, trigger: str, value: Any) -> str:
        """The invocation's id."""
        invocation = Invocation(trigger, value)
        answer = await self._worker.call(self._ids[name], invocation)
        assert answer.succeeded, answer.error
        return invocation.id

    async def telemetry_poison(self) -> str:
        """The function that needs nothing but its message."""
        return await self.invoke("telemetry_poison", "message", text_datum("nonsense"))


@pytest.fixture
async def app(monkeypatch: pytest.MonkeyPatch, log: Log) -> AsyncIterator[App]:
    monkeypatch.setattr("scaling_rules.resources", lambda _settings: [resource()])
    for key, value in (EVERYTHING | {"QueueAgeLmit": "3"}).items():
        monkeypatch.setenv(key, value)
    worker = Worker(APP_DIR)
    try:
        ids = {each.name: each.function_id for each in await worker.load()}
        async with sys.modules["function_app"].app:
            yield App(worker, ids)
    finally:
        worker.close()


async def test_an_unknown_setting_is_told_once_in_an_invocation(app: App, log: Log) -> None:
    first = await app.telemetry_poison()
    await app.telemetry_poison()
    ((text, told_in),) = log.of("setting_unknown")
    assert "QueueAgeLmit" in text
    assert told_in == first


async def test_a_failure_in_a_thread_is_told_in_the_next_invocation(app: App, log: Log) -> None:
    await app.telemetry_poison()
    export("nonsense").join()
    assert log.of("telemetry_failed") == []
    second = await app.telemetry_poison()
    ((_, told_in),) = log.of("telemetry_failed")
    assert told_in == second


def test_outside_functions_a_line_is_told_at_once(log: Log) -> None:
    export("nonsense").join()
    assert len(log.of("telemetry_failed")) == 1


async def test_whichever_function_runs_first_tells_what_waits(app: App, log: Log) -> None:
    module = sys.modules["function_app"]
    for name in [*HTTP, *OTHERS]:
        lines.write(LogLine(logging.getLogger("shared"), logging.WARNING, name, "waits"))
        with suppress(TypeError):  # it is given nothing of what it takes
            await getattr(module, name)()
        assert len(log.of(name)) == 1, name


def test_lines_that_wait_are_bounded_and_end_with_the_newest(log: Log) -> None:
    lines.hold()
    for n in range(WAITING_MAX + 1):
        lines.write(LogLine(logging.getLogger("shared"), logging.WARNING, "tried", str(n)))
    assert log.lines == []
    lines.release()
    told = [text for text, _ in log.of("tried")]
    assert (len(told), told[0], told[-1]) == (WAITING_MAX, "[tried] 1", f"[tried] {WAITING_MAX}")
