"""What a person sees of the breaker: its state, what opened it, and what waits behind it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from shared.ingestion.breaker.breaker import Breaker


@dataclass(frozen=True, slots=True)
class ErrorSeen:
    """The last error that an instance counted in a while, and how many there were."""

    since: datetime
    instance: str
    failures: int
    last_error: str


@dataclass(frozen=True, slots=True)
class Backlog:
    """Events of a partition that are still to be accounted for; None where that is not known."""

    partition_id: str
    events: int | None
    remark: str = ""


@dataclass(frozen=True, slots=True)
class BreakerView:
    """A breaker as people see it."""

    name: str
    breaker: Breaker
    read_at: datetime
    errors: tuple[ErrorSeen, ...]
    backlog: tuple[Backlog, ...]
