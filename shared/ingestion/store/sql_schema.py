"""The tables of ingestion in SQL. Times are UTC; a version counts how often a row was written."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Dialect,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    TypeDecorator,
    Unicode,
    UnicodeText,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

metadata = MetaData()
SEQUENCE = BigInteger().with_variant(Integer, "sqlite")
NAMES = ("namespace", "hub", "consumer_group", "partition_id")


class UtcTime(TypeDecorator[datetime]):
    """A time in UTC, in microseconds. SQLite has no time zones, so it stores UTC without a zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        time = value.astimezone(UTC)
        return time.replace(tzinfo=None) if dialect.name == "sqlite" else time

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:  # noqa: ARG002  as in the base class
        if value is None:
            return None
        time: datetime = value
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


class server_now(FunctionElement[datetime]):  # noqa: N801  reads as the SQL function that it is
    """The database's time at the moment of the call, not at the start of the transaction."""

    type = UtcTime()
    inherit_cache = True
    name = "server_now"


@compiles(server_now)
def _now(_element: object, _compiler: object, **_options: object) -> str:
    return "CURRENT_TIMESTAMP"


@compiles(server_now, "sqlite")
def _now_sqlite(_element: object, _compiler: object, **_options: object) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f', 'now')"


@compiles(server_now, "postgresql")
def _now_postgresql(_element: object, _compiler: object, **_options: object) -> str:
    return "clock_timestamp()"


@compiles(server_now, "mssql")
def _now_mssql(_element: object, _compiler: object, **_options: object) -> str:
    return "SYSDATETIMEOFFSET()"


def _table(name: str, *columns: Column[Any]) -> Table:
    return Table(name, metadata, *columns, sqlite_with_rowid=False)


def _key(name: str, type_: Any, key: str) -> Column[Any]:
    return Column(name, type_, key=key, primary_key=True, autoincrement=False)


def _needed(name: str, type_: Any, key: str, default: Any = None) -> Column[Any]:
    return Column(name, type_, key=key, nullable=False, server_default=default)


def _group_key() -> list[Column[Any]]:
    return [
        _key("Namespace", String(100), "namespace"),
        _key("Topic", String(256), "hub"),
        _key("ConsumerGroup", String(64), "consumer_group"),
    ]


def _stream_key() -> list[Column[Any]]:
    return [*_group_key(), _key("PartitionID", String(100), "partition_id")]


checkpoints = _table(
    "EventHubCheckpoint",
    *_stream_key(),
    _needed("StartNumber", SEQUENCE, "start"),
    _needed("SequenceNumber", SEQUENCE, "sequence"),
    _needed("Offset", String(200), "offset"),
    _needed("EnqueuedAt", UtcTime, "enqueued_at"),
    _needed("Epoch", SEQUENCE, "epoch"),
    _needed("Owner", Unicode(200), "owner"),
    _needed("TransactionID", String(100), "txid"),
    _needed("SetAside", SEQUENCE, "set_aside", "0"),
)

dead_letters = _table(
    "EventHubDeadLetter",
    *_stream_key(),
    _key("SequenceNumber", SEQUENCE, "sequence"),
    _needed("Offset", String(200), "offset"),
    _needed("EnqueuedAt", UtcTime, "enqueued_at"),
    _needed("FailedAt", UtcTime, "failed_at"),
    _needed("Kind", String(20), "kind"),
    _needed("Error", UnicodeText, "error"),
    _needed("Attempts", Integer, "attempts"),
    Column("PartitionKey", UnicodeText, key="partition_key"),
    Column("Body", LargeBinary, key="body"),
)

effects = _table(
    "EventHubEffect",
    *_stream_key(),
    _key("SequenceNumber", SEQUENCE, "sequence"),
    _needed("Value", UnicodeText, "value"),
)

outbox = _table(
    "EventHubOutbox",
    *_stream_key(),
    _key("SequenceNumber", SEQUENCE, "sequence"),
    _key("MessagePosition", SmallInteger, "position"),
    _needed("MessageID", UnicodeText, "message_id"),
    _needed("Body", UnicodeText, "body"),
    _needed("WaitsSince", UtcTime, "waits_since", server_now()),
    _needed("Taken", Integer, "taken", "0"),
)

working = _table(
    "EventHubWork",
    *_stream_key(),
    _needed("WorkedAt", UtcTime, "worked_at"),
)

gaps = _table(
    "EventHubGap",
    *_stream_key(),
    _key("FirstNumber", SEQUENCE, "first"),
    _needed("LastNumber", SEQUENCE, "last"),
    _needed("FoundAt", UtcTime, "found_at"),
    _needed("Reason", UnicodeText, "reason"),
)

marks = _table(
    "EventHubMark",
    *_stream_key(),
    _key("MarkedAt", UtcTime, "at"),
    _needed("SequenceNumber", SEQUENCE, "sequence"),
)

owners = _table(
    "EventHubOwnership",
    *_stream_key(),
    _needed("Owner", Unicode(200), "owner"),
    _needed("Epoch", SEQUENCE, "epoch"),
    _needed("ModifiedAt", UtcTime, "modified_at"),
    _needed("Version", SEQUENCE, "version"),
    _needed("Reason", UnicodeText, "reason"),
)

breakers = _table(
    "EventHubBreaker",
    _key("Name", Unicode(200), "name"),
    _needed("Mode", String(20), "mode"),
    _needed("State", UnicodeText, "state"),
    _needed("Version", SEQUENCE, "version"),
)

tallies = _table(
    "EventHubBreakerTally",
    _key("Name", Unicode(200), "name"),
    _key("BucketStart", UtcTime, "bucket_start"),
    _key("Instance", Unicode(200), "instance"),
    _needed("Successes", SEQUENCE, "successes"),
    _needed("Failures", SEQUENCE, "failures"),
    _needed("Slow", SEQUENCE, "slow"),
    _needed("LastError", UnicodeText, "last_error"),
)
