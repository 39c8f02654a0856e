"""Which actions a role assignment allows, as Azure's role-based access control reads it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NEEDED = (
    "Microsoft.Web/serverfarms/read",
    "Microsoft.Web/serverfarms/write",
    "Microsoft.Web/serverfarms/operationresults/read",
)
"""What reading a plan, changing it and following the change takes."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One permission of a role: what it allows, less what it takes out of that again."""

    actions: tuple[str, ...]
    not_actions: tuple[str, ...] = ()


def lacking(grants: Iterable[Grant], needed: Sequence[str] = NEEDED) -> list[str]:
    """The needed actions that no grant allows. What one role takes out another may allow."""
    known = list(grants)
    return [action for action in needed if not any(_allows(grant, action) for grant in known)]


def grants(value: Iterable[Mapping[str, Any]]) -> list[Grant]:
    """From the ``value`` of Azure Resource Manager's list of permissions."""
    return [Grant(tuple(p.get("actions", ())), tuple(p.get("notActions", ()))) for p in value]


def _allows(grant: Grant, action: str) -> bool:
    return _any(grant.actions, action) and not _any(grant.not_actions, action)


def _any(patterns: Iterable[str], action: str) -> bool:
    """``*`` stands for any text; case does not count."""
    return any(
        re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), action, re.IGNORECASE)
        for pattern in patterns
    )
