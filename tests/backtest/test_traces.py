"""Reading a trace from a CSV file: what is accepted, corrected and refused."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtest.traces.reading import Trace, TraceError, busiest, load_trace
from backtest.traces.samples import TRACE_MINUTES_MAX

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
SHIPPED = Path(__file__).parents[2] / "local" / "data" / "nasa_http_1995-07-11_13.csv"


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    return tmp_path / "trace.csv"


def read(path: Path, text: str | bytes) -> Trace:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_trace(path)


def rows(*samples: tuple[str, object]) -> str:
    return "time,arrivals\n" + "".join(f"{time},{count}\n" for time, count in samples)


@pytest.mark.parametrize(
    "text",
    [
        "\ufefftime,arrivals\n2024-05-01T12:00:00Z,3\n2024-05-01T12:01:00Z,4\n",
        "Time , ARRIVALS\n2024-05-01T12:00:00Z,3\n2024-05-01T12:01:00Z,4\n",
        "\n\ntime,arrivals\r\n\r\n2024-05-01T12:00:00Z,3\r\n , \r\n2024-05-01T12:01:00Z, 4",
        "time,arrivals\n2024-05-01T08:00:00-04:00,3\n2024-05-01T12:01:00Z,4\n",
    ],
    ids=["byte order mark", "case", "blank lines", "an offset"],
)
def test_harmless_differences_in_a_file_cause_no_notice(trace_file: Path, text: str) -> None:
    assert read(trace_file, text) == Trace(NOON, (3.0, 4.0))


@pytest.mark.parametrize(
    ("samples", "arrivals", "notice"),
    [
        (
            [("2024-05-01 12:00:00", 3), ("2024-05-01 12:01:00", 4)],
            [3, 4],
            "2 times without an offset, the first on line 2: read as UTC",
        ),
        (
            [(f"2024-05-01T12:0{n // 60}:{n % 60:02}Z", 1) for n in range(90)],
            [60, 30],
            "rows 1 s apart: summed into minutes",
        ),
        (
            [("2024-05-01T12:00:00Z", 9), ("2024-05-01T12:01:30Z", 18)],
            [6, 9, 12],
            "rows 1.5 min apart: spread evenly over minutes",
        ),
        (
            [("2024-05-01T12:00Z", 10)],
            [10],
            "the file has one row, which is read as the arrivals of one minute",
        ),
    ],
)
def test_what_is_changed_while_reading_is_told(
    trace_file: Path, samples: list[tuple[str, object]], arrivals: list[float], notice: str
) -> None:
    trace = read(trace_file, rows(*samples))
    assert trace.start == NOON
    assert trace.arrivals == pytest.approx(arrivals)
    assert trace.notices == (notice,)


A = "2024-05-01T12:00Z"
B = "2024-05-01T12:01Z"


@pytest.mark.parametrize(
    ("text", "line", "problem", "fix"),
    [
        ("time,arrivals\n", 2, "no row", "Add"),
        ("when,arrivals\nnoon,1\n", 1, "'when,arrivals' has no column of times", "time,arrivals"),
        (f"time,what\n{A},many\n", None, "no column of CSV holds numbers", "time,arrivals"),
        (rows((A, "")), 2, "'' is not a number", "number of items"),
        (rows((A, -1)), 2, "'-1' is negative", "number of items"),
        (rows((A, 1e13)), 2, "above 1e+12", "unit"),
        (rows(("yesterday", 1)), 2, "'yesterday' is not a time", "ISO 8601"),
        (rows(("0001-01-01T00:00+14:00", 1)), 2, "is at the end of the calendar", "2 to 9998"),
        (rows((A, 1), (A, 2)), 3, "is already on line 2", "delete one"),
        (rows((A, 1), ("2024-05-01T13:00Z", 2)), 3, "60 min apart", "30 min"),
        (
            rows(*((f"2024-05-01T12:00:00.{at:03}Z", 1) for at in (0, 20, 41, 60, 950))),
            3,
            "0.02 s apart",
            "number of events in each minute",
        ),
        (
            rows((A, 1), (B, 1), ("2034-05-01T12:02Z", 1)),
            4,
            f"more than {TRACE_MINUTES_MAX:,}",
            "year",
        ),
        (b"time,arrivals\n\xff\xfe,1\n", 2, "not UTF-8", "UTF-8"),
        (f'time,arrivals\n{A},"1\n', 2, "not a CSV row", "plain CSV"),
    ],
)
def test_the_error_for_a_bad_file_names_line_value_and_fix(
    trace_file: Path, text: str | bytes, line: int | None, problem: str, fix: str
) -> None:
    with pytest.raises(TraceError) as caught:
        read(trace_file, text)
    assert str(trace_file) in str(caught.value)
    assert line is None or f"line {line}:" in str(caught.value)
    assert problem in caught.value.problem
    assert fix in caught.value.fix


def test_a_file_that_cannot_be_opened_is_a_trace_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        load_trace(tmp_path / "none.csv")
    with pytest.raises(TraceError, match="cannot be read"):
        load_trace(tmp_path)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_file_is_either_read_or_refused_with_a_trace_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    for content in (data, b"time,arrivals\n" + data, b'{"value":' + data):
        path.write_bytes(content)
        try:
            assert load_trace(path).minutes > 0
        except TraceError as error:
            assert str(path) in str(error)  # noqa: PT017 - either outcome is right


@given(
    step_seconds=st.integers(1, 1800),
    counts=st.lists(st.integers(0, 1000), min_size=2, max_size=50),
)
def test_resampling_loses_no_arrivals(
    tmp_path_factory: pytest.TempPathFactory, step_seconds: int, counts: list[int]
) -> None:
    start = NOON.timestamp()
    path = tmp_path_factory.getbasetemp() / "steps.csv"
    samples = [
        (datetime.fromtimestamp(start + n * step_seconds, UTC).isoformat(), count)
        for n, count in enumerate(counts)
    ]
    trace = read(path, rows(*samples))
    assert sum(trace.arrivals) == pytest.approx(sum(counts))
    assert trace.minutes == -(-len(counts) * step_seconds // 60)


def test_the_bundled_trace_has_three_whole_days_and_no_notices() -> None:
    trace = load_trace(SHIPPED)
    assert trace.start == datetime(1995, 7, 11, 4, tzinfo=UTC)
    assert (trace.minutes, trace.notices, trace.missing) == (3 * 1440, (), None)
    assert (sum(trace.arrivals), max(trace.arrivals)) == (307_145, 409)


def test_the_busiest_part_has_the_most_arrivals() -> None:
    trace = Trace(NOON, (1.0, 3.0, 0.0, 4.0, 5.0, 1.0))
    part = busiest(trace, 2)
    assert (part.start, part.arrivals) == (NOON + timedelta(minutes=3), (4.0, 5.0))
    assert busiest(trace, 9).arrivals == trace.arrivals
