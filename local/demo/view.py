"""The live view in the terminal: arrivals, backlog, instances, and the reason for each decision."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from local.demo import profile
from local.demo.night import NightlyDemo
from local.demo.system import LocalSystem
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.policy import RateEstimate

REFRESH_SECONDS = 0.5
MINUTES_SHOWN = 60
LINES_SHOWN = 8
BARS = "▁▂▃▄▅▆▇█"
STYLES = {
    EntryKind.DECISION: "bold",
    EntryKind.CONFIRMED: "green",
    EntryKind.DEFERRED: "yellow",
    EntryKind.FAILED: "red",
    EntryKind.POISON: "red",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of the workload in one minute of the trace."""

    arrivals: float
    backlog: float
    capacity: int


async def watch(system: LocalSystem) -> None:
    """Redraw the view until the task is cancelled."""
    readings: deque[Reading] = deque(maxlen=MINUTES_SHOWN)
    last_minute = -1
    with Live(Text("Waiting for the first decision ..."), refresh_per_second=4) as live:
        while True:
            system.traffic.advance()
            minute = int(system.workload.minute)
            if minute > last_minute:
                last_minute = minute
                readings.append(_reading(system))
            live.update(draw(system, readings, await system.log(200), await system.estimate()))
            await asyncio.sleep(REFRESH_SECONDS)


def draw(
    system: LocalSystem,
    readings: Sequence[Reading],
    lines: Sequence[LogEntry],
    estimate: RateEstimate | None,
) -> RenderableType:
    workload = system.workload
    minute = min(int(workload.minute), system.minutes)
    time = workload.trace.time_at(minute).astimezone(UTC)
    what = "first hour of a new deployment" if system.first_hour else "replayed traffic"
    title = f"{what} · minute {minute} of {system.minutes} · {time:%Y-%m-%d %H:%M} UTC"
    return Group(
        Panel(_numbers(system, readings, estimate), title=title, title_align="left"),
        Panel(_last_decision(lines), title="last decision", title_align="left"),
        Panel(_events(lines), title="scale actions", title_align="left"),
        *(
            [Panel(_night(system.night), title="nightly trends (Spark)", title_align="left")]
            if system.night
            else []
        ),
        Text(f"Dashboard: {system.page}" if system.page else "", style="bold"),
        Text(FIRST_HOUR if system.first_hour else REPLAY, style="dim"),
    )


def _night(night: NightlyDemo) -> RenderableType:
    """The progress of the nightly run, and then its trends."""
    if not night.trends:
        lines = night.error.splitlines() or [f"{night.state} …"]
        return Text("\n".join(dict.fromkeys([lines[0], lines[-1]])))
    table = Table.grid(padding=(0, 2))
    for trend in night.trends:
        rate, count = trend["sampling_rate"], trend["adjusted_count"]
        error = 1.96 * trend["adjusted_count_se"]
        kept = f"{trend['records']} records kept ({rate:.0f} %)" if rate else "none kept"
        name = f"{trend['date']} {trend['event']}"
        table.add_row(name, kept, f"→ {count:.0f} ± {error:.0f}", trend["verdict"], trend["reason"])
    return Group(table, *[Text(page, style="dim") for page in night.pages])


SECONDS = 60
"""One minute of the trace lasts one second."""
REPLAY = (
    "One minute of the trace lasts one second. Reasons and the dashboard have real time, in which "
    "rates are 60 times as high. "
    "Press Ctrl-C to stop."
)
FIRST_HOUR = (
    "In real time. No rate is given, and Azure Monitor's counts are two minutes late. "
    "Press Ctrl-C to stop."
)


def sparkline(values: Sequence[float]) -> str:
    """One bar for each value, scaled to the highest."""
    top = max(values, default=0) or 1
    return "".join(BARS[min(int(v / top * len(BARS)), len(BARS) - 1)] for v in values)


def _reading(system: LocalSystem) -> Reading:
    workload = system.workload
    capacity = workload.state.capacity.effective
    return Reading(workload.arrivals_per_minute, workload.backlog, capacity)


def _throughput(estimate: RateEstimate | None, *, replayed: bool) -> str:
    """The rate in minutes of the trace, as the arrivals beside it."""
    if estimate is None:
        return "not known yet: thresholds decide"
    if replayed:
        likely, low = (each / SECONDS for each in (estimate.likely, estimate.low))
        estimate = replace(estimate, likely=likely, low=low)
    return str(estimate).removeprefix("rate per instance ")


def _numbers(
    system: LocalSystem, readings: Sequence[Reading], estimate: RateEstimate | None
) -> Table:
    workload = system.workload
    capacity = workload.state.capacity
    coming = capacity.ordered - capacity.effective
    running = f"{capacity.effective}" + (f" (+{coming} starting)" if coming > 0 else "")
    table = Table.grid(padding=(0, 2))
    rows: tuple[tuple[str, str, Iterable[float]], ...] = (
        (
            "arrivals per minute",
            f"{workload.arrivals_per_minute:.0f}",
            (r.arrivals for r in readings),
        ),
        ("messages waiting", f"{workload.backlog:.0f}", (r.backlog for r in readings)),
        ("instances", running, (float(r.capacity) for r in readings)),
        ("oldest message", f"{workload.age_minutes:.1f} min", ()),
    )
    told = _throughput(estimate, replayed=not system.first_hour)
    table.add_row("rate per instance", Text(told, style="bold"))
    for name, value, values in rows:
        table.add_row(name, Text(value, style="bold"), Text(sparkline(list(values)), style="cyan"))
    return table


def _last_decision(lines: Sequence[LogEntry]) -> Text:
    last = next((line for line in lines if line.kind is EntryKind.DECISION), None)
    if last is None:
        return Text("no decision yet")
    return Text(f"{profile.PLAN.name}: {last.current} → {last.desired}  {last.reason}")


def _events(lines: Sequence[LogEntry]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    events = [line for line in lines if line.kind is not EntryKind.DECISION or line.applies]
    if not events:
        return Text("no scale action yet")
    for line in events[:LINES_SHOWN]:
        change = f"{line.current} → {line.desired}" if line.current is not None else ""
        style = STYLES.get(line.kind, "")
        # A confirmation repeats the reason of its decision.
        reason = "" if line.kind is EntryKind.CONFIRMED else line.reason
        table.add_row(f"{line.time:%H:%M:%S}", Text(line.kind, style=style), change, Text(reason))
    return table
