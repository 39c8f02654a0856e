"""Computes what trends should be in plain Python, by ``shared.sampling`` alone, in one pass."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from shared.sampling.estimates import Sums
from shared.sampling.model import Quarantined, Record
from shared.sampling.records import read_line
from shared.sampling.series import Shape
from spark_jobs.model import ROLE
from spark_jobs.read.files import SourceFile
from spark_jobs.read.lines import LATE_AFTER, sendable
from tests.sampling.reference import Item, figures

Key = tuple[str, str, str, tuple[str, ...]]


def expected(root: Path, shape: Shape) -> tuple[dict[Key, tuple[Sums, int, int]], int]:
    """Returns figures, copies and late records by key, and the number of quarantined lines."""
    copies: dict[tuple[str, Key], list[tuple[Record, bool]]] = {}
    quarantined = 0
    for path in sorted(root.rglob("*.json*")):
        file = SourceFile(str(path), 0)
        hour = file.hour
        for line in _lines(path):
            for outcome in read_line(line, file.received):
                if isinstance(outcome, Record):
                    late = hour is not None and outcome.time < hour - LATE_AFTER
                    copies.setdefault((outcome.key, _key(outcome, shape)), []).append(
                        (outcome, late)
                    )
                quarantined += isinstance(outcome, Quarantined)
    groups: dict[Key, list[list[tuple[Record, bool]]]] = {}
    for (_, key), found in copies.items():
        groups.setdefault(key, []).append(found)
    return {key: _figures(found, shape) for key, found in groups.items()}, quarantined


def _figures(groups: list[list[tuple[Record, bool]]], shape: Shape) -> tuple[Sums, int, int]:
    items = []
    for copies in groups:
        record = max((record for record, _ in copies), key=lambda r: r.weight.value)
        values = [
            other.measurements[shape.measurement]
            for other, _ in copies
            if shape.measurement in other.measurements
        ]
        value = max(values, default=None) if shape.measurement else 1.0
        items.append(Item(record.weight, value, sendable(record.operation_id)))
    removed = sum(len(copies) - 1 for copies in groups)
    late = sum(all(late for _, late in copies) for copies in groups)
    return figures(items), removed, late


def _key(record: Record, shape: Shape) -> Key:
    day = record.time.astimezone(ZoneInfo(shape.time_zone)).date().isoformat()
    dims = [
        record.role_name if name == ROLE else record.properties.get(name, "")
        for name in shape.dimensions
    ]
    return day, str(record.kind), sendable(record.name), tuple(sendable(d) for d in dims)


def _lines(path: Path) -> Iterator[bytes]:
    content = path.read_bytes()
    if path.suffix != ".gz":
        yield from content.split(b"\n")
        return
    try:
        yield from gzip.decompress(content).split(b"\n")
    except (EOFError, zlib.error, gzip.BadGzipFile):
        text: Any = zlib.decompressobj(wbits=31).decompress(content)
        yield from text.split(b"\n")
        yield b"damaged"
