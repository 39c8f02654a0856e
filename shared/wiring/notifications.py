"""Builds the parts of the notifier: its sources, its store, and the log and webhook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from shared.autoscaling.flows import notify
from shared.ingestion.breaker.announcement import closing_news
from shared.ingestion.operating import event_news
from shared.notifications import flow
from shared.notifications.ports import NotificationStore, Notifier, Observed, Source
from shared.notifications.selection import NotificationIntervals
from shared.sampling.verdict import LOST
from shared.trends.nightly.trend_news import run_notices, trend_notices
from shared.values.news import News, stamp
from shared.wiring.parts import Parts

if TYPE_CHECKING:
    from shared.notifications.notifiers import Webhook

TREND_DAYS = timedelta(days=7)
AROUND = timedelta(minutes=30)


class NotificationParts(Parts):
    async def send_due(self) -> None:
        """Send the notifications that are due."""
        parts = (self.sources, self.store, self.receivers, self.intervals)
        await flow.send_due_notifications(*parts, self.link_of)

    @cached_property
    def receivers(self) -> Mapping[str, Notifier]:
        """The log, and the webhooks by their IDs."""
        from shared.notifications.notifiers import LogNotifier  # noqa: PLC0415  heavy

        return {"": LogNotifier(), **{each.address.address_id: each for each in self.webhooks}}

    @property
    def app_url(self) -> str:
        """The address of the app. Without the setting, that in Azure, from the host name in the
        environment; empty elsewhere."""
        host = self._app.settings.environ.get("WEBSITE_HOSTNAME", "")
        return self._app.settings.notifications.app_url or (f"https://{host}" if host else "")

    def link_of(self, news: News) -> str:
        """The page with the hour around the news; empty without an address of the app."""
        name, address = news.subject.partition("/")[0], self.app_url
        if not address:
            return ""
        before = {"hours": 1, "before": stamp(news.time + AROUND)}
        query = {"resource": name, **before} if name in self._app.resources else {}
        return f"{address}/api/dashboard{'?' if query else ''}{urlencode(query)}"

    @cached_property
    def notifier(self) -> Notifier:
        """Writes all notifications to the log, and sends them to the webhooks, if any."""
        from shared.notifications.notifiers import LogNotifier  # noqa: PLC0415  heavy

        return LogNotifier(self.webhooks)

    @property
    def deployment(self) -> str:
        """The name in notifications: in Azure by default that of the app, and of its slot."""
        names = map(self._app.settings.environ.get, ("WEBSITE_SITE_NAME", "WEBSITE_SLOT_NAME"))
        site, slot = ((name or "").strip() for name in names)
        own = f"{site}-{slot}" if site and slot.lower() not in ("", "production") else site
        chosen = self._app.settings.notifications.deployment_name or own
        return "" if chosen == "-" else chosen

    @cached_property
    def webhooks(self) -> Sequence[Webhook]:
        from shared.notifications.notifiers import Webhook  # noqa: PLC0415  heavy

        addresses = self._app.settings.notifications.addresses
        return [Webhook(each, self._app.retry, self.deployment) for each in addresses]

    @cached_property
    def store(self) -> NotificationStore:
        from shared.notifications.store import TableNotificationStore  # noqa: PLC0415  heavy

        return self._app.open(TableNotificationStore, self._app.storage)

    @property
    def intervals(self) -> NotificationIntervals:
        return self._app.settings.notifications.part(NotificationIntervals)

    @property
    def sources(self) -> Mapping[str, Source]:
        sources: dict[str, Source] = {"resources": self._resources, "trends": self._trends}
        if self._app.settings.nightly.submitter:
            sources["runs"] = self._runs
        if self._app.settings.ingestion.hub:
            sources |= {
                "breaker": self._breaker,
                "dead letters": self._dead_letters,
                "hub": self.hub,
            }
        return sources

    async def _resources(self, since: datetime, now: datetime) -> Observed:
        minutes = self._app.settings.notifications.at_maximum_minutes
        resources, store = self._app.resources.values(), self._app.scaling.store
        return await notify.collect_news(resources, store, since, now, minutes)

    async def _breaker(self, _since: datetime, _now: datetime) -> Observed:
        controller = self._app.ingestion.breaker_controller
        news = closing_news(controller.name, (await controller.breakers.load()).breaker)
        return Observed([news] if news else [])

    async def _dead_letters(self, since: datetime, _now: datetime) -> Observed:
        return Observed(await event_news.news_since(self._app.ingestion.store, since))

    async def hub(self, *_: datetime) -> Observed:
        """The partitions of the event hub that wait for an operator."""
        ingestion = self._app.ingestion
        backlogs = await ingestion.breaker_controller.backlogs()
        group = ingestion.settings.consumer_group
        return event_news.of_hub(ingestion.connection.hub, group, backlogs)

    async def _runs(self, since: datetime, _now: datetime) -> Observed:
        nightly = self._app.nightly
        ledgers = [await nightly.store.read(name) for name in nightly.settings.datasets]
        return Observed([n for each in ledgers for n in run_notices(each, nightly.policy, since)])

    async def _trends(self, _since: datetime, now: datetime) -> Observed:
        """Looks back several days, because verdicts are written by later nightly runs."""
        lost = await self._app.nightly.trends.since((now - TREND_DAYS).date(), LOST)
        return Observed(list(trend_notices(lost)))
