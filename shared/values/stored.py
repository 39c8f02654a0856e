"""Reading stored values that another version of the app may have written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any


def known_fields(kind: type, stored: Mapping[str, Any]) -> dict[str, Any]:
    """The stored fields that the data class has.

    After a rollback, values of a newer version may have others, which are left out.
    """
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in stored.items() if name in names}
