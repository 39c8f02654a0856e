"""fleet: what many plans cost, and how soon each gets what it needs, within the limits of Azure.

``python -m bench.groups.fleet --plans 200 --most 0`` measures another number of plans, in less
time.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from bench.fleet_process import ROWS_KEPT, TICK_SECONDS
from bench.measurement import Measurement, figures_of
from local.azure_apis.limits import NAMESPACE_CREDITS, SUBSCRIPTION_READS

PLANS, MOST = 1_000, 5_000
SHARE = NAMESPACE_CREDITS / 2
"""The credits of a namespace that the app may take in a second."""
CORE_MS = 1_000 * TICK_SECONDS
REAL = "seconds are real; baseline: the limit"
_process = partial(figures_of, "bench.fleet_process")


def measure(plans: int = PLANS, most: int = MOST) -> Iterator[Measurement]:
    """The figures of a fleet, then those of the largest one (none of it if ``most`` is 0)."""
    few = min(100, plans)
    single, lists = _process("host", plans, 0, few), _process("host", plans, 1, plans)
    yield from _requests("fleet", "single reads", "≤ 20", single)
    yield from _requests("fleet.lists", "lists", "≤ 2", lists)
    yield _age("fleet", single)
    for count, seconds, run in ((few, 60, single), (plans, 200, lists)):
        for kind, what in (("order", "accepted"), ("confirmed", "known to be done")):
            figure = run["ordered" if kind == "order" else kind]
            done = run["ordered_count" if kind == "order" else "confirmed_count"]
            note = f"of {plans} plans, {done} of {count} {what}; {run['orders_late']} plans unread"
            name, note = f"fleet.{kind}_seconds.p95.{count}", f"{note} for 2 minutes; {REAL}"
            yield Measurement(name, figure, "s", seconds, f"≤ {seconds}", note)
    parts = _process("parts", plans, 0, 1)
    yield _cpu("fleet", parts)
    for part, milliseconds in parts["parts"].items():
        note = "baseline: the whole"
        yield Measurement(f"fleet.cpu_ms.{part}", milliseconds, "ms", parts["cpu_ms"], note=note)
    rows, seconds = parts["rows"], parts["retention"] * parts["rows"] / ROWS_KEPT
    yield Measurement("fleet.rows_per_plan_and_day", rows, "rows", 600, "≤ 600", "of 6 hours")
    note = f"for {rows:g} rows a plan, from {parts['retention']:.1f} s for {ROWS_KEPT}"
    yield Measurement("fleet.retention_seconds", seconds, "s", 60, "≤ 60", note)
    note = f"{single['executions']:.0f} in the functions host"
    name, executions = "fleet.executions_per_plan_and_month", single["executions"]
    yield Measurement(name, executions, "executions", 20_000, "≤ 20000", note)
    for what in ("page", "status"):
        yield Measurement(f"fleet.{what}_seconds", parts[what], "s", 2, "≤ 2", REAL)
    if most:
        yield from _largest(most)


def _largest(plans: int) -> Iterator[Measurement]:
    """What a fleet beyond the aim needs of each limit, and which of them gives out first."""
    host, parts = _process("host", plans, 1, 0), _process("parts", plans, 1, 0)
    found = [*_requests(f"fleet.{plans}", "lists", "", host), _age(f"fleet.{plans}", host)]
    found.append(_cpu(f"fleet.{plans}", parts))
    for what in ("page", "status"):
        found.append(Measurement(f"fleet.{plans}.{what}_seconds", parts[what], "s", 2))
    yield from found
    core = parts["cpu_ms"] * plans / CORE_MS
    shares = {each.name.removeprefix(f"fleet.{plans}."): each.ratio for each in found}
    shares = {k: v for k, v in shares.items() if not k.startswith("cpu")} | {"one core": core}
    first = max(shares, key=lambda name: shares[name])
    note = f"{first} gives out first; {', '.join(f'{k} {v:.2f}' for k, v in shares.items())}"
    yield Measurement(f"fleet.{plans}.fullest", shares[first], "of the limit", 1, note=note)


def _requests(name: str, how: str, aim: str, run: Mapping[str, Any]) -> Iterator[Measurement]:
    """Requests of a quiet minute."""
    limit, seconds = SUBSCRIPTION_READS.per_second, run["window"]
    refused, unread = run.get("reads_refused", 0), f"longest unread {run['unread']:.0f} s"
    note = f"{how}, quiet; {refused} refused; {unread}; baseline: the refill of the bucket"
    reads = (run.get("reads", 0) + refused) / seconds
    yield Measurement(f"{name}.arm_reads_per_second", reads, "reads/s", limit, aim, note)
    most, refused = run.get("credits_max", 0), run.get("credits_refused", 0)
    mean = run.get("credits", 0) / seconds
    note = f"the most in one second; {mean:.0f} on average, {refused} refused; baseline: the share"
    unit, aim = "credits/s", aim and f"≤ {SHARE:g}"
    yield Measurement(f"{name}.service_bus_credits_per_second", most, unit, SHARE, aim, note)


def _age(name: str, run: Mapping[str, Any]) -> Measurement:
    note = "the oldest that a backlog gets before a newer one is stored; baseline: the aim"
    return Measurement(f"{name}.age_of_backlog_seconds.p99", run["age"], "s", 30, "≤ 30", note)


def _cpu(name: str, parts: Mapping[str, Any]) -> Measurement:
    note = f"{parts['failed']} calls failed; without the host's own; baseline: the aim"
    return Measurement(f"{name}.cpu_ms_per_plan_and_tick", parts["cpu_ms"], "ms", 3, "≤ 3", note)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", type=int, default=PLANS)
    parser.add_argument("--most", type=int, default=MOST, help="0: no larger fleet")
    options = parser.parse_args()
    for measurement in measure(options.plans, options.most):
        print(measurement.line, flush=True)
