"""One figure beside its baseline: what the bench prints. And how fast a counter grows."""

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
    """A figure and what it is compared with, both of the same run and in the same unit."""

    name: str
    value: float
    unit: str
    baseline: float
    aim: str = ""
    """What the figure is wanted to be; empty where it stands for information."""
    note: str = ""
    """What the baseline is, and what else one has to know to read the figure."""

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
    """The JSON that a module prints, run in a process of its own."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, input=given, stdout=subprocess.PIPE, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def _rounded(number: float) -> float:
    return float(f"{number:.{SIGNIFICANT_DIGITS}g}")


async def growth_per_second(done: Callable[[], int], total: int) -> float:
    """Growth a second from the first tenth to the last of ``total``: what starts has started.

    Raises TimeoutError where that takes longer than two minutes.
    """
    async with asyncio.timeout(LIMIT_SECONDS):
        first, started = await _reached(done, total // 10)
        last, ended = await _reached(done, total)
    return (last - first) / (ended - started)


async def _reached(done: Callable[[], int], count: int) -> tuple[int, float]:
    # Polled, because the host counts without telling: both sides are watched in the same way.
    while (reached := done()) < count:  # noqa: ASYNC110
        await asyncio.sleep(POLL_SECONDS)
    return reached, time.perf_counter()
