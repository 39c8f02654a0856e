"""Times as they are written in exports, many at once, against a regular expression on each."""

from __future__ import annotations

import re

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.read.duck_stamps import minutes_of

WRITTEN = re.compile(r'"(\d{4}-\d\d-\d\dT\d\d:\d\d):[0-5]\d\.\d{1,7}Z"', re.ASCII)
NONE = "\0" * 16
GOOD = st.from_regex(WRITTEN, fullmatch=True, alphabet=st.characters(max_codepoint=127))
NEAR = st.sampled_from(
    [
        '"2017-05-15T09:30:60.1Z"',
        '"2017-05-15T09:30:59.Z"',
        '"2017-05-15T09:30:59Z"',
        '"2017-05-15T09:30:59.12345678Z"',
        '"2017-05-15T09:30:59.1/3Z"',
        '"2017-05-15T09:30:59.1:3Z"',
        '"2017-05-15 09:30:59.123Z"',
        '"2017-05-15T09:30:59.123z"',
        '"\uff12017-05-15T09:30:59.1Z"',
        '"20é7-05-15T09:30:59.1Z"',
        "20170515093059",
        '""',
        None,
    ]
)
TEXTS = st.lists(st.one_of(GOOD, NEAR, st.text(max_size=32)), max_size=30)


def _by_pattern(text: str | None) -> str:
    found = WRITTEN.fullmatch(text or "")
    return found[1] if found else NONE


@given(texts=TEXTS, before=st.integers(0, 2), same=st.booleans())
def test_a_stamp_is_what_the_pattern_says_wherever_it_lies(
    texts: list[str | None], before: int, same: bool
) -> None:
    texts = [text for text in texts if text and len(text.encode()) == 30] if same else texts
    stamps = pa.array([*["x"] * before, *texts], pa.string()).slice(before)
    assert minutes_of(stamps).to_pylist() == [_by_pattern(text) for text in texts]


def test_stamps_of_one_length_are_read_where_they_lie() -> None:
    good, bad = '"2017-05-15T09:30:12.3456789Z"', '"2017-05-15T09:30:62.3456789Z"'
    minutes = minutes_of(pa.array([good, bad, good])).to_pylist()
    assert minutes == ["2017-05-15T09:30", NONE, "2017-05-15T09:30"]


def test_no_stamps_are_none() -> None:
    assert minutes_of(pa.array([], pa.string())).to_pylist() == []
