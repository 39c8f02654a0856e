"""The base of the machines that compare one store in Azure Tables with its twin in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from local.azurite import Azurite
from shared.settings.connections import StorageConnection
from tests.storage.faulty_network import Network
from tests.storage.stateful import Both, SideBySide, run_machine

Call = Callable[[Any, Any], Awaitable[Any]]
"""A call of the store of a side, with the value of this side."""
NOTHING: Both[Any] = Both(None, None)


class TableMachine(SideBySide):
    def __init__(self, runner: asyncio.Runner, network: Network, memory: Any, real: Any) -> None:
        super().__init__(runner, network)
        self.memory, self.real = memory, real

    def on_both(
        self,
        call: Call,
        seen: Both[Any] = NOTHING,
        *,
        first: Call | None = None,
        knows_own: bool = True,
        **options: Any,
    ) -> Both[Any] | None:
        """Make a call on both stores and compare, as ``both`` does."""

        def of(made: Call) -> tuple[Any, Any]:
            return partial(made, self.memory, seen.memory), partial(made, self.real, seen.real)

        others = of(first) if first else None
        return self.both(*of(call), first=others, knows_own=knows_own, **options)


def run_table_machine(
    machine: Callable[[asyncio.Runner, Network, Any], TableMachine],
    store: Callable[[StorageConnection], Any],
    azurite: Azurite,
    *,
    examples: int = 10,
    steps: int = 20,
) -> None:
    network = Network()
    with asyncio.Runner() as runner, network.installed():
        real = store(StorageConnection("Storage", azurite.connection_string))
        runner.run(real._table.create())
        try:
            run_machine(lambda: machine(runner, network, real), examples, steps)
        finally:
            runner.run(real.close())
