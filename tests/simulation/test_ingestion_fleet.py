"""Simulates a fleet of processors, from lease to commit: shares are even and work is complete soon
after faults stop."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import pairwise

import pytest

from shared.ingestion.model import Ownership
from tests.simulation.faults import stream_of
from tests.simulation.ingestion_fleet import (
    BAD,
    CUT_OFF_SECONDS_MAX,
    CYCLE_SECONDS,
    FULL,
    GOOD,
    LOST,
    NOTICED_SECONDS,
    SILENT_SECONDS_MAX,
    SLEEP_SECONDS_MAX,
    TIMES,
    TOO_LARGE,
    World,
    message_ids,
)
from tests.simulation.seeds import seeds

HOSTILE_SECONDS = 120


def check_commits(world: World) -> None:
    """Each partition's checkpoint only advances, under epochs that never decrease."""
    for commits in world.store.commits.values():
        for before, after in pairwise([commit.checkpoint for commit in commits]):
            assert after.sequence > before.sequence, f"the checkpoint went back: {before} {after}"
            assert after.epoch >= before.epoch, f"a commit under an old epoch: {before} {after}"
        assert [c.previous for c in commits] == [None, *(c.checkpoint for c in commits[:-1])]


def check_epochs(world: World) -> None:
    """Each partition has one owner per epoch, and only that owner commits under the epoch."""
    newest: dict[str, Ownership] = {}
    owners: set[tuple[str, int, str]] = set()
    for row in world.owners.written:
        before = newest.get(row.partition_id)
        if before and before.owner == LOST:
            assert row.epoch > before.epoch, "an epoch of a commit was claimed again"
        elif before and row.owner != LOST:
            assert row.epoch >= before.epoch, "an epoch went back"
            same = row.owner in ("", before.owner) or row.epoch > before.epoch
            assert same, f"two owners of {row.partition_id} under {row.epoch}"
        newest[row.partition_id] = row
        owners.add((row.partition_id, row.epoch, row.owner))
    for stream, commits in world.store.commits.items():
        for commit in commits:
            at = commit.checkpoint
            assert (stream.partition_id, at.epoch, at.owner) in owners


def check_accounts(world: World) -> None:
    """Each number of each partition occurs once. Bad and too large events are dead letters, and
    there are no gaps."""
    for partition in map(str, range(world.partitions)):
        rows = world.store.rows[stream_of(partition)]
        counted: Counter[int] = Counter([*rows.effects, *rows.dead_letters])
        assert counted == Counter(range(world.next_sequence[partition])), partition
        bodies = {e.sequence: e.body for e in world.hub.events[stream_of(partition)]}
        dead = {number for number, body in bodies.items() if body in (BAD, TOO_LARGE)}
        assert set(rows.dead_letters) == dead
        assert not rows.gaps


def check_order(world: World) -> None:
    """The events of each key were handled in order, one at a time. Their messages arrived at least
    once, the first time in order."""
    assert not world.disorder, world.disorder
    for partition in map(str, range(world.partitions)):
        stream = stream_of(partition)
        for key in "abc":
            events = world.hub.events[stream]
            sent = [e for e in events if e.partition_key == key and e.body in (GOOD, FULL)]
            got = dict.fromkeys(world.received.get(f"{partition}|{key}", []))
            ids = [message_ids(event, stream, world.limits.rows_max) for event in sent]
            assert list(got) == [each for some in ids for each in some]


def check_readers(world: World) -> None:
    """A processor that cannot reach the store stops reading in the first cycle after its lease has
    expired."""
    cycles = 2 * 1.2 * CYCLE_SECONDS
    longest = world.two_read_longest.total_seconds()
    assert longest <= TIMES.expire_seconds + cycles, (
        f"two processors read one partition for {longest:g} s"
    )


def balanced(world: World) -> bool:
    rows = world.owners.by_partition.values()
    shares = Counter(row.owner for row in rows)
    floor = world.partitions // len(world.instances)
    return (
        sum(shares.values()) == world.partitions
        and set(shares) <= set(world.instances)
        and all(floor <= shares[name] <= floor + 1 for name in world.instances)
    )


def complete(world: World) -> bool:
    streams = {p: world.store.rows[stream_of(p)] for p in map(str, range(world.partitions))}
    return all(
        rows.checkpoint is not None
        and rows.checkpoint.sequence == world.next_sequence[partition] - 1
        and not rows.outbox
        for partition, rows in streams.items()
    )


def quiet(world: World) -> bool:
    """Whether no sleeping processor's lease is about to expire and no late call is outstanding."""
    return not world.late and world.now > world.calm_since + timedelta(seconds=TIMES.expire_seconds)


def recovery_seconds_max(world: World) -> float:
    """The longest recovery: the troubles end, leases expire, each partition is claimed or stolen in
    a cycle of its own, and the backlog is processed."""
    claims = 2 * world.partitions + len(world.instances)
    backlog = max(world.next_sequence.values())
    trouble = max(SLEEP_SECONDS_MAX, CUT_OFF_SECONDS_MAX, SILENT_SECONDS_MAX + NOTICED_SECONDS)
    balancing = trouble + TIMES.expire_seconds + CYCLE_SECONDS * 1.2 * claims
    return balancing + 0.5 * backlog


def check_seed(seed: int) -> None:
    world = World(seed, fault_rate=(0.0005, 0.002, 0.01)[seed % 3])
    try:
        check_world(world)
    finally:
        world.close()


def check_world(world: World) -> None:
    world.run(HOSTILE_SECONDS)
    world.scheduler.fault_rate = 0
    waited, patience = 0.0, recovery_seconds_max(world)
    while not (balanced(world) and complete(world) and quiet(world)):
        world.run(1)
        waited += 1
        assert waited < patience, f"not recovered after {waited} s"
    written = len(world.owners.written)
    world.run(20)
    kept = {r.partition_id: r.epoch for r in world.owners.written[:written]}
    assert kept == {r.partition_id: r.epoch for r in world.owners.by_partition.values()}, (
        "the shares changed again"
    )
    reading = [(r.lease.partition_id, r.lease.epoch) for r in world.readings if r.goes_on]
    assert sorted(reading) == sorted(kept.items()), "each partition must be read by its owner only"
    world.close()
    check_commits(world)
    check_epochs(world)
    check_accounts(world)
    check_order(world)
    check_readers(world)


@pytest.mark.parametrize("seed", seeds(60))
def test_a_fleet_loses_no_event_and_balances_soon_after_faults_stop(seed: int) -> None:
    check_seed(seed)
