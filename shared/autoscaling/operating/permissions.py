"""Evaluates role permissions as Azure's role-based access control does. All functions are pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NEEDED = (
    "Microsoft.Web/serverfarms/read",
    "Microsoft.Web/serverfarms/write",
)
"""The permissions to read a plan and to change it."""
NEEDED_TO_JOIN = ("Microsoft.Web/hostingEnvironments/join/action",)
"""The permission to change a plan of an App Service Environment, on the environment."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One permission of a role: the allowed actions, minus the excluded ones."""

    actions: tuple[str, ...]
    not_actions: tuple[str, ...] = ()


def lacking(grants: Iterable[Grant], needed: Sequence[str] = NEEDED) -> list[str]:
    """The needed actions that no grant allows. One role may allow what another excludes."""
    granted = list(grants)
    return [action for action in needed if not any(_allows(grant, action) for grant in granted)]


def grants(value: Iterable[Mapping[str, Any]]) -> list[Grant]:
    """The grants in the ``value`` of Azure Resource Manager's list of permissions."""
    return [Grant(tuple(p.get("actions", ())), tuple(p.get("notActions", ()))) for p in value]


def _allows(grant: Grant, action: str) -> bool:
    return _any(grant.actions, action) and not _any(grant.not_actions, action)


def _any(patterns: Iterable[str], action: str) -> bool:
    """True if a pattern matches the action. ``*`` matches any text, and case is ignored."""
    return any(
        re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), action, re.IGNORECASE)
        for pattern in patterns
    )
