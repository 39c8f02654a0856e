"""Prints the results of commands as text and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shared.notifications.conditions import LastingCondition, explained, grouped
from shared.values.news import Severity
from shared.values.text import odd_character

JsonObject = Mapping[str, Any]
UNKNOWN = "?"
PIPED_CHARACTERS = 400
STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "dim"}


def status(resources: Sequence[JsonObject]) -> None:
    table = _table("resource", "instances", "desired", "mode", "metrics")
    read = [shown for shown in resources if "error" not in shown]
    for shown in read:
        desired = shown["desired"]
        table.add_row(
            shown["name"],
            _capacity(shown),
            _desired(desired) if desired else UNKNOWN,
            Text(_mode(shown)),
            Text("\n".join(_readings(shown))),
        )
    if read:
        _print(Text(f"as of {max(shown['as_of'] for shown in read)}", style="dim"))
    _print(table)
    for shown in read:
        if newest := shown["newest"]:
            again = f" ({newest['repeated'] + 1} times since {newest['repeated_since']})"
            text = f"{shown['name']}: {newest['reason']}"
            _print(Text(text + (again if newest["repeated"] else "")))
        if spent := shown["spent"]:
            _print(Text(f"{shown['name']}: {spent['said']}"))
    conditions = [
        LastingCondition(**found, resource=shown["name"])
        for shown in resources
        for found in shown["conditions"]
    ]
    for each in grouped(conditions):
        text = explained(each.what, explained(each.meaning, each.todo))
        _print(Text(text, style=STYLES[each.severity]))


def _desired(desired: JsonObject) -> str:
    status, reached, given_up = desired["status"], desired["reached"], desired["given_up"]
    if status == "pending" and reached is not None:
        status = f"{status}, {reached} reached"
    elif given_up not in (None, desired["target"]):
        status = f"{status}, of {given_up}"
    return f"{desired['target']} ({status})"


def decisions(lines: Sequence[JsonObject], *, why: bool = False) -> None:
    """One line for each entry; with ``why``, the recommendations of all policies, the limits, and
    the evidence below it."""
    if not lines:
        _print(Text("The decision log has no entries of this time."))
    for line in lines:
        head = f"{line['time']}  {line['kind']}  {_change(line)}  {line['reason']}"
        _print(Text(head, style="bold" if line["applies"] else ""))
        if why:
            _print(Text("\n".join(f"    {part}" for part in _parts(line))))


def previews(shown: Sequence[JsonObject]) -> None:
    for preview in shown:
        _print(Text(f"{preview['resource']}: {_change(preview)}  {preview['reason']}"))
        newest = {each["name"]: each["value"] for each in preview["readings"]}
        for name, value in newest.items():
            _print(Text(f"    {name} = {value:g}"))
        for failure in preview["failures"]:
            _print(Text(f"    {failure['name']}: {failure['reason']}", style="red"))
        _print(Text("\n".join(f"    {part}" for part in _parts(preview))))


def checks(answer: JsonObject) -> None:
    _print(Text(f"The rules and settings are valid ({', '.join(answer['resources'])})"))
    for each in answer["first_hour"]:
        _print(Text(f"{each['resource']}: {each['told']}"))
    for warning in answer["warnings"]:
        _print(Text(f"warning: {warning}", style="yellow"))
    if not answer["checks"]:
        return
    table = _table("resource", "check", "", "result")
    for check in answer["checks"]:
        mark = Text("ok", style="green") if check["ok"] else Text("failed", style="red")
        table.add_row(check["resource"], check["what"], mark, Text(check["told"]))
    _print(table)


def override(answer: JsonObject) -> None:
    _print(Text(f"{answer['resource']}: {answer['said']}"))


def dead_letters(shown: JsonObject) -> None:
    letters = shown["dead_letters"]
    for letter in letters:
        size = letter["body_bytes"]
        body = "body in the hub" if size is None else f"{size} bytes"
        place = f"{_partition(letter)} {letter['sequence']}"
        what = f"{letter['kind']}, {body}: {safe(letter['error'])}"
        _print(Text(f"{place}  {letter['failed_at']}  {what}"))
    if not letters:
        _print(Text("no dead letters"))
    if shown["more"]:
        hint = "there may be more: use --after SEQUENCE or a higher --limit"
        _print(Text(hint, style="dim"))


def dead_letter(shown: JsonObject) -> None:
    for name, value in shown.items():
        if name != "body":
            _print(Text(f"{name:14} {safe(str(value))}"))
    body = shown["body"]
    _print(Text(body["text"] if "text" in body else f"(base64) {body['base64']}"))


def outcome(shown: JsonObject) -> None:
    _print(Text(f"{len(shown['done'])} done, {len(shown['failed'])} failed"))
    for gone in shown["gone"]:
        _print(Text(f"{_partition(gone)} {gone['sequence']}: another process handled it first"))
    for failed in shown["failed"]:
        where = f"{_partition(failed)} {failed['sequence']}"
        _print(Text(f"{where}: {safe(failed['error'])}", style="red"))


def accounts(shown: JsonObject) -> None:
    if not shown["streams"]:
        _print(Text("no events were processed yet"))
    for each in shown["streams"]:
        told = "no events were processed yet"
        if each["last"] is not None:
            told = (
                f"{each['first']} to {each['last']}, enqueued until {each['enqueued_at']}, epoch "
                f"{each['epoch']} of {each['owner']}, {each['set_aside']} set aside"
            )
        _print(Text(safe(f"{_partition(each)}: {told}, {each['gone']} missing")))
        for gap in each["gaps"]:
            numbers = f"{gap['first']} to {gap['last']}"
            why = f"{'are missing, ' if gap['lost'] else ''}detected {gap['found_at']}"
            text = safe(f"{_partition(each)}: {numbers} {why}: {gap['reason']}")
            _print(Text(text, style="red" if gap["lost"] else ""))


def replay(shown: JsonObject) -> None:
    missing = sum(gap["last"] - gap["first"] + 1 for gap in shown["gaps"] if gap["lost"])
    _print(
        Text(
            f"{_partition(shown)}: {shown['first']} to {shown['last']} of {shown['until']}: "
            f"{shown['effects']} effects, {shown['dead_letters']} dead letters, {missing} missing, "
            f"{shown['set_aside']} set aside"
        )
    )


def sent(shown: JsonObject) -> None:
    _print(Text(f"sent to {shown['hub']} of {shown['namespace']}: {safe(shown['event'])}"))


def _mode(shown: JsonObject) -> str:
    override = shown["override"]
    if override is None:
        return str(shown["mode"])
    return f"{override['said']} ({override['reason']})"


def _capacity(shown: JsonObject) -> str:
    old = shown["capacity_stale"] and shown["capacity_at"]
    return f"{_text(shown['capacity'])}{f' (as of {old})' if old else ''}"


def _readings(shown: JsonObject) -> Iterable[str]:
    yield from map(_metric, shown["metrics"])
    if shown["estimate"]:
        yield shown["estimate"]["said"]


def _metric(metric: JsonObject) -> str:
    if metric["value"] is None:
        return f"{metric['name']}: no sample yet"
    lags = metric["stale"] or metric["lag_seconds"] is not None
    stale = f", {metric['age_seconds']:.0f} s old" if lags else ""
    return f"{metric['name']} {metric['value']:g}{stale}"


def _parts(line: JsonObject) -> Iterable[str]:
    for candidate in line["candidates"]:
        yield f"{candidate['rule']} recommends {candidate['capacity']}: {candidate['reason']}"
    if line["limited_by"]:
        yield f"limited by {', '.join(line['limited_by'])}"
    if line["counterfactual"]:
        yield line["counterfactual"]
    if read := {each["name"]: each["value"] for each in line.get("samples", ())}:
        yield f"read {', '.join(f'{name} = {value:g}' for name, value in read.items())}"
    if line["evidence"]:
        yield ", ".join(f"{key} {_text(value)}" for key, value in line["evidence"].items())


def _change(line: JsonObject) -> str:
    if line["current"] is None and line["desired"] is None:
        return ""
    if line["current"] == line["desired"]:
        return _text(line["current"])
    return f"{_text(line['current'])} → {_text(line['desired'])}"


def _text(value: object) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def safe(text: str) -> str:
    """The text with control characters escaped, so that a terminal does not execute them."""
    return "".join(repr(c)[1:-1] if odd_character(c) else c for c in text)


def _partition(shown: JsonObject) -> str:
    return safe(f"{shown['hub']}/{shown['consumer_group']}/{shown['partition_id']}")


def _print(shown: Table | Text) -> None:
    """Print at the width of the terminal. Lines for a file or a program are not wrapped."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPED_CHARACTERS)
    console.print(shown)
