"""Draws a study: load, age of the backlog, and capacity with its decisions and the best schedule.

A trace of weeks has more minutes than a page has pixels. Load and age are therefore drawn as the
mean and the maximum of stretches. The busiest hours are also drawn minute by minute.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.dates as mdates
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from backtest.arena import Floats
from backtest.errors import BacktestError
from backtest.outcome import Course
from backtest.study import RULES, Study

STRETCHES_MAX = 700
MARKS_MAX = 500
"""More marks than this hide the curves; then only the busiest hours have marks."""

DETAIL_MINUTES = 480
LOAD, AGE, MINE, BEST, INK = "#7f8fa6", "#c8553d", "#1f6f8b", "#e9a820", "#2f3640"
STYLE = {
    "font.size": 9,
    "axes.edgecolor": "#b8bec6",
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e8ebef",
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


@dataclass(frozen=True, slots=True)
class _View:
    """A part of the study, and how coarsely it is drawn."""

    study: Study
    first: int
    end: int

    @property
    def stride(self) -> int:
        return max(1, -(-(self.end - self.first) // STRETCHES_MAX))

    @property
    def times(self) -> Floats:
        return _numbers(self.study.workload.starts[self.first : self.end : self.stride])

    def mean(self, values: Floats) -> Floats:
        return self._stretches(values, np.add) / self._lengths()

    def most(self, values: Floats) -> Floats:
        return self._stretches(values, np.maximum)

    def _stretches(self, values: Floats, how: np.ufunc) -> Floats:
        part = values[self.first : self.end]
        drawn = how.reduceat(part, np.arange(0, len(part), self.stride))
        return np.asarray(drawn, dtype=np.float64)

    def _lengths(self) -> Floats:
        return self._stretches(np.ones(self.end), np.add)


def _numbers(times: Sequence[datetime]) -> Floats:
    return np.asarray(mdates.date2num(times), dtype=np.float64)  # type: ignore[no-untyped-call]


def draw(study: Study, path: Path) -> None:
    """Write the picture as .png, or as one self-contained .html page."""
    png = png_of(study)
    write(path, png if path.suffix == ".png" else _page(study, png).encode())


def write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise BacktestError(f"{path}: the plot cannot be written ({reason})") from error


def png_of(study: Study) -> bytes:
    whole = _View(study, 0, study.workload.minutes)
    busiest = _busiest_hours(study)
    columns = [whole] if busiest == whole else [whole, busiest]
    with styled(8.5 * len(columns), 7.5) as figure:
        heights = {"height_ratios": (2, 2, 3)}
        axes = figure.subplots(3, len(columns), sharex="col", squeeze=False, gridspec_kw=heights)
        for number, view in enumerate(columns):
            _column(view, axes[:, number])
        _titles(figure, axes, study)
        return png(figure)


@contextmanager
def styled(width: float, height: float) -> Iterator[Figure]:
    """An empty figure, in the style of all pictures while it is drawn and written."""
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]  # the stubs want literal keys
        yield Figure(figsize=(width, height), layout="constrained")


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _busiest_hours(study: Study) -> _View:
    minutes = study.workload.minutes
    if minutes <= 2 * DETAIL_MINUTES:
        return _View(study, 0, minutes)
    done = np.concatenate(([0.0], np.cumsum(study.workload.arrivals)))
    first = int(np.argmax(done[DETAIL_MINUTES:] - done[:-DETAIL_MINUTES]))
    return _View(study, first, first + DETAIL_MINUTES)


def _column(view: _View, axes: Any) -> None:
    load, age, capacity = axes
    mine = view.study.courses[RULES]
    _load(view, load)
    _age(view, mine, age)
    _capacity(view, mine, capacity)
    locator = mdates.AutoDateLocator(maxticks=9)  # type: ignore[no-untyped-call]
    capacity.xaxis.set_major_locator(locator)
    shown = mdates.ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]
    capacity.xaxis.set_major_formatter(shown)
    capacity.margins(x=0.01)


def _load(view: _View, axes: Axes) -> None:
    work = view.study.workload.arrivals / view.study.arena.instance_rate
    axes.fill_between(view.times, view.mean(work), color=LOAD, alpha=0.45, linewidth=0)
    axes.plot(view.times, view.most(work), color=LOAD, linewidth=0.7)
    axes.set_ylim(bottom=0)


def _age(view: _View, mine: Course, axes: Axes) -> None:
    limit = view.study.arena.age_limit_minutes
    worst = view.most(mine.age_minutes)
    axes.fill_between(view.times, worst, color=AGE, alpha=0.25, linewidth=0)
    axes.plot(view.times, worst, color=AGE, linewidth=0.8)
    axes.axhline(limit, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), label="age limit")
    axes.set_ylim(bottom=0, top=max(float(worst.max()), limit) * 1.25)


def _capacity(view: _View, mine: Course, axes: Axes) -> None:
    best = view.mean(view.study.clairvoyant.by_minute)
    rules = view.mean(mine.by_minute)
    step: Any = "post" if view.stride == 1 else None
    style: Any = "steps-post" if view.stride == 1 else "default"
    axes.fill_between(view.times, best, step=step, color=BEST, alpha=0.4, linewidth=0)
    axes.plot(view.times, best, drawstyle=style, color=BEST, linewidth=0.9, label="clairvoyant")
    axes.plot(view.times, rules, drawstyle=style, color=MINE, linewidth=1.1, label=view.study.mine)
    if "paid" in view.study.courses:
        paid = view.mean(view.study.courses["paid"].by_minute)
        axes.plot(view.times, paid, drawstyle=style, color=LOAD, linewidth=0.9, label="paid")
    _decisions(view, axes)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    top = max(view.study.clairvoyant.capacity.max(), mine.capacity.max())
    axes.set_ylim(0, float(top) * 1.2 + 1)


def _decisions(view: _View, axes: Axes) -> None:
    """Draw a triangle for each order, at its time and capacity."""
    orders = [o for o in view.study.replay.orders if view.first <= o.minute < view.end]
    if len(orders) > MARKS_MAX:
        return
    alpha = float(np.clip(150 / max(len(orders), 1), 0.3, 0.9))
    for out, marker, color in ((True, "^", AGE), (False, "v", MINE)):
        chosen = [
            (view.study.workload.ends[o.minute], o.decision.desired or 0)
            for o in orders
            if ((o.decision.desired or 0) > (o.decision.current or 0)) is out
        ]
        if chosen:
            numbers = _numbers([time for time, _ in chosen])
            targets = [target for _, target in chosen]
            label = "ordered out" if out else "ordered in"
            options: dict[str, Any] = {"linewidths": 0, "alpha": alpha, "zorder": 3}
            axes.scatter(numbers, targets, s=16, c=color, marker=marker, label=label, **options)


def _titles(figure: Figure, axes: Any, study: Study) -> None:
    scores = study.scores()[RULES]
    figure.suptitle(
        f"{study.workload.name}: {study.mine} cost {scores.J:,.0f}, "
        f"{scores.J / study.best_cost - 1:.1%} above the best schedule known; "
        f"{scores.violation_minutes:,} late minutes",
        wrap=True,
        x=0.01,
        ha="left",
        color=INK,
        fontsize=12,
        fontweight="bold",
    )
    load, age, capacity = axes[:, 0]
    load.set_ylabel("work arriving\n(instances)")
    age.set_ylabel("oldest item waits\n(minutes)")
    capacity.set_ylabel("instances")
    if axes.shape[1] > 1:
        axes[0, 0].set_title("the whole trace", loc="left", fontsize=9)
        axes[0, 1].set_title("its busiest eight hours", loc="left", fontsize=9)
    age.legend(loc="upper left")
    axes[2, -1].legend(loc="upper left", ncols=4)


def _page(study: Study, png: bytes) -> str:
    """One HTML file with the picture and the figures."""
    rows = "".join(
        f"<tr><td>{html.escape(policy)}<td>{score.J:,.0f}<td>{score.J / study.best_cost - 1:+.1%}"
        f"<td>{score.violation_minutes:,}<td>{score.age_p99:.1f}<td>{score.instance_hours:,.0f}"
        f"<td>{score.actions:,}"
        for policy, score in sorted(study.scores().items(), key=lambda item: item[1].J)
    )
    return page(
        f"Backtest of {study.workload.name}",
        png,
        "<table><tr><th>policy<th>cost J<th>above the best"
        f"<th>late minutes<th>age p99 (min)<th>instance-hours<th>changes{rows}</table>",
    )


def page(title: str, png: bytes, body: str) -> str:
    """One HTML file with the picture above the body, which is HTML."""
    name, picture = html.escape(title), base64.b64encode(png).decode()
    return (
        "<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{name}</title><style>body{{font:15px/1.5 system-ui;margin:2rem auto;"
        "max-width:1200px;padding:0 1rem;color:#2f3640}img{width:100%}table{border-collapse:"
        "collapse}th,td{padding:.2rem .9rem;text-align:right;border-bottom:1px solid #e8ebef}"
        "th:first-child,td:first-child{text-align:left}</style>"
        f"<h1>{name}</h1><img alt='load, age of the backlog and capacity over time' "
        f"src='data:image/png;base64,{picture}'>{body}"
    )
