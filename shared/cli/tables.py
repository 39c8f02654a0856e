"""What the command line prints for people, by rich. Takes what the two ``presenting`` give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

Shown = Mapping[str, Any]
UNKNOWN = "?"
PIPED_CHARACTERS = 400


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
        for problem in shown["unreadable"]:
            printed(Text(f"{shown['name']}: {problem}", style="yellow"))
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


def override(answer: Shown) -> None:
    printed(Text(f"{answer['resource']}: {answer['said']}"))


def dead_letters(shown: Shown) -> None:
    letters = shown["dead_letters"]
    table = _table("partition", "sequence", "failed at", "kind", "bytes", "error")
    for letter in letters:
        size = letter["body_bytes"]
        table.add_row(
            _partition(letter),
            str(letter["sequence"]),
            letter["failed_at"],
            letter["kind"],
            "in the hub" if size is None else str(size),
            safe(letter["error"]),
        )
    printed(table if letters else Text("no dead letters"))
    if shown["more"]:
        printed(Text("there may be more: --after SEQUENCE, or a higher --limit", style="dim"))


def dead_letter(shown: Shown) -> None:
    for name, value in shown.items():
        if name != "body":
            printed(Text(f"{name:14} {safe(str(value))}"))
    body = shown["body"]
    printed(Text(body["text"] if "text" in body else f"(base64) {body['base64']}"))


def outcome(shown: Shown) -> None:
    """How many went well, and each that did not."""
    printed(Text(f"{len(shown['done'])} done, {len(shown['failed'])} failed"))
    for gone in shown["gone"]:
        printed(Text(f"{_partition(gone)} {gone['sequence']}: somebody else was first"))
    for failed in shown["failed"]:
        where = f"{_partition(failed)} {failed['sequence']}"
        printed(Text(f"{where}: {safe(failed['error'])}", style="red"))


def accounts(shown: Shown) -> None:
    streams = shown["streams"]
    table = _table("partition", "from", "to", "enqueued at", "epoch", "by", "gone")
    for each in streams:
        values = [each[name] for name in ("first", "last", "enqueued_at", "epoch", "owner", "gone")]
        table.add_row(_partition(each), *["-" if v is None else safe(str(v)) for v in values])
    printed(table if streams else Text("nothing was taken in yet"))
    for each in streams:
        for gap in each["gaps"]:
            numbers = f"{gap['first']} to {gap['last']}"
            why = f"found {gap['found_at']}: {gap['reason']}"
            printed(Text(safe(f"{_partition(each)}: {numbers} are gone, {why}"), style="red"))


def replay(shown: Shown) -> None:
    gone = sum(gap["last"] - gap["first"] + 1 for gap in shown["gaps"])
    printed(
        Text(
            f"{_partition(shown)}: {shown['first']} to {shown['last']} of {shown['until']}: "
            f"{shown['effects']} effects, {shown['dead_letters']} dead letters, {gone} gone"
        )
    )


def sent(shown: Shown) -> None:
    printed(Text(f"sent to {shown['hub']} of {shown['namespace']}: {safe(shown['event'])}"))


def _mode(shown: Shown) -> str:
    override = shown["override"]
    if override is None:
        return str(shown["mode"])
    return f"{override['said']} ({override['reason']})"


def _capacity(shown: Shown) -> str:
    old = shown["capacity_stale"] and shown["capacity_at"]
    return f"{_text(shown['capacity'])}{f' (as of {old})' if old else ''}"


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
        yield ", ".join(f"{key} {_text(value)}" for key, value in line["evidence"].items())


def _change(line: Shown) -> str:
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
    """Nothing that a terminal would obey."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _partition(shown: Shown) -> str:
    return safe(f"{shown['hub']}/{shown['consumer_group']}/{shown['partition_id']}")


def printed(shown: Table | Text) -> None:
    """As wide as the terminal; where a program or a file reads it lines stay whole."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPED_CHARACTERS)
    console.print(shown)
