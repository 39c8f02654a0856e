"""The timer trigger: at or after the due instant, never twice at once, nothing replayed."""

import asyncio
import json
from datetime import datetime
from typing import Any

from local.functions_host.errors import HostStartFailed
from local.functions_host.functions import Function
from local.functions_host.retries import invoke_with_retries
from local.functions_host.schedule import Schedule, is_past_due, parse_schedule
from local.functions_host.services import Services, stops_within
from local.functions_host.worker import Invocation, json_datum

# A machine that slept, or whose clock was set, is noticed within this time.
_LONGEST_SLEEP_SECONDS = 30.0
_NEVER = "0001-01-01T00:00:00+00:00"


class TimerListener:
    """Runs one function on its schedule."""

    def __init__(self, services: Services, function: Function) -> None:
        self._services = services
        self._function = function
        self._schedule = _schedule(function)
        self._last: datetime | None = None
        self._stopping = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to wait for the next occurrence."""
        self._loop = asyncio.create_task(self._run(), name=f"timer {self._function.name}")

    async def stop(self) -> None:
        """Fire no more and wait for the run under way."""
        self._stopping.set()
        if self._loop is not None:
            await self._loop

    async def _run(self) -> None:
        started = self._services.now()
        due = self._schedule.next_after(started)
        if self._function.trigger.properties.get("runOnStartup"):
            await self._fire(due, started, past_due=False)
        while not await self._stops_before(due):
            started = self._services.now()
            await self._fire(due, started, past_due=is_past_due(due, started))
            # From the start of the run: one that overran its next occurrence is followed by one
            # late run, and the further occurrences that it missed are gone.
            due = self._schedule.next_after(started)

    async def _stops_before(self, due: datetime) -> bool:
        while (remaining := (due - self._services.now()).total_seconds()) > 0:
            if await stops_within(self._stopping, min(remaining, _LONGEST_SLEEP_SECONDS)):
                return True
        return self._stopping.is_set()

    async def _fire(self, due: datetime, started: datetime, *, past_due: bool) -> None:
        last, self._last = self._last, started
        trigger = timer_datum(last=last, due=due, past_due=past_due)
        invocation = Invocation(self._function.trigger.name, trigger)
        await invoke_with_retries(
            self._services.invoker, self._function, invocation, self._stopping
        )


def timer_datum(*, last: datetime | None, due: datetime, past_due: bool) -> Any:
    """A timer trigger's value, in the shape that the host sends."""
    previous = _NEVER if last is None else last.isoformat()
    status = {"Last": previous, "Next": due.isoformat(), "LastUpdated": previous}
    return json_datum(
        json.dumps(
            {
                "Schedule": {"AdjustForDST": True},
                "ScheduleStatus": status,
                "IsPastDue": past_due,
            }
        )
    )


def _schedule(function: Function) -> Schedule:
    try:
        return parse_schedule(function.trigger.text("schedule"))
    except ValueError as error:
        raise HostStartFailed(f"function {function.name}: {error}") from error
