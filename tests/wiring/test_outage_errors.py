"""Error classes that a user names as outages, checked at the start."""

from __future__ import annotations

import pytest

from shared import settings as settings_module
from shared.settings import SettingsError
from shared.wiring import checks as wiring_checks
from tests.ingestion.events.test_process_batch import GatewayGone

NAME = f"{GatewayGone.__module__}.GatewayGone"


def test_classes_are_named_by_module_and_class() -> None:
    loaded = settings_module.load({"OutageErrors": f" {NAME}, asyncio.QueueEmpty "})
    assert [each.__name__ for each in wiring_checks.outages(loaded)] == [
        "GatewayGone",
        "QueueEmpty",
    ]
    assert wiring_checks.outages(settings_module.load({})) == ()


def test_each_class_that_cannot_be_imported_is_named_with_the_reason() -> None:
    loaded = settings_module.load({"OutageErrors": "json.loads,no_such.Thing,json.Nothing,abc.ABC"})
    with pytest.raises(SettingsError) as raised:
        wiring_checks.outages(loaded)
    assert raised.value.problems == (
        "OutageErrors = 'json.loads': must be an exception class",
        "OutageErrors = 'no_such.Thing': ModuleNotFoundError: No module named 'no_such'",
        "OutageErrors = 'json.Nothing': AttributeError: module 'json' has no attribute 'Nothing'",
        "OutageErrors = 'abc.ABC': must be an exception class",
    )


def test_the_class_exception_is_refused() -> None:
    """With it, each error would hold its partition, and no event would ever become a dead
    letter."""
    loaded = settings_module.load({"OutageErrors": "builtins.Exception"})
    with pytest.raises(SettingsError, match="every error would hold its partition"):
        wiring_checks.outages(loaded)


def test_the_app_does_not_start_with_a_class_that_does_not_exist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OutageErrors", "no_such.Thing")
    with pytest.raises(SettingsError, match=r"OutageErrors = 'no_such\.Thing'"):
        wiring_checks.check()
