"""Carries out the script at a place, and returns all that was seen."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from backtest.safety import Safety
from local.prove.checks import Events, Messages, Seen
from local.prove.load import READING_MINUTES, Load, loading
from local.prove.places import AzFailed, Place
from local.prove.script import BY_HAND, Fault, Script
from local.prove.watch import ENTRIES_MAX, Watch
from shared.autoscaling.flows.poison import UNATTRIBUTED
from shared.ingestion.operating.stream_account import stream_accounts
from shared.wiring.app import App

log = logging.getLogger(__name__)

SEND_SECONDS, SETTLE_SECONDS = 1.0, 120.0
Told = Callable[[str], None]
T = TypeVar("T")


class NotReady(Exception):
    """The app, or a right of the user, is missing."""


@dataclass(slots=True)
class Clock:
    """Minutes of the script since ``start``; 0 before it."""

    speed: float
    began: float | None = None

    def __call__(self) -> float:
        return 0.0 if self.began is None else (time.monotonic() - self.began) / 60 * self.speed

    async def until(self, minute: float) -> None:
        await asyncio.sleep(max(minute - self(), 0) * 60 / self.speed)


async def prove(place: Place, app: App, script: Script, told: Told) -> Seen:
    """Run the script to its end. Whatever happens, the role of the app is returned."""
    (resource,) = app.resources.values()
    clock = Clock(place.speed)
    async with loading(app, script, clock) as load:
        safety = Safety(resource, app.scaling.timing)
        watch = Watch(app, resource, place, load, clock, safety)
        told("Waiting for the app, and for the right to send and to receive")
        for opens in (load.left, load.open_sender, partial(_decided, watch)):
            await _succeeds(opens, place.ready_seconds)
        began, clock.began = datetime.now(UTC), time.monotonic()
        try:
            reading_seconds = READING_MINUTES * 60 / place.speed
            await _beside(
                _faults(place, watch, load, clock, told),
                watch.run(place.look_seconds),
                _repeated(SEND_SECONDS, load.work),
                _repeated(SEND_SECONDS, load.send),
                _repeated(reading_seconds, lambda: load.report(resource.name)),
            )
        finally:
            await place.return_role()
            await place.relent()
        told("Comparing what was sent with what the app has accounted for")
        return await _seen(place, watch, load, began, told)


async def _decided(watch: Watch) -> None:
    if (await watch.app.scaling.store.load(watch.resource.name)).decided is None:
        raise LookupError("the app has not decided yet")


async def _succeeds(act: Callable[[], Awaitable[object]], seconds_max: float) -> None:
    """Try until it succeeds: a new role takes minutes to work. Raises NotReady."""
    error: Exception | None = None
    try:
        async with asyncio.timeout(seconds_max):
            while True:
                try:
                    await act()
                    return
                except Exception as failed:
                    error = failed
                await asyncio.sleep(1)
    except TimeoutError:
        raise NotReady(f"not ready after {seconds_max / 60:g} min: {error}") from error


async def _beside(main: Coroutine[Any, Any, None], *background: Coroutine[Any, Any, None]) -> None:
    """Run the others until ``main`` has ended. A client may swallow a cancellation, so they are
    cancelled until they end."""
    tasks = {asyncio.create_task(each) for each in background}
    try:
        await main
    finally:
        while tasks:
            for task in tasks:
                task.cancel()
            _, tasks = await asyncio.wait(tasks, timeout=1)


async def _repeated(seconds: float, act: Callable[[], Awaitable[None]]) -> None:
    """Act again and again. An outage that the proof provokes does not end it."""
    while True:
        try:
            await act()
        except Exception as error:
            log.warning("[load_failed] %s: %s", type(error).__name__, error)
        await asyncio.sleep(seconds)


async def _faults(place: Place, watch: Watch, load: Load, clock: Clock, told: Told) -> None:
    """Begin and end each fault in its minute."""
    moments = [(s.start, s.fault, True) for s in load.script.faults]
    moments += [(s.end, s.fault, False) for s in load.script.faults]
    for minute, fault, begins in sorted(moments, key=lambda each: (each[0], not each[2])):
        await clock.until(minute)
        told(f"minute {minute:g}: {fault}" if begins else f"minute {minute:g}: over: {fault}")
        try:
            await (_begin if begins else _end)(fault, place, watch, load)
        except Exception as error:  # its check then fails, and the others are still worth having
            told(f"minute {minute:g}: failed: {type(error).__name__}: {error}")
    await clock.until(load.script.minutes)


async def _begin(fault: Fault, place: Place, watch: Watch, load: Load) -> None:
    match fault:
        case Fault.POISON:
            await load.poison()
        case Fault.RESTART:
            await place.restart()
            watch.restarted_at = datetime.now(UTC)
        case Fault.BY_HAND:
            capacity = await place.capacity()
            other = BY_HAND if capacity != BY_HAND else BY_HAND + 1
            watch.safety.set_by_hand(other, datetime.now(UTC))
            await place.set_capacity(other)
        case Fault.STOPPED:
            load.is_stopped = True
        case Fault.NO_ROLE:
            await place.remove_role()
        case Fault.THROTTLED:
            await place.throttle()


async def _end(fault: Fault, place: Place, _watch: Watch, load: Load) -> None:
    match fault:
        case Fault.STOPPED:
            load.is_stopped = False
        case Fault.NO_ROLE:
            await place.return_role()
        case Fault.THROTTLED:
            await place.relent()


async def _seen(place: Place, watch: Watch, load: Load, began: datetime, told: Told) -> Seen:
    async def asked(answer: Awaitable[T]) -> T | None:
        """The answer; None if the place cannot give it after hours of work."""
        try:
            return await answer
        except AzFailed as error:
            told(f"failed: {error}")
            return None

    events = await _accounted(watch.app, load)
    await watch.read_log()
    poison = await watch.app.scaling.store.log(UNATTRIBUTED, ENTRIES_MAX, began)
    entries = sorted([*watch.entries.values(), *poison], key=lambda each: each.time)
    return Seen(
        script=load.script,
        samples=watch.samples,
        entries=entries,
        began=began,
        speed=place.speed,
        puts=await asked(place.puts(began)),
        messages=Messages(load.sent, load.received, *await load.left()),
        events=events,
        broken=watch.safety.broken,
        last_epoch=watch.last_epoch,
        conditions=list(watch.conditions),
        alarms=await asked(place.alarms()),
        failed_looks=watch.failed,
        resumed=watch.resumed,
    )


async def _accounted(app: App, load: Load) -> Events:
    """What the app has accounted for, once that is everything or the time is over."""
    found = Events(load.events, load.poison_events, 0, 0, 0)
    with suppress(TimeoutError):
        async with asyncio.timeout(SETTLE_SECONDS):
            while (found.accounted, found.dead) != (found.sent, found.poison):
                await asyncio.sleep(1)
                found = await _account(app, load)
    return found


async def _account(app: App, load: Load) -> Events:
    store, accounted, dead, gaps = app.ingestion.store, 0, 0, 0
    for each in await stream_accounts(store):
        known = each.checkpoint
        accounted += known.sequence - known.start + 1 if known else 0
        dead += len(await store.dead_letters(each.stream, None, ENTRIES_MAX))
        gaps += sum(gap.count for gap in each.gaps)
    return Events(load.events, load.poison_events, accounted, dead, gaps)
