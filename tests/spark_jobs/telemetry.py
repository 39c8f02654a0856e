"""Makes exported telemetry for tests: lines of the diagnostic-settings export, and files."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa

from shared.sampling.model import NOTICES
from spark_jobs.engine import Engine
from spark_jobs.job import Done, Request, run_job
from spark_jobs.model import Shape, Totals
from spark_jobs.publish.stores import LocalStore
from spark_jobs.read.files import Chunk
from spark_jobs.read.lines import batches_of
from spark_jobs.read.sources import LocalFiles, pieces_of
from spark_jobs.sums.totals import DIVIDED, bucket_counts, divided, sums_of_blocks, totals_of

TODAY = date(2017, 7, 1)
FOLDER = "insights-logs-appevents/resourceId=/SUBSCRIPTIONS/S/COMPONENTS/C"


def event(time: str, name: str = "OrderPlaced", **columns: Any) -> str:
    """``time`` is such as 2017-05-15T09:30:00. A column with the value ... is omitted."""
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
    """Writes the file of one hour where the export would. ``end`` follows its last line."""
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
    return run_job(LocalFiles(str(data)), LocalStore(output), engine, request)


def batches_of_task(
    source: LocalFiles, chunks: Sequence[Chunk], shape: Shape
) -> Iterator[pa.RecordBatch]:
    """Returns what a task reads from its chunks, without Spark."""
    pieces = ((chunk.file, piece) for chunk in chunks for piece in pieces_of(source, chunk))
    return batches_of(pieces, shape)


def total_of(batches: Sequence[pa.RecordBatch]) -> tuple[Totals, int]:
    """Adds up what tasks have read. Returns totals, and the number of quarantined lines."""
    good = [batch.filter(batch.column("reason").is_null()) for batch in batches]
    counts = Counter[str]()
    for row in (row for batch in good for row in batch.to_pylist()):
        counts[row["event_date"]] += row["records"]
    blocks = [batch.select(["event_date", "series", "block"]) for batch in good]
    moved = pa.Table.from_batches(divided(blocks, bucket_counts(counts)), DIVIDED)
    ordered = moved.sort_by([(name, "ascending") for name in ("event_date", "part", "bucket")])
    rows = [row for sums in sums_of_blocks(ordered.to_batches()) for row in sums.to_pylist()]
    for row in rows:  # Spark's rows have tuples here
        row["hours"] = [tuple(hour.values()) for hour in row["hours"]]
    reasons = (reason for batch in batches for reason in batch.column("reason").to_pylist())
    quarantined = sum(reason is not None and reason not in NOTICES for reason in reasons)
    return totals_of(sorted(rows, key=itemgetter("part"))), quarantined
