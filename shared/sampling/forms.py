"""Recognizes files that are not lines of JSON, and reads JSON that spans several lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain

HEAD_BYTES = 64 << 10
DOCUMENT_BYTES_MAX = 64 << 20
"""The largest file that is read as a whole."""
CELL = rb'"?[A-Za-z_][\w .()\[\]]*"?'
HEADER = re.compile(rb"(?:%b[,;\t])+%b" % (CELL, CELL))
OPENING = re.compile(rb'(?:\{\s*"\w+"\s*:\s*)?[\[{]')
SEVERAL = re.compile(rb"[\[{].*[}\]]\s*[{\[]", re.DOTALL)
GAP = re.compile(r"[\s,]*")
UTF_16 = "UTF-16 text: convert it to UTF-8, as with iconv or Out-File -Encoding utf8"
PACKED = "compressed, but not as gzip: unpack it"
PAGE = "XML or HTML, such as an error page: download the export again"
SIGNATURES = {
    b"PK\x03\x04": "a zip archive: unpack it",
    b"Obj\x01": "Avro, as Event Hubs Capture writes it: export telemetry to a storage account",
    b"PAR1": "Parquet: export telemetry to a storage account as JSON",
    b"\x1f\x8b": "gzip inside gzip: unpack it",
    b"BZh": PACKED,
    b"\xfd7zXZ": PACKED,
    b"\x28\xb5\x2f\xfd": PACKED,
    b"7z\xbc\xaf": PACKED,
    b"<!": PAGE,
    b"<?": PAGE,
    b"\xff\xfe": UTF_16,
    b"\xfe\xff": UTF_16,
    b"{\0": UTF_16,
    b"[\0": UTF_16,
    b"\0{": UTF_16,
}
TAR_AT = 257
CSV = "CSV, such as of the portal: export telemetry to a storage account with diagnostic settings"
LARGE = (
    f"one JSON document of more than {DOCUMENT_BYTES_MAX >> 20} MB over several lines: write one"
    " record a line, as with jq -c '.[]'"
)
EMPTY_GZIP = "an empty file and no gzip: copy it again"


def other_form(head: bytes) -> str:
    """Returns what a file is if it has no lines of JSON, and what to do; otherwise an empty
    text."""
    for signature, told in SIGNATURES.items():
        if head.startswith(signature):
            return told
    if head[TAR_AT:].startswith(b"ustar"):
        return "a tar archive: unpack it"
    return CSV if HEADER.fullmatch(_first_lines(head)[0]) else ""


def is_document(head: bytes) -> bool:
    """Whether a file's beginning is that of JSON over several lines, or the file is a short line
    with several values. A cut line is not.
    """
    first, second = _first_lines(head)
    if _is_json(first):
        return False
    if not second:
        return len(head) < HEAD_BYTES and SEVERAL.match(first) is not None
    begun = first.startswith(b"[") or (
        first.startswith(b"{") and first.endswith((b"[", b"{", b",", b":"))
    )
    return begun and (OPENING.fullmatch(first) is not None or not _is_json(second))


def in_lines(pieces: Iterator[bytes]) -> Iterator[bytes | str]:
    """Yields pieces of a whole file with one value a line. A text in place of a piece says why the
    file cannot be read.
    """
    first = next(pieces, b"")
    if told := other_form(first):
        yield told
    elif not is_document(first):
        yield first
        yield from pieces
    else:
        parts, size_bytes = list[bytes](), 0
        for piece in chain([first], pieces):
            parts.append(piece)
            size_bytes += len(piece)
            if size_bytes > DOCUMENT_BYTES_MAX:
                yield LARGE
                return
        yield from _values(b"".join(parts))


def _values(text: bytes) -> Iterator[bytes]:
    """Yields the values of a document, one a line. The lines of a damaged one lose their commas, so
    that those with a whole value are read.
    """
    decoder, at = json.JSONDecoder(), 0
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError:
        yield text
        return
    try:
        while (at := _after_gap(decoded, at)) < len(decoded):
            value, at = decoder.raw_decode(decoded, at)
            parts = value if isinstance(value, list) else [value]
            yield b"".join(json.dumps(part).encode() + b"\n" for part in parts)
    except (ValueError, RecursionError):
        yield re.sub(r",\s*\n", "\n", decoded[at:]).encode()


def _after_gap(text: str, at: int) -> int:
    gap = GAP.match(text, at)
    return gap.end() if gap else at


def _first_lines(head: bytes) -> tuple[bytes, bytes]:
    """Returns the first two lines that are not blank."""
    lines = filter(None, map(bytes.strip, head.removeprefix(b"\xef\xbb\xbf").split(b"\n")))
    return next(lines, b""), next(lines, b"")


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
