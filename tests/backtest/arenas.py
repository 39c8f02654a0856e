"""Small arenas, workloads and rules for the tests of the backtest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backtest.arena import Arena, Floats
from backtest.cli import main
from backtest.workload import Workload, workload_of

START = datetime(2026, 3, 1, tzinfo=UTC)
ROOT = Path(__file__).parents[2]
NASA = ROOT / "local" / "data" / "nasa_http_1995-07-11_13.csv"
SHIPPED_RULES = ROOT / "scaling_rules.py"

BACKLOG_RULES = '''
"""Scales by the largest backlog of five minutes, so that orders are often superseded."""

import math

from shared.autoscaling import (
    AppServicePlan, Cooldown, Recommendation, Resource, StorageQueue,
)


def policy(seen):
    newest = [sample.value for sample in seen.history("jobs").samples[-5:]]
    if not newest:
        return Recommendation(seen.capacity, "no samples")
    each = seen.throughput.rate_per_instance_minute * 0.8 * seen.goal.age_limit_minutes
    return Recommendation(max(1, *[math.ceil(value / each) for value in newest]), "backlog")


def resources(settings):
    plan = AppServicePlan("00000000-0000-0000-0000-000000000001", "group", "plan")
    return [Resource("plan", plan, {"jobs": StorageQueue("jobs")}, policy, cooldown=Cooldown(0, 0))]
'''


def arena(**changes: Any) -> Arena:
    fields: dict[str, Any] = {"instance_rate": 10.0, "max_instances": 6}
    return Arena(**{**fields, **changes})


def bursty(seed: int, minutes: int, mean: float = 25.0) -> Floats:
    """Arrivals with calm phases, bursts and silent minutes."""
    random = np.random.default_rng(seed)
    level = mean * np.exp(np.cumsum(random.normal(0, 0.15, minutes)) * 0.5)
    bursts = random.random(minutes) < 0.03
    quiet = random.random(minutes) > 0.05
    load: Floats = np.floor(np.minimum(level + bursts * 8 * mean, 500.0) * quiet)
    return load


def workload(arrivals: Sequence[float] | Floats) -> Workload:
    return workload_of("test", START, np.asarray(arrivals, dtype=np.float64))


def csv_text(arrivals: Sequence[object], step: timedelta = timedelta(minutes=1)) -> str:
    lines = [f"{(START + step * i).isoformat()},{count}" for i, count in enumerate(arrivals)]
    return "\n".join(("time,arrivals", *lines, ""))


class CommandLine:
    """Runs ``python -m backtest`` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], directory: Path) -> None:
        self._capsys = capsys
        self.directory = directory

    def run(self, *arguments: object) -> tuple[int, str, str]:
        """Return the exit code, standard output and standard error."""
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as ended:  # argparse
            code = int(ended.code or 0)
        printed = self._capsys.readouterr()
        return code, printed.out, printed.err

    def json(self, *arguments: object) -> dict[str, Any]:
        code, out, err = self.run(*arguments, "--json")
        assert code == 0, err
        result: dict[str, Any] = json.loads(out)
        return result

    def file(self, name: str, text: str | bytes) -> Path:
        path = self.directory / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def trace(self, arrivals: Sequence[object], step: timedelta = timedelta(minutes=1)) -> Path:
        return self.file("trace.csv", csv_text(arrivals, step))
