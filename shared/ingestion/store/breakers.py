"""The store of a circuit breaker, on any engine of rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from shared.ingestion.breaker.failure_window import TALLIES_KEPT, Tally
from shared.ingestion.breaker.state import Breaker, BreakerMode
from shared.ingestion.errors import RowUnreadable
from shared.ingestion.store.rows import BREAKER, TALLY, BreakerRow, Put, RowEngine
from shared.values.calls import error_text
from shared.values.measurements import MetricValue
from shared.values.metering import Measurement, Meter, no_meter
from shared.values.redaction import redacting
from shared.values.row_values import checked, json_text
from shared.values.text import one_line

PURGED_MAX, PURGES_MAX = 100, 20
"""How many old tallies are deleted at a time, and how often in a row."""
LEVELS = {
    BreakerMode.CLOSED: 0,
    BreakerMode.HALF_OPEN: 1,
    BreakerMode.OPEN: 2,
    BreakerMode.ISOLATED: 3,
}


@dataclass(frozen=True, slots=True)
class BreakerSnapshot:
    """A breaker's row as read, at the store's time; ``version`` is None if there is no row yet."""

    breaker: Breaker
    read_at: datetime
    version: Any = None


@redacting
class BreakerStore:
    """One breaker's row, and the tallies of all instances. All methods raise StoreUnavailable."""

    def __init__(self, rows: RowEngine, name: str, meter: Meter = no_meter) -> None:
        self._rows, self._name, self._place, self._meter = rows, name, (name,), meter
        self._purged_before: datetime | None = None
        self.close = rows.close

    async def metric(self) -> MetricValue:
        """0 while the breaker is closed, otherwise 1."""
        snapshot = await self.load()
        is_closed = snapshot.breaker.mode is BreakerMode.CLOSED
        return MetricValue(snapshot.read_at, float(not is_closed))

    async def load(self) -> BreakerSnapshot:
        """The row, or a closed breaker if there is none yet."""
        page = await self._rows.read(BREAKER, self._place)
        breaker = decode_breaker(page.first.value.state) if page.first else Breaker()
        self._meter(of_breaker(self._name, breaker.mode))
        return BreakerSnapshot(breaker, page.read_at, page.first and page.first.version)

    async def replace(self, seen: BreakerSnapshot, breaker: Breaker) -> BreakerSnapshot:
        """Write the row. Raises RowChanged if the stored row no longer has ``seen.version``,
        perhaps because of an earlier attempt of this call whose reply was lost."""
        row = BreakerRow(str(breaker.mode), encode_breaker(breaker))
        new = await self._rows.write(self._place, [Put(BREAKER, row, seen.version)])
        assert new is not None
        self._meter(of_breaker(self._name, breaker.mode))
        return BreakerSnapshot(breaker, new.written_at, new.version)

    async def put_tally(self, tally: Tally) -> None:
        """Write an instance's own row of a bucket, replacing any earlier one."""
        await self._rows.overwrite(TALLY, self._place, tally)
        await self._purge(tally.bucket_start - TALLIES_KEPT)

    async def tallies(self, since: datetime) -> Sequence[Tally]:
        """All instances' rows whose bucket began at ``since`` or later. Old ones may be gone."""
        page = await self._rows.read(TALLY, self._place, since=since)
        # Not every engine compares microseconds.
        return [row.value for row in page.rows if row.value.bucket_start >= since]

    async def _purge(self, before: datetime) -> None:
        if self._purged_before is not None and before < self._purged_before + TALLIES_KEPT:
            return
        self._purged_before = before
        up_to = before - timedelta(microseconds=1)
        for _ in range(PURGES_MAX):
            if await self._rows.purge(TALLY, self._place, up_to, PURGED_MAX) < PURGED_MAX:
                return


def encode_breaker(breaker: Breaker) -> str:
    return json_text(asdict(breaker))


def decode_breaker(text: Any) -> Breaker:
    """Parse the row. Raises RowUnreadable."""
    try:
        fields = json.loads(text)
        breaker: Breaker = checked(Breaker, fields, "the breaker")
        return replace(breaker, mode=BreakerMode(fields["mode"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        advice = "deploy the version that wrote it, or delete the row, which closes the breaker"
        reason = one_line(error_text(error))
        raise RowUnreadable(f"the breaker's row cannot be read ({reason}); {advice}") from error


def of_breaker(name: str, mode: BreakerMode) -> Iterator[Measurement]:
    yield "autoscaler.ingestion.breaker", LEVELS[mode], {"breaker": name}
