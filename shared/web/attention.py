"""What needs a person now, the worst first, and what to do about it. Pure; from what is shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, Literal

Shown = Mapping[str, Any]
Severity = Literal["bad", "warn", "info"]
ORDER = ("bad", "warn", "info")
Problem = tuple[Severity, str, str]
"""How bad it is, what it is, what to do."""
WHAT_MAX = 240
PENDING_SECONDS_MAX = 300
"""Instances come within a few minutes."""
BEHIND_SECONDS_MAX = 60
"""The plan and the other sources are read at the same time."""
CHECK = "python -m shared validate --connect tells what is in the way"


def attention(cards: Sequence[Shown], panels: Mapping[str, Any]) -> list[dict[str, str]]:
    """``severity, what, todo, href`` each; empty: nobody is needed."""
    found: list[dict[str, str]] = []
    for number, card in enumerate(cards, 1):
        found += _unread(card) if "error" in card else _of_card(card, f"#name-{number}")
    for name, of_panel in PANELS.items():
        shown = panels.get(name)
        if isinstance(shown, Mapping):
            text = f"{name.replace('-', ' ')}: {shown['error']}"
            found.append(_item("warn", text, "the log of the functions says more", f"#{name}"))
        elif shown:
            found += of_panel(shown)
    return sorted(found, key=lambda item: ORDER.index(item["severity"]))


def _item(severity: Severity, what: str, todo: str, href: str) -> dict[str, str]:
    short = what if len(what) <= WHAT_MAX else f"{what[:WHAT_MAX]}…"
    return {"severity": severity, "what": short, "todo": todo, "href": href}


def _unread(card: Shown) -> list[dict[str, str]]:
    what = f"{card['name']}: {card['error']}"
    return [_item("bad", what, "the log of the functions says more", f"#{card['name']}")]


def _of_card(card: Shown, here: str) -> Iterator[dict[str, str]]:
    now = card["status"]
    problems = (_failing(now), _waiting(now), _late(card), _silent(now), _rows(card), _mode(now))
    for severity, what, todo in chain.from_iterable(problems):
        yield _item(severity, f"{now['name']}: {what}", todo, here)


def _failing(now: Shown) -> Iterator[Problem]:
    if now["capacity_stale"]:
        yield "bad", "the plan does not answer", CHECK
    wishes = now["newest"]["candidates"] if now["newest"] else ()
    if wishes and wishes[0]["rule"] == "error":
        yield "bad", wishes[0]["reason"], "fix scaling_rules.py"
    desired, content = now["desired"], wishes and wishes[0]["capacity"] == now["capacity"]
    if desired and desired["status"] == "failed" and not content:
        why = desired["last_error"] or "no reason was given"
        yield "bad", f"{desired['target']} instances were refused: {why}", CHECK


def _waiting(now: Shown) -> Iterator[Problem]:
    """Resource Manager that hangs shows here before the capacity counts as stale."""
    desired, at = now["desired"], _seconds(now["as_of"], now["capacity_at"])
    ordered = _seconds(now["as_of"], desired["requested_at"]) if desired else 0
    if desired and desired["status"] == "pending" and ordered > PENDING_SECONDS_MAX:
        why = f": {desired['last_error']}" if desired["last_error"] else ""
        minutes = f"{ordered / 60:.0f} min ago"
        yield "warn", f"{desired['target']} instances, ordered {minutes}, do not come{why}", CHECK
    others = [m["age_seconds"] for m in now["metrics"] if m["time"] and not m["pushed"]]
    if not now["capacity_stale"] and others and at - min(others) > BEHIND_SECONDS_MAX:
        yield "warn", f"the plan has not answered for {at:.0f} s, other sources have", CHECK


def _seconds(now: str, time: str | None) -> float:
    if time is None:
        return 0.0
    return (datetime.fromisoformat(now) - datetime.fromisoformat(time)).total_seconds()


def _rows(card: Shown) -> Iterator[Problem]:
    for problem in card["status"]["unreadable"]:
        yield "warn", problem, "the app goes on without it"
    lines = [e for e in card["history"].get("events", ()) if e["kind"] == "unreadable"]
    if lines:
        what = f"{len(lines)} line(s) of the decision log cannot be read: {lines[0]['reason']}"
        yield "warn", what, "the version that wrote them can read them"


def _late(card: Shown) -> Iterator[Problem]:
    points, limit = card["history"]["points"], card["age_limit_minutes"]
    age = points[-1]["age_minutes"] if points else None
    if age is None or age <= limit:
        return
    maximum = card["status"]["limits"]["maximum"]
    if (card["status"]["capacity"] or 0) >= maximum:
        todo = "raise the maximum, or look why instances are slow"
        yield "bad", f"late, at the maximum of {maximum} instances", todo
    else:
        yield "warn", "what waits is older than it should get", ""


def _silent(now: Shown) -> Iterator[Problem]:
    for metric in now["metrics"]:
        if metric["stale"]:
            ever = "never seen" if metric["time"] is None else "no sample for a while"
            yield "warn", f"{metric['name']}: {ever}. {metric['meanwhile']}", CHECK


def _mode(now: Shown) -> Iterator[Problem]:
    if now["override"]:
        said, reason = now["override"]["said"], now["override"]["reason"]
        yield "info", f"{said} ({reason})", "a person's word, over the rules"
    elif now["mode"] == "dry_run":
        yield "info", "dry run: nothing is changed", "set DryRun to false"
    elif now["mode"] != "active":
        yield "info", f"{now['mode']}: nothing is decided", now["mode_reason"]


def _of_breakers(breakers: Iterable[Shown]) -> Iterator[dict[str, str]]:
    for breaker in breakers:
        if not breaker["closed"]:
            what = f"circuit breaker {breaker['name']} is {breaker['mode']}: {breaker['reason']}"
            yield _item(
                "bad",
                what,
                "events are held, none is lost: close it when the cause is mended",
                "#breakers",
            )


def _of_letters(letters: Sequence[Shown]) -> Iterator[dict[str, str]]:
    newest = max(letters, key=lambda letter: letter["failed_at"])
    count = "50 or more dead letters" if len(letters) >= 50 else f"dead letters: {len(letters)}"
    todo = "fix the cause, then python -m shared dead-letters redrive"
    yield _item("warn", f"{count}; the newest: {newest['error']}", todo, "#dead-letters")


def _of_trends(trends: Iterable[Shown]) -> Iterator[dict[str, str]]:
    for series in trends:
        if series["alarm"]:
            of_sum = series["figure"] == "sum"
            sent = f"sending {series['measurement']}" if of_sum else "emitting events"
            yield _item("warn", f"{series['name']}: {series['verdict']}: {series['reason']}",
                        f"check that the sender is still {sent}", "#trends")  # fmt: skip
        elif series["verdict"] == "unreadable":
            yield _item(
                "warn", series["reason"], "the version that wrote it can read it", "#trends"
            )


PANELS = {"breakers": _of_breakers, "dead-letters": _of_letters, "trends": _of_trends}
