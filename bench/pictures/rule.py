"""Draws the two pictures of docs/rules.md and docs/adr/0005-default-policy.md.

``holding.svg`` shows when QueueAge changes the capacity, and ``halved.svg`` what it does if a new
release halves the rate per instance that is set by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from backtest.arena import Floats, Plan
from backtest.clairvoyant import clairvoyant
from backtest.outcome import course
from backtest.replay import App, in_arena, replay_workload
from backtest.rules_file import load_rules
from backtest.world import HALVED, HALVED_SHARE
from bench.groups.regret import RULES_FILE, SEED, SWITCH_COSTS, made_up, with_cost
from bench.traffic import DAY
from shared.autoscaling.deciding.decide import Decision

FOLDER = Path("docs/images")
WIDTH, HEIGHT, LEFT, GAP = 640, 130, 40, 34
COLORS, LIMIT = ("#7f8fa6", "#1f6f8b", "#e9a820"), "#c8553d"
HOUR = 60
FINE_MINUTES = 8 * HOUR
"""Of a longer time, every third minute is drawn."""


class _Noting(App):
    """Notes with which rate each decision was made."""

    rates: Sequence[float] = ()

    def decided(self, decision: Decision) -> None:
        rate = decision.evidence.get("rate_per_instance_minute")
        self.rates = [*self.rates, float(rate or 0)]


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over the same minutes, by what they show, and perhaps a level with its name."""

    title: str
    curves: Mapping[str, Floats]
    limit: float | None = None
    told: str = ""


def panels(shape: str, days: int, minutes: slice, variation: str = "") -> Sequence[Panel]:
    """What the default rule does with a rate that is set, in a part of made-up traffic."""
    (run,) = (each for each in made_up(SEED) if each.workload.name == shape)
    arena = with_cost(run, SWITCH_COSTS[0], variation).arena
    workload, rules = run.workload.part(0, days * DAY), load_rules(RULES_FILE)
    app = _Noting(in_arena(rules.resource, arena), Plan(arena), rules.timing)
    played = replay_workload(app, arena, workload, lambda _: None).capacity
    mine = course(arena, workload.arrivals, played)
    best = course(arena, workload.arrivals, clairvoyant(arena, workload.arrivals))
    load = workload.arrivals / arena.instance_rate
    curves = {"needed": load, "QueueAge": mine.by_minute, "clairvoyant": best.by_minute}
    first = Panel("instances", {name: each[minutes] for name, each in curves.items()})
    if variation:
        steps = arena.steps_per_minute
        rates = np.repeat(app.rates[0], workload.minutes)
        planned = np.asarray(app.rates[steps - 1 :: steps])
        rates[-len(planned) :] = planned
        share = {"rate": rates[minutes] / arena.instance_rate}
        title = "rate per instance with which decisions plan; 1 is the setting"
        first = Panel(title, share, HALVED_SHARE, "the truth from 4 h on")
    age = {"age": mine.age_minutes[minutes]}
    title = "age of the oldest item in minutes"
    return first, Panel(title, age, arena.age_limit_minutes, "age limit")


def svg(panels: Sequence[Panel]) -> str:
    """The panels, one above the other."""
    height = (HEIGHT + GAP) * len(panels) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="11" fill="#2f3640">'
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
    ]
    for number, panel in enumerate(panels):
        parts += _drawn(panel, GAP + number * (HEIGHT + GAP))
    return "\n".join([*parts, "</svg>\n"])


def _drawn(panel: Panel, top: float) -> Sequence[str]:
    highest = max([float(each.max()) for each in panel.curves.values()])
    highest = max(highest, panel.limit or 0.0) * 1.05
    count = len(next(iter(panel.curves.values())))
    every = 1 if count <= FINE_MINUTES else 3

    def y(value: float) -> float:
        return top + HEIGHT * (1 - value / highest)

    found = [f'<text x="{LEFT}" y="{top - 8}">{panel.title}</text>']
    for value in (0.0, highest / 1.05):
        found.append(
            f'<text x="{LEFT - 6}" y="{y(value) + 4:.0f}" text-anchor="end">{value:.3g}</text>'
        )
    for hour in range(0, count, HOUR * (1 if every == 1 else 4)):
        x = LEFT + (WIDTH - LEFT) * hour / count
        found.append(f'<text x="{x:.0f}" y="{top + HEIGHT + 14}">{hour // HOUR} h</text>')
    if panel.limit is not None:
        found.append(
            f'<path stroke="{LIMIT}" d="M{LEFT},{y(panel.limit):.0f}H{WIDTH}"/>'
            f'<text x="{WIDTH}" y="{top - 8}" fill="{LIMIT}" text-anchor="end">{panel.told}</text>'
        )
    for color, (name, values) in zip(COLORS, panel.curves.items(), strict=False):
        points = " ".join(
            f"{LEFT + (WIDTH - LEFT) * at / count:.0f},{y(float(value)):.0f}"
            for at, value in list(enumerate(values))[::every]
        )
        found.append(f'<polyline fill="none" stroke="{color}" points="{points}"/>')
        if len(panel.curves) > 1:
            x = LEFT + 80 + 100 * COLORS.index(color)
            found.append(f'<text x="{x}" y="{top - 8}" fill="{color}">{name}</text>')
    return found


def pictures() -> Mapping[str, str]:
    """The text of each file."""
    half = DAY
    return {
        "holding.svg": svg(panels("on_and_off", 1, slice(12 * HOUR, 18 * HOUR))),
        "halved.svg": svg(panels("web_site", 2, slice(half - 4 * HOUR, half + 20 * HOUR), HALVED)),
    }
