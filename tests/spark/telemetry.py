"""Exported telemetry for tests: lines of the diagnostic-settings export, and files of them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_jobs.engine import Engine
from spark_jobs.job import Done, Request, run
from spark_jobs.publish.stores import LocalStore
from spark_jobs.read.files import Chunk
from spark_jobs.read.lines import Place, batches_of
from spark_jobs.read.sources import LocalFiles, Source, blocks_of
from spark_jobs.shape import Shape
from spark_jobs.sums.sums import Totals
from spark_jobs.sums.totals import sums_of_blocks, totals_of

if TYPE_CHECKING:
    import pyarrow as pa

TODAY = date(2017, 7, 1)
FOLDER = "insights-logs-appevents/resourceId=/SUBSCRIPTIONS/S/COMPONENTS/C"


def event(time: str, name: str = "OrderPlaced", **columns: Any) -> str:
    """``time`` such as 2017-05-15T09:30:00; a column given as ... is left out."""
    found = {
        "time": f"{time}.1234567Z",
        "Type": "AppEvents",
        "Name": name,
        "OperationId": "",
        "SDKVersion": "aspnet5c:2.20.0",
        "Properties": {"tenant": "t1"},
        "Measurements": {"Amount": 2.5},
        "ItemCount": 1,
        **columns,
    }
    return json.dumps({key: value for key, value in found.items() if value is not ...})


def put(
    root: Path, day: str, lines: Iterable[str | bytes], hour: int = 12, end: str = "\n"
) -> Path:
    """The file of one hour, as the export lays it; ``end`` is behind its last line."""
    year, month, day_of_month = day.split("-")
    folder = root / FOLDER / f"y={year}/m={month}/d={day_of_month}/h={hour:02d}/m=00"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "PT1H.json"
    encoded = [
        line if isinstance(line, bytes) else line.encode("utf-8", "surrogatepass") for line in lines
    ]
    path.write_bytes(b"\n".join(encoded) + end.encode())
    return path


def pack(path: Path) -> Path:
    packed = path.with_suffix(".json.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    return packed


def compute(
    engine: Engine,
    data: Path,
    output: Path,
    run_id: str = "run",
    shape: Shape | None = None,
    dates: tuple[str, str] | None = None,
    **more: Any,
) -> Done:
    since, until = (date.fromisoformat(day) for day in dates) if dates else (None, None)
    request = Request(
        shape=shape or Shape("Amount"),
        run_id=run_id,
        today=more.pop("today", TODAY),
        since=since,
        until=until,
        **more,
    )
    return run(LocalFiles(str(data)), LocalStore(output), engine, request)


def batches_of_task(
    source: Source, chunks: Sequence[Chunk], shape: Shape
) -> Iterator[pa.RecordBatch]:
    """What a task makes of its chunks, without Spark."""
    pieces = (
        (Place.of(chunk.file), bytes(piece))
        for chunk in chunks
        for piece in blocks_of(source, chunk)
    )
    return batches_of(pieces, shape)


def total_of(batches: Sequence[pa.RecordBatch]) -> tuple[Totals, int]:
    """Of what tasks made of lines, and how many lines could not be read."""
    blocks = [batch.filter(batch.column("reason").is_null()) for batch in batches]
    columns = [batch.select(["event_date", "bucket", "series", "block"]) for batch in blocks]
    rows = [row for found in sums_of_blocks(columns) for row in found.to_pylist()]
    quarantined = sum(b.num_rows for b in batches) - sum(b.num_rows for b in blocks)
    return totals_of(rows), quarantined
