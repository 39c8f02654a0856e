"""A circuit breaker rendered as a page and as JSON. All text from outside is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import NotRequired, TypedDict

from shared.ingestion.breaker.breaker import BreakerMode
from shared.ingestion.operating.breaker import BreakerView
from shared.notifications.news import stamp
from shared.values.shown import shown
from shared.values.text import TimeText
from shared.web.http import SECURITY_HEADERS

HEADERS: Mapping[str, str] = {
    **SECURITY_HEADERS,  # they suppress the referrer, because the address contains the token
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'"
    ),
}


class BreakerError(TypedDict):
    """The last error that an instance counted in an interval of ten seconds, and how many."""

    since: TimeText
    instance: str
    failures: int
    last_error: str


class PartitionBacklog(TypedDict):
    """How many events of a partition wait. ``events`` is null if it is unknown."""

    partition_id: str
    events: int | None
    remark: str


class BreakerStatus(TypedDict):
    """The state of the breaker. ``approval_url`` is a link that closes an open breaker."""

    breaker: str
    mode: BreakerMode
    epoch: int
    reason: str
    changed_at: TimeText
    retry_at: TimeText | None
    read_at: TimeText
    errors: list[BreakerError]
    backlog: list[PartitionBacklog]
    approval_url: NotRequired[str]


STYLE = "body{font:16px system-ui;margin:2em auto;max-width:50em}td,th{padding:.2em 1em .2em 0;text-align:left;vertical-align:top}button{font:inherit;padding:.5em 1em}"  # noqa: E501


def page(title: str, *parts: str) -> str:
    """``parts`` are HTML; the title is text and is escaped."""
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return f"<!doctype html><html lang=en><head>{head}</head><body><h1>{escape(title)}</h1>{''.join(parts)}</body></html>"  # noqa: E501


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def view_page(view: BreakerView, token: str) -> str:
    """The page that a link opens. It has a button unless the breaker is closed."""
    told = status_of(view)
    facts = {
        "state": told["mode"].replace("_", " "),
        "since": told["changed_at"] if told["epoch"] else "always",
        "reason": told["reason"] or "-",
        "next attempt at": told["retry_at"] or "-",
        "incident": str(told["epoch"]),
        "now": told["read_at"],
    }
    backlog = [
        (each.partition_id, "unknown" if each.events is None else str(each.events), each.remark)
        for each in view.backlog
    ]
    return page(
        f"Circuit breaker {view.name}",
        _table((), facts.items()),
        _button(view, token),
        "<h2>Last errors</h2>",
        _table(
            ("since", "instance", "failures", "last error"),
            [map(str, each.values()) for each in told["errors"]],
        ),
        "<h2>Backlog</h2>",
        _table(("partition", "events", "remark"), backlog),
    )


def status_of(view: BreakerView, approval_url: str = "") -> BreakerStatus:
    told = shown(
        BreakerStatus,
        view.breaker,
        stamp,
        breaker=view.name,
        read_at=view.read_at,
        errors=[shown(BreakerError, each, stamp) for each in view.errors],
        backlog=[shown(PartitionBacklog, each, stamp) for each in view.backlog],
        approval_url=approval_url,
    )
    if not approval_url:
        del told["approval_url"]
    return told


def _button(view: BreakerView, token: str) -> str:
    if view.breaker.mode is BreakerMode.CLOSED:
        return paragraph("Events flow. There is nothing to do.")
    action = f"{escape(view.name, quote=True)}/close"
    hidden = f'<input type="hidden" name="token" value="{escape(token, quote=True)}">'
    return f'<form method="post" action="{action}">{hidden}<button>Close the breaker and let events flow</button></form>'  # noqa: E501


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = "".join(f"<th>{escape(each)}</th>" for each in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><tr>{titles}</tr>{body}</table>"
