"""`make simulate` says under which seed a world went wrong, and how to see it again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.simulation import __main__, test_ingestion


def test_a_failure_is_told_by_its_seed_with_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check_seed(seed: int) -> None:
        assert seed != 3, "an event was lost"

    monkeypatch.setattr(test_ingestion, "check_seed", check_seed)
    monkeypatch.setattr("logging.disable", lambda: None)  # would be for all tests after this
    options = ["--only", "ingestion", "--jobs", "1"]
    assert __main__.main([*options, "--seeds", "5"]) == 1
    said = capsys.readouterr().out
    assert "ingestion, seed 3: AssertionError: an event was lost" in said
    assert "make simulate SEED=3 ONLY=ingestion" in said
    assert "5 runs (1 simulations), 1 failed" in said
    assert __main__.main([*options, "--seeds", "3"]) == 0
    assert __main__.main([*options, "--seeds", "5", "--first", "4"]) == 0
    assert __main__.main([*options, "--seed", "3"]) == 1
    assert "in check_seed" in capsys.readouterr().out, "the trace"


def make_would_run(*words: str) -> str:
    command = ["make", "--dry-run", "simulate", *words]
    root = Path(__file__).parents[2]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout


def test_make_passes_the_first_seed_on() -> None:
    assert "-m tests.simulation --seeds 10 --first 70" in make_would_run("SEEDS=10", "FIRST=70")


def test_make_simulate_goes_on_with_more_examples_of_random_calls() -> None:
    assert "STATEFUL_EXAMPLES=60 " in make_would_run()
    assert "STATEFUL_EXAMPLES=7 " in make_would_run("EXAMPLES=7")
    assert "STATEFUL_EXAMPLES" not in make_would_run("SEED=7", "ONLY=ingestion")


def test_every_simulation_is_run() -> None:
    modules = Path(__file__).parent.glob("test_*.py")
    simulations = {
        m.stem.removeprefix("test_") for m in modules if "\ndef check_seed" in m.read_text()
    }
    assert set(__main__.NAMES) == simulations
