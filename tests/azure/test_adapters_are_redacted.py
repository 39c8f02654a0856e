"""Every adapter class redacts secrets in its errors, because it is decorated with @redacting."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import shared

CLIENT = re.compile(
    r"^\s*(?:from|import) (?:azure|aiohttp|sqlalchemy|shared\.azure|shared\.storage)\b",
    re.MULTILINE,
)
"""An import of a client library, or of what the app builds on one."""
EXCEPTIONS = {
    "ArmBudget": "is used by the clients of adapters",
    "LoopbackCredential": "has no secret",
    "LoopbackTransport": "is used by the clients of adapters",
    "PlanLists": "is used by AppServiceControl",
    "ServerTimeTransport": "is used by the clients of adapters",
}
"""Classes that need no @redacting, and why: their errors only leave through another adapter."""


def adapter_classes() -> Iterator[type]:
    """Each public class with public coroutines in a module that imports a client library.

    A private class serves its own module, so its errors leave through that module's adapter. Those
    of the assembly leave through the adapters that it calls. A submitter may start a process.
    """
    for each_module in pkgutil.walk_packages(shared.__path__, "shared."):
        if each_module.name.startswith(("shared.__main__", "shared.cli", "shared.wiring")):
            continue
        module = importlib.import_module(each_module.name)
        starts_jobs = each_module.name.startswith("shared.trends.submitters.")
        if not starts_jobs and not CLIENT.search(
            Path(str(module.__file__)).read_text(encoding="utf-8")
        ):
            continue
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
