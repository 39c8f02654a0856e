"""Lines that are written while no invocation runs are logged in the next invocation.

The host would drop them otherwise.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest
from azure_functions_runtime import invocation_id_cv

from local.demo.system import APP_DIR
from local.functions_host.logs import arrives
from local.functions_host.worker import Invocation, Worker, text_datum
from local.twins.autoscaling import MemoryStateStore
from shared.autoscaling.policy import Observation, Recommendation
from shared.azure.invocation import LINES_WAITING_MAX, lines
from shared.azure.telemetry import AZURE, export
from shared.values.measurements import CAPACITY_METRIC
from tests.bindings.test_functions_and_keys import EVERYTHING, HTTP, OTHERS
from tests.builders import NOW, encode_metric, metric, resource

WRONG = {AZURE: "nonsense"}


class Log(logging.Handler):
    """Records each line of the app with the id of its invocation, as the host does."""

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
        """Invoke a function. Returns the invocation's id."""
        invocation = Invocation(trigger, value)
        answer = await self._worker.call(self._ids[name], invocation)
        assert answer.succeeded, answer.error
        return invocation.id

    async def telemetry_poison(self) -> str:
        """Invoke a function that needs nothing except its message."""
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


async def test_an_unknown_setting_is_logged_once_in_an_invocation(app: App, log: Log) -> None:
    first = await app.telemetry_poison()
    await app.telemetry_poison()
    ((text, invocation),) = log.of("setting_unknown")
    assert "QueueAgeLmit" in text
    assert invocation == first


async def test_a_failure_in_a_thread_is_logged_in_the_next_invocation(app: App, log: Log) -> None:
    await app.telemetry_poison()
    export(WRONG).join()
    assert log.of("telemetry_failed") == []
    second = await app.telemetry_poison()
    ((_, invocation),) = log.of("telemetry_failed")
    assert invocation == second


async def test_what_a_policy_logs_in_its_thread_arrives_in_its_invocation(
    app: App, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def talking(seen: Observation) -> Recommendation:
        logging.getLogger("rules").warning("[rules] at %d", seen.capacity)
        return Recommendation(seen.capacity, "enough")

    log.addFilter(arrives)
    function_app = sys.modules["function_app"]
    monkeypatch.setattr(function_app, "declared", {"plan-1": resource(policy=talking)})
    function_app.app.scaling.store = MemoryStateStore(lambda: NOW)
    for name, value in ((CAPACITY_METRIC, 2), ("backlog", 5)):
        body = text_datum(encode_metric(metric(value, name=name)))
        invocation = await app.invoke("scaling_logic", "message", body)
    assert log.of("rules") == [("[rules] at 2", invocation)]


def test_outside_of_functions_a_line_is_logged_at_once(log: Log) -> None:
    export(WRONG).join()
    assert len(log.of("telemetry_failed")) == 1


async def test_the_first_function_that_runs_logs_the_waiting_lines(app: App, log: Log) -> None:
    module = sys.modules["function_app"]
    for name in [*HTTP, *OTHERS]:
        lines.warn(logging.getLogger("shared"), name, "waits")
        with suppress(TypeError):  # it is called without its arguments
            await getattr(module, name)()
        assert len(log.of(name)) == 1, name


def test_only_the_newest_waiting_lines_are_kept(log: Log) -> None:
    lines.hold()
    for n in range(LINES_WAITING_MAX + 1):
        lines.warn(logging.getLogger("shared"), "tried", str(n))
    assert log.lines == []
    lines.release()
    texts = [text for text, _ in log.of("tried")]
    assert (len(texts), texts[0], texts[-1]) == (
        LINES_WAITING_MAX,
        "[tried] 1",
        f"[tried] {LINES_WAITING_MAX}",
    )
