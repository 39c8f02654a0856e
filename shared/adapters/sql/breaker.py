"""Stores a circuit breaker in a SQL database.

One row holds the breaker's state and is changed by conditional writes. Another table holds the
tally of each bucket and instance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from shared.adapters.sql.engine import Sql
from shared.adapters.sql.schema import breakers, server_now, tallies
from shared.ingestion.breaker.breaker import Breaker
from shared.ingestion.breaker.failure_window import TALLIES_KEPT, Tally
from shared.ingestion.breaker.ports import BreakerSnapshot, decode_breaker, encode_breaker
from shared.ingestion.errors import BreakerChanged
from shared.values.redaction import redacting

_NOW = select(server_now().label("now")).subquery()
_LOAD = select(_NOW.c.now, breakers.c.state, breakers.c.version).select_from(
    _NOW.outerjoin(breakers, breakers.c.name == bindparam("b_name"))
)
_REPLACE = update(breakers).where(
    breakers.c.name == bindparam("b_name"), breakers.c.version == bindparam("b_version")
)
_RECOUNT = update(tallies).where(
    tallies.c.name == bindparam("b_name"),
    tallies.c.bucket_start == bindparam("b_bucket_start"),
    tallies.c.instance == bindparam("b_instance"),
)


@redacting
class SqlBreakerStore:
    """See BreakerStore. The version of the state is the number of writes of its row."""

    def __init__(self, sql: Sql, name: str) -> None:
        self._sql = sql
        self._name = name

    async def load(self) -> BreakerSnapshot:
        """The state and the database's time, read in one query because this runs before each
        batch."""
        row = await self._sql.read(lambda c: c.execute(_LOAD, {"b_name": self._name}).one())
        if row.version is None:
            return BreakerSnapshot(Breaker(), row.now)
        return BreakerSnapshot(decode_breaker(row.state), row.now, row.version)

    async def replace(self, seen: BreakerSnapshot, breaker: Breaker) -> BreakerSnapshot:
        def work(connection: Connection) -> BreakerSnapshot:
            version = (seen.version or 0) + 1
            state = encode_breaker(breaker)
            values = {"mode": str(breaker.mode), "state": state, "version": version}
            if seen.version is None:
                try:
                    connection.execute(insert(breakers), {"name": self._name, **values})
                except IntegrityError as error:
                    raise BreakerChanged(self._conflict()) from error
            else:
                guard = {"b_name": self._name, "b_version": seen.version}
                if connection.execute(_REPLACE, {**values, **guard}).rowcount != 1:
                    raise BreakerChanged(self._conflict())
            return BreakerSnapshot(breaker, _now(connection), version)

        return await self._sql.write(work)

    async def put_tally(self, tally: Tally) -> None:
        """Update the tally's row, or insert it. The two statements cannot race with another writer,
        because each instance writes only its own rows."""
        key = {"name": self._name, "bucket_start": tally.bucket_start, "instance": tally.instance}
        values = {name: value for name, value in asdict(tally).items() if name not in key}
        old = delete(tallies).where(
            tallies.c.name == self._name,
            tallies.c.bucket_start < tally.bucket_start - TALLIES_KEPT,
        )

        def work(connection: Connection) -> None:
            where = {f"b_{name}": value for name, value in key.items()}
            if connection.execute(_RECOUNT, {**values, **where}).rowcount == 0:
                connection.execute(insert(tallies), {**key, **values})
                connection.execute(old)

        await self._sql.write(work)

    async def tallies(self, since: datetime) -> Sequence[Tally]:
        query = select(tallies).where(tallies.c.name == self._name, tallies.c.bucket_start >= since)
        rows = await self._sql.read(lambda c: c.execute(query).all())
        return [
            Tally(r.bucket_start, r.instance, r.successes, r.failures, r.slow, r.last_error)
            for r in rows
        ]

    def _conflict(self) -> str:
        return f"{self._name}: another instance changed the breaker first"


def _now(connection: Connection) -> datetime:
    return connection.execute(select(server_now())).scalar_one()
