"""The list of problems at the top of the page, the most severe first, each with a remedy.

All functions are pure: they compute the list from the data of the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, Literal

from shared.autoscaling.deciding.decide import POLICY_UNANSWERED

JsonObject = Mapping[str, Any]
Severity = Literal["bad", "warn", "info"]
ORDER = ("bad", "warn", "info")
Problem = tuple[Severity, str, str]
"""Severity, description, and remedy."""
WHAT_MAX = 240
"""Longer descriptions are cut to this many characters."""
PENDING_SECONDS_MAX = 300
"""Seconds after which a pending action is reported. App Service adds instances within a few
minutes.
"""
BEHIND_SECONDS_MAX = 60
"""Seconds by which the sample of the plan's capacity may be older than those of the other sources.
A longer delay is reported, because all sources are read together.
"""
CHECK = "run python -m shared validate --connect to find the cause"
FIX_RULES = "fix scaling_rules.py"
SEE_LOG = "see the log of the function app for details"
LETTERS_MAX = 50
"""The most dead letters that the panel shows. If it shows as many, there may be more."""


def attention(cards: Sequence[JsonObject], panels: Mapping[str, Any]) -> list[dict[str, str]]:
    """``severity, what, todo, href`` of each problem. The list is empty if there is no problem."""
    items: list[dict[str, str]] = []
    for number, card in enumerate(cards, 1):
        items += _unread(card) if "error" in card else _of_card(card, f"#name-{number}")
    for name, of_panel in PANELS.items():
        panel = panels.get(name)
        if isinstance(panel, Mapping):
            text = f"{name.replace('-', ' ')}: {panel['error']}"
            items.append(_item("warn", text, SEE_LOG, f"#{name}"))
        elif panel:
            items += of_panel(panel)
    return sorted(items, key=lambda item: ORDER.index(item["severity"]))


def _item(severity: Severity, what: str, todo: str, href: str) -> dict[str, str]:
    short = what if len(what) <= WHAT_MAX else f"{what[:WHAT_MAX]}…"
    return {"severity": severity, "what": short, "todo": todo, "href": href}


def _unread(card: JsonObject) -> list[dict[str, str]]:
    what = f"{card['name']}: {card['error']}"
    return [_item("bad", what, SEE_LOG, f"#{card['name']}")]


def _of_card(card: JsonObject, href: str) -> Iterator[dict[str, str]]:
    now = card["status"]
    problems = (
        _failing(now),
        _waiting(now),
        _late(card),
        _silent(now),
        _unfallen(now),
        _rows(card),
        _mode(now),
    )
    for severity, what, todo in chain.from_iterable(problems):
        yield _item(severity, f"{now['name']}: {what}", todo, href)


def _failing(now: JsonObject) -> Iterator[Problem]:
    if now["capacity_stale"]:
        never = f". {now['capacity_meanwhile']}" if now["capacity"] is None else ""
        yield "bad", f"the capacity of the plan cannot be read{never}", CHECK
    candidates = now["newest"]["candidates"] if now["newest"] else ()
    if candidates and candidates[0]["rule"] == "error":
        waits = POLICY_UNANSWERED in now["newest"]["limited_by"]
        todo = "find what the policy waits for, and restart the app" if waits else FIX_RULES
        yield "bad", candidates[0]["reason"], todo
    desired = now["desired"]
    satisfied = candidates and candidates[0]["capacity"] == now["capacity"]
    if desired and desired["status"] == "failed" and not satisfied:
        why = desired["last_error"] or "no reason was given"
        yield "bad", f"scaling to {desired['target']} instances was refused: {why}", CHECK


def _waiting(now: JsonObject) -> Iterator[Problem]:
    """Reports a Resource Manager that does not answer, before the capacity counts as stale."""
    desired = now["desired"]
    pending = _seconds(now["as_of"], desired["requested_at"]) if desired else 0
    if desired and desired["status"] == "pending" and pending > PENDING_SECONDS_MAX:
        why = f": {desired['last_error']}" if desired["last_error"] else ""
        requested = f"scaling to {desired['target']} instances was requested"
        yield "warn", f"{requested} {pending / 60:.0f} min ago and is not confirmed{why}", CHECK
    capacity_age = _seconds(now["as_of"], now["capacity_at"])
    ages = [m["age_seconds"] for m in now["metrics"] if m["time"] and not m["pushed"]]
    if not now["capacity_stale"] and ages and capacity_age - min(ages) > BEHIND_SECONDS_MAX:
        what = f"the capacity of the plan has not been read for {capacity_age:.0f} s"
        yield "warn", f"{what}, although other sources have", CHECK


def _seconds(now: str, time: str | None) -> float:
    if time is None:
        return 0.0
    return (datetime.fromisoformat(now) - datetime.fromisoformat(time)).total_seconds()


def _rows(card: JsonObject) -> Iterator[Problem]:
    for problem in card["status"]["unreadable"]:
        yield "warn", problem, "the app continues without this row"
    lines = [e for e in card["history"].get("events", ()) if e["kind"] == "unreadable"]
    if lines:
        what = f"{len(lines)} line(s) of the decision log cannot be read: {lines[0]['reason']}"
        yield "warn", what, "deploy the version of the app that wrote them, which can read them"


def _late(card: JsonObject) -> Iterator[Problem]:
    points, limit = card["history"]["points"], card["age_limit_minutes"]
    age = points[-1]["age_minutes"] if points else None
    if age is None or age <= limit:
        return
    what = "the oldest item has waited longer than the age limit"
    maximum = card["status"]["limits"]["maximum"]
    if (card["status"]["capacity"] or 0) >= maximum:
        todo = "raise the maximum, or find out why the instances are slow"
        yield "bad", f"{what}, at the maximum of {maximum} instances", todo
    else:
        yield "warn", what, ""


def _silent(now: JsonObject) -> Iterator[Problem]:
    for metric in now["metrics"]:
        if metric["stale"]:
            silence = "no sample yet" if metric["time"] is None else "no sample for a while"
            yield "warn", f"{metric['name']}: {silence}. {metric['meanwhile']}", CHECK


def _unfallen(now: JsonObject) -> Iterator[Problem]:
    for backlog in now["unfallen"]:
        yield "warn", backlog["said"], backlog["meaning"]


def _mode(now: JsonObject) -> Iterator[Problem]:
    if now["rules"] and now["rules"]["beside"]:
        yield "warn", now["rules"]["beside"], "if no deployment is under way, stop that copy"
    if now["override"]:
        described, reason = now["override"]["said"], now["override"]["reason"]
        yield "info", f"{described} ({reason})", "an operator's override is in force"
    elif now["mode"] == "dry_run":
        yield (
            "info",
            "dry run: decisions are logged, but the capacity does not change",
            "set DryRun to false to let the app scale",
        )
    elif now["mode"] != "active":
        yield "info", f"{now['mode']}: nothing is decided", now["mode_reason"]


def _of_breakers(breakers: Iterable[JsonObject]) -> Iterator[dict[str, str]]:
    for breaker in breakers:
        if not breaker["closed"]:
            mode = breaker["mode"].replace("_", " ")
            what = f"circuit breaker {breaker['name']} is {mode}: {breaker['reason']}"
            todo = "close it when the cause is fixed; the hub keeps events until its retention ends"
            yield _item("bad", what, todo, "#breakers")


def _of_hub(partitions: Sequence[JsonObject]) -> Iterator[dict[str, str]]:
    first, many = partitions[0], f" (and {len(partitions) - 1} more)" if partitions[1:] else ""
    what = f"event hub, {first['place']}{many}: {first['remark']}"
    todo = "see “A hub that was recreated” in docs/operations.md"
    yield _item("bad", what, todo, "#breakers")


def _of_letters(letters: Sequence[JsonObject]) -> Iterator[dict[str, str]]:
    newest = max(letters, key=lambda letter: letter["failed_at"])
    many = len(letters) >= LETTERS_MAX
    count = f"{LETTERS_MAX} or more dead letters" if many else f"dead letters: {len(letters)}"
    todo = "fix the cause, then run python -m shared dead-letters redrive"
    yield _item("warn", f"{count}; the newest: {newest['error']}", todo, "#dead-letters")


def _of_trends(trends: Iterable[JsonObject]) -> Iterator[dict[str, str]]:
    for series in trends:
        if series["alarm"]:
            of_sum = series["figure"] == "sum"
            sent = f"sending {series['measurement']}" if of_sum else "emitting events"
            what = f"{series['name']}: {series['verdict']}: {series['reason']}"
            yield _item("warn", what, f"check that the sender is still {sent}", "#trends")
        elif series["verdict"] == "unreadable":
            todo = "deploy the version of the app that wrote it, which can read it"
            yield _item("warn", series["reason"], todo, "#trends")


PANELS = {
    "breakers": _of_breakers,
    "hub": _of_hub,
    "dead-letters": _of_letters,
    "trends": _of_trends,
}
