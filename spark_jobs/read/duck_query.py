"""DuckDB in a task's process: opened once, and what is asked again and again is planned once.

To plan the query of lines takes 20 ms, as long as it takes to read 4,000 of them.
"""

from __future__ import annotations

import atexit
import gc
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from spark_jobs.read.duck_lines import lines_sql
from spark_jobs.shape import Shape

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

CACHED_BYTES = 256 << 10
ROWS_MIN, ROWS_MAX = 64, 2_048
"""DuckDB takes no more at a time; each time costs something, too."""


@cache
def database() -> duckdb.DuckDBPyConnection:
    """One thread: Spark gives each task one core. Nothing is loaded from elsewhere."""
    import duckdb
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())  # others keep what is free for longer
    connection = duckdb.connect(
        config={"threads": 1, "autoinstall_known_extensions": False, "memory_limit": "1GB"}
    )
    connection.execute("set preserve_insertion_order = false")
    gc.freeze()  # Spark collects garbage after each task: not among all that was imported
    atexit.register(_close)
    return connection


def connect() -> duckdb.DuckDBPyConnection:
    """With tables of its own, for one task."""
    return database().cursor()


def rows_together(table: pa.Table) -> int:
    """As many as stay in a core's cache while one expression after the other goes over them."""
    rows: int = CACHED_BYTES * table.num_rows // max(table.nbytes, 1)
    return min(max(rows, ROWS_MIN), ROWS_MAX)


class _Lines:
    """What the query reads: another table each time. (A table itself is read as it was when the
    query was planned.)"""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.reads = 0

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        import pyarrow as pa

        self.reads += 1
        few = self.table.to_batches(max_chunksize=rows_together(self.table))
        reader = pa.RecordBatchReader.from_batches(self.table.schema, few)
        return reader.__arrow_c_stream__(requested_schema)


class LineQuery:
    """``lines_sql`` of a shape, run on one table after the other."""

    def __init__(self, shape: Shape) -> None:
        import duckdb
        import pyarrow as pa

        self._shape = shape
        self._none = pa.table(
            {"line": pa.array([], pa.string()), "number": pa.array([], pa.int64())}
        )
        self._lines = _Lines(self._none)
        self._connection = connect()
        self._connection.register("lines", self._lines)
        self._planned: set[str] = set()
        self._plans_once = not duckdb.__version__.startswith("1.")  # reads no table twice

    def run(self, lines: pa.Table, lenient: bool) -> pa.Table:
        """``lines`` has the columns of the query, and may have others."""
        import duckdb

        lines = lines.select(self._none.column_names)
        self._lines.table = lines
        try:
            return self._run(lenient, careful=False)
        except (duckdb.InvalidInputException, UnicodeDecodeError):
            # a line is cut where it looks whole; what is said of it may be cut within a character
            return self._run(lenient, careful=True)
        finally:
            self._lines.table = self._none

    def _run(self, lenient: bool, careful: bool) -> pa.Table:
        if not self._plans_once:
            self._connection.register("lines", self._lines)  # 1.4 asks for its stream once
            sql = lines_sql(self._shape, lenient, careful)
            return self._connection.sql(sql).to_arrow_table()
        plan, reads = self._plan(lenient, careful), self._lines.reads
        found = self._connection.sql(plan).to_arrow_table()
        if self._lines.reads == reads:
            raise RuntimeError("this version of DuckDB reads a table once: take --engine spark")
        return found

    def _plan(self, lenient: bool, careful: bool) -> str:
        name = f"lines_{lenient}_{careful}"
        if name not in self._planned:
            sql = lines_sql(self._shape, lenient, careful)
            self._connection.execute(f"prepare {name} as {sql}")
            self._planned.add(name)
        return f"execute {name}"


@lru_cache(maxsize=4)
def line_query(shape: Shape) -> LineQuery:
    return LineQuery(shape)


def _close() -> None:
    """While the interpreter is still whole."""
    line_query.cache_clear()
    database.cache_clear()
    gc.unfreeze()
