"""What a user declares to handle events with, instead of the app's own handler.

The setting ``IngestionHandler`` names it as ``module:name``, for the trigger, for redriving dead
letters and for ``python -m shared run``, where ``--handler`` overrides the setting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shared.ingestion.events.ports import Handler
from shared.ingestion.model import Effect, Stream

HandlerOf = Callable[[Stream], Handler]
"""Makes what the events of one partition are handled with."""


@dataclass(frozen=True, slots=True)
class Handling:
    """How events are handled, and which tables of your own take part in their transaction.

    ``take_part`` is called with a connection of SQLAlchemy, the stream and a commit's effects. It
    writes into tables of the same database: what it writes and the checkpoint are committed
    together or not at all. It neither commits nor rolls back, and whatever it raises undoes the
    transaction and holds the partition. ``tables`` is a ``MetaData`` of SQLAlchemy with the tables
    that are to be created where they are missing.
    """

    handler_of: HandlerOf
    take_part: Callable[[Any, Stream, Sequence[Effect]], None] | None = None
    tables: Any = None

    @property
    def needs_database(self) -> bool:
        return self.take_part is not None or self.tables is not None


def handling_of(found: object) -> Handling:
    """What a name leads to: a Handling, or a plain ``HandlerOf``. Raises TypeError."""
    if isinstance(found, Handling):
        _check_callable("handler_of", found.handler_of)
        if found.take_part is not None:
            _check_callable("take_part", found.take_part)
        if found.tables is not None and not hasattr(found.tables, "create_all"):
            kind = type(found.tables).__name__
            raise TypeError(f"tables is a {kind}: a MetaData of SQLAlchemy is needed")
        return found
    if callable(found):
        return Handling(found)
    kind = type(found).__name__
    raise TypeError(f"it is a {kind}: a Handling, or a function that takes a Stream, is needed")


def _check_callable(name: str, value: object) -> None:
    if not callable(value):
        raise TypeError(f"{name} is a {type(value).__name__}: a function is needed")
