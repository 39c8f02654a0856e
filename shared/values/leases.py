"""When a lease is over. A lease lets one owner do something for a time, alone among all instances.

A row keeps its end by the store's clock. Its version, or a count in it, is the fence: each owner
takes the lease by a conditional write, after which no write of an earlier owner succeeds.
"""

from __future__ import annotations

from datetime import timedelta


def is_held(remaining: timedelta, length: timedelta) -> bool:
    """Whether a lease of this length, or another wait, lasts. ``remaining`` is its end minus the
    present time. If more than twice the length remains, the store's clock was set back meanwhile,
    and the lease is over."""
    return timedelta(0) < remaining <= 2 * length
