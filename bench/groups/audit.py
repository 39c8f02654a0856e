"""audit: whether an audit is fast, and finds what is known of made-up plans.

audit.example.seconds        the time of `python -m backtest audit --example`
audit.paid_against_replayed  by how much the replay of the setting misses what was paid, at most
audit.rate_error             by how much the rate per instance is missed, at most

The last two are of three made-up months (bench/made_up_months.py). The baseline of the paid hours
is the mean, that of the rate the half of the 90 % interval that the audit states.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import mean

from backtest.audit_answers import paid_against_replayed
from backtest.audit_model import findings
from bench.made_up_months import WORLDS, made_up
from bench.measurement import ROOT, Measurement

DAYS = 28
SECONDS_MAX = 60.0


def measure() -> Iterator[Measurement]:
    yield Measurement("audit.example.seconds", _seconds(), "s", SECONDS_MAX, "≤ 60", "the limit")
    found = [(world, findings(made_up(world, DAYS))) for world in WORLDS]
    errors = [abs(paid_against_replayed(each)) for _, each in found]
    yield Measurement(
        "audit.paid_against_replayed", max(errors), "share", mean(errors), "≤ 0.05", "the mean"
    )
    rates = [abs(each.rate.value / world.rate - 1) for world, each in found]
    stated = [(each.rate.high - each.rate.low) / 2 / each.rate.value for _, each in found]
    yield Measurement(
        "audit.rate_error", max(rates), "share", max(stated), "≤ 0.10", "half of the interval"
    )


def _seconds() -> float:
    started = time.perf_counter()
    command = [sys.executable, "-m", "backtest", "audit", "--example"]
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started
