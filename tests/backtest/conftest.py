"""Fixtures for the tests of the backtest."""

from pathlib import Path

import pytest

from tests.backtest.arenas import CommandLine


@pytest.fixture
def backtest(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> CommandLine:
    return CommandLine(capsys, tmp_path)
