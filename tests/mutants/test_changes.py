"""The lists of changes fit the code as it is, and a change that no test notices fails the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import trying
from tests.mutants.__main__ import report
from tests.mutants.changes import Change, Check, written
from tests.mutants.generated import changes_of, equivalents, generated

GROUP = """
[[noticed_by]]
tests = ["{tests}"]
changes = [{{ at = "{at}", old = "self.new", new = "''" }}]
"""
OWN = "tests/mutants/changes.py"


def test_every_hand_written_change_still_applies() -> None:
    assert written()


def test_every_equivalent_is_a_change_that_is_still_generated() -> None:
    listed = {(each.at, lines) for each in equivalents() for lines in each.lines}
    assert listed <= {(change.at, change.lines) for change in generated()}


@pytest.mark.parametrize(
    ("at", "tests", "problem"),
    [
        (f"{OWN}:Change.line", "tests", f"{OWN}:Change.line: the text to replace occurs 0 times"),
        (OWN, "tests", f"{OWN}: the text to replace occurs 2 times"),
        (f"{OWN}:gone", "tests", f"{OWN}:gone: there is no such function"),
        ("gone.py", "tests", "gone.py: there is no such file"),
        (f"{OWN}:Change.__str__", "tests/gone", "tests/gone: does not exist"),
    ],
)
def test_what_no_longer_fits_is_an_error_with_its_place(
    at: str, tests: str, problem: str, tmp_path: Path
) -> None:
    listed = tmp_path / "written.toml"
    listed.write_text(GROUP.format(at=at, tests=tests))
    with pytest.raises(ValueError, match=problem):
        written(listed)


def test_one_thing_is_changed_at_a_time_in_the_code_of_a_function() -> None:
    text = (
        'A = 1\ndef f(a: int = 1):\n    "1"\n    g("é")\n    return 2 if a < 3 and h(a, b=a) else a'
    )
    made = [
        text[: change.start] + change.new + text[change.start + len(change.old) :]
        for change in changes_of("m.py", text, Check())
    ]
    assert {each.partition('"1"\n    ')[2] for each in made} == {
        "pass\n    return 2 if a < 3 and h(a, b=a) else a",
        'g("é")\n    return None',
        'g("é")\n    return 2 if True else a',
        'g("é")\n    return 2 if False else a',
        'g("é")\n    return 3 if a < 3 and h(a, b=a) else a',
        'g("é")\n    return 2 if (a < 3 or h(a, b=a)) else a',
        'g("é")\n    return 2 if a <= 3 and h(a, b=a) else a',
        'g("é")\n    return 2 if a < 4 and h(a, b=a) else a',
        'g("é")\n    return 2 if a < 3 and h(a, ) else a',
    }


def test_the_tests_that_reach_a_line_keep_their_names() -> None:
    """Coverage adds the phase of the test after the last bar."""
    names = ["tests/a.py::test_x[metric|a b]", "tests/b.py::test_y"]
    change = Change(OWN, "", "", 0, Check(("tests/a.py",)))
    contexts = {1: [f"{name}|run" for name in names]}
    assert trying.reaching(change, contexts).tests == (names[0],)


BY_HAND, *MADE = [
    Change("shared/values/text.py", str(number), "", number, Check()) for number in range(101)
]


@pytest.mark.parametrize(
    ("survivors", "code"), [([], 0), (MADE[:5], 0), (MADE[:6], 1), ([BY_HAND], 1)]
)
def test_a_survivor_fails_the_run_if_written_by_hand_or_one_of_many(
    survivors: list[Change], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report([BY_HAND], MADE, survivors) == code
    printed = capsys.readouterr().out
    assert all(f"survives: {each}" in printed for each in survivors)
    assert f"all modules: 100 changes, 0 equivalent, {len({*survivors} & {*MADE})} of" in printed
