"""``make mutants``: make one small change to the code at a time, and check that a test notices it.

written.toml has changes that were written by hand, each with what must notice it. More are made
from the modules that generated.toml lists; the tests that reach the changed line must notice them.
Those that behave like the original are listed there with the reason. The exit code is 1 if a
hand-written change survives, or if fewer than 95 % of the other changes die.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Collection, Sequence

from tests.mutants import trying
from tests.mutants.changes import Change, written
from tests.mutants.generated import equivalents, generated

SHARE_MIN = 0.95
SURVIVORS = trying.FOLDER / "survivors.json"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument(
        "only", nargs="?", default="", help="a part of the place, as deciding/guards"
    )
    parser.add_argument("--kind", choices=("written", "generated"), help="(default: both)")
    parser.add_argument("--again", action="store_true", help="try the survivors of the last run")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    begun = time.monotonic()
    by_hand = written() if options.kind != "generated" else []
    made = generated() if options.kind != "written" else []
    again = json.loads(SURVIVORS.read_text()) if options.again else None
    by_hand, made = (
        [c for c in changes if options.only in c.at and (again is None or str(c) in again)]
        for changes in (by_hand, made)
    )
    if not [*by_hand, *made]:
        _print("no change has such a place")
        return 2
    trying.import_libraries()
    trees = trying.copies(options.processes)
    try:
        changes = trying.with_tests([*by_hand, *made], trees[0], options.processes)
    except ValueError as error:
        _print(str(error))
        return 2
    if not trying.survives_unchanged(changes, trees):
        _print("a change that changes nothing was noticed, so the tests cannot be run as they are")
        return 2
    survivors = list[Change]()
    for number, (change, survives) in enumerate(trying.results(changes, trees), 1):
        _print(f"{number}/{len(changes)} {'survives' if survives else 'dies'}: {change}")
        survivors += [change] * survives
    SURVIVORS.write_text(json.dumps([str(each) for each in survivors]))
    code = report(by_hand, made, survivors)
    _print(f"{len(changes)} changes took {time.monotonic() - begun:.0f} s")
    return code


def report(by_hand: Sequence[Change], made: Sequence[Change], alive: Sequence[Change]) -> int:
    """Print figures for each module and every survivor. Return the exit code."""
    listed = {(each.at, line) for each in equivalents() for line in each.lines}
    same = {each for each in made if (each.at, each.lines) in listed}
    survivors = [each for each in alive if each not in same]
    for change in survivors:
        _print(f"\nsurvives: {change}\n  line {change.line}: {change.lines}")
    for change in same.difference(alive):
        _print(f"\ndies, so it is not equivalent: {change.at}: {change.lines}")
    _print("")
    lost = len(set(by_hand).intersection(survivors))
    _print(f"written by hand: {len(by_hand)} changes, {lost} survive")
    for file in sorted({each.file for each in made}):
        _share(file, [each for each in made if each.file == file], same, survivors)
    share = _share("all modules", made, same, survivors)
    return 1 if lost or share < SHARE_MIN else 0


def _share(
    what: str, made: Sequence[Change], same: Collection[Change], survivors: Collection[Change]
) -> float:
    equivalent, survived = len({*made} & {*same}), len({*made} & {*survivors})
    share = 1 - survived / max(len(made) - equivalent, 1)
    _print(
        f"{what}: {len(made)} changes, {equivalent} equivalent, {survived} of the others survive:"
        f" {share:.1%} die"
    )
    return share


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
