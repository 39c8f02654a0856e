"""Timers of several hosts of one app: which of them fires, and what a host that starts makes up."""

from __future__ import annotations

import asyncio
import json
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from local.azurite import Azurite, connection_string
from local.clock import utc_now
from local.functions_host import host_blobs, listener_lock
from local.functions_host.app_settings import AppSettings
from local.functions_host.functions import TIMER_TRIGGER, Binding, Function
from local.functions_host.host_blobs import HostBlobs
from local.functions_host.host_json import HostConfig, SingletonOptions
from local.functions_host.invoker import Invoker
from local.functions_host.keys import new_keys
from local.functions_host.schedule import parse_schedule
from local.functions_host.schedule_monitor import NEVER, ScheduleStatus, initial, is_monitored
from local.functions_host.services import HostOptions, Services
from local.functions_host.storage_queues import StorageQueues
from local.functions_host.timer_listener import TimerListener
from local.functions_host.worker import Invocation, Outcome
from tests.local.polling import until

SECONDS_MAX = 30.0
RECOVERY_SECONDS = 0.2
NIGHTLY = "0 30 2 * * *"
DUE = datetime(2026, 3, 1, 2, 30, tzinfo=UTC)
EACH_SECOND = "* * * * * *"


@dataclass
class RecordingInvoker:
    """Records what a timer passes to its function. A run takes until `may_end` is set."""

    runs: list[dict[str, Any]] = field(default_factory=list)
    may_end: asyncio.Event = field(default_factory=asyncio.Event)

    async def invoke(self, _function: Function, invocation: Invocation) -> Outcome:
        self.runs.append(json.loads(invocation.trigger.value))
        await self.may_end.wait()
        return Outcome(True)


@dataclass
class Host:
    """One host of the app, with the listener of its timer."""

    listener: TimerListener
    invoker: RecordingInvoker
    blobs: HostBlobs
    end_reasons: list[str]
    others: set[asyncio.Task[Any]] = field(default_factory=set)

    @property
    def runs(self) -> Sequence[dict[str, Any]]:
        return self.invoker.runs

    async def crash(self) -> None:
        """End without releasing the lock, as a process that is killed."""
        self.listener._lock._lease = None
        tasks = asyncio.all_tasks() - self.others
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def start(self) -> None:
        self.others = asyncio.all_tasks()
        await self.listener.start()


NewHost = Callable[..., Host]


@pytest.fixture
async def new_host(azurite: Azurite) -> AsyncIterator[NewHost]:
    """Makes hosts of one app. Each is stopped at the end."""
    hosts: list[Host] = []
    host_id = uuid.uuid4().hex

    def make(
        schedule: str = EACH_SECOND,
        now: Callable[[], datetime] = utc_now,
        storage: str = azurite.connection_string,
        **properties: Any,
    ) -> Host:
        blobs, invoker, reasons = HostBlobs(), RecordingInvoker(), list[str]()
        invoker.may_end.set()
        services = Services(
            AppSettings({"AzureWebJobsStorage": storage}),
            HostConfig(singleton=SingletonOptions(15, RECOVERY_SECONDS)),
            HostOptions(),
            cast(Invoker, invoker),
            StorageQueues(),
            new_keys(),
            blobs,
            host_id,
            now,
            reasons.append,
        )
        trigger = Binding(TIMER_TRIGGER, "timer", {"schedule": schedule, **properties})
        listener = TimerListener(services, Function("tick", "1", trigger, (), {}))
        hosts.append(Host(listener, invoker, blobs, reasons))
        return hosts[-1]

    yield make
    for host in hosts:
        host.invoker.may_end.set()
        if host.listener._loop is not None and not host.listener._loop.cancelled():
            await host.listener.stop()
        await host.blobs.close()


def at(instant: datetime) -> Callable[[], datetime]:
    return lambda: instant


async def test_of_two_hosts_one_fires_and_the_other_takes_over_after_its_stop(
    new_host: NewHost,
) -> None:
    first, second = new_host(), new_host()
    await first.start()
    await until(lambda: len(first.runs) >= 1, SECONDS_MAX)
    await second.start()
    await until(lambda: len(first.runs) >= 3, SECONDS_MAX)
    assert second.runs == []
    await first.listener.stop()
    fired = len(first.runs)
    await until(lambda: len(second.runs) >= 1, SECONDS_MAX)
    assert len(first.runs) == fired


async def test_after_a_crash_the_timer_pauses_until_the_lease_has_expired(
    new_host: NewHost,
) -> None:
    first, second = new_host(), new_host()
    before = utc_now()  # the lease of 15 seconds begins later
    await first.start()
    await until(lambda: len(first.runs) >= 1, SECONDS_MAX)
    await first.crash()
    await second.start()
    await until(lambda: len(second.runs) >= 1, SECONDS_MAX)
    assert utc_now() - before > timedelta(seconds=14)


async def test_a_host_that_lost_the_lock_stops_firing(
    new_host: NewHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = new_host(), new_host()
    await first.start()
    await until(lambda: len(first.runs) >= 1, SECONDS_MAX)
    lease = first.listener._lock._lease
    assert lease is not None
    await lease.break_lease(lease_break_period=0)
    await second.start()
    await until(lambda: len(second.runs) >= 1, SECONDS_MAX)
    await until(lambda: first.listener._lock._lease is None, SECONDS_MAX)  # it tried to renew
    fired, others = len(first.runs), len(second.runs)
    await until(lambda: len(second.runs) >= others + 2, SECONDS_MAX)
    assert len(first.runs) == fired


async def test_the_lock_is_released_while_an_invocation_still_runs(new_host: NewHost) -> None:
    first, second = new_host(), new_host()
    first.invoker.may_end.clear()
    await first.start()
    await until(lambda: len(first.runs) == 1, SECONDS_MAX)
    stopping = asyncio.create_task(first.listener.stop())
    await second.start()
    await until(lambda: len(second.runs) >= 1, SECONDS_MAX)
    assert not stopping.done()
    first.invoker.may_end.set()
    await stopping


async def test_the_nightly_run_survives_a_restart_at_02_29(new_host: NewHost) -> None:
    before = new_host(NIGHTLY, at(DUE - timedelta(minutes=1)))
    await before.start()
    await until(lambda: before.listener._lock._lease is not None, SECONDS_MAX)
    await before.listener.stop()
    after = new_host(NIGHTLY, at(DUE + timedelta(minutes=3)))
    await after.start()
    await until(lambda: len(after.runs) == 1, SECONDS_MAX)
    await after.listener.stop()
    (run,) = after.runs
    assert run["IsPastDue"]
    assert datetime.fromisoformat(run["ScheduleStatus"]["Next"]) == DUE
    again = new_host(NIGHTLY, at(DUE + timedelta(minutes=4)))
    await again.start()
    await until(lambda: again.listener._lock._lease is not None, SECONDS_MAX)
    await again.listener.stop()
    assert again.runs == []


async def test_a_run_that_a_crash_interrupts_is_repeated(new_host: NewHost) -> None:
    """The status is stored after the run."""
    before = new_host(NIGHTLY, at(DUE - timedelta(minutes=1)))
    await before.start()
    await until(lambda: before.listener._lock._lease is not None, SECONDS_MAX)
    await before.listener.stop()
    interrupted = new_host(NIGHTLY, at(DUE + timedelta(minutes=1)))
    interrupted.invoker.may_end.clear()
    await interrupted.start()
    await until(lambda: len(interrupted.runs) == 1, SECONDS_MAX)
    lease = interrupted.listener._lock._lease
    await interrupted.crash()
    assert lease is not None
    await lease.release()  # instead of waiting until it expires
    repeated = new_host(NIGHTLY, at(DUE + timedelta(minutes=2)))
    await repeated.start()
    await until(lambda: len(repeated.runs) == 1, SECONDS_MAX)
    assert repeated.runs[0]["IsPastDue"]


async def test_storage_that_refuses_connections_for_too_long_ends_the_host(
    new_host: NewHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_lock, "REFUSED_SECONDS_MAX", 0.5)
    closed = connection_string({"blob": 9, "queue": 9, "table": 9})
    host = new_host(storage=closed)
    await host.start()
    await until(lambda: len(host.end_reasons) == 1, SECONDS_MAX)
    assert "storage has refused connections for 0.5 s" in host.end_reasons[0]
    assert host.runs == []


@contextmanager
def frozen_port(*, backlog_full: bool) -> Iterator[int]:
    """A port at which nothing answers. If its backlog is full, it does not even take connections,
    as after some time in a process that is stopped.
    """
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0 if backlog_full else 100)
        for _ in range(2 if backlog_full else 0):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield server.getsockname()[1]


@pytest.mark.parametrize("backlog_full", [False, True])
async def test_frozen_storage_does_not_end_the_host(
    new_host: NewHost, monkeypatch: pytest.MonkeyPatch, caplog: Any, *, backlog_full: bool
) -> None:
    monkeypatch.setattr(listener_lock, "REFUSED_SECONDS_MAX", 0.1)
    monkeypatch.setattr(host_blobs, "REQUEST_SECONDS_MAX", 0.1)
    with frozen_port(backlog_full=backlog_full) as port:
        host = new_host(storage=connection_string({"blob": port, "queue": 9, "table": 9}))
        await host.start()
        await until(lambda: caplog.text.count("Timeout") >= 5, SECONDS_MAX)
        assert host.end_reasons == []
        await host.listener.stop()


STORED = ScheduleStatus(NEVER, DUE, DUE - timedelta(hours=1))


@pytest.mark.parametrize(
    ("stored", "now", "past_due", "due"),
    [
        (None, DUE - timedelta(hours=1), False, DUE),
        (STORED, DUE - timedelta(minutes=1), False, DUE),
        (STORED, DUE, False, DUE),
        (STORED, DUE + timedelta(days=3), True, DUE),  # three missed nights are one run
        # The schedule was 03:30 before: what it would have missed is not made up.
        (
            ScheduleStatus(NEVER, DUE + timedelta(hours=1), DUE - timedelta(hours=1)),
            DUE + timedelta(hours=2),
            False,
            DUE + timedelta(days=1),
        ),
    ],
)
def test_a_host_that_starts_compares_the_stored_occurrence_with_the_time(
    stored: ScheduleStatus | None, now: datetime, past_due: bool, due: datetime
) -> None:
    first = initial(parse_schedule(NIGHTLY), stored, now)
    assert (first.past_due, first.status.next) == (past_due, due)


@pytest.mark.parametrize(
    ("schedule", "monitored"),
    [
        (NIGHTLY, True),
        ("0 * * * * *", True),
        ("00:01:00", True),
        ("*/30 * * * * *", False),
        ("00:00:59", False),
        ("0,30 0 3 * * *", False),  # twice within a minute, each night
    ],
)
def test_schedules_of_less_than_a_minute_are_not_stored(schedule: str, monitored: bool) -> None:
    assert is_monitored(parse_schedule(schedule), DUE) is monitored
