"""The breaker at work: asked before a batch, told after it, announced once per opening."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import datetime

from shared.ingestion.breaker import (
    LONG_AGO,
    Breaker,
    BreakerTimes,
    Gate,
    Mode,
    announced,
    gate,
    report_probe,
    start_probe,
    take_announcement,
    trip,
    untold,
)
from shared.ingestion.errors import AnnouncementFailed, BreakerChanged
from shared.ingestion.failure_window import Tally, TripRule, count, health, oldest_bucket
from shared.ingestion.ports import Announcer, BreakerStore, SeenBreaker

log = logging.getLogger(__name__)

RACES_MAX = 10
"""Races lost in a row before it is left to be told once more."""


@dataclass(slots=True)
class BreakerGuard:
    """One instance's access to a breaker that all instances share.

    ``instance`` is a name of its own for each process, for a tally row belongs to one writer. All
    raise StoreUnavailable where the store fails; then nothing may be processed.
    """

    instance: str
    store: BreakerStore
    announcer: Announcer
    rule: TripRule = field(default_factory=TripRule)
    times: BreakerTimes = field(default_factory=BreakerTimes)
    unwritten: dict[datetime, Tally] = field(default_factory=dict)
    current: Tally | None = None
    writing: bool = False
    looked_at: datetime = LONG_AGO
    """When it looked last, by the store's clock."""

    async def admit(self, partition_id: str, *, may_probe: bool = True) -> Gate:
        """How much of a partition's next batch may be processed; takes the probe where it is due,
        and ``may_probe`` says that there is something to try.

        Whoever asks also looks after an announcement that nobody finished.
        """
        seen = await self._look()
        found = gate(seen.breaker, self.instance, partition_id, seen.read_at)
        if not found.shut or not may_probe:
            return found
        probing = start_probe(seen.breaker, self.instance, partition_id, seen.read_at, self.times)
        won = await self._won(seen, probing)
        return found if won is None else gate(won.breaker, self.instance, partition_id, won.read_at)

    async def is_closed(self) -> bool:
        """Whether events flow; asks for no probe, but looks after announcements too."""
        return (await self._look()).breaker.mode is Mode.CLOSED

    async def _look(self) -> SeenBreaker:
        seen = await self.store.load()
        self.looked_at = seen.read_at
        taken = await self._won(seen, take_announcement(seen.breaker, seen.read_at, self.times))
        if taken is None:
            return seen
        await self._announce(taken.breaker)
        return await self.store.load()

    def count(
        self,
        now: datetime,
        *,
        successes: int = 0,
        failures: int = 0,
        slow: int = 0,
        last_error: str = "",
    ) -> None:
        """Count a batch's calls, in memory. ``now`` is the store's clock."""
        tally = count(
            self.current,
            self.instance,
            now,
            self.rule,
            successes=successes,
            failures=failures,
            slow=slow,
            last_error=last_error,
        )
        self.current = self.unwritten[tally.bucket_start] = tally

    @property
    def is_behind(self) -> bool:
        """Whether a bucket that is over is still to be written. Successes can wait so long: they
        only weigh against failures, and three calls to the store for each batch are many."""
        return any(tally is not self.current for tally in self.unwritten.values())

    async def after_batch(self) -> None:
        """Write what was counted, and open the breaker if all instances together say so."""
        await self._write()
        seen = await self.store.load()
        tallies = await self.store.tallies(oldest_bucket(seen.read_at, self.rule))
        found = health(tallies, seen.read_at, self.rule, since=seen.breaker.changed_at)
        if found.trip_reason is None:
            return
        opened = trip(seen.breaker, found.trip_reason, seen.read_at, self.times)
        if await self._won(seen, opened) and opened is not None:
            await self._announce(opened)

    async def _write(self) -> None:
        """Batches of several partitions end at a time, and an older tally must not come last: who
        is at it already writes for all."""
        if self.writing:
            return
        self.writing = True
        try:
            while self.unwritten:
                start = min(self.unwritten)
                tally = self.unwritten[start]
                await self.store.put_tally(tally)
                if self.unwritten[start] is tally:  # else it was counted on meanwhile
                    del self.unwritten[start]
        finally:
            self.writing = False

    async def after_probe(self, successes: int, failure: str | None) -> None:
        """Report what the probe's events did; without effect from who lost the probe."""
        seen = await self.store.load()
        after = report_probe(
            seen.breaker, self.instance, successes, failure, seen.read_at, self.times
        )
        await self._won(seen, after)

    async def _won(self, seen: SeenBreaker, after: Breaker | None) -> SeenBreaker | None:
        """The row as written; None where there was nothing to write, or another was first."""
        if after is None:
            return None
        try:
            return await self.store.replace(seen, after)
        except BreakerChanged:
            return None

    async def _announce(self, breaker: Breaker) -> None:
        """Tell people, then note that they were told, whatever the row has become meanwhile.

        Where that fails, whoever looks later than ``announce_seconds`` tries again.
        """
        try:
            for each in untold(breaker):
                await self.announcer.announce(each)
        except AnnouncementFailed as error:
            log.error("[breaker_not_announced] incident %s: %s", breaker.epoch, error)
            return
        for _ in range(RACES_MAX):
            seen = await self.store.load()
            done = announced(seen.breaker, breaker.epoch)
            if done is None or await self._won(seen, done):
                return
