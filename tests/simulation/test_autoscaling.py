"""Simulates the scaling functions under faults, delays and clock errors.

The faults are crashes, lost replies, duplicate and reordered messages, outages and manual changes.
Each world is also slow in one way or in all of them (``world.KINDS``): changes of the plan take
longer than the time-out of an action, storage calls take longer than a function may run, messages
are under way for longer than a window or a cooldown, or the clock of the servers is minutes away
from that of the instances and is set back and forward. A quarter of the worlds have plans that fill
in pieces, and a quarter have too few instances (``world.Supply``). In each world these rules must
hold:

- the capacity stays within its limits, and only decided capacities are requested;
- an epoch is decided once, and carried out once, unless a late change has undone it;
- a decision observes the cooldown since the last confirmed change, by the clock of the servers;
- an action is sent again after ``ActionResendSeconds``, and not earlier;
- a late effect or a part of one of the app's own actions is not taken for a manual change;
- each step of an action that proceeds in pieces is logged once;
- each log entry and each confirmation is dated by the clock of the servers;
- once faults have ended, no action stays pending, and the capacity follows the load in time.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.state import ActionStatus, ScalingState
from tests.builders import TIMING
from tests.simulation.seeds import seeds
from tests.simulation.world import (
    CLOCKS,
    COOLDOWN,
    KINDS,
    LIMITS,
    QUEUES,
    USUAL,
    Slowness,
    World,
)

SEEDS = 30
UNANSWERED = tuple(f"and stands at {capacity}: sent again" for capacity in range(21))
"""How the reason of a repetition ends if the service has told no error."""
HOSTILE_SECONDS, CALM_SECONDS = 2400, 1800
SETTLED_SECONDS = 1200
"""The most seconds until the capacity has followed the load, if only the clock was wrong."""
CRASHED_MAX = 2
"""The most messages of a world that may become poison because each delivery crashes."""
CLOCK_TICK_SECONDS = 1
"""The store's clock shows whole seconds."""
UNSEEN_SECONDS_MAX = 60
"""The most seconds until a change is observed: with the third capacity sample, if two are lost."""
SAMPLE_SKEW = timedelta(seconds=4)
"""The most by which the clocks of sources and store differ. The store's shows whole seconds."""
READ_BEFORE = timedelta(seconds=14)
"""The most time between reading the state and reading the capacity in the reconciler."""
WRITTEN_AFTER = timedelta(minutes=5) + SAMPLE_SKEW
"""The most time between reading a capacity and writing it."""
FORGOTTEN = timedelta(minutes=15)
"""The time after which nothing is written any more that was read before a clock was set."""


def state(world: World) -> ScalingState:
    return world.store._states.get("plan-1", ScalingState())


def lines(world: World) -> list[LogEntry]:
    return sorted(world.store._log["plan-1"].values(), key=lambda e: (e.time, e.epoch or 0))


def hostile(
    seed: int, *, by_hand: bool, fault_rate: float = 0.02, slow: Slowness | None = None
) -> World:
    """A world after forty minutes of changing load under faults."""
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
    requested = [capacity for _, capacity in world.control.changes]
    limits = world.resources["plan-1"].limits
    assert all(limits.minimum <= c <= limits.maximum for c in requested), requested
    decided = Counter(e.epoch for e in lines(world) if e.applies)
    assert all(count == 1 for count in decided.values()), f"an epoch decided twice: {decided}"
    targets = {e.desired for e in lines(world) if e.applies or e.kind is EntryKind.MANUAL_CHANGE}
    allowed = targets | world.control.offered
    assert set(requested) <= allowed, "a capacity that was never decided"
    steps = Counter((e.epoch, e.current) for e in lines(world) if e.kind is EntryKind.PROGRESS)
    reopened = {e.epoch for e in lines(world) if e.kind is EntryKind.REOPENED}
    assert all(count == 1 for (epoch, _), count in steps.items() if epoch not in reopened), steps
    if not by_hand:
        late = sum(e.late for e in world.control.effective)  # each has to be undone
        in_time = len(world.control.effective) - late
        assert in_time <= len(decided) + late, "scaled more often than decided"
    for history in state(world).histories.values():
        assert all(a.time < b.time for a, b in pairwise(history.samples))


def check_cooldown(world: World) -> None:
    """The cooldown of its direction passes between each actual change and the next decision.

    A change of the last moments is left out, because no sample may have shown it yet.
    """
    for line in (e for e in lines(world) if e.applies):
        assert line.current is not None
        out = (line.desired or 0) > line.current
        wait = COOLDOWN.scale_out_seconds if out else COOLDOWN.scale_in_seconds
        before = [e for e in world.control.effective if e.time < line.time]
        if out and before and before[-1].after < before[-1].before:
            continue  # a scale-out need not wait after a scale-in
        for effect in (e for e in before if not e.late):
            ago = (line.time - effect.time).total_seconds()
            assert not UNSEEN_SECONDS_MAX < ago < wait - CLOCK_TICK_SECONDS, (line, effect)


def check_no_manual_change(world: World) -> None:
    """The effects of the app's own actions, late or not, are not taken for manual changes.

    This is certain only if the plan refuses concurrent changes, and if the clock was never set, so
    that no old sample seems to be a new one.
    """
    by_hand = [e for e in lines(world) if e.kind is EntryKind.MANUAL_CHANGE]
    certain = world.control.serial and not world.clock_set_at
    assert not (certain and by_hand), by_hand


def check_resend_wait(world: World) -> None:
    """An unanswered action is sent again after ``ActionResendSeconds``, and not earlier."""
    sent: dict[int | None, datetime] = {}
    for line in (e for e in lines(world) if e.applies or e.kind is EntryKind.RESENT):
        at = world.store.read[line.time, line.entry_id].at
        before = sent.get(line.epoch)
        sent[line.epoch] = at
        if before is None or not line.reason.endswith(UNANSWERED) or was_set(world, before, at):
            continue
        waited = (at - before).total_seconds()
        assert waited >= TIMING.resend_seconds - CLOCK_TICK_SECONDS, (line, before)


def check_known_cooldown(world: World) -> None:
    """The cooldown of its direction passes between each confirmed change and the next decision.

    It may be shorter or longer if the clock of the servers was set meanwhile.
    """
    for line in (e for e in lines(world) if e.applies):
        decided_at = world.store.read[line.time, line.entry_id].at
        earlier = [each for each in world.store.confirmed if each.written_at <= decided_at]
        if not earlier or line.current is None:
            continue
        last, out = earlier[-1], (line.desired or 0) > line.current
        wait = COOLDOWN.scale_out_seconds if out else COOLDOWN.scale_in_seconds
        if (out and not last.desired.changed_out) or was_set(world, last.changed_at, decided_at):
            continue
        rested = (decided_at - last.changed_at).total_seconds()
        assert rested >= wait - CLOCK_TICK_SECONDS, (line, last)


def check_dates(world: World) -> None:
    """Log entries are dated by the store's clock. A confirmation is dated after the change that it
    confirms and before it was written."""
    assert not world.store.misdated
    for confirmation in world.store.confirmed:
        changed_at = confirmation.changed_at
        if was_set(world, changed_at, confirmation.written_at):
            continue
        assert changed_at <= confirmation.written_at + SAMPLE_SKEW, confirmation
        if not confirmation.desired.changed_by_hand:
            actual = capacities(world, changed_at - WRITTEN_AFTER, changed_at)
            assert confirmation.desired.target in actual, (confirmation, actual)


def capacities(world: World, start: datetime, end: datetime) -> set[int]:
    """The actual capacities between the two times, and until shortly after."""
    effects = world.control.effective
    before = [e.after for e in effects if e.time < start][-1:] or [3]
    return {*before, *[e.after for e in effects if start <= e.time <= end + READ_BEFORE]}


def was_set(world: World, start: datetime, end: datetime) -> bool:
    """True if times from before the clock was set may have been used between the two times."""
    return any(start - FORGOTTEN <= at <= end + FORGOTTEN for at in world.clock_set_at)


def check_seed(seed: int) -> None:
    world = hostile(seed, by_hand=False)
    if world.kind in (USUAL, CLOCKS) and not world.clock_set_at:
        check_cooldown(world)
    check_known_cooldown(world)
    check_dates(world)
    check_no_manual_change(world)
    check_resend_wait(world)
    if world.kind is QUEUES:  # a late message is not an error
        assert len(world.poisoned) <= CRASHED_MAX, world.poisoned
    calm(world, load=50.0)
    check_always(world, by_hand=False)
    desired = state(world).desired
    if desired is not None and desired.status is ActionStatus.CONFIRMED:
        assert world.control.capacities["plan-1"] == desired.target, f"seed {seed}"
    assert desired is None or not desired.pending, f"seed {seed}: {desired}"
    check_load_leads_to_its_capacity(seed)


def check_no_scale_in(world: World, begun: datetime) -> None:
    """Under a high load no action scales in, whatever a clock showed."""
    for line in (e for e in lines(world) if e.applies and "bounds" not in e.limited_by):
        read = world.store.read[line.time, line.entry_id]
        seen = read.at > begun + timedelta(seconds=UNSEEN_SECONDS_MAX)
        assert not seen or (line.desired or 0) >= read.capacity, (line, read)


@pytest.mark.parametrize("seed", [*seeds(SEEDS), 1010, 4033])
def test_the_rules_of_scaling_hold_under_faults_and_delays(seed: int) -> None:
    """With seed 1010, pieces of a replaced scale-in once passed for a manual change, and with 4033
    those of an action whose repetition was refused."""
    check_seed(seed)


@pytest.mark.parametrize("seed", [88, 358])
def test_a_clock_that_was_set_back_does_not_mislead_or_delay_decisions(seed: int) -> None:
    """With these seeds, old samples once passed for the newest, and a cooldown lasted too long."""
    check_load_leads_to_its_capacity(seed)


def check_load_leads_to_its_capacity(seed: int) -> None:
    world = hostile(seed, by_hand=True)
    if world.slow.step_rate:
        # The message of a crashed host is redelivered after exactly the time by which the clock was
        # set back, so that its sample cannot be distinguished from a new one.
        world.queues["metrics"].clear()
        world.set_clock(world.ahead.total_seconds() - world.slow.step_seconds)
    begun = world.now
    calm(world, load=1000.0, seconds=SETTLED_SECONDS if world.kind is CLOCKS else CALM_SECONDS)
    assert world.control.capacities["plan-1"] == LIMITS.maximum, f"seed {seed}"
    if world.kind is CLOCKS:  # no late action of another load changes anything
        check_no_scale_in(world, begun)
    calm(world, load=0.0, seconds=2 * CALM_SECONDS)
    assert world.control.capacities["plan-1"] == LIMITS.minimum, f"seed {seed}"


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = (hostile(7, by_hand=True) for _ in range(2))
    assert lines(first) == lines(second)
    assert first.control.changes == second.control.changes


@pytest.mark.parametrize("seed", seeds(SEEDS)[::5])
def test_after_a_high_fault_rate_the_capacity_still_follows_the_load(seed: int) -> None:
    world = hostile(seed, by_hand=False, fault_rate=0.2)
    calm(world, load=1000.0)
    check_always(world, by_hand=False)
    assert world.control.capacities["plan-1"] == LIMITS.maximum, f"seed {seed}"
