"""What a policy is made of: itself, and the policies inside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass


def members(policy: object) -> Iterator[object]:
    """The policy and all that it holds in its fields, however deep; functions hold nothing."""
    yield policy
    held: tuple[object, ...] = ()
    if isinstance(policy, tuple):
        held = policy
    elif is_dataclass(policy) and not isinstance(policy, type):
        held = tuple(getattr(policy, field.name) for field in fields(policy))
    for member in held:
        if isinstance(member, tuple) or is_dataclass(member):
            yield from members(member)
