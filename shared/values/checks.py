"""The results of checks that an operator asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any


async def check(
    timeout_seconds: float, subject: str, what: str, told: Awaitable[str]
) -> dict[str, Any]:
    """The result of one check: what ``told`` returns, or the error that it raises."""
    try:
        async with asyncio.timeout(timeout_seconds):
            text, ok = await told, True
    except TimeoutError:
        text, ok = f"no answer within {timeout_seconds:g} s", False
    except Exception as error:  # any failure is a result, so that the other checks continue
        text, ok = f"{type(error).__name__}: {error}", False
    return {"resource": subject, "what": what, "ok": ok, "told": text}
