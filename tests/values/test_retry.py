"""Retries are bounded, have growing random delays, and are made only after transient errors."""

from __future__ import annotations

import pytest

from shared.ingestion.errors import TransientFailure
from shared.values.concurrency import JitteredRetrying


class Rig:
    """An attempt that fails a given number of times, and records of its calls and waits."""

    def __init__(self, failures: int, error: Exception | None = None) -> None:
        self.left, self.calls = failures, 0
        self.error = error or TransientFailure("not now")
        self.slept: list[float] = []
        self.retrying = JitteredRetrying(5, 0.1, 0.5, self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def attempt(self) -> str:
        self.calls += 1
        self.left -= 1
        if self.left >= 0:
            raise self.error
        return "done"

    async def run(self) -> str:
        return await self.retrying(self.attempt, lambda e: isinstance(e, TransientFailure))


async def test_a_transient_failure_is_retried_and_the_last_error_is_raised() -> None:
    rig = Rig(4)
    assert (await rig.run(), rig.calls, len(rig.slept)) == ("done", 5, 4)
    rig = Rig(5)
    with pytest.raises(TransientFailure):
        await rig.run()
    assert (rig.calls, len(rig.slept)) == (5, 4)


async def test_a_permanent_failure_is_not_retried() -> None:
    rig = Rig(1, ValueError("poison"))
    with pytest.raises(ValueError, match="poison"):
        await rig.run()
    assert rig.calls == 1


async def test_delays_are_random_below_a_bound_that_doubles_up_to_the_maximum() -> None:
    delays = []
    for _ in range(200):
        rig = Rig(4)
        await rig.run()
        delays.append(rig.slept)
    for position, bound in enumerate((0.1, 0.2, 0.4, 0.5)):
        each = [slept[position] for slept in delays]
        assert bound / 2 < max(each) <= bound
        assert min(each) < bound / 4, "full jitter: from 0 to the bound"
