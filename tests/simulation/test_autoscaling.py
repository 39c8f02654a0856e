"""Hostile hours: crashes, lost replies, doubles, reordering, outages, manual changes, slow time.

Each world is slow in one way or in all of them (``world.KINDS``): a plan whose changes take longer
than orders wait, calls of the storage that take longer than a function may run, messages that are
under way for longer than a window or a cooldown, servers whose clock is minutes away from that of
the instances and is set back and forward. What must hold in each of them:

- the capacity stays in bounds, and only what was decided is ordered;
- an epoch is decided once, and carried out once but for what a late change has undone;
- a decision rests from the confirmed change before it, by the clock of the servers;
- an order is sent again after ``ActionResendSeconds``, and not before;
- what an order of the app leads to, however late, is not taken for a change by hand;
- each line of the log, and each confirmation, is dated by that clock;
- once the world is calm, nothing is pending any more, and the load leads to its capacity in time.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise, product

import pytest

from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.state import ActionStatus, ScalingState
from tests.builders import TIMING
from tests.simulation.seeds import seeds
from tests.simulation.world import (
    ARM,
    CLOCKS,
    COOLDOWN,
    KINDS,
    LIMITS,
    QUEUES,
    STORAGE,
    USUAL,
    Slowness,
    World,
)

SEEDS = 60
HOSTILE_SECONDS, CALM_SECONDS = 2400, 1800
SETTLED_SECONDS = 1200
"""So long it takes at most to bring the capacity up, where nothing but the clock was wrong."""
CRASHED_MAX = 2
"""Of the messages of a world so many may crash each time that they are delivered."""
CLOCK_TICK_SECONDS = 1
"""The store's clock shows whole seconds."""
UNSEEN_SECONDS_MAX = 60
"""A change is seen at the latest with the third capacity sample after it, even if two get lost."""
SAMPLE_SKEW = timedelta(seconds=4)
"""The clocks of sources and store differ by so much, and the store's shows whole seconds."""
READ_BEFORE = timedelta(seconds=14)
"""The reconciler has seen the state for so long when it reads the capacity, at most."""
WRITTEN_AFTER = timedelta(minutes=5) + SAMPLE_SKEW
"""A capacity that was read is written down after so long, at most."""
FORGOTTEN = timedelta(minutes=15)
"""After so long no time that was read before a clock was set is written any more."""


def state(world: World) -> ScalingState:
    return world.store._states.get("plan-1", ScalingState())


def lines(world: World) -> list[LogEntry]:
    return sorted(world.store._log["plan-1"].values(), key=lambda e: (e.time, e.epoch or 0))


def hostile(
    seed: int, *, by_hand: bool, fault_rate: float = 0.02, slow: Slowness | None = None
) -> World:
    """A world after a hostile hour of changing load."""
    world = World(seed, fault_rate, slow or KINDS[seed % len(KINDS)])
    for _ in range(8):
        world.load = world.random.choice([0.0, 5.0, 50.0, 500.0])
        world.maybe_set_clock()
        world.run(HOSTILE_SECONDS / 8)
        if by_hand and world.random.random() < 0.3:
            world.control.capacities["plan-1"] = world.random.randint(1, 9)
        check_always(world, by_hand=by_hand)
    return world


def calm(world: World, load: float, seconds: float = CALM_SECONDS) -> None:
    world.calm_down()
    world.load = load
    world.run(seconds)
    world.scheduler.run_until_idle()


def check_always(world: World, *, by_hand: bool) -> None:
    ordered = [capacity for _, capacity in world.control.changes]
    assert all(LIMITS.minimum <= c <= LIMITS.maximum for c in ordered), ordered
    decided = Counter(e.epoch for e in lines(world) if e.applies)
    assert all(count == 1 for count in decided.values()), f"an epoch decided twice: {decided}"
    targets = {e.desired for e in lines(world) if e.applies or e.kind is EntryKind.MANUAL_CHANGE}
    assert set(ordered) <= targets, "a capacity that nobody decided"
    if not by_hand:
        late = sum(e.late for e in world.control.effective)  # each has to be undone
        in_time = len(world.control.effective) - late
        assert in_time <= len(decided) + late, "scaled more often than decided"
    for history in state(world).histories.values():
        assert all(a.time < b.time for a, b in pairwise(history.samples))


def check_cooldown(world: World) -> None:
    """Between a change as it happened and the next decision lies the wait of its direction.

    A decision may not know of a change of the last moments: nobody has seen it yet.
    """
    for line in (e for e in lines(world) if e.applies):
        assert line.current is not None
        out = (line.desired or 0) > line.current
        wait = COOLDOWN.scale_out_seconds if out else COOLDOWN.scale_in_seconds
        before = [e for e in world.control.effective if e.time < line.time]
        if out and before and before[-1].after < before[-1].before:
            continue  # a scale-out need not wait for the rest after a scale-in
        for effect in (e for e in before if not e.late):
            ago = (line.time - effect.time).total_seconds()
            assert not UNSEEN_SECONDS_MAX < ago < wait - CLOCK_TICK_SECONDS, (line, effect)


def check_nobody_is_blamed(world: World) -> None:
    """What the app's own orders led to, late or not, is not taken for a change by hand.

    That is certain where the plan refuses an order while another one is under way, and where no
    sample of before the clock was set comes for one of now.
    """
    by_hand = [e for e in lines(world) if e.kind is EntryKind.MANUAL_CHANGE]
    certain = world.control.serial and not world.clock_set_at
    assert not (certain and by_hand), by_hand


def check_patience(world: World) -> None:
    """An order that nobody has answered for is sent again after the wait for it, and not before."""
    sent: dict[int | None, datetime] = {}
    for line in (e for e in lines(world) if e.applies or e.kind is EntryKind.RESENT):
        at = world.store.read[line.time, line.entry_id].at
        before = sent.get(line.epoch)
        sent[line.epoch] = at
        if before is None or "(no answer)" not in line.reason or was_set(world, before, at):
            continue
        waited = (at - before).total_seconds()
        assert waited >= TIMING.resend_seconds - CLOCK_TICK_SECONDS, (line, before)


def check_rest(world: World) -> None:
    """Between a confirmed change and the next decision lies the wait of its direction.

    Where the clock of the servers was set meanwhile, the wait ends sooner or later.
    """
    for line in (e for e in lines(world) if e.applies):
        decided_at = world.store.read[line.time, line.entry_id].at
        known = [found for found in world.store.confirmed if found.written_at <= decided_at]
        if not known or line.current is None:
            continue
        last, out = known[-1], (line.desired or 0) > line.current
        wait = COOLDOWN.scale_out_seconds if out else COOLDOWN.scale_in_seconds
        if (out and not last.desired.changed_out) or was_set(world, last.changed_at, decided_at):
            continue
        rested = (decided_at - last.changed_at).total_seconds()
        assert rested >= wait - CLOCK_TICK_SECONDS, (line, last)


def check_dates(world: World) -> None:
    """The log is dated by the store's clock, and a confirmation after the change that it confirms
    and before it was written."""
    assert not world.store.misdated
    for found in world.store.confirmed:
        if was_set(world, found.changed_at, found.written_at):
            continue
        assert found.changed_at <= found.written_at + SAMPLE_SKEW, found
        if not found.desired.changed_by_hand:
            seen = capacities(world, found.changed_at - WRITTEN_AFTER, found.changed_at)
            assert found.desired.target in seen, (found, seen)


def capacities(world: World, start: datetime, end: datetime) -> set[int]:
    """Which capacities there were between the two times, and a moment after."""
    effects = world.control.effective
    before = [e.after for e in effects if e.time < start][-1:] or [3]
    return {*before, *[e.after for e in effects if start <= e.time <= end + READ_BEFORE]}


def was_set(world: World, start: datetime, end: datetime) -> bool:
    """Whether what was read before the clock was set can have played a part between the two."""
    return any(start - FORGOTTEN <= at <= end + FORGOTTEN for at in world.clock_set_at)


def check_seed(seed: int) -> None:
    world = hostile(seed, by_hand=False)
    if world.kind in (USUAL, CLOCKS) and not world.clock_set_at:
        check_cooldown(world)
    check_rest(world)
    check_dates(world)
    check_nobody_is_blamed(world)
    check_patience(world)
    if world.kind is QUEUES:  # a message that is late is no error
        assert len(world.poisoned) <= CRASHED_MAX, world.poisoned
    calm(world, load=50.0)
    check_always(world, by_hand=False)
    desired = state(world).desired
    if desired is not None and desired.status is ActionStatus.CONFIRMED:
        assert world.control.capacities["plan-1"] == desired.target, f"seed {seed}"
    assert desired is None or not desired.pending, f"seed {seed}: {desired}"
    check_load_leads_to_its_capacity(seed)


def check_never_less(world: World, begun: datetime) -> None:
    """Under a high load nobody orders fewer instances than there are, whatever a clock showed."""
    for line in (e for e in lines(world) if e.applies and "bounds" not in e.limited_by):
        read = world.store.read[line.time, line.entry_id]
        seen = read.at > begun + timedelta(seconds=UNSEEN_SECONDS_MAX)
        assert not seen or (line.desired or 0) >= read.capacity, (line, read)


@pytest.mark.parametrize("seed", seeds(SEEDS))
def test_in_bounds_decided_once_scaled_once_and_settled_in_the_end(seed: int) -> None:
    check_seed(seed)


@pytest.mark.parametrize("seed", [88, 358])
def test_a_clock_that_was_set_back_neither_misleads_nor_delays_anybody(seed: int) -> None:
    """Samples of before passed for the newest; a cooldown waited for its time to come again."""
    check_load_leads_to_its_capacity(seed)


def check_load_leads_to_its_capacity(seed: int) -> None:
    world = hostile(seed, by_hand=True)
    if world.slow.step_rate:
        # The message of a host that died comes back after just as long as the clock was set back:
        # nobody can tell that its sample is not of now.
        world.queues["metrics"].clear()
        world.set_clock(world.ahead.total_seconds() - world.slow.step_seconds)
    begun = world.now
    calm(world, load=1000.0, seconds=SETTLED_SECONDS if world.kind is CLOCKS else CALM_SECONDS)
    assert world.control.capacities["plan-1"] == LIMITS.maximum, f"seed {seed}"
    if world.kind is CLOCKS:  # no late order of another load changes anything
        check_never_less(world, begun)
    calm(world, load=0.0, seconds=2 * CALM_SECONDS)
    assert world.control.capacities["plan-1"] == LIMITS.minimum, f"seed {seed}"


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = (hostile(7, by_hand=True) for _ in range(2))
    assert lines(first) == lines(second)
    assert first.control.changes == second.control.changes


@pytest.mark.parametrize("seed", seeds(SEEDS)[::5])
def test_a_storm_poisons_messages_and_harms_nothing_for_good(seed: int) -> None:
    world = hostile(seed, by_hand=False, fault_rate=0.2)
    calm(world, load=1000.0)
    check_always(world, by_hand=False)
    assert world.control.capacities["plan-1"] == LIMITS.maximum, f"seed {seed}"


def test_the_slowness_does_strike() -> None:
    """Each kind of slowness leads to what it is there for."""
    plan, storage, clocks = (
        [hostile(seed, by_hand=False, slow=slow) for seed in range(12)]
        for slow in (ARM, STORAGE, CLOCKS)
    )
    assert sum(world.control.timed_out for world in plan) > 5
    assert sum(world.control.overlapping for world in plan) > 5
    assert sum(world.killed for world in storage) > 20
    assert sum(len(world.clock_set_at) for world in clocks) > 3


def test_the_faults_do_strike() -> None:
    """A simulation without faults would prove nothing."""
    never = {EntryKind.OVERRIDE, EntryKind.UNREADABLE}  # no people, no other version there
    missing = set(EntryKind) - never
    poisoned = 0
    for seed, fault_rate in product(range(20), (0.2, 0.05, 0.02)):
        world = hostile(seed, by_hand=True, fault_rate=fault_rate)
        missing -= {e.kind for e in lines(world)}
        poisoned += len(world.poisoned)
        if not missing and poisoned:
            return
    raise AssertionError(f"{missing} in no world, {poisoned} messages poisoned")
