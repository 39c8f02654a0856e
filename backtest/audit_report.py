"""An audit as one screen, and as one HTML file with the pictures."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import partial

import numpy as np
from rich.console import Console
from rich.table import Table

from backtest.audit_answers import DAYS_MIN, NAMES, OLD, PAID, Audit
from backtest.audit_model import Estimate
from backtest.report import grid
from backtest.study import RULES

PRICES = "https://azure.microsoft.com/pricing/details/app-service"


def show(audit: Audit, console: Console, price: float | None) -> None:
    """Print the audit on one screen. ``price`` is that of an instance-hour."""
    found, arena = audit.found, audit.study.arena
    plan, work = found.month.plan.rsplit("/", 1)[-1], found.workload
    say = partial(console.print, highlight=False, markup=False)
    say(
        f"{plan}, {found.month.kind} {found.month.entity}: {work.minutes:,} minutes "
        f"({work.minutes / 1440:.1f} days) from {work.starts[0]:%d %b %Y}, "
        f"{arena.min_instances}-{arena.max_instances} instances",
        style="bold",
    )
    for notice in filter(None, (found.month.source, *audit.study.notices)):
        say(f"  · {notice}", style="yellow")
    for part in (_facts(audit), _table(audit, price), _hours(audit), *_sentences(audit, price)):
        say(part)
    say(audit.verdict, style="bold green")


def _facts(audit: Audit) -> Table:
    found = audit.found
    table = grid()
    work, month = found.workload.arrivals, found.month
    abandoned = found.abandoned / max(found.completed, 1)
    table.add_row("arrivals", f"{work.sum():,.0f} messages, at most {work.max():,.0f} a minute")
    table.add_row("completed", f"{found.completed:,.0f}; {abandoned:.1%} as many were abandoned")
    table.add_row("rate", f"{_shown(found.rate)} messages a minute and instance")
    table.add_row("start-up", f"{_shown(found.start_up)} minutes")
    table.add_row("instances", month.instances_from)
    return table


def _shown(estimate: Estimate) -> str:
    if not estimate.sure:
        return f"{estimate.value:.4g} (not sure: {estimate.evidence})"
    error = f"{estimate.low:.4g} to {estimate.high:.4g}"
    return f"{estimate.value:.4g} (90 %: {error}; {estimate.evidence})"


def _table(audit: Audit, price: float | None) -> Table:
    money = ("money",) if price is not None else ()
    columns = ("hours", "90 %", *money, "late", "age p99", "changes", "cost")
    table = grid(*columns)
    for name, course in audit.courses.items():
        score, days = course.score(audit.study.arena), audit.resampled_hours(name)
        interval = "" if days is None else "{:,.0f}-{:,.0f}".format(*np.percentile(days, (5, 95)))
        paid = (f"{score.instance_hours * price:,.2f}",) if price is not None else ()
        table.add_row(
            NAMES[name],
            f"{score.instance_hours:,.0f}",
            interval,
            *paid,
            f"{score.violation_minutes:,}",
            f"{score.age_p99:.1f}",
            f"{score.actions:,}",
            f"{score.J / 60:,.0f}",
            style="bold green" if name == RULES else "",
        )
    empty = ("",) * (len(columns) - 1)
    table.add_row("proven bound", *empty, f"{audit.study.J_lp / 60:,.0f}", style="dim")
    return table


def _hours(audit: Audit) -> Table:
    table = grid("messages", "oldest", "late", "instances", "default policy late", "instances")
    paid, mine = audit.courses[PAID], audit.courses[RULES]
    for first, end in audit.worst_hours():
        part = slice(first, end)
        table.add_row(
            f"{audit.found.workload.starts[first]:%a %d %b %H:00}",
            f"{audit.found.workload.arrivals[part].sum():,.0f}",
            f"{paid.age_minutes[part].max():.1f} min",
            f"{(paid.late_work[part] > 0).sum()}",
            f"{paid.by_minute[part].mean():.1f}",
            f"{(mine.late_work[part] > 0).sum()}",
            f"{mine.by_minute[part].mean():.1f}",
        )
    table.title, table.title_justify = "The five worst hours, as paid (UTC)", "left"
    return table


def _sentences(audit: Audit, price: float | None) -> Iterator[str]:
    arena, error = audit.study.arena, audit.model_error
    yield (
        f"Hours are instance-hours. Late: minutes with messages older than "
        f"{arena.age_limit_minutes} min. Cost: hours, {arena.switch_cost:g} min for each instance "
        f"added or removed, and {arena.late_penalty:g} times the late work. No schedule costs less "
        "than the bound."
    )
    if price is None:
        yield f"With --price PER_INSTANCE_HOUR, the table has money: {PRICES}"
    if audit.not_replayed:
        yield f"The setting was not replayed: {audit.not_replayed}. So the model is unchecked."
    elif error is not None:
        true = "true" if audit.reference == OLD else "not true"
        yield (
            f"Check of the model: the replay of the setting differs by {error:+.1%} from the hours "
            f"that were paid, so the model is {true} to this month."
        )
    share, low, high = audit.saving
    if np.isfinite(low):
        hours = share * audit.courses[audit.reference].by_minute.sum() / 60
        money = "" if price is None else f", {hours * price:,.2f} in money"
        yield (
            f"Against {NAMES[audit.reference]}, the default policy saves {share:.1%} of the hours "
            f"(90 %: {low:.1%} to {high:.1%}, from resampled days){money}."
        )
    else:
        yield f"There are fewer than {DAYS_MIN} whole days, so how sure this is cannot be said."
    if not audit.found.rate.sure:
        yield "The rate per instance is not sure, so the default policy learns it in the replay."


def as_html(audit: Audit, price: float | None) -> str:
    """One file with the picture and the screen."""
    from backtest.plot import page, png_of  # noqa: PLC0415  slow to import and rarely needed

    console = Console(record=True, width=100, file=io.StringIO())
    show(audit, console, price)
    text = console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
    name = audit.found.month.plan.rsplit("/", 1)[-1]
    return page(f"Audit of {name}", png_of(audit.study), text)
