"""One message per data set and period: ids, due times, claims, and the settings of the queues."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from local.twins.datasets import MemoryClaims, MemoryQueueCheck, RecordingRecompute
from shared.azure.refusals import AccessRefused
from shared.trends.datasets import flows
from shared.trends.datasets.periods import DAY, Period
from shared.trends.datasets.processing import (
    LATE_MAX,
    DatasetWork,
    UnreadableMessage,
    decode_work,
    encode_work,
    schedule_processing,
)
from shared.trends.datasets.queues import EntitiesMisconfigured, QueueDescription, problems
from shared.values.messages import LinkFailed, Message
from shared.values.row_values import FAR_AHEAD, UNIX_START

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
DAILY = Period()
TWO_HOURLY = Period(2 * HOUR, HOUR / 4, HOUR)


@pytest.mark.parametrize(
    ("period", "now", "message_id", "scheduled_at"),
    [
        (DAILY, NOON, "sales:2026-03-01", datetime(2026, 3, 2, 1, tzinfo=UTC)),
        (DAILY, NOON.replace(hour=0), "sales:2026-03-01", datetime(2026, 3, 2, 1, tzinfo=UTC)),
        (TWO_HOURLY, NOON, "sales:2026-03-01T12:00Z/PT2H", NOON + 2.25 * HOUR),
        (Period(2 * DAY), NOON, "sales:2026-02-28/P2D", NOON + 13 * HOUR),
        (Period(HOUR / 4), NOON, "sales:2026-03-01T12:00Z/PT15M", NOON + 1.25 * HOUR),
    ],
)
def test_the_period_determines_the_id_and_the_due_time_of_the_message(
    period: Period, now: datetime, message_id: str, scheduled_at: datetime
) -> None:
    message = schedule_processing("sales", period, now)
    assert (message.message_id, message.session_id) == (message_id, "sales")
    assert message.scheduled_at == scheduled_at


MIDNIGHT = datetime(2026, 3, 2, tzinfo=UTC)
"""The end of the observed day, which is processed an hour later."""

MINUTE = HOUR / 60


@pytest.mark.parametrize(
    ("after_midnight", "message_id", "due_after_midnight"),
    [
        (HOUR - 2 * MINUTE, "sales:2026-03-01", HOUR),
        (HOUR - MINUTE, "sales:2026-03-01:late-1", 12 * HOUR),  # another clock may be ahead
        (11 * HOUR, "sales:2026-03-01:late-1", 12 * HOUR),
        (12 * HOUR, "sales:2026-03-01:late-2", 24 * HOUR),
        (70 * HOUR, "sales:2026-03-01:late-6", 72 * HOUR),
    ],
)
def test_late_data_share_one_message_per_lateness_interval(
    after_midnight: timedelta, message_id: str, due_after_midnight: timedelta
) -> None:
    message = schedule_processing("sales", DAILY, MIDNIGHT + after_midnight, NOON)
    assert (message.message_id, message.session_id) == (message_id, "sales")
    assert message.scheduled_at == MIDNIGHT + due_after_midnight
    assert isinstance(message.body, bytes)
    assert decode_work(message.body).message_id == message_id


@given(
    st.sampled_from([DAILY, TWO_HOURLY, Period(delay=20 * HOUR), Period(2 * HOUR)]),
    st.timedeltas(timedelta(0), timedelta(days=30)),
)
def test_a_message_is_due_after_its_data_and_within_the_duplicate_detection_window(
    period: Period, after: timedelta
) -> None:
    start = period.start(NOON)
    late, due = period.next_round(start, start + after)
    assert start + after < due <= start + max(after, period.length) + period.memory
    first = start if late == 0 else due - period.lateness
    assert due - first <= period.memory, "the window covers every message of this id"
    later, _ = period.next_round(start, due)
    assert later > late


def test_the_longest_names_fit_into_a_message_id() -> None:
    rarely = Period(timedelta(minutes=288), lateness=MINUTE)
    message = schedule_processing("x" * 80, rarely, NOON, datetime(1990, 1, 1, tzinfo=UTC))
    assert message.message_id is not None
    assert len(message.message_id) <= 128


def test_work_is_read_back_from_its_message() -> None:
    message = schedule_processing("sales", TWO_HOURLY, NOON)
    assert isinstance(message.body, bytes)
    work = decode_work(message.body)
    assert work == DatasetWork("sales", "2026-03-01T12:00Z/PT2H", NOON, NOON + 2 * HOUR)
    assert work.message_id == message.message_id


@pytest.mark.parametrize(
    "length", [timedelta(0), 7 * HOUR, 25 * HOUR, timedelta(seconds=90), -24 * HOUR]
)
def test_a_period_must_divide_a_day_or_be_whole_days(length: timedelta) -> None:
    with pytest.raises(ValueError, match="it must be whole days or divide a day evenly"):
        Period(length)


def test_a_lateness_below_a_minute_is_refused() -> None:
    with pytest.raises(ValueError, match="lateness 0:00:00 must be at least a minute"):
        Period(lateness=timedelta(0))


def test_a_period_longer_than_the_longest_duplicate_detection_window_is_refused() -> None:
    with pytest.raises(ValueError, match="it must be less than 7 days"):
        Period(timedelta(days=6), lateness=timedelta(days=1))


BODY = (
    b'{"schema_version":1,"dataset":"sales","label":"2026-03-01","start":"2026-03-01T12:00:00Z",'
    b'"end":"2026-03-02T12:00:00Z","late":0}'
)
WORK = DatasetWork("sales", "2026-03-01", NOON, NOON + DAY)


def read(**changes: object) -> DatasetWork:
    return decode_work(json.dumps({**json.loads(BODY), **changes}))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"schema_version": 2}, "schema_version 1"),
        ({"dataset": ""}, "dataset = '': must have 1 to 80 characters"),
        ({"label": 5}, "label is a int, but must be text"),
        ({"label": None}, "it has no 'label'"),
        ({"start": "yesterday"}, "start is 'yesterday': Invalid isoformat"),
        ({"start": 5}, "start is 5: "),
        ({"end": "2026-03-02T00:00:00"}, "has no time zone"),
        ({"end": "2026-03-01T12:00:00Z"}, "is not a period"),
        ({"late": -1}, "late = -1: must be a whole number from 0"),
        ({"late": True}, "late is a bool, but must be a whole number"),
    ],
)
def test_invalid_work_is_refused_with_the_reason(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(UnreadableMessage, match=complaint):
        read(**change)
    with pytest.raises(UnreadableMessage, match="not JSON"):
        decode_work("{")
    with pytest.raises(UnreadableMessage, match="must be a JSON object"):
        decode_work("[]")


def test_work_is_compact_json_with_times_in_utc_whatever_the_local_time_zone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = timezone(timedelta(hours=5, minutes=30))
    elsewhere = replace(WORK, start=WORK.start.astimezone(here), end=WORK.end.astimezone(here))
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert encode_work(WORK) == encode_work(elsewhere) == BODY
    finally:
        monkeypatch.undo()
        time.tzset()


def test_times_in_any_zone_are_converted_to_utc() -> None:
    work = read(start="2026-03-01T17:30:00+05:30")
    assert work == WORK
    assert work.start.tzinfo is UTC


def test_the_message_states_its_purpose_and_content_type() -> None:
    message = schedule_processing("sales", DAILY, NOON)
    assert message.content_type == "application/json"
    assert message.subject == "process-dataset"


@pytest.mark.parametrize(("length", "accepted"), [(0, False), (1, True), (80, True), (81, False)])
def test_the_name_of_a_data_set_has_1_to_80_characters(length: int, accepted: bool) -> None:
    name = "d" * length
    body = json.dumps({**json.loads(BODY), "dataset": name})
    if accepted:
        assert decode_work(body).dataset == name
        return
    with pytest.raises(UnreadableMessage, match="1 to 80 characters"):
        decode_work(body)


def test_work_longer_than_seven_days_is_refused_naming_both_times() -> None:
    assert read(end="2026-03-08T12:00:00Z").end == NOON + timedelta(days=7)
    with pytest.raises(UnreadableMessage) as caught:
        read(end="2026-03-08T12:00:01Z")
    assert str(caught.value) == (
        "work: 2026-03-01T12:00:00Z to 2026-03-08T12:00:01Z is not a period of up to 7 days"
    )


def test_work_is_read_from_the_first_to_the_last_supported_time() -> None:
    first, last = "1970-01-01T00:00:00Z", "2999-12-31T00:00:00Z"
    assert read(start=first, end="1970-01-02T00:00:00Z").start == UNIX_START
    assert read(start="2999-12-30T00:00:00Z", end=last).end == FAR_AHEAD
    for time_before in ("1969-12-31T23:59:59Z", "1970-01-01T00:00:00+00:01"):
        with pytest.raises(UnreadableMessage, match="is not between 1970 and 2999"):
            read(start=time_before, end=first)
    with pytest.raises(
        UnreadableMessage, match=r"end is '2999-12-31T00:00:01Z': .* is not between 1970 and 2999"
    ):
        read(start=last, end="2999-12-31T00:00:01Z")


def test_the_number_of_a_late_round_is_read_up_to_its_maximum() -> None:
    assert read(late=LATE_MAX).late == LATE_MAX
    reason = f"late = {LATE_MAX + 1}: must be a whole number from 0 to {LATE_MAX}"
    with pytest.raises(UnreadableMessage, match=reason):
        read(late=LATE_MAX + 1)


class ProcessingRig:
    """``process_dataset`` with claims in memory."""

    def __init__(self) -> None:
        self.claims = MemoryClaims(lambda: NOON)
        self.recompute = RecordingRecompute()
        self.work = WORK

    async def process(self, message: str) -> bool:
        return await flows.process_data_set(self.work, message, self.claims, self.recompute)


async def test_a_second_message_for_the_same_period_does_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = ProcessingRig()
    caplog.set_level("INFO")
    assert await rig.process("1") is True
    assert await rig.process("2") is False
    assert await rig.process("1") is False
    assert rig.recompute.calls == [rig.work]
    left = "[left] sales:2026-03-01: it was processed at 2026-03-01T12:00:00+00:00 for message 1"
    assert caplog.messages[1:] == [left] * 2


async def test_late_data_are_processed_under_a_claim_of_their_own() -> None:
    rig = ProcessingRig()
    on_time, late = rig.work, replace(rig.work, late=1)
    for rig.work in (on_time, late, late, on_time):
        await rig.process(f"{rig.work.late}")
    assert rig.recompute.calls == [on_time, late]


async def test_a_period_counts_as_processed_only_after_it_was() -> None:
    rig = ProcessingRig()

    async def broken(_work: DatasetWork) -> None:
        raise RuntimeError("no cluster")

    good, rig.recompute = rig.recompute, broken  # type: ignore[assignment]
    with pytest.raises(RuntimeError):
        await rig.process("1")
    rig.recompute = good
    assert await rig.process("2") is True


class Window:
    """A queue that forgets message ids after its duplicate detection window, as Service Bus
    does."""

    def __init__(self, length: timedelta) -> None:
        self.length = length
        self.seen: dict[str, datetime] = {}
        self.due: list[tuple[datetime, Message]] = []

    def send(self, message: Message, now: datetime) -> None:
        assert message.message_id is not None
        first = self.seen.get(message.message_id)
        if first is None or now - first > self.length:
            self.seen[message.message_id] = now
            self.due.append((message.scheduled_at or now, message))


@pytest.mark.parametrize(("after", "messages"), [(-HOUR, 1), (HOUR, 2)])
async def test_the_claim_stops_a_duplicate_that_arrives_after_the_detection_window(
    after: timedelta, messages: int
) -> None:
    too_short = Window(10 * HOUR)
    first_at = datetime(2026, 3, 1, tzinfo=UTC)
    for now in (first_at, first_at + too_short.length + after):
        too_short.send(schedule_processing("sales", DAILY, now), now)
    assert len(too_short.due) == messages
    rig = ProcessingRig()
    for number, (_, message) in enumerate(too_short.due):
        assert isinstance(message.body, bytes)
        rig.work = decode_work(message.body)
        await rig.process(str(number))
    assert len(rig.recompute.calls) == 1


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 7 * 24 * 60), st.integers(0, 70 * 60)), max_size=60),
    st.sampled_from([HOUR, 13 * HOUR]),
)
async def test_each_period_is_processed_after_its_last_data_even_if_late(
    arrivals: list[tuple[int, int]], delay: timedelta
) -> None:
    """An arrival is a minute of the week, and the number of minutes by which its data are late."""
    start = datetime(2026, 3, 2, tzinfo=UTC)
    rig = ProcessingRig()
    for period in (Period(delay=delay), Period(2 * HOUR, delay)):
        window, last_data = Window(period.memory + MINUTE), dict[datetime, datetime]()
        for minute, late in sorted(arrivals):
            now = start + minute * MINUTE
            window.send(schedule_processing("sales", period, now, now - late * MINUTE), now)
            last_data[period.start(now - late * MINUTE)] = now
        processed = dict[datetime, list[datetime]]()
        for number, (due, message) in enumerate(sorted(window.due, key=lambda sent: sent[0])):
            assert isinstance(message.body, bytes)
            rig.work = decode_work(message.body)
            assert await rig.process(str(number)), "an id was delivered twice"
            processed.setdefault(rig.work.start, []).append(due)
        assert {begin: max(dues) > last_data[begin] for begin, dues in processed.items()} == (
            dict.fromkeys(last_data, True)
        )
        for begin, dues in processed.items():
            late_for = max(HOUR * 0, last_data[begin] + MINUTE - begin - period.length)
            assert len(dues) <= 2 + late_for // period.lateness


GOOD_IN = QueueDescription("in", 37 * HOUR, requires_session=False, forward_to="Out")
GOOD_OUT = QueueDescription("out", None, requires_session=True, forward_to=None)


def test_well_configured_queues_have_no_problems() -> None:
    assert list(problems(GOOD_IN, GOOD_OUT, [DAILY, TWO_HOURLY])) == []


async def test_all_problems_with_the_queues_are_reported_together() -> None:
    check = MemoryQueueCheck(
        {
            "in": QueueDescription("in", 36 * HOUR, requires_session=True, forward_to=None),
            "out": QueueDescription("out", None, requires_session=False, forward_to=None),
        },
        [DAILY, TWO_HOURLY],
    )
    with pytest.raises(EntitiesMisconfigured) as wrong:
        await check.check()
    text = str(wrong.value)
    assert len(wrong.value.problems) == 4
    for part in (
        "1 day, 12:00:00; that must be more",
        "cannot forward",
        "it forwards to no other queue; let it forward to out",
        "twice at once",
    ):
        assert part in text
    with pytest.raises(LinkFailed, match="queue none"):
        await MemoryQueueCheck({}, [DAILY], "none").check()


class ForbiddenQueueCheck(MemoryQueueCheck):
    """Refuses each request for lack of rights, and counts the requests."""

    asked = 0

    async def facts(self, queue: str) -> QueueDescription:
        self.asked += 1
        refused = AccessRefused(f"queue {queue}")
        refused.status_code = 401
        raise refused


async def test_the_check_is_repeated_until_it_passes() -> None:
    queues = {"in": GOOD_IN, "out": GOOD_OUT, "bad": GOOD_OUT}
    check = MemoryQueueCheck(queues, [DAILY], "bad")
    for _ in range(2):
        with pytest.raises(EntitiesMisconfigured):
            await check.check()
    check.processing = "in"
    await check.check()
    check.processing = "bad"
    await check.check()


async def test_a_missing_right_to_read_queues_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check = ForbiddenQueueCheck({}, [DAILY])
    await check.check()
    await check.check()
    assert (check.asked, len(caplog.records)) == (1, 1)


def test_a_queue_without_duplicate_detection_must_be_created_anew() -> None:
    queue = QueueDescription("in", None, requires_session=False, forward_to="out")
    assert [
        "delete it and create it" in problem for problem in problems(queue, GOOD_OUT, [DAILY])
    ] == [True]
