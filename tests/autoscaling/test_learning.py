"""Instances' rate and dead time, learned from a simulated queue whose truth is known."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from shared.autoscaling.deciding.samples import observe
from shared.autoscaling.declaring import Throughput
from shared.autoscaling.learning import (
    change_to_learn_from,
    known_throughput,
    learn_from_change,
    learned_rate,
)
from shared.autoscaling.measurements import CAPACITY_METRIC, MetricValue, Window
from shared.autoscaling.state import ActionStatus, Desired, Learned, RegressionSums, ScalingState
from tests.builders import NOW, confirmed, resource, state

RATE, DEAD_TIME_MINUTES = 20.0, 3


def lesson(
    learned: Learned, epoch: int, change: int, noise: random.Random, *, empty: bool = False
) -> Learned:
    """One confirmed change of a busy queue and the minutes around it, sampled every 15 s."""
    before, after = 5, 5 + change
    arrivals = noise.uniform(60, 160)
    backlog, samples = (0.0 if empty else 5000.0), []
    for step in range(-20, 20):
        serving = before if step < 0 else after
        backlog += (noise.gauss(arrivals, 5) - RATE * serving) / 4
        backlog = max(0.0, 0.0 if empty else backlog)
        samples.append(MetricValue(NOW + timedelta(seconds=15 * (step + 1)), backlog))
    desired = Desired(
        target=after,
        epoch=epoch,
        reason="",
        requested_at=NOW - timedelta(minutes=DEAD_TIME_MINUTES),
        previous=before,
        status=ActionStatus.CONFIRMED,
        changed_at=NOW,
    )
    start, end = NOW - timedelta(minutes=9), NOW + timedelta(minutes=5)
    capacities = (
        MetricValue(start, float(before)),
        MetricValue(NOW, float(after)),
        MetricValue(end, float(after)),
    )
    histories = {"backlog": Window(tuple(samples)), CAPACITY_METRIC: Window(capacities)}
    held = ScalingState(histories, desired, learned=learned)
    due = change_to_learn_from(held, NOW + timedelta(minutes=5))
    return learn_from_change(held, "backlog").learned if due else learned


def taught(changes: int, *, empty: bool = False) -> Learned:
    noise, learned = random.Random(7), Learned()
    for epoch in range(1, changes + 1):
        learned = lesson(learned, epoch, noise.choice([-2, -1, 1, 2]), noise, empty=empty)
    return learned


def test_the_rate_of_a_busy_instance_is_found_whatever_the_arrivals() -> None:
    estimate = learned_rate(taught(20))
    assert estimate is not None
    assert estimate.value == pytest.approx(RATE, rel=0.1)
    assert estimate.confident


def test_the_dead_time_is_the_wait_from_order_to_confirmation_of_scale_outs() -> None:
    learned = taught(20)
    assert 0 < learned.dead_times < 20
    assert learned.dead_time_minutes == pytest.approx(DEAD_TIME_MINUTES)


def test_an_idle_queue_teaches_nothing_about_the_rate() -> None:
    learned = taught(20, empty=True)
    assert (learned.out.changes, learned.into.changes) == (0, 0)


def test_two_changes_are_not_enough_to_be_sure() -> None:
    assert learned_rate(taught(2)) is None
    assert known_throughput(Throughput(), taught(2)).rate_per_instance_minute is None


def test_what_is_fixed_by_hand_counts_before_what_is_learned() -> None:
    learned = taught(20)
    assert known_throughput(Throughput(5, 1), learned) == Throughput(5, 1)
    assert known_throughput(Throughput(5), learned).dead_time_minutes == DEAD_TIME_MINUTES
    found = known_throughput(Throughput(), learned).rate_per_instance_minute
    assert found == pytest.approx(RATE, rel=0.1)


def test_a_change_teaches_once() -> None:
    noise = random.Random(1)
    once = lesson(Learned(), 1, 1, noise)
    assert lesson(once, 1, 1, noise) == once


def test_policies_see_what_was_learned() -> None:
    held = state([1], learned=taught(20))
    throughput = observe(resource(), held, 2, NOW).throughput
    assert throughput.rate_per_instance_minute == pytest.approx(RATE, rel=0.1)


def test_scale_outs_alone_teach_no_rate() -> None:
    """They often come as the burst that called for them ends, and overrate what they did."""
    noise, learned = random.Random(3), Learned()
    for epoch in range(1, 30):
        learned = lesson(learned, epoch, 2, noise)
    assert learned.out.changes > 5
    assert learned_rate(learned) is None


def test_where_both_directions_disagree_nothing_is_known() -> None:
    sure = RegressionSums(20, 20.0, -800.0, 32_100.0)  # 40 a minute
    much = RegressionSums(20, 20.0, -4_000.0, 800_100.0)  # 200 a minute
    estimate = learned_rate(Learned(out=much, into=sure))
    assert estimate is not None
    assert not estimate.confident
    agreeing = learned_rate(Learned(out=sure, into=sure))
    assert agreeing is not None
    assert agreeing.confident


def test_noise_without_a_cause_is_not_taken_for_knowledge() -> None:
    """Slopes that have nothing to do with the changes give a wide error."""
    noise = random.Random(3)
    slopes = [noise.gauss(0, 300) for _ in range(8)]
    nothing = RegressionSums(8, 8.0, sum(slopes), sum(ds * ds for ds in slopes))
    estimate = learned_rate(Learned(out=nothing, into=nothing))
    assert estimate is not None
    assert not estimate.confident


@pytest.mark.parametrize("changes", [{"attempts": 1}, {"requested_at": NOW - timedelta(hours=5)}])
def test_a_wait_for_another_reason_is_no_dead_time(changes: dict[str, Any]) -> None:
    late = replace(confirmed(300, target=5, previous=2, epoch=9), **changes)
    assert learn_from_change(ScalingState(desired=late), None).learned.dead_times == 0
