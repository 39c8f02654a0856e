"""Reads the ids of some operations of each date, to see whether senders that state no sampling rate
drop anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import attrgetter

from shared.sampling.comparison import DOUBTFUL_MAX
from shared.sampling.kept_ids import weights_seen
from shared.sampling.model import Record, RecordKind
from shared.sampling.records import read_line
from spark_jobs.read.files import Chunk, SourceFile
from spark_jobs.read.sources import ClusterFiles, Files, Source, pieces_of

PLACES = 2
PLACE_BYTES = 64 << 10
LINES_MAX = 150
STATED_FILES = 3
"""If the first files of a date with records state all rates, the others are not looked at."""
FILES_MAX = 100


def unsampled_dates(source: Source, files: Sequence[SourceFile]) -> set[str]:
    """Returns the blob dates on which the ids of kept operations show that senders which state no
    rate dropped nothing. Files that only Spark opens are not looked at.
    """
    if isinstance(source, ClusterFiles):
        return set()
    dated = sorted(files, key=attrgetter("blob_date", "path"))
    return {
        day
        for day, of_day in groupby(dated, attrgetter("blob_date"))
        if _unsampled(source, list(of_day))
    }


def _unsampled(source: Files, files: Sequence[SourceFile]) -> bool:
    unstated, operations = Counter[str](), dict[str, dict[str, float]]()
    read = 0
    for file in files[:: -(-len(files) // FILES_MAX)]:
        records = list(_some(source, file))
        read += bool(records)
        for record in records:
            sdk = record.sender.SDKVersion
            unstated[sdk] += not record.weight.trusted
            if record.operation_id:
                of_sender = operations.setdefault(sdk, {})
                known = of_sender.get(record.operation_id, record.item_count)
                of_sender[record.operation_id] = min(known, record.item_count)
        if read >= STATED_FILES and not unstated.total():
            return False
    doubtful = unstated.total()
    proven = sum(
        count
        for sdk, count in unstated.items()
        if count and weights_seen(operations.get(sdk, {})).proves_weight_1(sdk)
    )
    return proven > 0 and doubtful - proven <= DOUBTFUL_MAX * doubtful


def _some(source: Files, file: SourceFile) -> Iterator[Record]:
    for start in sorted({file.size_bytes * place // PLACES for place in range(PLACES)}):
        chunk = Chunk(file, start, min(start + PLACE_BYTES, file.size_bytes))
        for piece in islice(pieces_of(source, chunk), 1):
            if isinstance(piece, bytes):
                yield from _records(file, piece.split(b"\n", LINES_MAX)[:LINES_MAX])


def _records(file: SourceFile, lines: Iterable[bytes]) -> Iterator[Record]:
    for line in lines:
        for outcome in read_line(line, file.received):
            if isinstance(outcome, Record) and outcome.kind is not RecordKind.METRIC:
                yield outcome
