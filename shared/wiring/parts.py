"""The base class of the parts of each capability."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.wiring.app import App


class Parts:
    """The parts of one capability, each built when it is first used; see App."""

    def __init__(self, app: App) -> None:
        self._app = app
