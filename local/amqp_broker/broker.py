"""The broker that the network side serves: a namespace, event hubs, and their clock."""

from collections.abc import Sequence
from datetime import datetime

from local.amqp_broker.model.errors import EntityExists, EntityNotFound
from local.amqp_broker.model.hub import EventContent, Hub
from local.amqp_broker.model.namespace import Namespace
from local.amqp_broker.model.properties import HubProperties
from local.clock import Clock, utc_now


class Broker:
    """The entities and event hubs of one namespace. Names ignore case."""

    def __init__(self, clock: Clock = utc_now) -> None:
        self.clock = clock
        self.namespace = Namespace()
        self._hubs: dict[str, Hub] = {}

    def now(self) -> datetime:
        return self.clock()

    def declare_hub(self, name: str, properties: HubProperties | None = None) -> Hub:
        if name.lower() in self._hubs:
            raise EntityExists(f"Hub '{name}' already exists.")
        hub = Hub(name, properties or HubProperties(), self.now())
        self._hubs[name.lower()] = hub
        return hub

    def find_hub(self, name: str) -> Hub | None:
        return self._hubs.get(name.lower())

    def hub(self, name: str) -> Hub:
        hub = self.find_hub(name)
        if hub is None:
            raise EntityNotFound(f"The messaging entity '{name}' could not be found.")
        return hub

    def publish(self, hub: Hub, events: Sequence[EventContent], partition_id: str | None) -> None:
        """Append all events of one transfer to one partition."""
        if partition_id is not None:
            partition = hub.partition(partition_id)
        else:
            partition = hub.choose(events[0].partition_key if events else None)
        now = self.now()
        for event in events:
            partition.append(event, now)

    def advance(self) -> None:
        """Apply everything that is due by now."""
        self.namespace.advance(self.now())
