"""How many requests Azure accepts: a bucket of tokens that refills.

Resource Manager has buckets of a subscription, for reads and for writes. A Service Bus namespace of
the Standard tier has credits, which are given anew at the start of each second.
https://learn.microsoft.com/azure/azure-resource-manager/management/request-limits-and-throttling
https://learn.microsoft.com/azure/service-bus-messaging/service-bus-throttling
"""

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Limit:
    """A bucket holds `size` tokens and is refilled with `per_second`."""

    size: int
    per_second: float


SUBSCRIPTION_READS = Limit(250, 25)
SUBSCRIPTION_WRITES = Limit(200, 10)
NAMESPACE_CREDITS = 1_000
MANAGEMENT_CREDITS = 10


@dataclass(slots=True)
class Bucket:
    """The tokens of one caller. A clock that goes back does not refill it."""

    limit: Limit
    filled_at: datetime
    tokens: float = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = self.limit.size

    def seconds_until_taken(self, now: datetime) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        elapsed = max((now - self.filled_at).total_seconds(), 0.0)
        self.tokens = min(self.limit.size, self.tokens + elapsed * self.limit.per_second)
        self.filled_at = now
        if self.tokens < 1:
            return (1 - self.tokens) / self.limit.per_second
        self.tokens -= 1
        return 0.0


@dataclass(slots=True)
class Credits:
    """The credits of one namespace, which are given anew at the start of each second."""

    per_second: int = NAMESPACE_CREDITS
    used: int = 0
    second: datetime | None = None

    def take(self, cost: int, now: datetime) -> bool:
        """Take the credits, or return False if this second has too few left."""
        second = now.replace(microsecond=0)
        if second != self.second:
            self.second, self.used = second, 0
        if self.used + cost > self.per_second:
            return False
        self.used += cost
        return True
