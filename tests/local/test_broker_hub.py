"""The model of event hubs in the AMQP stand-in."""

from datetime import UTC, datetime, timedelta

import pytest

from local.amqp_broker.model.errors import (
    EntityNotFound,
    InvalidArgument,
    InvalidProperties,
    ReceiverDisconnected,
    TooManyReceivers,
)
from local.amqp_broker.model.hub import START, EventContent, Hub, Partition, Position, PositionKind
from local.amqp_broker.model.properties import HubProperties

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
GROUP = "$default"
LATEST = Position(PositionKind.LATEST)


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


@pytest.fixture
def partition() -> Partition:
    """A partition with events 0 to 4, one a minute, of 10 bytes each."""
    partition = Partition("0", timedelta(days=1))
    for number in range(5):
        partition.append(EventContent(b"%10d" % number), NOW + minutes(number))
    return partition


def numbers(partition: Partition, position: Position, limit: int = 99) -> list[int]:
    reader, _ = partition.attach(GROUP, position, None, NOW)
    read = [event.sequence_number for event in partition.read(reader, limit, NOW)]
    partition.detach(reader)
    return read


@pytest.mark.parametrize(
    ("position", "first"),
    [
        (START, 0),
        (LATEST, 5),
        (Position(PositionKind.SEQUENCE_NUMBER, 2), 3),
        (Position(PositionKind.SEQUENCE_NUMBER, 2, inclusive=True), 2),
        (Position(PositionKind.OFFSET, 20), 3),
        (Position(PositionKind.OFFSET, 20, inclusive=True), 2),
        (Position(PositionKind.ENQUEUED_TIME, NOW + minutes(1.5)), 2),
        (Position(PositionKind.ENQUEUED_TIME, NOW + minutes(2)), 3),
        (Position(PositionKind.ENQUEUED_TIME, NOW + minutes(2), inclusive=True), 2),
        (Position(PositionKind.SEQUENCE_NUMBER, 4), 5),
        (Position(PositionKind.OFFSET, 40), 5),
        (Position(PositionKind.ENQUEUED_TIME, NOW + minutes(99)), 5),
    ],
)
def test_reading_begins_at_the_requested_position(
    partition: Partition, position: Position, first: int
) -> None:
    assert numbers(partition, position) == list(range(first, 5))


@pytest.mark.parametrize(
    ("position", "message"),
    [
        (Position(PositionKind.SEQUENCE_NUMBER, 5), "sequence number '5' .* system is '4'"),
        (Position(PositionKind.OFFSET, 41), "offset '41' .* system is '40'"),
        (Position(PositionKind.OFFSET, 41, inclusive=True), "offset '41' .* system is '40'"),
    ],
)
def test_a_position_beyond_the_last_event_is_refused_and_disconnects_no_reader(
    partition: Partition, position: Position, message: str
) -> None:
    reader, _ = partition.attach(GROUP, START, 1, NOW)
    with pytest.raises(InvalidArgument, match=message):
        partition.attach(GROUP, position, 2, NOW)
    assert partition.reader_count == 1
    assert len(partition.read(reader, 99, NOW)) == 5


def test_the_end_of_a_partition_does_not_move_when_all_events_expire(partition: Partition) -> None:
    later = NOW + timedelta(days=2)
    after_all = Position(PositionKind.SEQUENCE_NUMBER, 4)
    reader, _ = partition.attach(GROUP, after_all, None, later)
    assert reader.next_number == 5


def test_every_position_is_beyond_the_end_of_an_empty_partition() -> None:
    empty = Partition("0", timedelta(days=1))
    empty.attach(GROUP, START, None, NOW)
    with pytest.raises(InvalidArgument, match="system is '-1'"):
        empty.attach(GROUP, Position(PositionKind.SEQUENCE_NUMBER, 0), None, NOW)


def test_a_reader_continues_where_it_stopped(partition: Partition) -> None:
    reader, _ = partition.attach(GROUP, START, None, NOW)
    first = [event.sequence_number for event in partition.read(reader, 3, NOW)]
    rest = [event.sequence_number for event in partition.read(reader, 9, NOW)]
    assert (first, rest) == ([0, 1, 2], [3, 4])
    assert partition.read(reader, 9, NOW) == []


def test_events_older_than_the_retention_are_removed(partition: Partition) -> None:
    later = NOW + timedelta(days=1) + minutes(2)
    reader, _ = partition.attach(GROUP, START, None, later)
    assert [event.sequence_number for event in partition.read(reader, 9, later)] == [3, 4]
    facts = partition.facts(later)
    assert (facts.begin_sequence_number, facts.last_sequence_number) == (3, 4)


def test_a_reader_behind_the_retention_skips_removed_events(partition: Partition) -> None:
    reader, _ = partition.attach(GROUP, START, None, NOW)
    later = NOW + timedelta(days=1) + minutes(2)
    assert [event.sequence_number for event in partition.read(reader, 9, later)] == [3, 4]


def test_a_partition_reports_its_first_and_last_event(partition: Partition) -> None:
    facts = partition.facts(NOW)
    assert (facts.last_sequence_number, facts.last_offset) == (4, 40)
    assert (facts.last_enqueued_at, facts.is_empty) == (NOW + minutes(4), False)
    empty = Partition("1", timedelta(days=1)).facts(NOW)
    assert (empty.last_sequence_number, empty.last_offset, empty.is_empty) == (-1, -1, True)


class TestOwnerLevels:
    @pytest.mark.parametrize("new", [7, 8])
    def test_an_equal_or_higher_owner_level_disconnects_the_reader(
        self, partition: Partition, new: int
    ) -> None:
        old, _ = partition.attach(GROUP, START, 7, NOW)
        _, disconnected = partition.attach(GROUP, START, new, NOW)
        assert disconnected == [old]
        partition.detach(old)  # Its link closes only now.

    @pytest.mark.parametrize("new", [6, None])
    def test_a_lower_or_missing_owner_level_is_refused(
        self, partition: Partition, new: int | None
    ) -> None:
        partition.attach(GROUP, START, 7, NOW)
        with pytest.raises(ReceiverDisconnected):
            partition.attach(GROUP, START, new, NOW)

    def test_an_owner_level_disconnects_all_readers_without_one(self, partition: Partition) -> None:
        without = [partition.attach(GROUP, START, None, NOW)[0] for _ in range(3)]
        _, disconnected = partition.attach(GROUP, START, 0, NOW)
        assert disconnected == without

    def test_at_most_five_readers_without_an_owner_level_share_a_partition(
        self, partition: Partition
    ) -> None:
        readers = [partition.attach(GROUP, START, None, NOW)[0] for _ in range(5)]
        with pytest.raises(TooManyReceivers):
            partition.attach(GROUP, START, None, NOW)
        partition.detach(readers[0])
        partition.attach(GROUP, START, None, NOW)

    def test_owner_levels_apply_within_a_consumer_group(self, partition: Partition) -> None:
        partition.attach(GROUP, START, 7, NOW)
        _, disconnected = partition.attach("other", START, 1, NOW)
        assert disconnected == []

    def test_any_reader_may_read_after_the_owner_has_detached(self, partition: Partition) -> None:
        owner, _ = partition.attach(GROUP, START, 7, NOW)
        partition.detach(owner)
        partition.attach(GROUP, START, None, NOW)


class TestHubs:
    def test_a_key_always_chooses_the_same_partition_and_without_one_partitions_take_turns(
        self,
    ) -> None:
        hub = Hub("hub", HubProperties(partition_count=4), NOW)
        assert {hub.choose("key").id for _ in range(9)} == {hub.choose("key").id}
        assert [hub.choose(None).id for _ in range(5)] == ["0", "1", "2", "3", "0"]
        assert len({hub.choose(str(key)).id for key in range(50)}) == 4

    def test_unknown_partitions_and_consumer_groups_are_refused(self) -> None:
        hub = Hub("hub", HubProperties(consumer_groups=("$Default", "mine")), NOW)
        hub.check_group("MINE")
        with pytest.raises(EntityNotFound):
            hub.check_group("yours")
        for wrong in ("4", "-1", "x", ""):
            with pytest.raises(InvalidArgument):
                hub.partition(wrong)

    @pytest.mark.parametrize(
        "wrong",
        [{"partition_count": 0}, {"partition_count": 33}, {"retention": timedelta(0)},
         {"max_event_bytes": 0}],
    )  # fmt: skip
    def test_invalid_properties_are_refused(self, wrong: dict[str, object]) -> None:
        with pytest.raises(InvalidProperties):
            HubProperties(**wrong)  # type: ignore[arg-type]
