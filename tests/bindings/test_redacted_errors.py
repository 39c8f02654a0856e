"""Errors of functions and handlers contain no secrets when the host prints them or the app stores
them."""

from __future__ import annotations

import sys

import pytest

from local.demo.system import APP_DIR
from local.functions_host.worker import Invocation, Worker, text_datum
from local.twins.autoscaling import MemoryStateStore
from shared.autoscaling.deciding.decide import LogEntry
from shared.ingestion.errors import BadEvent
from shared.ingestion.model import Effect, Event
from tests.bindings.test_ingestion_functions import ENVIRON, STREAM, App, app, batch, own
from tests.builders import NOW, resource

__all__ = ["app"]

SECRET = "hunter2hunter2"


async def test_a_dead_letter_does_not_keep_a_secret_of_the_handler(app: App) -> None:
    async def handle(event: Event) -> Effect:
        raise BadEvent(f"postgresql://app:{SECRET}@db.example refused it")

    app.parts.handler_of = lambda _stream: handle
    await app.deliver(*batch(own(5)))
    (letter,) = app.store.rows[STREAM].dead_letters.values()
    assert letter.error == "postgresql://app:***@db.example refused it"


async def test_the_breaker_does_not_keep_a_secret_of_the_handler(app: App) -> None:
    async def handle(event: Event) -> Effect:
        raise ConnectionError(f"postgresql://app:{SECRET}@db.example does not answer")

    app.parts.handler_of = lambda _stream: handle
    with pytest.raises(Exception, match="does not answer"):
        await app.deliver(*batch(own(5)))
    status = await app.ask("breaker_status")
    assert b"db.example does not answer" in status.get_body()
    assert SECRET.encode() not in status.get_body()


async def test_the_host_prints_no_secret_of_an_error_or_of_its_causes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Store(MemoryStateStore):
        async def record(self, _entry: LogEntry) -> None:
            try:
                raise OSError(f"https://account.table.core.windows.net/?sig={SECRET}")
            except OSError as error:
                raise ValueError(f"Authorization: Bearer {SECRET}") from error

    monkeypatch.setattr("scaling_rules.resources", lambda _settings: [resource()])
    for key, value in ENVIRON.items():
        monkeypatch.setenv(key, value)
    worker = Worker(APP_DIR)
    try:
        functions = {each.name: each.function_id for each in await worker.load()}
        sys.modules["function_app"].app.scaling.store = Store(lambda: NOW)
        invocation = Invocation("message", text_datum("{}"))
        answer = await worker.call(functions["metrics_poison"], invocation)
    finally:
        worker.close()
    assert "Bearer ***" not in answer.error, "the whole header is redacted"
    assert "ValueError" in answer.error
    assert "direct cause" in answer.traceback
    printed = f"{answer.error} {answer.traceback} {caplog.text}"
    assert SECRET not in printed
