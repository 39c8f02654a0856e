"""Where nothing is to be switched: apart from the real switch, whose client is slow to import."""

from __future__ import annotations

from shared.values.redaction import redacting


@redacting
class NoSwitch:
    """Delivery goes on; the breaker holds what is delivered."""

    async def turn(self, *, on: bool) -> None: ...
