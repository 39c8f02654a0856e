"""What the circuit breaker asks of the outside, and its row as every store keeps it: as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Protocol

from shared.ingestion.breaker.breaker import Breaker, BreakerMode, Probe
from shared.ingestion.breaker.failure_window import Tally
from shared.ingestion.errors import RowUnreadable


@dataclass(frozen=True, slots=True)
class BreakerSnapshot:
    """A breaker's row as it was read: ``read_at`` is the store's clock, ``version`` its mark, None
    where there is no row yet."""

    breaker: Breaker
    read_at: datetime
    version: Any = None


class BreakerStore(Protocol):
    """One breaker's row, and the tallies of all instances. All raise StoreUnavailable."""

    async def load(self) -> BreakerSnapshot:
        """The row; a closed breaker where there is none yet."""
        ...

    async def replace(self, seen: BreakerSnapshot, breaker: Breaker) -> BreakerSnapshot:
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


class NoSwitch:
    """Delivery goes on; the breaker holds what is delivered."""

    async def turn(self, *, on: bool) -> None: ...


class Announcer(Protocol):
    """Tells people that a breaker opened."""

    async def announce(self, breaker: Breaker) -> None:
        """Tell of the incident. At least once: its epoch makes a repetition known as one.

        Raises AnnouncementFailed.
        """
        ...


REASON_LENGTH_MAX = 300
TIMES = ("changed_at", "retry_at", "announce_at")


def encode_breaker(breaker: Breaker) -> str:
    return json.dumps(asdict(breaker), default=datetime.isoformat)


def decode_breaker(text: Any) -> Breaker:
    """The breaker. Raises RowUnreadable: what the breaker is to do then is for a person to say."""
    try:
        return _breaker(text)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"[:REASON_LENGTH_MAX]
        advice = "deploy the version that wrote it, or delete it: that closes the breaker"
        raise RowUnreadable(f"the breaker's row cannot be read ({reason}); {advice}") from error


def _breaker(text: Any) -> Breaker:
    fields: dict[str, Any] = json.loads(text)
    probe = fields["probe"]
    if probe is not None:
        probe = Probe(**{**probe, "until": datetime.fromisoformat(probe["until"])})
    times = {name: _time(fields[name]) for name in TIMES}
    return Breaker(**{**fields, **times, "mode": BreakerMode(fields["mode"]), "probe": probe})


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
