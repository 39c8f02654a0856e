"""The study as text: a table, cheapest policy first, and a conclusion."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from backtest.outcome import Score
from backtest.study import RULES, Study

COLUMNS = ("J", "regret", "late", "age p50/p99/max", "hours", "actions", "reversals")


def show(study: Study, console: Console, price: float | None = None) -> None:
    """Print the study, with money at the ``price`` of an instance-hour."""
    console.print(_title(study))
    for notice in study.notices:
        console.print(f"  · {notice}", style="yellow", highlight=False, markup=False)
    console.print(_table(study, price))
    console.print(_verdict(study), highlight=False)
    console.print(_meaning(study), style="dim", highlight=False)
    if study.faults:
        _show_faults(study, console)
    for sentence in _certainty(study):
        console.print(sentence, highlight=False, markup=False)


def _certainty(study: Study) -> Iterator[str]:
    """How sure the answer is: what was not converted, and which minutes have no data."""
    if study.rules.left_out:
        yield f"Not converted from the autoscale setting: {'; '.join(study.rules.left_out)}."
    missing = study.workload.without_data
    if missing:
        yield f"Minutes of the trace without data: {missing:,}. The notes above say how they count."
    elif missing == 0:
        yield "Every minute of the trace has data."


def _show_faults(study: Study, console: Console) -> None:
    counts = {k: v for k, v in study.faults.items() if k not in ("violations", "first_violations")}
    what = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items())
    console.print(f"Faults, for your rules only: {what}.", highlight=False)
    broken = study.faults["violations"]
    if not broken:
        console.print("Every safety rule held.", style="green")
        return
    console.print(f"Safety rules were broken {broken} times:", style="bold red")
    for line in study.faults["first_violations"]:
        console.print(f"  · {line}", style="red", highlight=False, markup=False)


def _title(study: Study) -> str:
    arena, workload = study.arena, study.workload
    days = workload.minutes / 1440
    work = f"{workload.arrivals.sum():,.0f} items; an instance serves {arena.instance_rate:.4g} a "
    if arena.cpu:
        work = f"{workload.arrivals.sum():,.0f} instance-minutes of CPU; an instance serves 1 a "
    return (
        f"[bold]{workload.name}[/bold]: {workload.minutes:,} minutes ({days:.1f} days), {work}"
        f"minute, {arena.min_instances}-{arena.max_instances} instances"
    )


def grid(*columns: str) -> Table:
    """A table with names on the left, and with numbers in the columns that have a title."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", show_header=bool(columns))
    table.add_column("", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", overflow="fold")
    return table


def _table(study: Study, price: float | None) -> Table:
    def money(score: Score) -> tuple[str, ...]:
        return () if price is None else (f"{score.instance_hours * price:,.2f}",)

    table = grid(*COLUMNS, *([] if price is None else ["money"]))
    scores = study.scores()
    for name in sorted(scores, key=lambda name: scores[name].J):
        above = f"{scores[name].J / study.best_cost - 1:+.1%}"
        style = "bold green" if name == RULES else ""
        table.add_row(name, *_row(scores[name], above), *money(scores[name]), style=style)
    best = study.clairvoyant.score(study.arena)
    table.add_row("clairvoyant", *_row(best, ""), *money(best), style="dim")
    table.add_row("lower bound", f"{study.J_lp:,.0f}", style="dim")
    return table


def _row(score: Score, above: str) -> tuple[str, ...]:
    return (
        f"{score.J:,.0f}",
        above,
        f"{score.violation_minutes:,}",
        f"{score.age_p50:.1f}/{score.age_p99:.1f}/{score.age_max:.1f}",
        f"{score.instance_hours:,.0f}",
        f"{score.actions:,}",
        f"{score.reversals:,}",
    )


def _verdict(study: Study) -> str:
    if study.unjudged:
        return f"No verdict: {study.no_verdict}."
    policies = study.as_dict()["policies"]
    mine = policies[RULES]
    cost = f"Your rules cost {mine['regret_dp']:.1%} more than the best schedule known"
    if study.faults:
        return f"{cost}. The faults affected your rules only, so the others cannot be compared."
    rivals = {name: score["J"] for name, score in policies.items() if name != RULES}
    better = [name for name, J in rivals.items() if mine["J"] > J]
    alike = [name for name, J in rivals.items() if mine["J"] == J]
    place = f"more expensive than {', '.join(better)}" if better else "cheaper than every rival"
    if alike and not better:
        place = f"as cheap as {', '.join(alike)}"
    return f"{cost} for this trace, and are {place}."


def _meaning(study: Study) -> str:
    a = study.arena
    return (
        f"J = instance-minutes + {a.switch_cost:g} per instance added or removed + "
        f"{a.late_penalty:g} per minute and instance-minute of work older than "
        f"{a.age_limit_minutes} min. More instances come {a.dead_time_minutes} min after the order."
        f" {a.told[0].upper()}{a.told[1:]}."
    )
