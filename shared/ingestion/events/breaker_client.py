"""One instance's client of the shared circuit breaker: it admits batches, counts calls, opens the
breaker when all instances together see too many failures, and announces each opening."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from shared.ingestion.breaker.failure_window import (
    WINDOW_SECONDS_MAX,
    Health,
    Tally,
    TripRule,
    bucket_start,
    count,
    health,
    oldest_bucket,
)
from shared.ingestion.breaker.state import (
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
from shared.ingestion.errors import RowChanged
from shared.ingestion.model import LONG_AGO
from shared.ingestion.ports import Announce
from shared.ingestion.store.breakers import BreakerSnapshot, BreakerStore
from shared.notifications.ports import NotSent

log = logging.getLogger(__name__)

TALLIES_REMEMBERED = timedelta(minutes=5)
"""How long tallies stay in memory, in case the store's clock goes back."""
RACES_MAX = 10
"""After losing this many races, the client gives up recording that the opening was announced."""


@dataclass(slots=True)
class BreakerClient:
    """One instance's access to the shared breaker. ``instance`` is unique for each process. All
    async methods raise StoreUnavailable, after which no event must be processed."""

    instance: str
    store: BreakerStore
    announce: Announce
    rule: TripRule = field(default_factory=TripRule)
    times: BreakerTimes = field(default_factory=BreakerTimes)
    elapsed: Callable[[], float] = time.monotonic
    counted: dict[datetime, Tally] = field(default_factory=dict)
    """The recent tallies, by the start of their bucket."""
    unwritten: dict[datetime, Tally] = field(default_factory=dict)
    writing: bool = False
    succeeded: int = 0
    looked_at: datetime = LONG_AGO
    """When the row was read, by the store's clock; ``looked_when`` is the same by ``elapsed``."""
    looked_when: float = 0.0

    @property
    def now(self) -> datetime:
        """The time of the store's clock, extrapolated from the last read."""
        return self.looked_at + timedelta(seconds=self.elapsed() - self.looked_when)

    async def admit(self, partition_id: str, *, may_probe: bool = True) -> Admission:
        """How much of a partition's next batch may be processed. Takes the probe if one is due and
        ``may_probe``, and an announcement that another instance did not finish."""
        seen = await self._load_and_announce()
        admitted = admission(seen.breaker, self.instance, partition_id, seen.read_at)
        if not admitted.is_held or not may_probe:
            return admitted
        probing = start_probe(seen.breaker, self.instance, partition_id, seen.read_at, self.times)
        written = await self._replace(seen, probing)
        return (
            admitted
            if written is None
            else admission(written.breaker, self.instance, partition_id, written.read_at)
        )

    async def _load_and_announce(self) -> BreakerSnapshot:
        seen = await self._load()
        taken = await self._replace(seen, take_announcement(seen.breaker, seen.read_at, self.times))
        if taken is None:
            return seen
        await self._announce(taken.breaker)
        return await self._load()

    async def _load(self) -> BreakerSnapshot:
        seen = await self.store.load()
        self.looked_at, self.looked_when = seen.read_at, self.elapsed()
        return seen

    async def check(self, partition_id: str) -> Admission:
        """Check whether a batch that was admitted earlier may continue."""
        seen = await self._load_and_announce()
        return admission(seen.breaker, self.instance, partition_id, seen.read_at)

    def count(
        self,
        now: datetime,
        successes: int = 0,
        failures: int = 0,
        slow: int = 0,
        last_error: str = "",
    ) -> None:
        """Count calls, in memory, in the bucket that contains ``now``, by the store's clock."""
        start = bucket_start(now, self.rule.bucket_seconds)
        known = self.counted.get(start) or Tally(start, self.instance)
        tally = count(known, successes, failures, slow, last_error)
        oldest = start - TALLIES_REMEMBERED
        self.counted = {at: each for at, each in self.counted.items() if at >= oldest}
        self.counted[start] = self.unwritten[start] = tally

    @property
    def is_behind(self) -> bool:
        """Whether an earlier bucket's tally is unwritten. Successes alone may wait."""
        newest = max(self.counted, default=None)
        return any(start != newest for start in self.unwritten)

    async def after_batch(self) -> None:
        """Write the tallies, and open the breaker if all instances' sums exceed its limits."""
        await self._write()
        seen = await self._load()
        result = await self._health(seen)
        if result.calls < self.rule.throughput_min and result.failures + result.slow:
            result = await self._health(seen, WINDOW_SECONDS_MAX)
        if result.trip_reason is not None:
            await self._open(seen, result.trip_reason)

    async def _health(self, seen: BreakerSnapshot, seconds_min: float = 0) -> Health:
        now, rule = seen.read_at, self.rule
        tallies = await self.store.tallies(oldest_bucket(now, rule, seconds_min))
        return health(tallies, now, rule, since=seen.breaker.changed_at)

    async def succeeded_since(self, time: datetime) -> bool:
        """Whether a call of any instance has succeeded since then, in a bucket that began later."""
        tallies = [*self.counted.values(), *await self.store.tallies(time)]
        return any(tally.successes for tally in tallies if tally.bucket_start >= time)

    async def after_doubt(self, since: datetime, reason: str) -> None:
        """Open the breaker if an event has been in doubt for a window without any success."""
        seen = await self._load()
        is_over = seen.read_at - since >= timedelta(seconds=self.rule.window_seconds)
        if is_over and not await self.succeeded_since(since):
            await self._open(seen, reason)

    async def _open(self, seen: BreakerSnapshot, reason: str) -> None:
        opened = trip(seen.breaker, reason, seen.read_at, self.times)
        if await self._replace(seen, opened) and opened is not None:
            await self._announce(opened)

    async def _write(self) -> None:
        """Write unwritten tallies, one call at a time: no older tally overwrites a newer one."""
        if self.writing:
            return
        self.writing = True
        try:
            while self.unwritten:
                start = min(self.unwritten)
                tally = self.unwritten[start]
                await self.store.put_tally(tally)
                if self.unwritten[start] is tally:  # otherwise more calls were counted meanwhile
                    del self.unwritten[start]
        finally:
            self.writing = False

    async def keep_probe(self) -> None:
        """Keep the probe, unless it was lost, while its events are being handled."""
        seen = await self._load()
        await self._replace(seen, keep_probe(seen.breaker, self.instance, seen.read_at, self.times))

    async def after_probe(self, successes: int, failure: str | None) -> None:
        """Report the result of the probe's events, unless the probe was lost."""
        seen = await self._load()
        after = report_probe(
            seen.breaker, self.instance, successes, failure, seen.read_at, self.times
        )
        await self._replace(seen, after)

    async def _replace(
        self, seen: BreakerSnapshot, after: Breaker | None
    ) -> BreakerSnapshot | None:
        """The row as written; None if there was nothing to write or another instance was first."""
        if after is None:
            return None
        try:
            return await self.store.replace(seen, after)
        except RowChanged:
            return None

    async def _announce(self, breaker: Breaker) -> None:
        """Announce the incident, then record it, even if the row has changed meanwhile. After a
        failure, another instance tries again after ``announce_seconds``."""
        try:
            for incident in unannounced(breaker):
                await self.announce(incident)
        except NotSent as error:
            log.error("[breaker_not_announced] incident %s: %s", breaker.epoch, error)
            return
        for _ in range(RACES_MAX):
            seen = await self.store.load()
            announced = mark_announced(seen.breaker, breaker.epoch)
            if announced is None or await self._replace(seen, announced):
                return
