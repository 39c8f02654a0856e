"""Names that occur in telemetry, for errors about names that do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from shared.sampling.forms import HEAD_BYTES
from shared.sampling.model import Record, RecordKind
from shared.sampling.records import read_lines
from spark_jobs.model import ROLE
from spark_jobs.read.files import Chunk, SourceFile
from spark_jobs.read.sources import ClusterFiles, Source, pieces_of_chunks

MEASUREMENT = "--measurement"
FILES, LINES_MAX = 20, 2_000
NAMES_MAX = 10


def names_in(source: Source, files: Sequence[SourceFile], option: str) -> str:
    """Returns which measurements or dimensions occur at the beginning of some files."""
    records = list(_some(source, files))
    if option.startswith(MEASUREMENT):
        return there_are(name for record in records for name in record.measurements)
    roles = [ROLE for record in records if record.role_name]
    return there_are([*roles, *(name for record in records for name in record.properties)])


def there_are(names: Iterable[str]) -> str:
    """Returns the most frequent of the names as a clause."""
    counts = Counter(names).most_common()
    more = len(counts) - NAMES_MAX
    shown = ", ".join(sorted(name for name, _ in counts[:NAMES_MAX]))
    return (
        f"there are {shown}{f' and {more} more' if more > 0 else ''}" if counts else "there is none"
    )


def _some(source: Source, files: Sequence[SourceFile]) -> Iterator[Record]:
    for outcome in read_lines(_lines(source, files[:: -(-len(files) // FILES)])):
        if isinstance(outcome, Record) and outcome.kind is not RecordKind.METRIC:
            yield outcome


def _lines(source: Source, files: Sequence[SourceFile]) -> Iterator[bytes]:
    if isinstance(source, ClusterFiles):
        yield from (bytes(row.line) for row in source.lines(files).limit(LINES_MAX).collect())
        return
    chunks = [Chunk(file, 0, min(file.size_bytes, HEAD_BYTES)) for file in files]
    for _, piece in pieces_of_chunks(source, chunks):
        yield from piece.split(b"\n") if isinstance(piece, bytes) else ()
