"""`News`, the content of a notification, and `Address`, the webhook that receives it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Literal

Style = Literal["cloudevents", "slack", "teams", "pagerduty", "alertmanager", "json"]
OVER = ".over"


class NewsKind(StrEnum):
    """The kinds of news. When a condition ends, its kind is sent with the suffix ``.over``."""

    SCALED = "scaled"
    SCALING_REFUSED = "scaling.refused"
    SCALING_INCOMPLETE = "scaling.incomplete"
    SCALING_UNHELPFUL = "scaling.unhelpful"
    AT_MAXIMUM = "at.maximum"
    BACKLOG_UNFALLEN = "backlog.not.falling"
    RATE_REFUTED = "rate.refuted"
    ENTITY_DISABLED = "entity.disabled"
    POLICY_UNANSWERED = "policy.unanswered"
    PLAN = "plan.unfit"
    SOURCE_STALE = "source.stale"
    UNREADABLE = "state.unreadable"
    RULES_DIFFER = "rules.differ"
    POISON = "message.poison"
    OVERRIDE = "override.changed"
    MANUAL_CHANGE = "capacity.changed.by.hand"
    BREAKER_OPENED = "breaker.opened"
    BREAKER_CLOSED = "breaker.closed"
    DEAD_LETTERS = "dead.letters.growing"
    EVENTS_GONE = "events.gone"
    HUB_HELD = "hub.held"
    TRENDS_FAILED = "trends.failed"
    TREND_ALARM = "trend.alarm"


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class News:
    """An event or a condition of which operators are notified.

    ``news_id`` stays the same if the same news is sent again. ``subject`` is the resource, metric,
    hub or series concerned. ``link`` leads to where the operator can act.
    """

    news_id: str
    kind: str
    subject: str
    time: datetime
    headline: str
    text: str = ""
    severity: Severity = Severity.INFO
    source: str = "/api/resources"
    link: str = ""
    link_text: str = "Show"
    data: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    others: tuple[str, ...] = ()
    """The other subjects, if one notification is sent for several."""
    ended: Severity | None = None
    """The severity of the condition that has ended; None if nothing has, or it is not known."""
    ends_at: datetime | None = None
    """When a lasting condition that is not reported again can be taken to be over."""
    deployment: str = ""

    @property
    def condition(self) -> str:
        return self.kind.removesuffix(OVER)

    @property
    def is_over(self) -> bool:
        return self.kind.endswith(OVER)

    def named(self, deployment: str) -> News:
        """The news of one of several deployments. Its id and source are those of no other one."""
        if not deployment:
            return self
        return replace(
            self,
            deployment=deployment,
            news_id=f"{deployment}/{self.news_id}",
            source=f"//{deployment}{self.source}",
            headline=f"[{deployment}] {self.headline}",
        )


@dataclass(frozen=True, slots=True)
class Address:
    """A webhook. It receives news of the kinds from this severity on, and their endings."""

    url: str = field(repr=False)
    style: Style = "cloudevents"
    key: str = field(default="", repr=False)
    """The integration key of PagerDuty."""
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    kinds: Collection[str] = frozenset(NewsKind)
    severity: Severity = Severity.INFO

    @property
    def address_id(self) -> str:
        """Distinguishes addresses that receive different news or are in different places."""
        place = self.url, self.key, self.style, self.severity, sorted(self.kinds)
        return sha256(repr(place).encode()).hexdigest()[:16]

    def takes(self, news: News) -> bool:
        """An ending of unknown severity counts as the most severe."""
        severity = (news.ended or Severity.ERROR) if news.is_over else news.severity
        order = list(Severity)
        return news.condition in self.kinds and order.index(severity) >= order.index(self.severity)


def stamp(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
