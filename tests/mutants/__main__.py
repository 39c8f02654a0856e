"""``make mutants``: make one small change to the rules at a time, and check that a test detects it.

mutmut makes the changes in a copy of the source tree and runs the tests that reach each change.
``[tool.mutmut]`` in pyproject.toml names the modules and the tests. Mutants that behave like the
original are listed in equivalent.toml with the reason. The exit code is 1 if fewer than 95 % of the
other mutants are killed.

``python -m tests.mutants 'shared.autoscaling.deciding.decide.*'`` tries the mutants of one module.
``--again`` tries only those that survived the last run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".local" / "mutants"
TREE = FOLDER / "tree"
LOG = FOLDER / "run.log"
COPIED = ("pyproject.toml", "shared", "tests", "local")
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
SHARE_MIN = 0.95
DIED = {"killed", "timeout", "caught by type check"}


@dataclass(frozen=True)
class Mutant:
    """A change to one function. ``diff`` has the removed lines ("-") and the added ones ("+")."""

    module: str
    function: str
    diff: str


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        help="mutants to try, such as 'shared.autoscaling.deciding.decide.*' (default: all)",
    )
    parser.add_argument(
        "--processes", type=int, help="processes to run (default: one for each core)"
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="keep the results of the last run; try its survivors and code that changed since",
    )
    options = parser.parse_args(arguments)
    if not options.again:
        shutil.rmtree(TREE / "mutants", ignore_errors=True)
    copy_tree()
    code = run(options.names, options.processes)
    if options.again and code == 0:
        code = run([name for name, died in outcomes() if not died], options.processes)
    if code != 0:
        sys.stdout.write(f"mutmut ended with exit code {code}: see {LOG}\n")
        return 2
    return report()


def copy_tree() -> None:
    """Copy only changed files, because mutmut tries mutants of changed files again."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *COPIED],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    targets = {TREE / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    for name in COPIED:
        for copy in (TREE / name).rglob("*.py"):
            if copy not in targets:
                copy.unlink()
    for target in targets:
        source = ROOT / target.relative_to(TREE)
        if not target.is_file() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def run(names: Sequence[str], processes: int | None) -> int:
    """Run mutmut. Its progress goes to the terminal, or to the log if there is no terminal."""
    command = [str(Path(sys.executable).with_name("mutmut")), "run", *names]
    if processes is not None:
        command += ["--max-children", str(processes)]
    sys.stdout.write(
        f"Trying mutants in {TREE}. Without a terminal, progress is logged to {LOG}.\n"
    )
    sys.stdout.flush()
    if sys.stdout.isatty():
        return subprocess.run(command, cwd=TREE, check=False).returncode
    with LOG.open("wb") as log:
        return subprocess.run(command, cwd=TREE, check=False, stdout=log, stderr=log).returncode


def report() -> int:
    """Print figures for each module and every survivor. Return the exit code."""
    reasons = {_key(each): each["reason"] for each in _listed()}
    tried: Counter[str] = Counter()
    survivors = list[Mutant]()
    for name, died in outcomes():
        module = name.rpartition(".")[0]
        tried[module] += 1
        if not died:
            survivors.append(mutant(name))
    explained = {(s.function, s.diff) for s in survivors} & reasons.keys()
    for module in sorted(tried):
        left = [s for s in survivors if s.module == module]
        same = sum((s.function, s.diff) in reasons for s in left)
        _print_share(module, tried[module], same, len(left) - same)
    for survivor in survivors:
        reason = reasons.get((survivor.function, survivor.diff), "no test detects it")
        sys.stdout.write(f"\n{survivor.function}: {reason}\n{survivor.diff}\n")
    equivalent = sum((s.function, s.diff) in reasons for s in survivors)
    for function, diff in reasons.keys() - explained:
        if any(function.startswith(f"{module}.") for module in tried):
            sys.stdout.write(
                f"\nNo longer survives, so remove it from equivalent.toml: {function}\n{diff}\n"
            )
    sys.stdout.write("\n")
    share = _print_share("all", tried.total(), equivalent, len(survivors) - equivalent)
    return 0 if share >= SHARE_MIN else 1


def _print_share(what: str, made: int, equivalent: int, survived: int) -> float:
    share = 1 - survived / max(made - equivalent, 1)
    sys.stdout.write(
        f"{what}: {made} mutants, {equivalent} equivalent, {survived} of the others survive:"
        f" {share:.1%} are killed\n"
    )
    return share


def outcomes() -> Iterator[tuple[str, bool]]:
    """Yield each mutant that was tried, and whether it was killed."""
    from mutmut.stats import status_by_exit_code  # installed for `make mutants` only

    for path in sorted((TREE / "mutants").rglob("*.py.meta")):
        for name, code in json.loads(path.read_text())["exit_code_by_key"].items():
            status = status_by_exit_code[code]
            if status != "not checked":
                yield name, status in DIED


def mutant(name: str) -> Mutant:
    """Read a mutant from the files of mutmut, which it looks up in the working directory."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant  # installed for `make mutants` only

    with contextlib.chdir(TREE):
        lines = get_diff_for_mutant(name).splitlines()
    lines = [line for line in lines if line[:1] in ("-", "+") and line[:3] not in ("---", "+++")]
    module, _, mangled = name.rpartition(".")
    function = mangled.rpartition("__mutmut_")[0]
    function = (
        function.removeprefix("x_") if "ǁ" not in function else function[2:].replace("ǁ", ".")
    )
    diff = "\n".join(f"{line[0]} {line[1:].strip()}" for line in lines)
    return Mutant(module, f"{module}.{function}", diff)


def _listed() -> list[dict[str, str]]:
    entries: list[dict[str, str]] = tomllib.loads(EQUIVALENT.read_text()).get("equivalent", [])
    return entries


def _key(listed: dict[str, str]) -> tuple[str, str]:
    return listed["function"], listed["diff"].strip()


if __name__ == "__main__":
    sys.exit(main())
