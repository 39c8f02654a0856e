"""hostile: the cost of one event, or one measurement, that was made to do harm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.hostile_events import HOSTILE, METRIC, MIB, RESOURCE, filled, reading
from bench.measurement import Measurement, figures_of
from bench.outliers import OUTLIERS, nothing_far_off, steps_until_learned

PROCESS = "bench.hostile_process"
BOMB = "gzip_bomb"
UNITS = ("megabytes", "seconds")
READINGS = 11_900
MEGABYTES_AIM = "< 150"
SECONDS_AIM = "< 1"


def measure(readings: int = READINGS) -> Iterator[Measurement]:
    """Measure events and decisions, each in a process of its own."""
    harmless = figures_of(PROCESS, given=filled(reading(), MIB))
    assert not harmless["dead_letters"]
    costs = {name: figures_of(PROCESS, given=body()) for name, body in HOSTILE.items()}
    for name, cost in costs.items():
        assert (cost["dead_letters"], cost["messages"]) == (1, 0), (
            f"{name} did not become one dead letter"
        )
    yield from _of_an_event("hostile.gzip_bomb", costs[BOMB], harmless, "16 MiB in 16 KB")
    names = {unit: max(costs, key=lambda each: costs[each][unit]) for unit in UNITS}
    worst = {**costs[BOMB], **{unit: costs[name][unit] for unit, name in names.items()}}
    note = f"the most of {len(costs)} events: {' and '.join(names.values())}"
    yield from _of_an_event("hostile.worst_event", worst, harmless, note)
    yield from _of_many_readings(readings)
    yield from _of_outliers()


def _of_an_event(
    name: str, cost: dict[str, Any], harmless: dict[str, Any], note: str
) -> Iterator[Measurement]:
    yield Measurement(
        f"{name}.megabytes",
        cost["megabytes"],
        "MB over idle",
        cost["idle_megabytes"],
        MEGABYTES_AIM,
        f"{note}; baseline: the idle process",
    )
    yield Measurement(
        f"{name}.seconds",
        cost["seconds"],
        "s",
        harmless["seconds"],
        SECONDS_AIM,
        f"{note}; nothing else runs meanwhile; baseline: 1 MiB of good readings",
    )


def _of_many_readings(count: int) -> Iterator[Measurement]:
    figures = figures_of("bench.hostile_readings", count)
    yield Measurement(
        "hostile.many_readings.next_decision_seconds",
        max(figures["behind"] - figures["alone"], 0),
        "s",
        figures["alone"],
        "< 2",
        f"by how much an event of {count} readings of {METRIC} of {RESOURCE}, all inside the "
        "window, delays the decision on the sample behind it; baseline: the decision alone. The "
        "event has more than 1 MiB: the default would refuse it",
    )


def _of_outliers() -> Iterator[Measurement]:
    steps = {name: outlier.steps_until_learned_again for name, outlier in OUTLIERS.items()}
    worst = max(steps, key=lambda name: steps[name])
    yield Measurement(
        "hostile.outlier.steps_until_learned_again",
        steps[worst],
        "steps",
        steps_until_learned(nothing_far_off)[1],
        "≤ 10",
        f"the most of {len(steps)} outliers: {worst}; a step is one count of finished items; "
        "baseline: until the rate is learned without any",
    )
