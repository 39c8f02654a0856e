"""The broker's model, without network code: entities, messages, locks, sessions and event hubs.

Nothing here uses a clock, a socket or a thread. Every operation that depends on time takes `now`,
and first applies what is due by then: locks, schedules, lifetimes, retention.
"""
