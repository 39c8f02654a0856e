"""Builds the board behind the page and the JSON endpoints, with the panels that apply."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property

from shared.ingestion.breaker.announcement import open_breaker
from shared.ingestion.dead_letters.find import newest
from shared.ingestion.operating import stream_account
from shared.ingestion.operating.event_news import of_letters
from shared.trends.nightly.trend_news import trend_conditions
from shared.web import panels
from shared.web.board import Board, Panel, Shown, cached
from shared.web.samples_http import SampleReceiver
from shared.wiring.parts import Parts

DEAD_LETTERS_SHOWN = 50
TREND_DAYS = 60
TRENDS_CACHED_SECONDS = 300
HUB_CACHED_SECONDS = 60


class WebParts(Parts):
    @cached_property
    def board(self) -> Board:
        panels_by_name: dict[str, Panel] = {"trends": cached(self.trends, TRENDS_CACHED_SECONDS)}
        if self._app.settings.ingestion.hub:
            panels_by_name |= {"breakers": self.breakers, "dead-letters": self.dead_letters}
            panels_by_name["set-aside"] = self.set_aside
            panels_by_name["hub"] = cached(self.hub, HUB_CACHED_SECONDS)
        minutes = self._app.settings.notifications.at_maximum_minutes
        parts = (self._app.resources, self._app.scaling.store, minutes, panels_by_name)
        return Board(*parts, price=self._app.settings.price_per_instance_hour)

    @property
    def sample_receiver(self) -> SampleReceiver:
        """The service behind the HTTP endpoint for the samples of a ``QueueMetric``."""
        queue = self._app.scaling.samples_queue
        return SampleReceiver(self._app.resources, queue, self._app.carrying)

    async def breakers(self) -> Shown:
        controller = self._app.ingestion.breaker_controller
        snapshot = await controller.breakers.load()
        state = (snapshot.breaker, snapshot.read_at)
        link = controller.link(*state) or controller.path(*state)
        summary = panels.breaker(controller.name, snapshot.breaker, link)
        return Shown([summary], open_breaker(controller.name, snapshot.breaker))

    async def hub(self) -> Shown:
        """Only what is wrong with the hub. Reading its partitions takes a connection each."""
        observed = await self._app.notifications.hub()
        return Shown([], observed.conditions)

    async def dead_letters(self) -> Shown:
        letters = await newest(self._app.ingestion.store, DEAD_LETTERS_SHOWN)
        return Shown([*map(panels.dead_letter, letters)], of_letters(letters, DEAD_LETTERS_SHOWN))

    async def set_aside(self) -> Shown:
        """The number of events that are not metrics, for each partition that has some."""
        counts = await stream_account.set_aside(self._app.ingestion.store)
        return Shown([{**stream.names, "events": count} for stream, count in counts])

    async def trends(self) -> Shown:
        since = self._app.now().date() - timedelta(days=TREND_DAYS)
        rows = await self._app.nightly.trends.since(since)
        return Shown(panels.trends(rows), list(trend_conditions(rows)))
