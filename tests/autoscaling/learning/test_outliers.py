"""Learning survives measurements that are far off, and what they have left behind."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.outliers import OUTLIERS, steps_until_learned
from shared.autoscaling.declaring import Throughput
from shared.autoscaling.learning.throughput import (
    JUDGED_MAX,
    JUDGED_MIN,
    RECENT_MAX,
    Pair,
    believable,
    known_throughput,
    rate_estimate,
)
from shared.autoscaling.state import BacklogTrend, BusyIntervals, Learned
from shared.autoscaling.store.rows import state_of, state_row
from tests.builders import NOW

STEPS_MAX = 10
SOUND = BusyIntervals(NOW, ((120.0, 3.0),) * 5)
"""Five intervals of 40 items in each of three busy minutes."""


@pytest.mark.parametrize("name", OUTLIERS)
def test_one_outlier_ends_no_learning(name: str) -> None:
    known, right = steps_until_learned(OUTLIERS[name].reported)
    assert 0 < known <= STEPS_MAX
    assert right <= STEPS_MAX


# --- what can be believed ---------------------------------------------------------------------

pairs = st.lists(
    st.tuples(st.floats(-1e3, 1e3).filter(lambda x: x == 0 or abs(x) > 1e-3), st.floats(0.1, 100)),
    max_size=JUDGED_MAX,
)


@given(pairs)
def test_most_of_what_was_observed_is_believed(recent: list[Pair]) -> None:
    nonzero = [pair for pair in recent if pair[0]]
    believed = [pair for pair in believable(recent) if pair[0]]
    assert 2 * len(believed) >= len(nonzero)
    assert [pair for pair in recent if not pair[0]] == [p for p in believable(recent) if not p[0]]


@given(st.integers(0, 1000), st.floats(0, 0.3), st.integers(JUDGED_MIN, JUDGED_MAX))
def test_ordinary_noise_is_believed(seed: int, noise: float, count: int) -> None:
    chance = random.Random(seed)
    recent = [(120 * min(max(chance.gauss(1, noise), 0.2), 1.8), 3.0) for _ in range(count)]
    assert len(believable(recent)) >= count - 1


def test_bursts_and_idle_intervals_are_believed() -> None:
    bursts = [(0.0, 3.0)] * 4 + [(500.0, 3.0)] + [(0.0, 3.0)] * 4 + [(520.0, 3.0), (480.0, 3.0)]
    assert believable(bursts) == bursts


def test_a_new_rate_is_believed_once_most_of_the_last_intervals_show_it() -> None:
    recent: list[Pair] = [(40.0, 1.0)] * RECENT_MAX + [(400.0, 1.0)] * (JUDGED_MAX // 2)
    assert (400.0, 1.0) not in believable(recent)
    assert (400.0, 1.0) in believable([*recent, (400.0, 1.0)])


# --- what is read back ------------------------------------------------------------------------

TREND = BacklogTrend(NOW, 12, 1, -80.5, 2.5, 1600.25, 0.125, 5.5, 30, 1.5)
LEARNED = Learned(7, 2, 3.5, SOUND, TREND)


def read_back(**changes: Any) -> Learned:
    row = {**state_row("plan-1", "learned", LEARNED), **changes}
    return state_of([row])[0].learned


def test_what_was_learned_is_read_back() -> None:
    assert read_back() == LEARNED


def test_a_row_of_a_version_that_kept_sums_is_read() -> None:
    old = {"until": NOW.isoformat(), "intervals": 5, "done": 600.0, "busy": 15.0}
    row = {"work": json.dumps(old), "recent": '{"work": [[120.0, 3.0]]}'}
    assert read_back(**row) == replace(LEARNED, work=BusyIntervals(NOW))


@pytest.mark.parametrize("wrong", ["Infinity", "-Infinity", "NaN", "null", "true", "5", "[]"])
def test_all_is_learned_anew_if_intervals_are_damaged(wrong: str) -> None:
    text = json.dumps({"until": NOW.isoformat(), "recent": [["wrong", 3.0]]})
    spoilt = text.replace('["wrong", 3.0]', wrong)
    assert read_back(work=spoilt) == Learned()
    assert read_back(dead_time_minutes=math.inf) == Learned()


@pytest.mark.parametrize("wrong", ["Infinity", "NaN", '"5"', "null", "[]"])
def test_all_is_learned_anew_if_the_trend_is_damaged(wrong: str) -> None:
    text = state_row("", "learned", LEARNED)["trend"]
    spoilt = text.replace('"drained": 30', f'"drained": {wrong}').replace(
        '"drained":30', f'"drained":{wrong}'
    )
    assert spoilt != text
    assert read_back(trend=spoilt) == Learned()


def test_a_row_of_a_version_that_learned_from_changes_is_read() -> None:
    row = state_row("plan-1", "learned", LEARNED)
    del row["trend"]
    old = {**row, "out": '{"changes": 3, "dn_dn": 4.0}', "into": "{}"}
    learned, lost = state_of([old])[0].learned, state_of([old])[1]
    assert learned == replace(LEARNED, trend=BacklogTrend())
    assert lost == ()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)
cells = st.one_of(
    json_values.map(json.dumps), st.text(max_size=9), st.integers(), st.floats(), st.none()
)
FIELDS = ("trend", "work", "recent", "epoch", "dead_times", "dead_time_minutes")


@given(st.dictionaries(st.sampled_from(FIELDS), cells))
def test_whatever_stands_in_the_row_it_is_read_and_can_be_reckoned_with(
    changes: dict[str, Any],
) -> None:
    learned = read_back(**changes)
    estimate = rate_estimate(Throughput(), learned)
    rate = known_throughput(Throughput(), learned, estimate).rate_per_instance_minute
    assert rate is None or 0 < rate < math.inf
    assert state_of([state_row("plan-1", "learned", learned)])[0].learned == learned
