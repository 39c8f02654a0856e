"""The announcements of openings and closings, in the format of each receiver."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from shared.ingestion.breaker.announcement import closing_news
from shared.ingestion.breaker.announcement import opening_news as news_of
from shared.ingestion.breaker.state import Breaker, BreakerMode
from shared.notifications.formats import FORMATS
from shared.values.news import Style
from tests.builders import NOW

OPEN = Breaker(
    BreakerMode.OPEN, 3, NOW, "101 failures <in> 30 s", retry_at=NOW + timedelta(seconds=30)
)
LINK = "https://app/api/breakers/metric_ingest?token=t"


def announcement(style: Style, name: str, breaker: Breaker, link: str) -> Any:
    (body,) = FORMATS[style](news_of(name, breaker, link), "")
    return body


def test_a_cloud_event_has_the_required_attributes_and_one_id_per_incident() -> None:
    event = announcement("cloudevents", "metric_ingest", OPEN, LINK)
    needed = {"specversion", "id", "source", "type"}
    assert needed <= event.keys()
    assert all(isinstance(event[name], str) and event[name] for name in needed)
    assert event["specversion"] == "1.0"
    again = replace(OPEN, reason="the probe failed", retry_at=None)
    assert announcement("cloudevents", "metric_ingest", again, "")["id"] == event["id"]
    assert event["time"] == "2026-03-01T12:00:00Z"
    assert event["data"]["link"] == LINK
    assert event["data"]["retry_at"] == "2026-03-01T12:00:30Z"
    expected = "Events wait in the hub until its retention ends. The breaker sends a probe at 2026"
    assert expected in event["data"]["text"]


def test_slack_gets_a_text_with_a_link_and_escaped_markup() -> None:
    (text,) = announcement("slack", "metric_ingest", OPEN, LINK).values()
    assert "is open: 101 failures &lt;in&gt; 30 s" in text
    assert text.endswith(f"<{LINK}|Show and close>")


def test_teams_gets_a_card_with_a_button() -> None:
    message = announcement("teams", "metric_ingest", OPEN, LINK)
    (attachment,) = message["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    (action,) = attachment["content"]["actions"]
    assert (action["type"], action["url"]) == ("Action.OpenUrl", LINK)


def test_without_a_link_the_announcement_names_the_settings_to_make() -> None:
    for style in FORMATS:
        text = str(announcement(style, "metric_ingest", OPEN, ""))
        assert "To get a link that closes it, set BreakerApprovalKey and AppUrl." in text
        assert "Show and close" not in text


def test_a_closing_is_announced_only_after_an_incident() -> None:
    closed = replace(OPEN, mode=BreakerMode.CLOSED, reason="the probe went through", retry_at=None)
    news = closing_news("metric_ingest", closed)
    assert news
    assert (news.news_id, news.kind) == ("metric_ingest/3/closed", "breaker.closed")
    assert "the probe went through" in news.headline
    assert closing_news("metric_ingest", OPEN) is None
    assert closing_news("metric_ingest", replace(closed, epoch=0)) is None
