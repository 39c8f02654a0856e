"""`LastingCondition`: what is wrong now, as the page, the status and the notifier show it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, TypedDict

from shared.values.news import News, NewsKind, Severity
from shared.values.text import listed, one_line, shown

SEVERITIES = (Severity.ERROR, Severity.WARNING, Severity.INFO)
ALONE_MAX = 3
"""The most resources with the same condition that are told one by one."""
NAMED_MAX = 3
SEVERAL = "several resources"
"""The subject of a condition of several resources begins so."""
NUMBER = re.compile(r"[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}|\d+(?:[.,:]\d+)*")
"""A number, a time of day, or the id of a request."""


class ConditionShown(TypedDict):
    """What is wrong, what it means, and what to do. ``kind`` is null if it is only shown."""

    subject: str
    severity: Severity
    what: str
    meaning: str
    todo: str
    kind: NewsKind | None


@dataclass(frozen=True, slots=True)
class LastingCondition:
    """Something wrong now. ``what`` begins with the ``resource``'s name, if it has one."""

    subject: str
    severity: Severity
    what: str
    meaning: str = ""
    todo: str = ""
    kind: NewsKind | None = None
    source: str = "/api/resources"
    data: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    resource: str = ""

    @property
    def cause(self) -> tuple[str, str]:
        """The kind, and a subject for all that differ only in the resource and in numbers."""
        part, text = self.subject.partition("/")[2], NUMBER.sub("N", self.own)
        named = "" if part in text else f"{part}: "  # such as a metric with a number in its name
        return self.kind or "", f"{SEVERAL}: {one_line(named + text)}"

    @property
    def rank(self) -> int:
        return SEVERITIES.index(self.severity)

    @property
    def own(self) -> str:
        """What is wrong, without the name of the resource."""
        return self.what.removeprefix(f"{self.resource}: ")

    def news(self, time: datetime, news_id: str = "") -> News:
        """The notification of a condition that has a kind, without an id while it lasts."""
        assert self.kind is not None
        return News(
            news_id,
            self.kind,
            self.subject,
            time,
            headline=self.what,
            text=explained(self.meaning, self.todo),
            severity=self.severity,
            source=self.source,
            data=self.data,
        )

    def to_json(self) -> ConditionShown:
        return shown(ConditionShown, self, str)


def explained(meaning: str, todo: str) -> str:
    """Both as sentences of one text."""
    ended = f"{meaning}." if meaning and todo and meaning[-1] not in ".!?" else meaning
    return f"{ended} {todo}".strip()


def grouped(
    found: Iterable[LastingCondition], lasting: Collection[tuple[str, ...]] = ()
) -> list[LastingCondition]:
    """The conditions, one for each cause of more than ALONE_MAX resources or of ``lasting``."""
    by_cause: dict[Any, list[LastingCondition]] = defaultdict(list)
    for each in found:
        by_cause[each.cause, each.severity].append(each)
    told = list[LastingCondition]()
    for (cause, *_), alike in by_cause.items():
        names = list(dict.fromkeys(each.resource for each in alike))
        is_one = alike[0].resource and (len(names) > ALONE_MAX or cause in lasting)
        told += [_together(alike, names)] if is_one else alike
    return told


def each_cause(texts: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Names of resources with a text each, for a log: once for all that differ only in numbers."""
    found = (LastingCondition(n, Severity.WARNING, f"{n}: {t}", resource=n) for n, t in texts)
    for each in grouped(found):
        yield each.resource or SEVERAL, each.own


def _together(alike: Sequence[LastingCondition], names: Sequence[str]) -> LastingCondition:
    """One condition for all. A number that differs becomes a range."""
    first = alike[0]
    columns = zip(*(NUMBER.findall(each.own) for each in alike), strict=False)
    texts = map(_range, columns)
    what = NUMBER.sub(lambda number: next(texts, number[0]), first.own)
    return replace(
        first,
        resource="",
        subject=first.cause[1],
        what=f"{len(names)} resources: {what}: {listed(names, NAMED_MAX)}",
        data={"count": len(names)},
    )


def _range(numbers: Sequence[str]) -> str:
    low, high = (of(numbers, key=lambda each: (len(each.split(".")[0]), each)) for of in (min, max))
    return low if low == high or "-" in low else f"{low} to {high}"
