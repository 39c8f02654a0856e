"""Ages of what handlers kept, in a SQL database."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from sqlalchemy import Connection, bindparam, delete, insert, select
from sqlalchemy.exc import IntegrityError

from shared.adapters.sql.engine import Sql
from shared.adapters.sql.schema import effects, marks
from shared.adapters.sql.writing import names_of, of_stream, where_stream
from shared.ingestion.model import Mark, Stream
from shared.values.redaction import redacting

_MARKS = select(marks).where(of_stream(marks)).order_by(marks.c.at)
_UNMARK = delete(marks).where(of_stream(marks), marks.c.at == bindparam("b_at"))
_OLD = (
    select(effects.c.sequence)
    .where(of_stream(effects), effects.c.sequence <= bindparam("b_up_to"))
    .order_by(effects.c.sequence)
)
_PURGE = delete(effects).where(of_stream(effects), effects.c.sequence <= bindparam("b_up_to"))


@redacting
class SqlRetentionStore:
    """See RetentionStore."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    async def marks(self, stream: Stream) -> Sequence[Mark]:
        rows = await self._sql.read(lambda c: c.execute(_MARKS, where_stream(stream)).all())
        return [Mark(row.at, row.sequence) for row in rows]

    async def put_mark(self, stream: Stream, mark: Mark) -> None:
        def work(connection: Connection) -> None:
            connection.execute(_UNMARK, {**where_stream(stream), "b_at": mark.at})
            row = {**names_of(stream), "at": mark.at, "sequence": mark.sequence}
            connection.execute(insert(marks), row)

        with suppress(IntegrityError):  # another put it at the same time
            await self._sql.write(work)

    async def remove_marks(self, stream: Stream, marks: Sequence[Mark]) -> None:
        gone = [{**where_stream(stream), "b_at": mark.at} for mark in marks]
        if gone:
            await self._sql.write(lambda c: c.execute(_UNMARK, gone))

    async def purge_effects(self, stream: Stream, up_to: int, limit: int) -> int:
        where = where_stream(stream)

        def work(connection: Connection) -> int:
            old = connection.execute(_OLD.limit(limit), {**where, "b_up_to": up_to}).scalars().all()
            if old:
                connection.execute(_PURGE, {**where, "b_up_to": old[-1]})
            return len(old)

        return await self._sql.write(work)
