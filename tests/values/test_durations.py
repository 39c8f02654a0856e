"""Each form of a duration is read in one way, and bounded."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from shared.values.durations import iso, short, time_span

Parser = Callable[[str], timedelta]


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (short, "90m", timedelta(minutes=90)),
        (short, " 1d12h ", timedelta(days=1, hours=12)),
        (short, "0s", timedelta(0)),
        (iso, "PT5M", timedelta(minutes=5)),
        (iso, "P1D", timedelta(days=1)),
        (iso, "pt1h30m", timedelta(minutes=90)),
        (time_span, "0:10:00", timedelta(minutes=10)),
        (time_span, "01:02:03", timedelta(hours=1, minutes=2, seconds=3)),
        (time_span, "00:00:00.25", timedelta(milliseconds=250)),
        (time_span, "1.00:00:00", timedelta(days=1)),
        (time_span, "24:00:00", timedelta(days=24)),  # as .NET reads it
    ],
)
def test_a_duration_is_read(parse: Parser, text: str, expected: timedelta) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *[(short, text) for text in ("", "5", "2h1d", "-5m", "1.5h", "9999999d", "\u0663d")],
        *[(iso, text) for text in ("", "P", "PT", "5M", "PT5", "P1Y", "PT9999999M", "-PT5M")],
        *[(time_span, text) for text in ("", "5", "5 minutes", "00:60", "-00:01:00")],
        (time_span, "999999999.00:00:00"),
    ],
)
def test_another_text_is_refused_and_quoted(parse: Parser, text: str) -> None:
    with pytest.raises(ValueError, match="such as") as raised:
        parse(text)
    assert repr(text) in str(raised.value)
