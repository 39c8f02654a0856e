"""A broker without a wire: entities, messages, locks, sessions and hubs as plain objects.

Nothing here reads a clock, a socket or a thread. Every operation that time matters to takes
`now`; what has become due by then (locks, schedules, lifetimes, retention) takes effect first.
"""
