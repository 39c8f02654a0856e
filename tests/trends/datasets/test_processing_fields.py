"""The fields of the message that starts the processing of a data set, byte by byte."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from shared.trends.datasets.errors import UnreadableMessage
from shared.trends.datasets.periods import EPOCH, TIME_MAX, Period
from shared.trends.datasets.processing import (
    LATE_MAX,
    DatasetWork,
    decode_work,
    encode_work,
    schedule_processing,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
WORK = DatasetWork("s", "2026-03-01", NOON, NOON + timedelta(days=1))
BODY = (
    b'{"schema_version":1,"dataset":"s","label":"2026-03-01","start":"2026-03-01T12:00:00Z",'
    b'"end":"2026-03-02T12:00:00Z","late":0}'
)


def test_work_is_compact_json_with_times_in_utc() -> None:
    here = timezone(timedelta(hours=5, minutes=30))
    elsewhere = DatasetWork("s", WORK.label, WORK.start.astimezone(here), WORK.end.astimezone(here))
    assert encode_work(WORK) == encode_work(elsewhere) == BODY


def test_times_are_written_in_utc_whatever_the_local_time_zone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert encode_work(WORK) == BODY
    finally:
        monkeypatch.undo()
        time.tzset()


def test_times_in_any_zone_are_converted_to_utc() -> None:
    fields = {**json.loads(BODY), "start": "2026-03-01T17:30:00+05:30"}
    work = decode_work(json.dumps(fields))
    assert work == WORK
    assert work.start.tzinfo is UTC


def test_the_message_states_its_purpose_and_content_type() -> None:
    message = schedule_processing("s", Period(), NOON)
    assert message.content_type == "application/json"
    assert message.subject == "process-dataset"


@pytest.mark.parametrize(("length", "accepted"), [(0, False), (1, True), (80, True), (81, False)])
def test_the_name_of_a_data_set_has_1_to_80_characters(length: int, accepted: bool) -> None:
    name = "d" * length
    body = json.dumps({**json.loads(BODY), "dataset": name})
    if accepted:
        assert schedule_processing(name, Period(), NOON).session_id == name
        assert decode_work(body).dataset == name
        return
    with pytest.raises(ValueError, match="1 to 80 characters"):
        schedule_processing(name, Period(), NOON)
    with pytest.raises(UnreadableMessage, match="1 to 80 characters"):
        decode_work(body)


# --- bounds of what is read ---


def read(**changes: object) -> DatasetWork:
    return decode_work(json.dumps({**json.loads(BODY), **changes}))


def test_work_longer_than_seven_days_is_refused_naming_both_times() -> None:
    assert read(end="2026-03-08T12:00:00Z").end == NOON + timedelta(days=7)
    with pytest.raises(UnreadableMessage) as caught:
        read(end="2026-03-08T12:00:01Z")
    assert str(caught.value) == (
        "work: 2026-03-01T12:00:00Z to 2026-03-08T12:00:01Z is longer than any period; a period "
        "has at most 7 days"
    )


def test_work_is_read_from_the_first_to_the_last_supported_time() -> None:
    first, last = "1970-01-01T00:00:00Z", "2999-12-31T00:00:00Z"
    assert read(start=first, end="1970-01-02T00:00:00Z").start == EPOCH
    assert read(start="2999-12-30T00:00:00Z", end=last).end == TIME_MAX
    for time_before in ("1969-12-31T23:59:59Z", "1970-01-01T00:00:00+00:01"):
        with pytest.raises(UnreadableMessage, match="it must be a time with a zone"):
            read(start=time_before, end=first)
    with pytest.raises(
        UnreadableMessage, match="end is '2999-12-31T00:00:01Z'; it must be a time with a zone"
    ):
        read(start=last, end="2999-12-31T00:00:01Z")


def test_the_number_of_a_late_round_is_read_up_to_its_maximum() -> None:
    assert read(late=LATE_MAX).late == LATE_MAX
    reason = f"late is {LATE_MAX + 1}; it must be a whole number from 0 to {LATE_MAX}"
    with pytest.raises(UnreadableMessage, match=reason):
        read(late=LATE_MAX + 1)
