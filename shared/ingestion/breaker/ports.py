"""What the circuit breaker asks of the outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from shared.ingestion.breaker.breaker import Breaker
from shared.ingestion.breaker.failure_window import Tally


@dataclass(frozen=True, slots=True)
class SeenBreaker:
    """A breaker's row as it was read: ``read_at`` is the store's clock, ``version`` its mark, None
    where there is no row yet."""

    breaker: Breaker
    read_at: datetime
    version: Any = None


class BreakerStore(Protocol):
    """One breaker's row, and the tallies of all instances. All raise StoreUnavailable."""

    async def load(self) -> SeenBreaker:
        """The row; a closed breaker where there is none yet."""
        ...

    async def replace(self, seen: SeenBreaker, breaker: Breaker) -> SeenBreaker:
        """Write the row. Raises BreakerChanged where it is not of ``seen.version`` any more, also
        where that is by a first attempt of this call whose reply was lost."""
        ...

    async def put_tally(self, tally: Tally) -> None:
        """Write an instance's own row of a bucket, whatever stood there before."""
        ...

    async def tallies(self, since: datetime) -> Sequence[Tally]:
        """The rows of all instances whose bucket began then or later, in no order. Those that are
        older than the newest bucket by ``TALLIES_KEPT`` may be gone."""
        ...


class ConsumptionSwitch(Protocol):
    """Starts and stops the delivery of events, beyond the breaker that holds them."""

    async def turn(self, *, on: bool) -> None:
        """Raises DependencyDown where nobody knows whether that was done."""
        ...


class Announcer(Protocol):
    """Tells people that a breaker opened."""

    async def announce(self, breaker: Breaker) -> None:
        """Tell of the incident. At least once: its epoch makes a repetition known as one.

        Raises AnnouncementFailed.
        """
        ...
