"""What the circuit breaker needs from a store and a notifier, and its row as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Protocol

from shared.ingestion.breaker.breaker import Breaker, BreakerMode, Probe
from shared.ingestion.breaker.failure_window import Tally
from shared.ingestion.errors import RowUnreadable
from shared.values.stored import known_fields


@dataclass(frozen=True, slots=True)
class BreakerSnapshot:
    """A breaker's row as it was read. ``read_at`` is the store's time; ``version`` is the row's
    ETag or version number, or None if there is no row yet."""

    breaker: Breaker
    read_at: datetime
    version: Any = None


class BreakerStore(Protocol):
    """One breaker's row, and the tallies of all instances. All methods raise StoreUnavailable."""

    async def load(self) -> BreakerSnapshot:
        """The row, or a closed breaker if there is none yet."""
        ...

    async def replace(self, seen: BreakerSnapshot, breaker: Breaker) -> BreakerSnapshot:
        """Write the row.

        Raises BreakerChanged if the stored row no longer has ``seen.version``. The cause may also
        be an earlier attempt of this same call that was written although its reply was lost.
        """
        ...

    async def put_tally(self, tally: Tally) -> None:
        """Write an instance's own row of a bucket, replacing any earlier one."""
        ...

    async def tallies(self, since: datetime) -> Sequence[Tally]:
        """The rows of all instances whose bucket began at ``since`` or later, in any order. Rows
        that are older than the newest bucket by more than ``TALLIES_KEPT`` may be gone.
        """
        ...


class ConsumptionSwitch(Protocol):
    """Starts and stops the delivery of events by the Functions host, in addition to the breaker."""

    async def turn(self, *, on: bool) -> None:
        """Raises DependencyDown if it is unknown whether the change was made."""
        ...


class NoSwitch:
    """Leaves delivery on. The breaker holds the events that are delivered."""

    async def turn(self, *, on: bool) -> None: ...


class Announcer(Protocol):
    """Announces the opening of a breaker."""

    async def announce(self, breaker: Breaker) -> None:
        """Announce the incident, at least once. Receivers recognize a repetition by the incident's
        epoch.

        Raises AnnouncementFailed.
        """
        ...


REASON_LENGTH_MAX = 300
TIMES = ("changed_at", "retry_at", "announce_at")


def encode_breaker(breaker: Breaker) -> str:
    return json.dumps(asdict(breaker), default=datetime.isoformat)


def decode_breaker(text: Any) -> Breaker:
    """Parse the row. Raises RowUnreadable, after which an operator must decide what to do."""
    try:
        return _breaker(text)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"[:REASON_LENGTH_MAX]
        advice = "deploy the version that wrote it, or delete the row, which closes the breaker"
        raise RowUnreadable(f"the breaker's row cannot be read ({reason}); {advice}") from error


def _breaker(text: Any) -> Breaker:
    fields: dict[str, Any] = json.loads(text)
    probe = fields["probe"]
    if probe is not None:
        until = datetime.fromisoformat(probe["until"])
        probe = Probe(**{**known_fields(Probe, probe), "until": until})
    times = {name: _time(fields[name]) for name in TIMES}
    known = known_fields(Breaker, fields)
    return Breaker(**{**known, **times, "mode": BreakerMode(fields["mode"]), "probe": probe})


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
