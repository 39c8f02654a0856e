"""What happens in each step of a replay, whatever the rules do, and how it may differ from usual.

A variation is what production does and a rule is not told. The clairvoyant schedule and the lower
bound know it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from backtest.arena import Arena, Floats

HALVED, HOURLY, POISON, OUTAGE = "halved", "hourly", "poison", "outage"
VARIATIONS: Mapping[str, Mapping[str, Any]] = {
    HALVED: {},
    HOURLY: {},
    POISON: {},
    OUTAGE: {},
    "pieces": {"piece_instances": 2},
    "slow_start": {"dead_time_minutes": 10},
    "tight": {"age_limit_minutes": 1},
}
"""Each by its name, and the parameters of the arena that it sets.

``halved``: an instance serves half as much after half of the trace. ``hourly``: in each hour, it
serves up to 30 % less or more. ``poison``: of the items that arrive in three hours, a tenth is
delivered ten times and never completed. ``outage``: nothing is served for an hour. Both begin after
half of the trace. ``pieces``: two instances each half minute. ``slow_start``: D = 10. ``tight``: L
= 1.
"""
HOURLY_SHARE, HALVED_SHARE = 0.3, 0.5
POISON_MINUTES, POISON_SHARE, POISON_DELIVERIES = 180, 0.1, 10
OUTAGE_MINUTES = 60


def varied(arena: Arena, name: str) -> Arena:
    """The arena with a variation."""
    return replace(arena, variation=name, **VARIATIONS[name])


def speed(arena: Arena, minutes: int) -> Floats:
    """What an instance serves in each minute, relative to the instance rate."""
    half, factors = minutes // 2, np.ones(minutes)
    if arena.variation == HALVED:
        factors[half:] = HALVED_SHARE
    elif arena.variation == OUTAGE:
        factors[half : half + OUTAGE_MINUTES] = 0
    elif arena.variation == HOURLY:
        random = np.random.default_rng([arena.seed, 1])
        hours = random.uniform(1 - HOURLY_SHARE, 1 + HOURLY_SHARE, minutes // 60 + 1)
        factors = np.repeat(hours, 60)[:minutes]
    return factors


def deliveries(arena: Arena, arrivals: Floats) -> Floats:
    """The arrivals of each minute, an item counted as often as it will be delivered."""
    if arena.variation != POISON:
        return arrivals
    each, half = np.ones(len(arrivals)), len(arrivals) // 2
    each[half : half + POISON_MINUTES] += POISON_SHARE * (POISON_DELIVERIES - 1)
    return arrivals * each


def spread(arrivals: Floats, steps: int, seed: int) -> Floats:
    """Arrivals by step. Items of a minute arrive at independent times, as in a Poisson process.

    If a trace has fractions of items, its own counts were spread, and so are these.
    """
    if steps == 1:
        return arrivals
    if np.any(arrivals % 1):
        return np.repeat(arrivals / steps, steps)
    random, shares = np.random.default_rng([seed, 0]), np.full(steps, 1 / steps)
    found: Floats = random.multinomial(arrivals.astype(np.int64), shares).ravel().astype(np.float64)
    return found


@dataclass(frozen=True, slots=True)
class World:
    """Arrivals, and what an instance can serve, by step. ``work`` counts deliveries of items."""

    items: Floats
    work: Floats
    served: Floats


def world_of(arena: Arena, arrivals: Floats, steps: int) -> World:
    """The world in so many steps a minute."""
    work = items = spread(arrivals, steps, arena.seed)
    if arena.variation == POISON:
        work = items * np.repeat(deliveries(arena, np.ones(len(arrivals))), steps)
    rates = arena.instance_rate * speed(arena, len(arrivals)) / steps
    return World(items, work, np.repeat(rates, steps))


class Queue:
    """The backlog, step by step, in a world."""

    __slots__ = ("_completed", "_steps", "_totals", "_waiting", "backlog", "cpu", "finished")

    def __init__(self, world: World) -> None:
        self._steps = list(zip(world.work.tolist(), world.served.tolist(), strict=True))
        self._waiting = self._completed = 0.0
        self.backlog = self.finished = self.cpu = 0.0
        self._totals: tuple[Floats, ...] = ()
        if world.work is not world.items:
            completed = np.where(world.work > world.items, 1 - POISON_SHARE, 1) * world.items
            counted = (world.work, world.items, completed)
            self._totals = tuple(np.concatenate(([0.0], np.cumsum(each))) for each in counted)

    def serve(self, step: int, capacity: int) -> float:
        """Serve one step and return the remaining backlog. ``cpu`` is a percentage."""
        work, served = self._steps[step]
        waiting, able = self._waiting + work, served * capacity
        self.backlog = self._waiting = waiting - able if waiting > able else 0.0
        self.finished = waiting - self.backlog
        self.cpu = 100 * self.finished / able if able else 100.0 * (waiting > 0)
        if self._totals:
            self._count(step)
        return self.backlog

    def _count(self, step: int) -> None:
        """Count items, of which some are several deliveries: the oldest are served first."""
        work, items, completed = self._totals
        done, before = work[step + 1] - self._waiting, self._completed
        self.backlog = max(float(items[step + 1] - np.interp(done, work, items)), 0.0)
        self._completed = float(np.interp(done, work, completed))
        self.finished = self._completed - before
