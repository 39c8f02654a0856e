"""Changes of the code, one text for another: written by hand in written.toml, or generated."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
WRITTEN = Path(__file__).with_name("written.toml")
GENERATED = Path(__file__).with_name("generated.toml")


class Check(NamedTuple):
    """What must notice a change: pytest with a selection, or ``check_seed`` of a file."""

    tests: tuple[str, ...] = ()
    seeds_of: str = ""
    first_seed: int = 0

    @property
    def files(self) -> tuple[str, ...]:
        return self.tests or (self.seeds_of,)


@dataclass(frozen=True)
class Change:
    """``at`` is a file, or a function of it: ``shared/values/text.py:shortened``."""

    at: str
    old: str
    new: str
    start: int
    check: Check = field(compare=False)
    harm: str = ""

    def __str__(self) -> str:
        return f"{self.at}: {self.old!r} -> {self.new!r}" + (f" ({self.harm})" * bool(self.harm))

    @property
    def file(self) -> str:
        return self.at.partition(":")[0]

    @property
    def line(self) -> int:
        return _text(self.file).count("\n", 0, self.start) + 1

    def changed(self) -> str:
        """The text of the file with the change."""
        text = _text(self.file)
        return text[: self.start] + self.new + text[self.start + len(self.old) :]

    @property
    def lines(self) -> str:
        """The line that changes, before and after. It may be the first of several."""
        before, after = _text(self.file).splitlines(), self.changed().splitlines()
        return f"{before[self.line - 1].strip()} => {after[self.line - 1].strip()}"


def written(path: Path = WRITTEN) -> list[Change]:
    """The hand-written changes. A ValueError names each that no longer applies."""
    found, problems = list[Change](), list[str]()
    for group in tomllib.loads(path.read_text())["noticed_by"]:
        tests, seeds_of = tuple(group.get("tests", ())), group.get("seeds_of", "")
        check = Check(tests, seeds_of)
        problems += [f"{f}: does not exist" for f in check.files if not (ROOT / f).exists()]
        for each in group["changes"]:
            try:
                found.append(_located(each, check._replace(first_seed=each.get("first_seed", 0))))
            except ValueError as error:
                problems.append(f"{each['at']}: {error}: {each['old']!r}")
    if problems:
        raise ValueError("\n".join([f"{path.name} does not fit the code:", *problems]))
    return found


def _located(entry: dict[str, Any], check: Check) -> Change:
    file, _, function = entry["at"].partition(":")
    if not (ROOT / file).is_file():
        raise ValueError("there is no such file")
    whole = _text(file)
    start, end = (0, len(whole)) if not function else _span_of(whole, function)
    times = whole.count(entry["old"], start, end)
    if times != 1:
        raise ValueError(f"the text to replace occurs {times} times")
    at = whole.index(entry["old"], start)
    return Change(entry["at"], entry["old"], entry["new"], at, check, entry.get("harm", ""))


def _span_of(text: str, function: str) -> tuple[int, int]:
    for name, node in functions(ast.parse(text)):
        if name == function:
            return span(text, node)
    raise ValueError("there is no such function")


def functions(
    tree: ast.AST, prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The functions of a module and the methods of its classes, with their names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield f"{prefix}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, (ast.If, ast.Try)):
            yield from functions(node, prefix)


def span(text: str, node: ast.stmt | ast.expr | ast.keyword) -> tuple[int, int]:
    """Where the text of a node starts and ends. The tree counts bytes in a line."""
    lines = text.splitlines(keepends=True)

    def position(line: int, column: int) -> int:
        return len("".join(lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())

    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return position(node.lineno, node.col_offset), position(node.end_lineno, node.end_col_offset)


@cache
def _text(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")
