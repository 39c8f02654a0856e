"""Exported telemetry for tests: lines of the diagnostic-settings export, and files of them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

from spark_jobs.engine import Engine
from spark_jobs.job import Done, Request, run
from spark_jobs.publish.stores import LocalStore
from spark_jobs.read.sources import LocalFiles
from spark_jobs.shape import Shape

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
