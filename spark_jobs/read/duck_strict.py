"""Lines that DuckDB's JSON reader takes and a stricter one does not: with Inf, NaN, or a comma
before a closing bracket. Such lines are rare, so one look at many of them usually is enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.sampling.fields import DEPTH_MAX

if TYPE_CHECKING:
    import pyarrow as pa

_NO_NUMBER = r"-?(?i:nan|inf|infinity)\s*[,}\]]"
LENIENT = (rf",\s*(?:[}}\]]|{_NO_NUMBER})", rf":\s*{_NO_NUMBER}", rf"\[\s*{_NO_NUMBER}")
"""Each begins with one character, which is fast to search for. Texts may hold the same."""
LINE_ENDS = ("chr(10)", "''", "chr(13) || chr(10)", "chr(13)")


def may_be_lenient(lines: pa.ChunkedArray) -> bool:
    """Whether any of the lines, strings, holds what a strict reader may not take.

    All of them are looked at as one text: to search each takes three times as long.
    """
    import pyarrow.compute as pc

    texts = [_as_one(chunk) for chunk in lines.chunks if len(chunk)]
    return any(
        pc.match_substring_regex(text, pattern)[0].as_py() for text in texts for pattern in LENIENT
    )


def is_strict_sql(lenient: bool) -> str:
    """No line may be looked at that ``may_be_lenient``, unless this is said.

    A line that is nested too deeply has as many brackets.
    """
    ends = " or ".join(f"line like '%}}' || {end}" for end in LINE_ENDS)
    brackets = " + ".join(f"len(string_split(line, '{bracket}')) - 1" for bracket in "{[")
    return " and ".join(
        [
            f"(line like '{{%' and ({ends}))",
            f"(strlen(line) <= {2 * DEPTH_MAX} or {brackets} <= {DEPTH_MAX})",
            *[f"not regexp_matches(line, '{pattern}')" for pattern in LENIENT if lenient],
        ]
    )


def _as_one(lines: pa.StringArray) -> Any:
    """An array of one text, which lies where the lines do."""
    import pyarrow as pa

    _, offsets, data = lines.buffers()
    edges = pa.Array.from_buffers(pa.int32(), lines.offset + len(lines) + 1, [None, offsets])
    ends = pa.array([edges[lines.offset].as_py(), edges[-1].as_py()], pa.int32())
    return pa.Array.from_buffers(pa.string(), 1, [None, ends.buffers()[1], data])
