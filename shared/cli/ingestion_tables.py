"""What the command line prints for people: tables by rich. Takes what the views give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from shared.cli.terminal import printed

Shown = Mapping[str, Any]


def listed(shown: Shown) -> None:
    letters = shown["dead_letters"]
    table = Table(box=None, header_style="dim")
    for column in ("partition", "sequence", "failed at", "kind", "bytes", "error"):
        table.add_column(column, overflow="fold")
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


def whole(shown: Shown) -> None:
    for name, value in shown.items():
        if name != "body":
            printed(Text(f"{name:14} {safe(str(value))}"))
    body = shown["body"]
    printed(Text(body["text"] if "text" in body else f"(base64) {body['base64']}"))


def done(shown: Shown) -> None:
    """How many went well, and each that did not."""
    printed(Text(f"{len(shown['done'])} done, {len(shown['failed'])} failed"))
    for gone in shown["gone"]:
        printed(Text(f"{_partition(gone)} {gone['sequence']}: somebody else was first"))
    for failed in shown["failed"]:
        where = f"{_partition(failed)} {failed['sequence']}"
        printed(Text(f"{where}: {safe(failed['error'])}", style="red"))


def accounts(shown: Shown) -> None:
    streams = shown["streams"]
    table = Table(box=None, header_style="dim")
    for column in ("partition", "from", "to", "enqueued at", "epoch", "by", "gone"):
        table.add_column(column, overflow="fold")
    for each in streams:
        values = [each[name] for name in ("first", "last", "enqueued_at", "epoch", "owner", "gone")]
        table.add_row(_partition(each), *["-" if v is None else safe(str(v)) for v in values])
    printed(table if streams else Text("nothing was taken in yet"))
    for each in streams:
        for gap in each["gaps"]:
            numbers = f"{gap['first']} to {gap['last']}"
            said = (
                f"{_partition(each)}: {numbers} are gone, found {gap['found_at']}: {gap['reason']}"
            )
            printed(Text(safe(said), style="red"))


def replayed(shown: Shown) -> None:
    gone = sum(gap["last"] - gap["first"] + 1 for gap in shown["gaps"])
    printed(
        Text(
            f"{_partition(shown)}: {shown['first']} to {shown['last']} of {shown['until']}: "
            f"{shown['effects']} effects, {shown['dead_letters']} dead letters, {gone} gone"
        )
    )


def sent(shown: Shown) -> None:
    printed(Text(f"sent to {shown['hub']} of {shown['namespace']}: {safe(shown['event'])}"))


def safe(text: str) -> str:
    """Nothing that a terminal would obey."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _partition(shown: Shown) -> str:
    return safe(f"{shown['hub']}/{shown['consumer_group']}/{shown['partition_id']}")
