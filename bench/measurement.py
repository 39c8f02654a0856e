"""A figure with its baseline, which is what the bench prints, and the growth rate of a counter."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 120.0
POLL_SECONDS = 0.005
SIGNIFICANT_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Measurement:
    """A figure and its baseline, both from the same run and in the same unit."""

    name: str
    value: float
    unit: str
    baseline: float
    aim: str = ""
    """The target for the figure. Empty for a figure that is only informative."""
    note: str = ""
    """What the baseline is, and whatever else is needed to interpret the figure."""

    @property
    def ratio(self) -> float:
        return self.value / self.baseline

    @property
    def line(self) -> str:
        """The measurement as one line of JSON."""
        fields = {
            "name": self.name,
            "value": _rounded(self.value),
            "unit": self.unit,
            "baseline": _rounded(self.baseline),
            "ratio": _rounded(self.ratio),
        }
        optional = {"aim": self.aim, "note": self.note}
        shown = {key: text for key, text in optional.items() if text}
        return json.dumps({**fields, **shown}, ensure_ascii=False)


def figures_of(module: str, *arguments: object, given: bytes | None = None) -> dict[str, Any]:
    """The JSON that a module prints when run in its own process."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, input=given, stdout=subprocess.PIPE, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def _rounded(number: float) -> float:
    return float(f"{number:.{SIGNIFICANT_DIGITS}g}")


async def growth_per_second(done: Callable[[], int], total: int) -> float:
    """Growth a second between the first tenth of ``total`` and all of it, without the warm-up.

    Raises TimeoutError if that takes longer than two minutes.
    """
    async with asyncio.timeout(LIMIT_SECONDS):
        first, started = await _reached(done, total // 10)
        last, ended = await _reached(done, total)
    return (last - first) / (ended - started)


async def _reached(done: Callable[[], int], count: int) -> tuple[int, float]:
    # Polled, because the host's counter sends no notifications. Both sides are measured this way.
    while (reached := done()) < count:  # noqa: ASYNC110
        await asyncio.sleep(POLL_SECONDS)
    return reached, time.perf_counter()
