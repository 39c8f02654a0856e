"""The timer trigger: fires at or after the due time, never concurrently, on one host only.

A host that starts fires at once if it missed occurrences of a schedule of a minute or longer: once,
with `past_due` set. All other runs have `past_due` unset, however late they are. After a run that
overlapped occurrences, one run follows at once.

Sources: `TimerListener` of the timers extension, `SingletonListener` of the WebJobs SDK.
"""

import asyncio
import json
import logging
from datetime import datetime
from typing import Any

from azure.core.exceptions import AzureError

from local.functions_host.connections import DEFAULT_CONNECTION as STORAGE
from local.functions_host.errors import HostStartFailed
from local.functions_host.functions import Function
from local.functions_host.listener_lock import ListenerLock, StorageRefused
from local.functions_host.logs import log_event
from local.functions_host.retries import invoke_with_retries
from local.functions_host.schedule import Schedule, parse_schedule
from local.functions_host.schedule_monitor import (
    ScheduleMonitor,
    ScheduleStatus,
    initial,
    is_monitored,
)
from local.functions_host.services import Services
from local.functions_host.waiting import stops_within
from local.functions_host.worker import Invocation, json_datum

# How soon the listener notices that the machine slept or that its clock was set.
_LONGEST_SLEEP_SECONDS = 30.0


class TimerListener:
    """Takes the lock of one timer and fires while this host holds it."""

    def __init__(self, services: Services, function: Function) -> None:
        connection = services.settings.connection(STORAGE, function=function.name)
        self._services = services
        self._function = function
        self._schedule = _schedule(function)
        name = f"Host.Functions.{function.name}"
        self._lock = ListenerLock(
            services.blobs,
            connection,
            f"locks/{services.host_id}/{name}.Listener",
            services.config.singleton.lock_seconds,
        )
        path = f"timers/{services.host_id}/{name}/status"
        self._monitor = ScheduleMonitor(services.blobs, connection, path)
        self._stopping = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to try for the lock."""
        self._loop = asyncio.create_task(self._run(), name=f"timer {self._function.name}")

    async def stop(self) -> None:
        """Stop firing, release the lock, and wait for a running invocation."""
        self._stopping.set()
        if self._loop is not None:
            await self._loop

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if await self._lock.take():
                    await self._listen()
                    continue
            except AzureError as error:
                _log(logging.WARNING, "timer_lock_failed", self._function, repr(error))
            except StorageRefused as error:
                self._services.end(str(error))
                return
            await stops_within(self._stopping, self._services.config.singleton.recovery_seconds)

    async def _listen(self) -> None:
        """Fire until the host stops or another host has the lock.

        As in the real host, the lock is released before a running invocation ends.
        """
        timer = TimerLoop(self._services, self._function, self._schedule, self._monitor)
        try:
            await timer.start()
            await self._lock.hold(self._stopping)
        finally:
            timer.request_stop()
            await self._lock.release()
            await timer.ended()


class TimerLoop:
    """Fires one timer on its schedule, while this host holds its lock."""

    def __init__(
        self,
        services: Services,
        function: Function,
        schedule: Schedule,
        monitor: ScheduleMonitor,
    ) -> None:
        self._services = services
        self._function = function
        self._schedule = schedule
        self._monitor = monitor if is_monitored(schedule, services.now()) else None
        self._stopping = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the stored status and start waiting. Raises AzureError."""
        now = self._services.now()
        stored = await self._monitor.read() if self._monitor else None
        first = initial(self._schedule, stored, now)
        if first.write:
            await self._write(first.status)
        self._loop = asyncio.create_task(self._run(first.status, past_due=first.past_due))

    def request_stop(self) -> None:
        """Fire no more."""
        self._stopping.set()

    async def ended(self) -> None:
        """Wait for a running invocation."""
        if self._loop is not None:
            await self._loop

    async def _run(self, status: ScheduleStatus, *, past_due: bool) -> None:
        if past_due or self._function.trigger.is_true("runOnStartup"):
            status = await self._fire(status, past_due=past_due, at_start=True)
        while not await self._stops_before(status.next):
            status = await self._fire(status)

    async def _stops_before(self, due: datetime) -> bool:
        while (remaining := (due - self._services.now()).total_seconds()) > 0:
            if await stops_within(self._stopping, min(remaining, _LONGEST_SLEEP_SECONDS)):
                return True
        return self._stopping.is_set()

    async def _fire(
        self, status: ScheduleStatus, *, past_due: bool = False, at_start: bool = False
    ) -> ScheduleStatus:
        """Run the function. The status is stored afterwards, so a crash repeats the run."""
        started = self._services.now()
        trigger = timer_datum(status if self._monitor else None, past_due=past_due)
        invocation = Invocation(self._function.trigger.name, trigger)
        await invoke_with_retries(
            self._services.invoker, self._function, invocation, self._stopping
        )
        fired = started if at_start else max(started, status.next)
        after = ScheduleStatus(fired, self._schedule.next_after(fired), fired)
        await self._write(after)
        return after

    async def _write(self, status: ScheduleStatus) -> None:
        """Store the status as far as possible, as the real host does."""
        if self._monitor is None:
            return
        try:
            await self._monitor.write(status)
        except AzureError as error:
            _log(logging.ERROR, "timer_status_failed", self._function, repr(error))


def timer_datum(status: ScheduleStatus | None, *, past_due: bool) -> Any:
    """The value of a timer trigger. Schedules of less than a minute have no status."""
    return json_datum(
        json.dumps(
            {
                "Schedule": {"AdjustForDST": True},
                "ScheduleStatus": None if status is None else status.as_json(),
                "IsPastDue": past_due,
            }
        )
    )


def _schedule(function: Function) -> Schedule:
    try:
        return parse_schedule(function.trigger.text("schedule"))
    except ValueError as error:
        raise HostStartFailed(f"function {function.name}: {error}") from error


def _log(level: int, action: str, function: Function, reason: str) -> None:
    log_event(level, action, f"{function.name}: {reason}", function=function.name)
