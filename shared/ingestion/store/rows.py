"""The rows that ingestion stores, and what it needs from an engine that keeps them: Table Storage,
a SQL database, or the memory of a test. An engine knows rows and transactions only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, get_type_hints

from shared.ingestion.breaker.failure_window import Tally
from shared.ingestion.errors import RowUnreadable
from shared.ingestion.model import (
    ROW_OVERHEAD_BYTES,
    Checkpoint,
    DeadLetter,
    Effect,
    FailureKind,
    Gap,
    Mark,
    Ownership,
    StoredMessage,
)

V = TypeVar("V")
Place = tuple[str, ...]
"""What the rows of one transaction belong to: a stream, a consumer group, or a breaker."""
REASON_LENGTH_MAX = 300
"""Maximum length of a reason. Longer reasons are cut, because an error may quote a whole row."""
log = logging.getLogger(__name__)


class Working(NamedTuple):
    """The time of its row is when an instance last worked on the stream."""


class BreakerRow(NamedTuple):
    mode: str
    """For operators who read the table; the app reads ``state``."""
    state: str


@dataclass(frozen=True, slots=True)
class BrokenRow:
    """A row that cannot be read. ``known`` has the fields that can, ``at`` is its time."""

    reason: str
    known: Mapping[str, Any]
    at: datetime


@dataclass(frozen=True, slots=True)
class Kind(Generic[V]):
    """A kind of row: the class of its values, and the fields that identify a row in its place.
    ``since`` is the time by which rows are selected. ``instead`` returns what is shown for a row
    that cannot be read, or None to leave it out, or raises RowUnreadable."""

    name: str
    of: type[V]
    instead: Callable[[BrokenRow], V | None]
    key: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    since: str = ""
    only: tuple[str, ...] = ()
    """The fields that are stored. Empty means all."""

    @property
    def types(self) -> dict[str, Any]:
        hints = get_type_hints(self.of)
        return {name: hints[name] for name in self.only or hints}

    def key_of(self, value: V) -> tuple[Any, ...]:
        return tuple([getattr(value, name) for name in self.key])

    def value_of(
        self, names: Sequence[str], field: Callable[[str], Any], where: str, at: datetime
    ) -> V | None:
        """The value of the fields that ``field`` returns. It raises KeyError for a missing one."""
        known: dict[str, Any] = {}
        problem: Exception | None = None
        for name in names:
            try:
                known[name] = field(name)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                if not (isinstance(error, KeyError) and name in self.optional):
                    problem = problem or error
        if problem is None:
            return self.of(**known)
        reason = f"{type(problem).__name__}: {problem}"[:REASON_LENGTH_MAX]
        return self.instead(BrokenRow(f"{where} cannot be read ({reason})", known, at))


# --- rows that cannot be read -------------------------------------------------------------------


def _refusing(advice: str) -> Callable[[BrokenRow], None]:
    def refuse(row: BrokenRow) -> None:
        raise RowUnreadable(f"{row.reason}; {advice}")

    return refuse


def _left_out(action: str, level: int = logging.WARNING, advice: str = "") -> Any:
    """Leaves out and logs the row, so that it affects no other."""

    def leave_out(row: BrokenRow) -> None:
        log.log(level, "[%s] %s%s", action, row.reason, advice)

    return leave_out


def _unreadable_letter(row: BrokenRow) -> DeadLetter:
    known, reason = dict(row.known), row.reason
    if error := known.get("error"):
        reason = f"{reason}. Its error: {error}"
    missing = {"sequence": 0, "offset": "", "enqueued_at": row.at, "failed_at": row.at}
    kind = FailureKind.UNREADABLE
    return DeadLetter(**{**missing, **known, "kind": kind, "error": reason})


def _unreadable_gap(row: BrokenRow) -> Gap:
    first = row.known.get("first", 0)
    return Gap(first, first, row.at, row.reason)


def _unreadable_state(_row: BrokenRow) -> BreakerRow:
    return BreakerRow("", "")  # decoding it raises RowUnreadable


# --- kinds --------------------------------------------------------------------------------------

CHECKPOINT = Kind(
    "checkpoint",
    Checkpoint,
    # Without a checkpoint it is unknown which events are accounted for.
    _refusing("deploy the version that wrote it, or correct the row"),
    optional=("set_aside",),
)
WORKING = Kind("working", Working, _left_out("working_unreadable"))
DEAD = Kind(
    "dead", DeadLetter, _unreadable_letter, ("sequence",), ("partition_key", "body"), "failed_at"
)
EFFECT = Kind(
    "effect", Effect, _left_out("effect_unreadable"), ("sequence",), only=("sequence", "value")
)
GAP = Kind("gap", Gap, _unreadable_gap, ("first",), since="found_at")
# A mark that is left out could not be deleted, and nobody would learn of it.
MARK = Kind("mark", Mark, _refusing("delete the row: old effects are then removed later"), ("at",))
OUTBOX = Kind(
    "outbox",
    StoredMessage,
    # Later messages are still sent.
    _left_out(
        "message_unreadable",
        logging.ERROR,
        "; deploy the version that wrote it, or correct or delete the row",
    ),
    ("sequence", "position"),
    ("taken",),
    only=("sequence", "position", "message_id", "body", "taken"),
)
# Only the partition of an unreadable owner is not processed until an operator corrects the row.
OWNER = Kind(
    "owner",
    Ownership,
    _left_out("owner_unreadable"),
    ("partition_id",),
    only=("partition_id", "owner", "epoch", "reason"),
)
BREAKER = Kind("state", BreakerRow, _unreadable_state)
# A tally holds no more than the counts of one instance in ten seconds.
TALLY = Kind(
    "tally",
    Tally,
    _left_out("tally_unreadable"),
    ("bucket_start", "instance"),
    since="bucket_start",
)
KINDS = (CHECKPOINT, WORKING, DEAD, EFFECT, GAP, MARK, OUTBOX, OWNER, BREAKER, TALLY)


# --- the engine ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommitLimits:
    """The limits of a transaction. Table Storage takes 100 rows, under 4 MiB, 1 MiB a row."""

    rows_max: int = 100
    size_bytes_max: int = 3_500_000
    row_bytes_max: int = 1_020_000

    @property
    def effect_bytes_max(self) -> int:
        """The bytes that a transaction has left for one effect, besides the checkpoint's row."""
        return self.size_bytes_max - ROW_OVERHEAD_BYTES


class Row(NamedTuple, Generic[V]):
    """A row as it was read. Only the engine understands ``version``."""

    value: V
    version: Any
    written_at: datetime


@dataclass(frozen=True, slots=True)
class RowPage(Generic[V]):
    """Rows in the order of their keys, and the engine's time."""

    rows: tuple[Row[V], ...]
    read_at: datetime

    @property
    def first(self) -> Row[V] | None:
        return self.rows[0] if self.rows else None


@dataclass(frozen=True, slots=True)
class Put:
    """Write a row, or ``only`` some fields, if it still has the version (None: is absent)."""

    kind: Kind[Any]
    value: Any
    version: Any
    only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a row if it still has the version."""

    kind: Kind[Any]
    value: Any
    version: Any


@dataclass(frozen=True, slots=True)
class Insert:
    """Insert rows."""

    kind: Kind[Any]
    values: Sequence[Any]


Write = Put | Remove | Insert


class RowEngine(Protocol):
    """An engine. All methods raise StoreUnavailable, after which a write may have been made."""

    @property
    def limits(self) -> CommitLimits:
        """The limits of one transaction."""
        ...

    async def read(
        self,
        kind: Kind[V],
        place: Place,
        key: tuple[Any, ...] = (),
        *,
        after: int | None = None,
        limit: int | None = None,
        since: datetime | None = None,
    ) -> RowPage[V]:
        """The row of this key, or the first rows above ``after``, of ``since`` or later."""
        ...

    async def newest(
        self, kind: Kind[V], place: Place, limit: int, within: tuple[int, int]
    ) -> RowPage[V]:
        """The rows with the highest numbers, highest first. Most numbers are ``within``."""
        ...

    async def places(self, *kinds: Kind[Any]) -> Sequence[Place]:
        """The places that have rows of one of these kinds."""
        ...

    async def write(
        self, place: Place, writes: Sequence[Write], also: Callable[[Any], None] | None = None
    ) -> Row[Any] | None:
        """Do all or nothing, and return the first Put's row as stored. Raises RowChanged,
        AccountingBroken if a row to insert exists or occurs twice, and RowRefused if the engine
        never takes a row. ``also`` may do more, whose errors are raised unchanged."""
        ...

    async def overwrite(self, kind: Kind[V], place: Place, value: V) -> None:
        """Insert or replace the row. If two do so at once, either may remain."""
        ...

    async def delete(self, kind: Kind[V], place: Place, values: Sequence[V]) -> None:
        """Delete rows. They may be gone already, or be given twice."""
        ...

    async def purge(self, kind: Kind[Any], place: Place, up_to: Any, limit: int) -> int:
        """Delete the first ``limit`` rows up to and including a number or time; return how many."""
        ...

    async def close(self) -> None: ...
