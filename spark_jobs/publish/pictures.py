"""Draws each series: raw and adjusted figures with their 95 % interval, the rate, and verdicts."""

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
"""The most series that are drawn: first those that lost events, then the largest ones."""
DRAWN_MAX = 1e150
"""The largest number that an axis can show."""
STYLES = {
    VerdictKind.EVENTS_LOST: ("#c62828", "v"),
    VerdictKind.MEASUREMENT_LOST: ("#ad1457", "v"),
    VerdictKind.SAMPLING_CHANGED: ("#ef6c00", "s"),
    VerdictKind.TRAFFIC_CHANGED: ("#1565c0", "^"),
    VerdictKind.MEASUREMENT_CHANGED: ("#6a1b9a", "^"),
    VerdictKind.UNCERTAIN: ("#9e9e9e", ""),
}
"""The color and the marker of each verdict."""
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
    """Returns the files by name: for each series an HTML page that needs no other file. If a series
    cannot be drawn, its page shows the reason.
    """
    files = {}
    for days in series_to_draw(trends):
        try:
            picture = _drawn(days)
        except (ValueError, OverflowError) as error:
            picture = f"<p>Cannot be drawn: {html.escape(str(error))}"
        files[_file_name(days[0])] = _page(days, picture)
    return files


def series_to_draw(trends: Sequence[Trend]) -> list[list[Trend]]:
    """Returns the trends of each series that is drawn, ordered by day."""
    by_series: dict[Any, list[Trend]] = {}
    for trend in sorted(trends, key=lambda trend: trend.date):
        by_series.setdefault(trend.series, []).append(trend)

    def rank(days: Sequence[Trend]) -> tuple[bool, float]:
        lost = any(trend.verdict in LOST for trend in days)
        return not lost, -sum(trend.adjusted_count for trend in days)

    return sorted(by_series.values(), key=rank)[:SERIES_MAX]


def title_of(trend: Trend) -> str:
    dimensions = ", ".join(f"{name} {value}" for name, value in trend.dimensions.items())
    what = f"Σ {trend.measurement}" if trend.measurement else "count"
    return f"{trend.event} - {what}" + (f" ({dimensions})" if dimensions else "")


def _file_name(trend: Trend) -> str:
    """Returns a readable name that differs between series."""
    digest = hashlib.blake2b(repr(trend.series).encode("utf-8", "replace"), digest_size=4)
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", trend.event).strip("-.")[:60] or "event"
    return f"{readable}-{digest.hexdigest()}.html"


def _drawn(days: Sequence[Trend]) -> str:
    """Draws a series as SVG. Raises ValueError or OverflowError."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    dates: Any = [datetime.fromisoformat(trend.date) for trend in days]
    raw, adjusted, low, high = zip(*map(_values, days), strict=True)
    if any(abs(value) > DRAWN_MAX for value in (*raw, *adjusted, *low, *high)):
        raise ValueError(f"there are figures beyond {DRAWN_MAX:g}")
    above.fill_between(dates, low, high, color="#2e7d32", alpha=0.2, label="95 % of sampling")
    above.plot(dates, adjusted, color="#2e7d32", label="adjusted", marker=".")
    above.plot(dates, raw, color="#757575", linestyle="--", label="as recorded", marker=".")
    for verdict, (color, marker) in STYLES.items():
        marked = [n for n, trend in enumerate(days) if trend.verdict == verdict]
        at, heights = [dates[n] for n in marked], [adjusted[n] for n in marked]
        if marker and marked:
            above.scatter(at, heights, color=color, marker=marker, s=80, zorder=5, label=verdict)
        for day in at:
            above.axvspan(day - HALF_A_DAY, day + HALF_A_DAY, color=color, alpha=0.1, linewidth=0)
    above.set_title(title_of(days[0]).replace("$", r"\$"))
    above.set_ylim(bottom=min(0, *low))
    figure.legend(loc="outside lower center", ncols=6, fontsize="small")
    rates = [float("nan") if t.sampling_rate is None else t.sampling_rate for t in days]
    below.step(dates, rates, where="mid", color="#ef6c00")
    below.set_ylim(0, 1.2 * (max(trend.sampling_rate or 0 for trend in days) or 100))
    below.set_ylabel("kept, %")
    figure.autofmt_xdate()
    svg = io.StringIO()
    with warnings.catch_warnings(), rc_context({"svg.fonttype": "none"}):  # browsers have the fonts
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(svg, format="svg")
    return svg.getvalue()[svg.getvalue().index("<svg") :]


def _values(trend: Trend) -> tuple[float, ...]:
    """Returns the raw, adjusted, low and high figure: of the sum if there is a measurement,
    otherwise of the count. The sum of a day without measured values is NaN.
    """
    t = trend
    if not t.measurement:
        return t.records, t.adjusted_count, t.adjusted_count_low, t.adjusted_count_high
    sums = (t.raw_sum, t.adjusted_sum, t.adjusted_sum_low, t.adjusted_sum_high)
    return tuple(float("nan") if value is None else value for value in sums)


def _page(days: Sequence[Trend], picture: str) -> bytes:
    rows = []
    for trend in reversed(days):
        _, adjusted, low, high = _values(trend)
        rate = "-" if trend.sampling_rate is None else f"{trend.sampling_rate:.1f} %"
        texts = html.escape(trend.verdict), html.escape(trend.reason)
        rows.append(ROW.format(trend.date, trend.records, rate, adjusted, (high - low) / 2, *texts))
    title = html.escape(title_of(days[0]))
    page = PAGE.format(title=title, picture=picture, rows="\n".join(rows))
    return page.encode("utf-8", "replace")
