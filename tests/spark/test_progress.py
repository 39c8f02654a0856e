"""What is seen on a terminal while a range of dates is read."""

from __future__ import annotations

import pytest

from spark_jobs.progress import bar


@pytest.mark.parametrize(
    ("done", "shown"),
    [(0, "[" + 40 * "."), (1, "[" + 10 * "#" + "."), (4, "[" + 40 * "#" + "]")],
)
def test_the_bar_is_as_full_as_tasks_are_done(done: int, shown: str) -> None:
    assert bar(done, 4).startswith(shown)
    assert bar(done, 4).endswith(f"] {done}/4 tasks")
