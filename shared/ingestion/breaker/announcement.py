"""What people are told when a breaker opens."""

from __future__ import annotations

from shared.ingestion.breaker.breaker import Breaker, BreakerMode
from shared.notifications.news import News, NewsKind, Severity, stamp


def opening_news(name: str, breaker: Breaker, link: str) -> News:
    """``link`` shows the state and offers to close it, or is empty. The same incident has the same
    id when it is told again."""
    return News(
        news_id=f"{name}/{breaker.epoch}",
        kind=NewsKind.BREAKER_OPENED,
        subject=name,
        time=breaker.changed_at,
        headline=f"Circuit breaker {name} is {_mode(breaker)}: {breaker.reason}",
        text=_what_next(breaker, link),
        severity=Severity.ERROR,
        source=f"/api/breakers/{name}",
        link=link,
        link_text="Show and close",
        data={
            "breaker": name,
            "epoch": breaker.epoch,
            "mode": breaker.mode.value,
            "reason": breaker.reason,
            "retry_at": stamp(breaker.retry_at) if breaker.retry_at else None,
        },
    )


def _mode(breaker: Breaker) -> str:
    return breaker.mode.value.replace("_", " ")


def _what_next(breaker: Breaker, link: str) -> str:
    again = "" if breaker.retry_at is None else f" It tries again at {stamp(breaker.retry_at)}."
    ask = "" if link else " No link to close it was made: see BreakerApprovalKey and AppUrl."
    return f"Events are held, none is lost.{again}{ask}"


def closing_news(name: str, breaker: Breaker) -> News | None:
    """What people are told of a breaker that was open and is closed again."""
    if breaker.mode is not BreakerMode.CLOSED or not breaker.epoch:
        return None
    return News(
        news_id=f"{name}/{breaker.epoch}/closed",
        kind=NewsKind.BREAKER_CLOSED,
        subject=name,
        time=breaker.changed_at,
        headline=f"Circuit breaker {name} is closed: {breaker.reason}",
        text="Events flow again, from the last checkpoint on.",
        source=f"/api/breakers/{name}",
    )
