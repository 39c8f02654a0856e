"""A picture of each series: raw and adjusted with its band, the sampling rate, verdicts marked."""

from __future__ import annotations

import hashlib
import html
import io
import re
import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from shared.sampling.trend_rows import Trend
from shared.sampling.verdict import LOST, VerdictKind

HALF_A_DAY = timedelta(hours=12)
SERIES_MAX = 50
"""Of more, those of which events were lost and then the largest: nobody looks through hundreds."""
DRAWN_MAX = 1e150
"""Axes know no larger numbers."""
COLORS = {
    VerdictKind.EVENTS_LOST: "#c62828",
    VerdictKind.MEASUREMENT_LOST: "#ad1457",
    VerdictKind.SAMPLING_CHANGED: "#ef6c00",
    VerdictKind.TRAFFIC_CHANGED: "#1565c0",
    VerdictKind.MEASUREMENT_CHANGED: "#6a1b9a",
    VerdictKind.UNCERTAIN: "#9e9e9e",
}
MARKS = {
    VerdictKind.EVENTS_LOST: "v",
    VerdictKind.MEASUREMENT_LOST: "v",
    VerdictKind.SAMPLING_CHANGED: "s",
    VerdictKind.TRAFFIC_CHANGED: "^",
    VerdictKind.MEASUREMENT_CHANGED: "^",
}
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; color: #222 }}
svg {{ width: 100%; height: auto }} table {{ border-collapse: collapse; width: 100% }}
th, td {{ padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right }}
td {{ white-space: nowrap }} td:last-child {{ white-space: normal }}
th:first-child, td:first-child, th:last-child, td:last-child {{ text-align: left }}
</style>
<h1>{title}</h1>
{picture}
<table><tr><th>date<th>records<th>rate<th>adjusted<th>± 95 %<th>verdict</tr>
{rows}
</table></html>
"""
ROW = "<tr><td>{}<td>{:,}<td>{}<td>{:,.0f}<td>{:,.0f}<td><b>{}</b> {}</tr>"


def pictures(trends: Sequence[Trend]) -> Mapping[str, bytes]:
    """File name → content: a PNG and a page of HTML that needs nothing else, for each series.

    A series that cannot be drawn has a page that says so, and no PNG.
    """
    found = {}
    for days in most_telling(trends):
        name = _file_name(days[0])
        try:
            png, svg = _drawn(days)
        except (ValueError, OverflowError) as error:
            found[f"{name}.html"] = _page(days, f"<p>Cannot be drawn: {html.escape(str(error))}")
        else:
            found[f"{name}.png"] = png
            found[f"{name}.html"] = _page(days, svg)
    return found


def left_out(trends: Sequence[Trend]) -> int:
    """How many series have no picture because there are so many."""
    return max(len({trend.series for trend in trends}) - SERIES_MAX, 0)


def most_telling(trends: Sequence[Trend]) -> list[list[Trend]]:
    """The days of each series that is drawn, in order of days."""
    by_series: dict[Any, list[Trend]] = {}
    for trend in trends:
        by_series.setdefault(trend.series, []).append(trend)

    def rank(days: Sequence[Trend]) -> tuple[bool, float]:
        lost = any(trend.verdict in LOST for trend in days)
        return not lost, -sum(trend.adjusted_count for trend in days)

    chosen = sorted(by_series.values(), key=rank)[:SERIES_MAX]
    return [sorted(days, key=lambda trend: trend.date) for days in chosen]


def title_of(trend: Trend) -> str:
    dimensions = ", ".join(f"{name} {value}" for name, value in trend.dimensions.items())
    what = f"Σ {trend.measurement}" if trend.measurement else "count"
    return f"{trend.event} - {what}" + (f" ({dimensions})" if dimensions else "")


def _file_name(trend: Trend) -> str:
    """Readable, and different for different series."""
    digest = hashlib.blake2b(repr(trend.series).encode("utf-8", "replace"), digest_size=4)
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", trend.event).strip("-.")[:60] or "event"
    return f"{readable}-{digest.hexdigest()}"


def _drawn(days: Sequence[Trend]) -> tuple[bytes, str]:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    dates: Any = [datetime.fromisoformat(trend.date) for trend in days]
    values = [_values(trend) for trend in days]
    if any(abs(value) > DRAWN_MAX for of_day in values for value in of_day):
        raise ValueError(f"there are figures beyond {DRAWN_MAX:g}")
    raw, adjusted, low, high = (list(column) for column in zip(*values, strict=True))
    above.fill_between(dates, low, high, color="#2e7d32", alpha=0.2, label="95 % of sampling")
    above.plot(dates, adjusted, color="#2e7d32", label="adjusted", marker=".")
    above.plot(dates, raw, color="#757575", linestyle="--", label="as recorded", marker=".")
    for finding, color in COLORS.items():
        marked = [n for n, trend in enumerate(days) if trend.verdict == finding]
        at, heights = [dates[n] for n in marked], [adjusted[n] for n in marked]
        if finding in MARKS and marked:
            above.scatter(at, heights, color=color, marker=MARKS[finding], s=80, zorder=5,
                          label=str(finding))  # fmt: skip
        for day in at:
            above.axvspan(day - HALF_A_DAY, day + HALF_A_DAY, color=color, alpha=0.1, linewidth=0)
    above.set_title(title_of(days[0]).replace("$", r"\$"))
    above.set_ylim(bottom=min(0, *low))
    figure.legend(loc="outside lower center", ncols=6, fontsize="small")
    known = [t.sampling_rate for t in days if t.sampling_rate is not None]
    rates = [float("nan") if t.sampling_rate is None else t.sampling_rate for t in days]
    below.step(dates, rates, where="mid", color="#ef6c00")
    below.set_ylim(0, 1.2 * max(known, default=100))
    below.set_ylabel("kept, %")
    figure.autofmt_xdate()
    png, svg = io.BytesIO(), io.StringIO()
    with warnings.catch_warnings(), rc_context({"svg.fonttype": "none"}):  # a browser has all fonts
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(png, format="png", dpi=110)
        figure.savefig(svg, format="svg")
    return png.getvalue(), svg.getvalue()[svg.getvalue().index("<svg") :]


def _values(trend: Trend) -> tuple[float, float, float, float]:
    """Raw, adjusted, low, high: of the sum where there is a measurement, else of the count."""
    if not trend.measurement:
        return (
            trend.records,
            trend.adjusted_count,
            trend.adjusted_count_low,
            trend.adjusted_count_high,
        )
    found = (trend.raw_sum, trend.adjusted_sum, trend.adjusted_sum_low, trend.adjusted_sum_high)
    raw, adjusted, low, high = (float("nan") if v is None else v for v in found)
    return raw, adjusted, low, high


def _page(days: Sequence[Trend], svg: str) -> bytes:
    rows = [
        ROW.format(
            trend.date,
            trend.records,
            "-" if trend.sampling_rate is None else f"{trend.sampling_rate:.1f} %",
            _values(trend)[1],
            (_values(trend)[3] - _values(trend)[2]) / 2,
            html.escape(trend.verdict),
            html.escape(trend.reason),
        )
        for trend in reversed(days)
    ]
    title = html.escape(title_of(days[0]))
    page = PAGE.format(title=title, picture=svg, rows="\n".join(rows))
    return page.encode("utf-8", "replace")
