"""What the command line prints for people: tables by rich. Takes what ``presenting`` gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from shared.cli.terminal import printed

Shown = Mapping[str, Any]
UNKNOWN = "?"


def status(resources: Sequence[Shown]) -> None:
    table = _table("resource", "instances", "desired", "mode", "metrics", "as of")
    read = [shown for shown in resources if "error" not in shown]
    for shown in read:
        desired = shown["desired"]
        table.add_row(
            shown["name"],
            _capacity(shown),
            f"{desired['target']} ({desired['status']})" if desired else UNKNOWN,
            Text(_mode(shown)),
            Text("\n".join(_metric(metric) for metric in shown["metrics"])),
            shown["as_of"],
        )
    printed(table)
    for shown in read:
        if shown["newest"]:
            printed(Text(f"{shown['name']}: {shown['newest']['reason']}"))
        for told in shown["unreadable"]:
            printed(Text(f"{shown['name']}: {told}", style="yellow"))
    for shown in resources:
        if "error" in shown:
            printed(Text(shown["error"], style="red"))


def decisions(lines: Sequence[Shown]) -> None:
    table = _table("time", "kind", "instances", "why")
    for line in lines:
        table.add_row(line["time"], line["kind"], _change(line), Text(line["reason"]))
    printed(table)


def reasons(lines: Sequence[Shown]) -> None:
    """Each line with every rule's wish, what limited it, and the numbers behind."""
    for line in lines:
        head = f"{line['time']}  {line['kind']}  {_change(line)}  {line['reason']}"
        printed(Text(head, style="bold" if line["applies"] else ""))
        printed(Text("\n".join(f"    {part}" for part in _parts(line))))


def previews(shown: Sequence[Shown]) -> None:
    for preview in shown:
        printed(Text(f"{preview['resource']}: {_change(preview)}  {preview['reason']}"))
        for reading in preview["readings"]:
            printed(Text(f"    {reading['name']} = {reading['value']:g}"))
        for failure in preview["failures"]:
            printed(Text(f"    {failure['name']}: {failure['reason']}", style="red"))
        printed(Text("\n".join(f"    {part}" for part in _parts(preview))))


def checks(answer: Shown) -> None:
    printed(Text(f"scaling_rules.py and settings: sound ({', '.join(answer['resources'])})"))
    for warning in answer["warnings"]:
        printed(Text(f"warning: {warning}", style="yellow"))
    if not answer["checks"]:
        return
    table = _table("resource", "what", "", "answer")
    for check in answer["checks"]:
        mark = Text("ok", style="green") if check["ok"] else Text("failed", style="red")
        table.add_row(check["resource"], check["what"], mark, Text(check["told"]))
    printed(table)


def said(answer: Shown) -> None:
    printed(Text(f"{answer['resource']}: {answer['said']}"))


def _mode(shown: Shown) -> str:
    override = shown["override"]
    if override is None:
        return str(shown["mode"])
    return f"{override['said']} ({override['reason']})"


def _capacity(shown: Shown) -> str:
    old = shown["capacity_stale"] and shown["capacity_at"]
    return f"{_said(shown['capacity'])}{f' (as of {old})' if old else ''}"


def _metric(metric: Shown) -> str:
    if metric["value"] is None:
        return f"{metric['name']} never seen"
    stale = f", {metric['age_seconds']:.0f} s old" if metric["stale"] else ""
    return f"{metric['name']} {metric['value']:g}{stale}"


def _parts(line: Shown) -> Iterable[str]:
    for candidate in line["candidates"]:
        yield f"{candidate['rule']} wants {candidate['capacity']}: {candidate['reason']}"
    if line["limited_by"]:
        yield f"limited by {', '.join(line['limited_by'])}"
    if line["counterfactual"]:
        yield line["counterfactual"]
    if line["evidence"]:
        yield ", ".join(f"{key} {_said(value)}" for key, value in line["evidence"].items())


def _change(line: Shown) -> str:
    if line["current"] is None and line["desired"] is None:
        return ""
    if line["current"] == line["desired"]:
        return _said(line["current"])
    return f"{_said(line['current'])} → {_said(line['desired'])}"


def _said(value: object) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
