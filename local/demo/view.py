"""The live view in the terminal: what arrives, what waits, how many instances, and why."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from local.demo import profile
from local.demo.night import Night
from local.demo.system import LocalSystem
from shared.autoscaling.deciding.decide import EntryKind, LogEntry

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
    """One minute of the trace."""

    arrivals: float
    backlog: float
    capacity: int


async def watch(system: LocalSystem) -> None:
    """Draw until cancelled."""
    readings: deque[Reading] = deque(maxlen=MINUTES_SHOWN)
    last_minute = -1
    with Live(Text("starting ..."), refresh_per_second=4) as live:
        while True:
            system.traffic.advance()
            minute = int(system.workload.minute)
            if minute > last_minute:
                last_minute = minute
                readings.append(_reading(system))
            live.update(draw(system, readings, await system.log(200)))
            await asyncio.sleep(REFRESH_SECONDS)


def draw(
    system: LocalSystem, readings: Sequence[Reading], lines: Sequence[LogEntry]
) -> RenderableType:
    workload = system.workload
    minute = min(int(workload.minute), system.minutes)
    time = workload.trace.time_at(minute).astimezone(UTC)
    title = f"minute {minute} of {system.minutes} · trace time {time:%Y-%m-%d %H:%M} UTC"
    return Group(
        Panel(_numbers(system, readings), title=title, title_align="left"),
        Panel(_last_decision(lines), title="last decision", title_align="left"),
        Panel(_events(lines), title="actions", title_align="left"),
        *(
            [Panel(_night(system.night), title="last night", title_align="left")]
            if system.night
            else []
        ),
        Text(f"page: {system.page}" if system.page else "", style="bold"),
        Text(FOOTER, style="dim"),
    )


def _night(night: Night) -> RenderableType:
    """How far it is, then what it found."""
    if not night.trends:
        return Text(night.error.splitlines()[-1] if night.error else f"{night.state} …")
    table = Table.grid(padding=(0, 2))
    for trend in night.trends:
        rate, count = trend["sampling_rate"], trend["adjusted_count"]
        error = 1.96 * trend["adjusted_count_se"]
        kept = f"{trend['records']} kept at {rate:.0f} %" if rate else "none kept"
        name = f"{trend['date']} {trend['event']}"
        table.add_row(name, kept, f"→ {count:.0f} ± {error:.0f}", trend["verdict"], trend["reason"])
    return Group(table, *[Text(page, style="dim") for page in night.pages])


FOOTER = "one minute of the trace lasts one second, also in the reasons · Ctrl-C stops"


def sparkline(values: Sequence[float]) -> str:
    """One bar per value, the highest of them full."""
    top = max(values, default=0) or 1
    return "".join(BARS[min(int(v / top * len(BARS)), len(BARS) - 1)] for v in values)


def _reading(system: LocalSystem) -> Reading:
    workload = system.workload
    capacity = workload.state.capacity.effective
    return Reading(workload.arrivals_per_minute, workload.backlog, capacity)


def _numbers(system: LocalSystem, readings: Sequence[Reading]) -> Table:
    workload = system.workload
    capacity = workload.state.capacity
    coming = capacity.ordered - capacity.effective
    running = f"{capacity.effective}" + (f" (+{coming} coming)" if coming > 0 else "")
    table = Table.grid(padding=(0, 2))
    rows: tuple[tuple[str, str, Iterable[float]], ...] = (
        ("arrivals / min", f"{workload.arrivals_per_minute:.0f}", (r.arrivals for r in readings)),
        ("backlog", f"{workload.backlog:.0f}", (r.backlog for r in readings)),
        ("instances", running, (float(r.capacity) for r in readings)),
        ("age of the oldest", f"{workload.age_minutes:.1f} min", ()),
    )
    for name, value, values in rows:
        table.add_row(name, Text(value, style="bold"), Text(sparkline(list(values)), style="cyan"))
    return table


def _last_decision(lines: Sequence[LogEntry]) -> Text:
    last = next((line for line in lines if line.kind is EntryKind.DECISION), None)
    if last is None:
        return Text("none yet")
    return Text(f"{profile.PLAN.name}: {last.current} → {last.desired}  {last.reason}")


def _events(lines: Sequence[LogEntry]) -> Table:
    table = Table.grid(padding=(0, 2))
    events = [line for line in lines if line.kind is not EntryKind.DECISION or line.applies]
    for line in events[:LINES_SHOWN]:
        change = f"{line.current} → {line.desired}" if line.current is not None else ""
        style = STYLES.get(line.kind, "")
        reason = "" if line.kind is EntryKind.CONFIRMED else line.reason  # the decision's again
        table.add_row(f"{line.time:%H:%M:%S}", Text(line.kind, style=style), change, Text(reason))
    return table
