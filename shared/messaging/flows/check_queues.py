"""At start-up: do the queues keep the promise of one message per data set and period?"""

from __future__ import annotations

from collections.abc import Sequence

from shared.messaging.entities import problems
from shared.messaging.errors import EntitiesMisconfigured
from shared.messaging.periods import Period
from shared.messaging.ports import QueueReader


async def run(
    processing: str, working: str, periods: Sequence[Period], reader: QueueReader
) -> None:
    """Raises EntitiesMisconfigured with everything that is wrong, LinkFailed without a queue."""
    found = problems(await reader.facts(processing), await reader.facts(working), periods)
    if found:
        raise EntitiesMisconfigured(found)
