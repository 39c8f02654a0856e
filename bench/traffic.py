"""Synthetic traffic in many shapes, by seed: arrivals per minute that resemble public traces.

The shapes were not fitted to any trace, and no rule was fitted to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from backtest.arena import Floats

DAY = 1440
DAYS = 5
MINUTES = DAY * DAYS
Random = np.random.Generator


def day_and_night(trough: float, peak_hour: float = 15, sharpness: float = 1) -> Floats:
    """A daily curve from ``trough`` to 1, with its maximum at ``peak_hour``."""
    phase = 2 * np.pi * (np.arange(MINUTES) / DAY - peak_hour / 24)
    shape: Floats = trough + (1 - trough) * (0.5 + 0.5 * np.cos(phase)) ** sharpness
    return shape


def wandering(random: Random, minutes: float, spread: float) -> Floats:
    """A log-normal factor whose autocorrelation decays over the given number of minutes."""
    kept = math.exp(-1 / minutes)
    steps = random.normal(0, spread * math.sqrt(1 - kept * kept), MINUTES)
    level, factors = 0.0, np.empty(MINUTES)
    for minute, step in enumerate(steps):
        level = kept * level + step
        factors[minute] = level
    rates: Floats = np.exp(factors)
    return rates


def bursts(random: Random, a_day: float, size: float, fade_minutes: float) -> Floats:
    """Sudden bursts of heavy-tailed size that fade away."""
    load = np.zeros(MINUTES)
    for start in np.flatnonzero(random.random(MINUTES) < a_day / DAY):
        ages = np.arange(min(MINUTES - int(start), int(8 * fade_minutes)))
        load[start : start + len(ages)] += size * random.pareto(1.5) * np.exp(-ages / fade_minutes)
    return load


def web_site(random: Random) -> Floats:
    wander = wandering(random, 60, 0.2) * wandering(random, 4, 0.15)
    return counted(random, random.uniform(20, 90) * day_and_night(0.25) * wander)


def encyclopedia(random: Random) -> Floats:
    return counted(random, 20_000 * day_and_night(0.5, 19) * wandering(random, 240, 0.05))


def short_messages(random: Random) -> Floats:
    """Counts per five minutes, spread evenly."""
    load = 9 * day_and_night(0.5, 18) * wandering(random, 60, 0.35) + bursts(random, 1.5, 12, 12)
    return np.repeat(counted(random, load[::5] * 5) / 5, 5)


def timers(random: Random) -> Floats:
    """A small load all day, with spikes every quarter of an hour and every hour."""
    minute = np.arange(MINUTES)
    heaps = 40.0 * (minute % 15 == 0) + random.uniform(50, 200) * (minute % 60 == 7)
    return counted(random, random.uniform(10, 40) * day_and_night(0.3) + heaps)


def on_and_off(random: Random) -> Floats:
    """Twenty sources with heavy-tailed on and off times."""
    working = np.zeros(MINUTES)
    for _ in range(20):
        minute = -int(random.integers(500))
        while minute < MINUTES:
            work, rest = 3 + 6 * random.pareto(1.4), 10 + 25 * random.pareto(1.4)
            working[max(minute, 0) : max(minute + int(work), 0)] += 1
            minute += int(work + rest) + 1
    return counted(random, 25 * working + 3)


def shop(random: Random) -> Floats:
    load = 400 * day_and_night(0.1, 20, 1.3) * wandering(random, 90, 0.12)
    for _ in range(3):  # sales
        start, minutes = int(random.integers(MINUTES - 300)), int(random.integers(30, 240))
        load[start : start + minutes] *= random.uniform(1.5, 4)
    return counted(random, load)


def sensors(random: Random) -> Floats:
    """A steady load, until another group of sensors is switched on or off."""
    load, minute, level = np.empty(MINUTES), 0, 300.0
    while minute < MINUTES:
        end = minute + 20 + int(random.exponential(400))
        load[minute:end], minute = level, end
        level = float(np.clip(level * math.exp(random.normal(0, 0.6)), 20, 1500))
    return counted(random, load)


def files_at_night(random: Random) -> Floats:
    load = 20 * day_and_night(0.2)
    for day in range(DAYS):
        for start, most in ((random.integers(240), 300), (random.integers(300, 1400), 25)):
            first = day * DAY + int(start)
            load[first : first + int(random.uniform(most / 5, most))] += random.uniform(100, 400)
    return counted(random, load)


def matches(random: Random) -> Floats:
    """A site with scores: two games on every day, with a break at half-time."""
    load = 800 * day_and_night(0.25, 17) * wandering(random, 120, 0.1) * wandering(random, 4, 0.05)
    for day in range(DAYS):
        for hour in (15, 18):
            first, minutes = day * DAY + hour * 60, np.arange(130)
            crowd = np.minimum(1, minutes / 15) * np.where(abs(minutes - 55) < 9, 0.5, 1)
            load[first : first + 130] += 800 * random.uniform(0, 4) * crowd
    return counted(random, load)


def cluster_jobs(random: Random) -> Floats:
    """Single jobs, and about every quarter of an hour a whole batch."""
    base = wandering(random, 180, 0.35) * wandering(random, 8, 0.3) * day_and_night(0.6)
    batches = random.poisson(0.07 * base) * np.minimum(5 + 20 * random.pareto(1.7, MINUTES), 300)
    return counted(random, 20 * base + batches)


def model_requests(random: Random) -> Floats:
    return counted(random, 150 * wandering(random, 15, 0.5) * wandering(random, 2, 0.3))


def few_items(random: Random) -> Floats:
    return counted(random, random.uniform(0.5, 3) * day_and_night(0.2) * wandering(random, 40, 0.6))


def taxis(random: Random) -> Floats:
    """Counts per half hour, spread evenly, with two rush hours."""
    rush = day_and_night(0.1, 19) + 0.4 * day_and_night(0, 8, 6)
    return np.repeat((400 * rush * wandering(random, 200, 0.08))[::30], 30)


def front_page(random: Random) -> Floats:
    load = 80 * day_and_night(0.4) * wandering(random, 60, 0.15)
    return counted(random, load + bursts(random, 1.2, 160, 50))


def counted(random: Random, load: Floats) -> Floats:
    """Whole items that arrive independently, with the given mean for each minute."""
    return random.poisson(np.maximum(load, 0)).astype(np.float64)


SHAPES: Mapping[str, Callable[[Random], Floats]] = {
    shape.__name__: shape
    for shape in (
        web_site,
        encyclopedia,
        short_messages,
        timers,
        on_and_off,
        shop,
        sensors,
        files_at_night,
        matches,
        cluster_jobs,
        model_requests,
        few_items,
        taxis,
        front_page,
    )
}


def constant(mean: float, minutes: int, seed: int) -> Floats:
    """Items that arrive independently, always as many on average."""
    return counted(np.random.default_rng([seed, len(SHAPES)]), np.full(minutes, mean))


def traffic(shape: str, seed: int) -> Floats:
    """Items in each minute of ``DAYS`` days; the same for the same seed."""
    at = list(SHAPES).index(shape)
    return SHAPES[shape](np.random.default_rng([seed, at]))
