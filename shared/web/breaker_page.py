"""A circuit breaker rendered as a page and as JSON. All text from outside is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import NotRequired, TypedDict

from shared.ingestion.breaker.breaker import BreakerMode
from shared.ingestion.operating.breaker import BreakerView
from shared.notifications.news import stamp
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
    breaker = view.breaker
    facts = {
        "state": breaker.mode.value.replace("_", " "),
        "since": stamp(breaker.changed_at) if breaker.epoch else "always",
        "reason": breaker.reason or "-",
        "next attempt at": stamp(breaker.retry_at) if breaker.retry_at else "-",
        "incident": str(breaker.epoch),
        "now": stamp(view.read_at),
    }
    errors = [(stamp(e.since), e.instance, str(e.failures), e.last_error) for e in view.errors]
    backlog = [
        (each.partition_id, "unknown" if each.events is None else str(each.events), each.remark)
        for each in view.backlog
    ]
    return page(
        f"Circuit breaker {view.name}",
        _table((), facts.items()),
        _button(view, token),
        "<h2>Last errors</h2>",
        _table(("since", "instance", "failures", "last error"), errors),
        "<h2>Backlog</h2>",
        _table(("partition", "events", "remark"), backlog),
    )


def view_json(view: BreakerView, approval_url: str = "") -> BreakerStatus:
    breaker = view.breaker
    status: BreakerStatus = {
        "breaker": view.name,
        "mode": breaker.mode,
        "epoch": breaker.epoch,
        "reason": breaker.reason,
        "changed_at": stamp(breaker.changed_at),
        "retry_at": stamp(breaker.retry_at) if breaker.retry_at else None,
        "read_at": stamp(view.read_at),
        "errors": [
            {
                "since": stamp(each.since),
                "instance": each.instance,
                "failures": each.failures,
                "last_error": each.last_error,
            }
            for each in view.errors
        ],
        "backlog": [
            {"partition_id": each.partition_id, "events": each.events, "remark": each.remark}
            for each in view.backlog
        ],
    }
    if approval_url:
        status["approval_url"] = approval_url
    return status


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
