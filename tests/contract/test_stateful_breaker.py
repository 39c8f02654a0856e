"""Random calls on BreakerStore, in memory and in each real store, give the same answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from local.twins.ingestion import MemoryBreakerStore
from shared.ingestion.breaker.failure_window import TALLIES_KEPT, Tally
from shared.ingestion.breaker.state import LONG_AGO, Breaker, BreakerMode, Probe
from shared.ingestion.errors import RowChanged, StoreUnavailable
from shared.ingestion.store.breakers import BreakerSnapshot
from tests.builders import NOW
from tests.contract.conftest import Backend
from tests.contract.faulty_network import NO_FAULT, Fault, Network, faults
from tests.contract.stateful import (
    REAL_BACKENDS,
    Both,
    Look,
    Side,
    SideCall,
    StoreMachine,
    run_store_machine,
)

texts = st.sampled_from(["", "i1", 'too much "failed"\nü\t\0', "ü€🚀" * 60, "r" * 4000])
instances = st.sampled_from(["i1", "i/1", "ü|%=🚀", "x" * 200])
times = st.sampled_from([NOW, NOW + timedelta(microseconds=123457), LONG_AGO])
counts = st.sampled_from([0, 1, 2**33, 2**63 - 1])
buckets = st.sampled_from([0, 10, 20, 3590, 3600, 3610, 3620, 10**5, -10, -4000]).map(
    lambda seconds: NOW + timedelta(seconds=seconds)
)
recent = st.integers(0, 3)
breakers = st.builds(
    Breaker,
    st.sampled_from(BreakerMode),
    counts,
    times,
    texts,
    st.integers(0, 200),
    st.none() | times,
    st.none() | st.builds(Probe, texts, texts, times, st.integers(0, 10)),
    texts,
    counts,
    st.none() | times,
)
tallies = st.builds(
    Tally, buckets, instances, counts, counts, counts, st.sampled_from(["", "ValueError: ü\n🚀"])
)


class BreakerMachine(StoreMachine):
    """One breaker, and two instances of the app that read and write its rows."""

    errors = (RowChanged, StoreUnavailable)
    unavailable = StoreUnavailable
    conflicts = (RowChanged,)

    def __init__(self, network: Network, backend: Callable[[AsyncExitStack], Backend]) -> None:
        self._backend = backend
        self.seen: list[Both[BreakerSnapshot]] = []
        self.newest: datetime = LONG_AGO
        super().__init__(network)

    async def open(self, stack: AsyncExitStack) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        backend = self._backend(stack)
        if backend.kind != "tables":
            self.network.through(backend.sql)
        return {"breaker": MemoryBreakerStore(self.clock)}, {"breaker": backend.breaker()}

    async def look(self, side: Side) -> Look:
        """The state, and the tallies that must be kept. A store may keep older ones for a while."""
        seen = await side.breaker.load()
        found = await side.breaker.tallies(self._kept_since())
        return Look((seen.breaker, _sorted(found)), {"state": seen.version})

    @initialize()
    def begin(self) -> None:
        self.seen.append(Both(*[BreakerSnapshot(Breaker(), NOW)] * 2))
        self.load(NO_FAULT)

    @rule(fault=faults())
    def load(self, fault: Fault) -> None:
        self._keep(self.step(lambda s: s.breaker.load(), _breaker, fault))

    @rule(back=recent, breaker=breakers, fault=faults())
    def replace(self, back: int, breaker: Breaker, fault: Fault) -> None:
        """Replace the state, based on its current version or an older one."""
        seen = self._recent(back)
        self._keep(self.step(_replacing(seen, breaker), _breaker, fault))

    @rule(back=recent, first=breakers, second=breakers)
    def two_replace_it_at_the_same_time(self, back: int, first: Breaker, second: Breaker) -> None:
        seen = self._recent(back)
        self.race(_replacing(seen, first), _replacing(seen, second), _breaker)
        self.load(NO_FAULT)

    @rule(tally=tallies, fault=faults())
    def put_tally(self, tally: Tally, fault: Fault) -> None:
        self.newest = max(self.newest, tally.bucket_start)
        self.step(lambda s: s.breaker.put_tally(tally), fault=fault, repeatable=True)

    @rule(first=tallies, second=tallies)
    def two_instances_put_tallies_at_the_same_time(self, first: Tally, second: Tally) -> None:
        if first.instance != second.instance:
            self.newest = max(self.newest, first.bucket_start, second.bucket_start)
            self.race(lambda s: s.breaker.put_tally(first), lambda s: s.breaker.put_tally(second))

    @rule(bucket=buckets, later=st.sampled_from([0, 1, 999_999]), fault=faults())
    def read_tallies(self, bucket: datetime, later: int, fault: Fault) -> None:
        since = max(bucket + timedelta(microseconds=later), self._kept_since())
        self.step(lambda s: s.breaker.tallies(since), _sorted, fault)

    def _kept_since(self) -> datetime:
        return max(self.newest - TALLIES_KEPT, LONG_AGO)

    def _recent(self, back: int) -> Both[BreakerSnapshot]:
        return self.seen[-1 - min(back, len(self.seen) - 1)]

    def _keep(self, answer: Both[BreakerSnapshot] | None) -> None:
        if answer is not None:
            assert self.is_now(answer.real.read_at)
            self.seen.append(answer)


def _breaker(seen: BreakerSnapshot) -> Breaker:
    return seen.breaker


def _sorted(found: Sequence[Tally]) -> list[Tally]:
    """The tallies in a fixed order, because the port defines none."""
    return sorted(found, key=lambda tally: (tally.bucket_start, tally.instance))


def _replacing(seen: Both[BreakerSnapshot], breaker: Breaker) -> SideCall:
    return lambda side: side.breaker.replace(seen.of(side), breaker)


@pytest.mark.timeout(600)  # shrinking a failure takes long
@pytest.mark.parametrize("kind", REAL_BACKENDS)
def test_each_breaker_store_behaves_like_the_in_memory_adapter_under_faults(
    kind: str, request: pytest.FixtureRequest
) -> None:
    run_store_machine(BreakerMachine, kind, request, examples=8, steps=30)
