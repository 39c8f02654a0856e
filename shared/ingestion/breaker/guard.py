"""The breaker at work: asked before a batch, told after it, announced once per opening."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from shared.ingestion.breaker.breaker import (
    LONG_AGO,
    Admission,
    Breaker,
    BreakerTimes,
    admission,
    keep_probe,
    mark_announced,
    report_probe,
    start_probe,
    take_announcement,
    trip,
    unannounced,
)
from shared.ingestion.breaker.failure_window import (
    Tally,
    TripRule,
    bucket_start,
    count,
    health,
    oldest_bucket,
)
from shared.ingestion.breaker.ports import Announcer, BreakerSnapshot, BreakerStore
from shared.ingestion.errors import AnnouncementFailed, BreakerChanged

log = logging.getLogger(__name__)

TALLIES_REMEMBERED = timedelta(minutes=5)
"""The clock of a store may be read a little earlier than before; its buckets go on then."""
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
    elapsed: Callable[[], float] = time.monotonic
    """Seconds that have passed here, from anywhere."""
    counted: dict[datetime, Tally] = field(default_factory=dict)
    """What was counted of late, by bucket."""
    unwritten: dict[datetime, Tally] = field(default_factory=dict)
    writing: bool = False
    looked_at: datetime = LONG_AGO
    """When it looked last, by the store's clock; ``looked_when`` is the same by ``elapsed``."""
    looked_when: float = 0.0

    @property
    def now(self) -> datetime:
        """The store's clock, by what has passed here since it was read last."""
        return self.looked_at + timedelta(seconds=self.elapsed() - self.looked_when)

    async def admit(self, partition_id: str, *, may_probe: bool = True) -> Admission:
        """How much of a partition's next batch may be processed; takes the probe where it is due,
        and ``may_probe`` says that there is something to try.

        Whoever asks also looks after an announcement that nobody finished.
        """
        seen = await self._look()
        found = admission(seen.breaker, self.instance, partition_id, seen.read_at)
        if not found.shut or not may_probe:
            return found
        probing = start_probe(seen.breaker, self.instance, partition_id, seen.read_at, self.times)
        won = await self._won(seen, probing)
        return (
            found
            if won is None
            else admission(won.breaker, self.instance, partition_id, won.read_at)
        )

    async def _look(self) -> BreakerSnapshot:
        seen = await self._seen()
        taken = await self._won(seen, take_announcement(seen.breaker, seen.read_at, self.times))
        if taken is None:
            return seen
        await self._announce(taken.breaker)
        return await self._seen()

    async def _seen(self) -> BreakerSnapshot:
        seen = await self.store.load()
        self.looked_at, self.looked_when = seen.read_at, self.elapsed()
        return seen

    async def look(self, partition_id: str) -> Admission:
        """Whether a batch that was admitted may go on."""
        seen = await self._look()
        return admission(seen.breaker, self.instance, partition_id, seen.read_at)

    def count(
        self,
        now: datetime,
        *,
        successes: int = 0,
        failures: int = 0,
        slow: int = 0,
        last_error: str = "",
    ) -> None:
        """Count calls, in memory, that ended in the bucket of ``now``, by the store's clock."""
        start = bucket_start(now, self.rule.bucket_seconds)
        tally = count(
            self.counted.get(start),
            self.instance,
            now,
            self.rule,
            successes=successes,
            failures=failures,
            slow=slow,
            last_error=last_error,
        )
        oldest = start - TALLIES_REMEMBERED
        self.counted = {at: each for at, each in self.counted.items() if at >= oldest}
        self.counted[start] = self.unwritten[start] = tally

    @property
    def is_behind(self) -> bool:
        """Whether a bucket that is over is still to be written. Successes can wait so long: they
        only weigh against failures, and three calls to the store for each batch are many."""
        newest = max(self.counted, default=None)
        return any(start != newest for start in self.unwritten)

    async def after_batch(self) -> None:
        """Write what was counted, and open the breaker if all instances together say so."""
        await self._write()
        seen = await self._seen()
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

    async def keep_probe(self) -> None:
        """Hold the probe while its events are being handled; without effect from who lost it."""
        seen = await self._seen()
        await self._won(seen, keep_probe(seen.breaker, self.instance, seen.read_at, self.times))

    async def after_probe(self, successes: int, failure: str | None) -> None:
        """Report what the probe's events did; without effect from who lost the probe."""
        seen = await self._seen()
        after = report_probe(
            seen.breaker, self.instance, successes, failure, seen.read_at, self.times
        )
        await self._won(seen, after)

    async def _won(self, seen: BreakerSnapshot, after: Breaker | None) -> BreakerSnapshot | None:
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
            for each in unannounced(breaker):
                await self.announcer.announce(each)
        except AnnouncementFailed as error:
            log.error("[breaker_not_announced] incident %s: %s", breaker.epoch, error)
            return
        for _ in range(RACES_MAX):
            seen = await self.store.load()
            done = mark_announced(seen.breaker, breaker.epoch)
            if done is None or await self._won(seen, done):
                return
