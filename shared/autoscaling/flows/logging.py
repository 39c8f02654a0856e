"""How flows tell the log what they did.

The Functions worker forwards the text of a record and drops its other fields, so what was done
and to which resource stands in the text too, where a query finds it.
"""

from __future__ import annotations

import logging


def tell(
    log: logging.Logger, action: str, resource_name: str, told: str, level: int = logging.INFO
) -> None:
    """``[action] resource: told``."""
    fields = {"action": action, "resource": resource_name}
    log.log(level, "[%s] %s: %s", action, resource_name, told, extra=fields)
