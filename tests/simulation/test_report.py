"""The report of `make simulate`: each failing seed, and the command that replays it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation import __main__, test_ingestion


def test_a_failure_is_reported_with_its_seed_and_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check_seed(seed: int) -> None:
        assert seed != 3, "an event was lost"

    monkeypatch.setattr(test_ingestion, "check_seed", check_seed)
    monkeypatch.setattr("logging.disable", lambda: None)  # it would affect all later tests
    options = ["--only", "ingestion", "--jobs", "1"]
    assert __main__.main([*options, "--seeds", "5"]) == 1
    output = capsys.readouterr().out
    assert "ingestion, seed 3: AssertionError: an event was lost" in output
    assert "make simulate SEED=3 ONLY=ingestion" in output
    assert "5 runs (1 simulations), 1 failed" in output
    assert __main__.main([*options, "--seeds", "3"]) == 0
    assert __main__.main([*options, "--seeds", "5", "--first", "4"]) == 0
    assert __main__.main([*options, "--seed", "3"]) == 1
    assert "in check_seed" in capsys.readouterr().out, "the trace"


def test_make_simulate_runs_every_simulation() -> None:
    modules = Path(__file__).parent.glob("test_*.py")
    simulations = {
        m.stem.removeprefix("test_") for m in modules if "\ndef check_seed" in m.read_text()
    }
    assert set(__main__.NAMES) == simulations
