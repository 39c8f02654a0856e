"""Timers of several hosts of one app: which fires, when, and what a host that starts makes up."""

from __future__ import annotations

import asyncio
import json
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
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
from local.functions_host.waiting import stops_within
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

    @property
    def lease(self) -> Any:
        return self.listener._lock._lease

    async def start(self) -> None:
        self.others = asyncio.all_tasks()
        await self.listener.start()

    async def begin(self, *, runs: int) -> None:
        """Start, and wait until the host has the lock and has fired so often."""
        await self.start()
        await until(lambda: self.lease is not None and len(self.runs) >= runs, SECONDS_MAX)

    async def crash(self) -> Any:
        """End without releasing the lock, as a process that is killed. Returns the lease."""
        lease, self.listener._lock._lease = self.lease, None
        tasks = asyncio.all_tasks() - self.others
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return lease


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
    """The lock is released even while an invocation still runs."""
    first, second = new_host(), new_host()
    await first.begin(runs=1)
    await second.start()
    first.invoker.may_end.clear()
    await until(lambda: len(first.runs) >= 2, SECONDS_MAX)
    assert second.runs == []
    stopping = asyncio.create_task(first.listener.stop())
    await until(lambda: len(second.runs) >= 1, SECONDS_MAX)
    assert (stopping.done(), len(first.runs)) == (False, 2), "it never fires twice at once"
    first.invoker.may_end.set()
    await stopping
    assert first.lease is None, "the second host need not wait until the lease expires"


async def test_after_a_crash_the_timer_pauses_until_the_lease_has_expired(
    new_host: NewHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = new_host(), new_host()
    await first.begin(runs=1)
    lease = await first.crash()
    lock, tries = second.listener._lock, list[bool]()
    take = lock.take

    async def recorded() -> bool:
        tries.append(await take())
        return tries[-1]

    monkeypatch.setattr(lock, "take", recorded)
    await second.start()
    await until(lambda: len(tries) >= 3, SECONDS_MAX)
    assert (any(tries), second.runs) == (False, [])
    await lease.break_lease(lease_break_period=0)  # instead of the 15 s in which it expires
    await until(lambda: len(second.runs) >= 1, SECONDS_MAX)


async def test_a_host_that_lost_the_lock_stops_firing(
    new_host: NewHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sooner(stopping: asyncio.Event, seconds: float) -> bool:
        return await stops_within(stopping, min(seconds, RECOVERY_SECONDS))

    monkeypatch.setattr(listener_lock, "stops_within", sooner)
    first, second = new_host(), new_host()
    await first.begin(runs=1)
    await first.lease.break_lease(lease_break_period=0)
    await second.begin(runs=1)
    await until(lambda: first.lease is None, SECONDS_MAX)  # it tried to renew
    fired, others = len(first.runs), len(second.runs)
    await until(lambda: len(second.runs) >= others + 2, SECONDS_MAX)
    assert len(first.runs) == fired


async def test_the_nightly_run_survives_a_restart_at_02_29(new_host: NewHost) -> None:
    before = new_host(NIGHTLY, at(DUE - timedelta(minutes=1)))
    await before.begin(runs=0)
    await before.listener.stop()
    after = new_host(NIGHTLY, at(DUE + timedelta(minutes=3)))
    await after.begin(runs=1)
    await after.listener.stop()
    (run,) = after.runs
    assert run["IsPastDue"]
    assert datetime.fromisoformat(run["ScheduleStatus"]["Next"]) == DUE
    again = new_host(NIGHTLY, at(DUE + timedelta(minutes=4)))
    await again.begin(runs=0)
    await again.listener.stop()
    assert again.runs == []


async def test_a_run_that_a_crash_interrupts_is_repeated(new_host: NewHost) -> None:
    """The status is stored after the run."""
    before = new_host(NIGHTLY, at(DUE - timedelta(minutes=1)))
    await before.begin(runs=0)
    await before.listener.stop()
    interrupted = new_host(NIGHTLY, at(DUE + timedelta(minutes=1)))
    interrupted.invoker.may_end.clear()
    await interrupted.begin(runs=1)
    lease = await interrupted.crash()
    await lease.release()  # instead of waiting until it expires
    repeated = new_host(NIGHTLY, at(DUE + timedelta(minutes=2)))
    await repeated.begin(runs=1)
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


async def test_frozen_storage_does_not_end_the_host(
    new_host: NewHost, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(listener_lock, "REFUSED_SECONDS_MAX", 0.1)
    monkeypatch.setattr(host_blobs, "REQUEST_SECONDS_MAX", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as never_answers:
        port = never_answers.getsockname()[1]
        host = new_host(storage=connection_string({"blob": port, "queue": 9, "table": 9}))
        await host.start()
        await until(lambda: caplog.text.count("Timeout") >= 3, SECONDS_MAX)
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
