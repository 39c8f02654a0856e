"""The message that has a data set processed: its fields, to the byte."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from shared.datasets.errors import UnreadableMessage
from shared.datasets.periods import Period
from shared.datasets.processing import DatasetWork, decode_work, encode_work, schedule_processing

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


def test_times_are_in_utc_wherever_the_app_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert encode_work(WORK) == BODY
    finally:
        monkeypatch.undo()
        time.tzset()


def test_times_are_read_as_utc_from_any_zone() -> None:
    fields = {**json.loads(BODY), "start": "2026-03-01T17:30:00+05:30"}
    found = decode_work(json.dumps(fields))
    assert found == WORK
    assert found.start.tzinfo is UTC


def test_the_message_names_what_it_is_for() -> None:
    message = schedule_processing("s", Period(), NOON)
    assert message.content_type == "application/json"
    assert message.subject == "process-dataset"


@pytest.mark.parametrize(("length", "accepted"), [(0, False), (1, True), (80, True), (81, False)])
def test_a_data_set_has_a_name_of_1_to_80_characters(length: int, accepted: bool) -> None:
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
