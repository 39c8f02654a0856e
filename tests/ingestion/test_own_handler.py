"""A custom handler with its own tables, which are written in the transaction of the events.

The tests compare the totals of the example with the checkpoint: through the trigger, with faults at
the commits, and through processes of ``run --handler``, one of which is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import Column, MetaData, String, Table, delete, func, select
from sqlalchemy.exc import OperationalError

from examples.device_totals import add_totals, handle, handling, own, totals
from local.twins.event_hub import MemoryHubReader
from shared import settings
from shared.cli.command import DONE
from shared.cli.main import main
from shared.ingestion.errors import BadEvent, IngestionError
from shared.ingestion.events.handling import Handling
from shared.ingestion.model import Effect, Event, Stream
from shared.ingestion.store.events import StoredDeadLetter
from shared.ingestion.store.sql_engine import Sql
from shared.ingestion.store.sql_schema import checkpoints
from shared.settings import SettingsError
from shared.wiring import checks as wiring_checks
from shared.wiring.app import App as Parts
from shared.wiring.ingestion import IngestionParts
from tests.bindings.test_ingestion_functions import ENVIRON, batch, imported
from tests.builders import resource
from tests.emulators.rig import Hub, an_empty_hub
from tests.ingestion.test_runner import NO_STORAGE
from tests.local.polling import POLL_SECONDS
from tests.settings.test_settings import SINGLE

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 120
NAME = "examples.device_totals:handling"


def readings(count: int) -> list[Event]:
    now = datetime.now(UTC)
    return [
        Event(n, str(n), now, json.dumps({"device": f"d-{n % 5}", "units": n}).encode())
        for n in range(count)
    ]


async def read_totals(sql: Sql) -> dict[str, tuple[int, int]]:
    """The numbers of events and units, by device."""
    rows = await sql.read(lambda c: c.execute(select(totals)).all())
    return {row.device: (row.events, row.units) for row in rows}


def exact(events: Sequence[Event]) -> dict[str, tuple[int, int]]:
    totals_by_device: dict[str, tuple[int, int]] = {}
    for event in events:
        reading = json.loads(event.body)
        count, units = totals_by_device.get(reading["device"], (0, 0))
        totals_by_device[reading["device"]] = (count + 1, units + reading["units"])
    return totals_by_device


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/totals.db"
    return str(request.getfixturevalue("postgres_url"))


# --- through the trigger ----------------------------------------------------------------------


class Died(BaseException):
    """The end of the process."""


class App:
    """function_app with the example as its handler, and a database whose commits may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
        self.hub_name = f"devices-{uuid.uuid4().hex[:8]}"
        monkeypatch.setattr("scaling_rules.resources", lambda _settings: [resource()])
        environ = {"EventHubName": self.hub_name, "IngestionDatabaseUrl": url}
        environ |= {"IngestionHandler": NAME, "BreakerFailures": "0", "EffectsKeptDays": "0"}
        self.module: ModuleType = imported(monkeypatch, {**ENVIRON, **environ})
        self.hub = MemoryHubReader(ids=("3",))
        self.parts.hub = self.hub
        self.events = readings(300)
        self.hub.add(self.stream, *self.events)
        self.random, self.struck, self.active = random.Random(0), Counter[str](), False
        dialect = self.parts.database.engine.dialect
        commit = dialect.do_commit

        def do_commit(connection: Any) -> None:
            self.strike("death before the commit", Died())
            commit(connection)
            self.strike("death after the commit", Died())
            self.strike("lost reply", OperationalError("COMMIT", None, ConnectionError("lost")))

        dialect.do_commit = do_commit  # type: ignore[method-assign, assignment]

    @property
    def parts(self) -> IngestionParts:
        parts: IngestionParts = self.module.app.ingestion
        return parts

    @property
    def stream(self) -> Stream:
        return Stream("shop.servicebus.windows.net", self.hub_name, "$Default", "3")

    def add_totals(self, connection: Any, stream: Stream, effects: Sequence[Effect]) -> None:
        add_totals(connection, stream, effects)
        self.strike("death among the totals", Died())
        self.strike("bug among the totals", ZeroDivisionError("a bug"))

    def strike(self, name: str, error: BaseException) -> None:
        if self.active and self.random.random() < 0.12:
            self.struck[name] += 1
            raise error

    async def deliver(self, first: int, end: int) -> None:
        bodies = [event.body for event in self.events[first:end]]
        await self.module.metric_ingest(batch(*bodies, first=first))

    async def checkpoint(self) -> int:
        checkpoint = (await self.parts.store.load(self.stream)).checkpoint
        return checkpoint.sequence if checkpoint else -1

    async def dead_letter(self) -> StoredDeadLetter:
        (stored,) = await self.parts.store.dead_letters(self.stream, None, 9)
        return stored


@pytest.fixture
async def app(monkeypatch: pytest.MonkeyPatch, url: str) -> AsyncIterator[App]:
    app = App(monkeypatch, url)
    await app.parts.database.write(lambda c: c.execute(delete(totals)))
    yield app
    await app.module.app.close()
    sys.modules.pop("function_app", None)


async def test_the_trigger_commits_totals_and_checkpoint_together_or_not_at_all(
    app: App,
) -> None:
    app.parts.handling = Handling(lambda _s: handle, app.add_totals, own)
    position = 0
    for _ in range(60):
        app.active = True
        with suppress(Died, IngestionError, OperationalError, ZeroDivisionError):
            await app.deliver(position, position + 20)
        app.active = False
        accounted_for = app.events[: await app.checkpoint() + 1]
        assert await read_totals(app.parts.database) == exact(accounted_for)
        if app.random.random() < 0.5:  # as another process, without any state in memory
            app.parts.pipelines.clear()
        position = min(max(position + app.random.randint(-10, 30), 0), 280)
    assert len(app.struck) == 5, app.struck
    await app.deliver(280, 300)  # skipped events are read back
    assert await app.checkpoint() == 299
    assert await read_totals(app.parts.database) == exact(app.events)


async def test_a_redriven_dead_letter_counts_once(app: App) -> None:
    app.events[1] = app.events[1].__class__(1, "1", app.events[1].enqueued_at, b"not json")
    await app.deliver(0, 3)
    assert await read_totals(app.parts.database) == exact([app.events[0], app.events[2]])
    app.hub.events[app.stream].clear()
    stored = await app.dead_letter()
    outcome = await app.parts.redriver.redrive([stored])
    assert "JSONDecodeError" in outcome.failed[0][1], "the error of the custom handler"
    effect = await handle(readings(2)[1])
    await app.parts.store.redrive(stored, effect)
    with pytest.raises(IngestionError):
        await app.parts.store.redrive(stored, effect)
    assert (await read_totals(app.parts.database))["d-1"] == (1, 1)


async def test_a_dead_letter_that_fails_again_reveals_no_secret(app: App) -> None:
    async def handle(_event: Event) -> Effect:
        raise BadEvent("https://api.example.com/?sig=c2VjcmV0LW9mLW1pbmU%3D refused")

    app.parts.handling = Handling(lambda _stream: handle)
    await app.deliver(0, 1)
    stored = await app.dead_letter()
    outcome = await app.parts.redriver.redrive([stored])
    for text in (stored.letter.error, outcome.failed[0][1]):
        assert text == "https://api.example.com/?sig=*** refused"


# --- through run --handler --------------------------------------------------------------------


class Processes:
    """Processes of ``run --handler``, and a hub."""

    def __init__(self, hub: Hub, url: str, log: Path) -> None:
        self.hub = hub
        self.environ = {
            **SINGLE,
            **hub.settings,
            "AzureWebJobsStorage": NO_STORAGE,
            "IngestionDatabaseUrl": url,
            "OwnershipRenewSeconds": "0.5",
            "OwnershipExpireSeconds": "3",
            "BalancingSeconds": "0.2",
        }
        self.sql = Sql(url, own)
        self.log = log
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "shared", "run", "--handler", NAME]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command, env={**os.environ, **self.environ}, cwd=ROOT, stderr=log
            )
        self.running.append(process)
        return process

    async def send(self, count: int) -> None:
        await self.hub.send(*[event.body for event in readings(count)])

    async def total(self) -> int:
        query = select(func.coalesce(func.sum(totals.c.events), 0))
        return int(await self.sql.read(lambda c: c.execute(query).scalar_one()))

    async def counted(self, count: int) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while await self.total() < count:
                assert self.running[-1].poll() is None, self.log.read_text()
                await asyncio.sleep(POLL_SECONDS)

    async def checkpoint(self) -> int:
        query = select(checkpoints.c.sequence).where(checkpoints.c.hub == self.hub.connection.hub)
        query = query.where(~checkpoints.c.consumer_group.contains("~"))
        return int(await self.sql.read(lambda c: c.execute(query).scalar_one()))


@pytest.fixture
async def processes(url: str, tmp_path: Path) -> AsyncIterator[Processes]:
    async with an_empty_hub() as hub:
        processes = Processes(hub, url, tmp_path / "run.log")
        await processes.sql.write(lambda c: c.execute(delete(totals)))
        yield processes
        for process in processes.running:
            process.kill()
            process.wait()
        await processes.sql.close()


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_the_totals_of_run_with_a_handler_are_exact_even_if_a_process_is_killed(
    processes: Processes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    count, killed = 1000, processes.start()
    await processes.send(count)
    await processes.counted(1)
    killed.kill()  # while it processes events
    killed.wait()
    last = processes.start()
    await processes.counted(count)
    assert await read_totals(processes.sql) == exact(readings(count))
    assert await processes.checkpoint() == count - 1
    last.terminate()
    assert await asyncio.to_thread(last.wait, SECONDS_MAX) == 0
    for name, value in {**processes.environ, "IngestionHandler": NAME}.items():
        monkeypatch.setenv(name, value)
    replay = ["replay", "0", "--into", "look", "--from-sequence", "0"]
    assert await asyncio.to_thread(main, replay) == DONE, capsys.readouterr().err
    assert f"{count} effects" in capsys.readouterr().out
    assert await read_totals(processes.sql) == exact(readings(count)), "a replay changes no totals"


# --- handlers that are refused at start -------------------------------------------------------

SOUND = Handling(lambda _stream: handle)
NO_FUNCTION = Handling(lambda _stream: handle, write_in_transaction="add")  # type: ignore[arg-type]
NO_TABLES = Handling(lambda _stream: handle, add_totals, ["DeviceTotal"])
CLASHING = Handling(lambda _stream: handle, tables=MetaData())
Table("eventhubdeadletter", CLASHING.tables, Column("id", String(9), primary_key=True))
NUMBER = 5
HERE = __name__


@pytest.mark.parametrize(
    ("name", "database", "message"),
    [
        ("nonsense", "", "must be a name such as my_events:handling"),
        ("nowhere.at_all:x", "", "ModuleNotFoundError: No module named 'nowhere'"),
        (f"{HERE}:nothing", "", "AttributeError: "),
        (f"{HERE}:NUMBER", "", "it is a int; it must be a Handling, or a function that takes"),
        (
            f"{HERE}:NO_FUNCTION",
            "sqlite://",
            "write_in_transaction is a str; it must be a function",
        ),
        (f"{HERE}:NO_TABLES", "sqlite://", "tables is a list; it must be a MetaData of SQLAlchemy"),
        (NAME, "", "its tables need a database transaction: set IngestionDatabaseUrl"),
        (f"{HERE}:CLASHING", "sqlite://", "the app has a table eventhubdeadletter of its own"),
    ],
)
def test_a_handler_that_cannot_be_used_stops_the_app_at_start(
    name: str, database: str, message: str
) -> None:
    environ = {**ENVIRON, "IngestionHandler": name, "IngestionDatabaseUrl": database}
    with pytest.raises(SettingsError) as refused:
        _ = Parts(environ).settings
    (problem,) = [each for each in refused.value.problems if "IngestionHandler" in each]
    assert problem.startswith(f"IngestionHandler = {name!r}: ")
    assert message in problem


def test_a_module_that_ends_the_process_is_named_with_its_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaving_events.py").write_text("raise SystemExit('no database')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingsError) as refused:
        _ = Parts({**ENVIRON, "IngestionHandler": "leaving_events:handler"}).settings
    told = "IngestionHandler = 'leaving_events:handler': SystemExit: no database"
    assert told in refused.value.problems


def test_a_handler_without_tables_needs_no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in {**ENVIRON, "IngestionHandler": f"{HERE}:SOUND"}.items():
        monkeypatch.setenv(key, value)
    loaded = settings.load()
    assert wiring_checks.handling(loaded) is SOUND
    assert handling.needs_database
