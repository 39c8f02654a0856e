"""Every adapter class redacts secrets in its errors, because it is decorated with @redacting."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest

import shared.adapters

EXCEPTIONS = {
    "LoopbackCredential": "has no secret",
    "LoopbackTransport": "is used by the clients of adapters",
    "ServerTimeTransport": "is used by the clients of adapters",
}
"""Classes that need no @redacting, and why: their errors only leave through another adapter."""


def adapter_classes() -> Iterator[type]:
    """Each public class of the package with public coroutines, except for in-memory adapters.

    A private class serves its own module, so its errors leave through that module's adapter.
    """
    for each_module in pkgutil.walk_packages(shared.adapters.__path__, "shared.adapters."):
        if ".memory" in each_module.name:
            continue
        module = importlib.import_module(each_module.name)
        for each in vars(module).values():
            if not inspect.isclass(each) or each.__name__.startswith("_"):
                continue
            if each.__module__ == module.__name__ and serves(each):
                yield each


def serves(kind: type) -> bool:
    protocol = getattr(kind, "_is_protocol", False)
    return not protocol and any(map(inspect.iscoroutinefunction, public(kind).values()))


def public(kind: type) -> dict[str, object]:
    methods = {name: each for name, each in vars(kind).items() if inspect.isfunction(each)}
    return {name: each for name, each in methods.items() if not name.startswith("_")}


ADAPTERS = {each.__name__: each for each in adapter_classes()}


def test_every_exception_from_the_rule_exists() -> None:
    assert set(EXCEPTIONS) < set(ADAPTERS)


@pytest.mark.parametrize("name", sorted(set(ADAPTERS) - set(EXCEPTIONS)))
def test_errors_of_an_adapter_are_redacted(name: str) -> None:
    methods = public(ADAPTERS[name])
    bare = [name for name, each in methods.items() if not hasattr(each, "__wrapped__")]
    assert bare == [], "put @redacting above the class"
