"""override: sets or removes an operator's override and logs it, in one transaction."""

from __future__ import annotations

import logging

from shared.autoscaling.deciding.decide import LogEntry
from shared.autoscaling.flows.common import log_action, until_won
from shared.autoscaling.operating.overrides import Change, check, override_entry, starting
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import StateStore

log = logging.getLogger(__name__)


async def set_override(resource: Resource, change: Change, store: StateStore) -> LogEntry:
    """Write the override and its log entry, and return the entry. Raises OverrideRefused, and
    StateConflict after too many conflicts."""
    check(change, resource)
    entry = await until_won(resource.name, lambda: _attempt(resource, change, store))
    log_action(log, "override", resource.name, entry.reason, **entry.fields)
    return entry


async def _attempt(resource: Resource, change: Change, store: StateStore) -> LogEntry:
    snapshot = await store.load(resource.name)
    entry = override_entry(resource, change, snapshot.read_at, snapshot.state.override)
    await store.put_override(snapshot, starting(change, snapshot.read_at), entry)
    return entry
