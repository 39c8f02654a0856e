"""An open circuit breaker as a condition, and the announcements of its opening and its closing."""

from __future__ import annotations

from dataclasses import replace

from shared.ingestion.breaker.state import Breaker, BreakerMode
from shared.notifications.conditions import LastingCondition
from shared.values.news import News, NewsKind, Severity, stamp


def open_breaker(name: str, breaker: Breaker) -> list[LastingCondition]:
    """The condition that the breaker is not closed. Operators are notified of its opening."""
    if breaker.mode is BreakerMode.CLOSED:
        return []
    mode = str(breaker.mode).replace("_", " ")
    probe = f" The breaker sends a probe at {stamp(breaker.retry_at)}." if breaker.retry_at else ""
    return [
        LastingCondition(
            name,
            Severity.ERROR,
            what=f"Circuit breaker {name} is {mode}: {breaker.reason}",
            meaning=f"Events wait in the hub until its retention ends.{probe}",
            todo="Close it when the cause is fixed.",
            kind=NewsKind.BREAKER_OPENED,
            source=f"/api/breakers/{name}",
            data={
                "breaker": name,
                "epoch": breaker.epoch,
                "mode": breaker.mode.value,
                "reason": breaker.reason,
                "retry_at": stamp(breaker.retry_at) if breaker.retry_at else None,
            },
        )
    ]


def opening_news(name: str, breaker: Breaker, link: str) -> News:
    """The announcement of an opening. ``link``, if any, shows and closes the incident."""
    (found,) = open_breaker(name, breaker)
    news = found.news(breaker.changed_at, f"{name}/{breaker.epoch}")
    setup = "" if link else " To get a link that closes it, set BreakerApprovalKey and AppUrl."
    return replace(news, text=f"{news.text}{setup}", link=link, link_text="Show and close")


def closing_news(name: str, breaker: Breaker) -> News | None:
    """The announcement of a closing; None if the breaker is not closed or had no incident."""
    if breaker.mode is not BreakerMode.CLOSED or not breaker.epoch:
        return None
    return News(
        news_id=f"{name}/{breaker.epoch}/closed",
        kind=NewsKind.BREAKER_CLOSED,
        subject=name,
        time=breaker.changed_at,
        headline=f"Circuit breaker {name} is closed: {breaker.reason}",
        text="Events are processed again, starting from the last checkpoint.",
        source=f"/api/breakers/{name}",
    )
