"""Makes exported telemetry for tests: lines of the diagnostic-settings export, and files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa

from shared.sampling.model import NOTICES
from shared.sampling.series import Shape, Totals
from spark_jobs.check import added_up
from spark_jobs.engine import Engine
from spark_jobs.job import Done, run_job
from spark_jobs.options import Options
from spark_jobs.publish.stores import LocalStore
from spark_jobs.read.files import Chunk, SourceFile
from spark_jobs.read.lines import batches_of
from spark_jobs.read.sources import Files, pieces_of_chunks

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
    request = Options(
        shape=shape or Shape("Amount"),
        run_id=run_id,
        today=more.pop("today", TODAY),
        since=since,
        until=until,
        **more,
    )
    return run_job(Files([str(data)]), LocalStore(output), engine, request)


def batches_of_task(
    source: Files, chunks: Sequence[Chunk], shape: Shape
) -> Iterator[pa.RecordBatch]:
    """Returns what a task reads from its chunks, without Spark."""
    return batches_of(pieces_of_chunks(source, chunks), shape)


def total_of(batches: Sequence[pa.RecordBatch]) -> tuple[Totals, int]:
    """Adds up what tasks have read. Returns totals, and the number of quarantined lines."""
    dates = {day for batch in batches for day in batch.column("blob_date").to_pylist()}
    found = added_up([SourceFile(f"/{day}/PT1H.json", 0) for day in dates], batches)
    return found.totals, sum(
        each.count for each in found.read.complaints if each.reason not in NOTICES
    )
