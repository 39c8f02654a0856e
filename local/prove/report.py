"""The report of a proof: one HTML file with versions, figures, a picture, and each check."""

from __future__ import annotations

import html
import platform
import re
import subprocess
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from backtest.plot import AGE, BEST, INK, LOAD, MINE, page, png, styled
from local.prove.checks import Check, Seen
from local.prove.script import AGE_LIMIT, MAXIMUM, MINIMUM, RATE, START_UP, Fault, Script
from shared.autoscaling.deciding.decide import EntryKind
from shared.values.redaction import redacted

ROOT = Path(__file__).parents[2]
NAMES = ("SubscriptionId", "ResourceGroup", "ResourceToScale", "Topic", "Subscription")
"""The settings whose values are names."""
ID = re.compile(r"[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}", re.IGNORECASE)
HOST = re.compile(r"[\w-]+(\.[\w-]+)*\.(windows|azure|azurewebsites)\.(net|com)", re.IGNORECASE)
LOG_MAX = 300
WORDS = {True: "holds", False: "does not hold", None: "cannot be said here"}
COLORS = {True: "#2e7d32", False: "#c62828", None: "#8a6d00"}
PACKAGES = ("azure-functions", "azure-servicebus", "azure-eventhub", "azure-mgmt-web")


def versions() -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return {
        "app": " ".join(filter(None, [project["version"], commit.strip()])),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        **{name: version(name) for name in PACKAGES},
    }


def anonymous(seen: Seen, settings: Mapping[str, str]) -> Seen:
    """Without the names of resources and services, and without IDs."""
    names = {settings[key]: key for key in NAMES if settings.get(key)}
    longest = sorted(names, key=len, reverse=True)
    found = re.compile("|".join(map(re.escape, longest)) or r"(?!)", re.IGNORECASE)

    def hide(text: str) -> str:
        text = found.sub("***", text)
        return HOST.sub("***", ID.sub("***", text))

    return replace(
        seen,
        entries=[replace(each, reason=hide(each.reason)) for each in seen.entries],
        conditions=[hide(each) for each in seen.conditions],
        broken=[hide(each) for each in seen.broken],
        alarms=None if seen.alarms is None else [hide(each) for each in seen.alarms],
    )


def status_line(checks: Sequence[Check], where: str, day: datetime) -> str:
    """The line for docs/status.md."""
    plural = {True: "hold", False: "do not hold", None: WORDS[None]}
    counts = [f"{n} {plural[key]}" for key in plural if (n := sum(c.holds is key for c in checks))]
    told = f"{', '.join(counts)}; version {versions()['app']}"
    return f"- **{day.day} {day:%B %Y}:** the proof on {where}: of {len(checks)} checks, {told}"


def quantities(script: Script, speed: float) -> list[str]:
    """What a run does, in numbers."""
    messages = script.messages(script.minutes)
    return [
        f"{script.minutes / speed:.0f} minutes, of a script of {script.minutes} minutes",
        f"{messages:,.0f} messages sent and completed, some {2 * script.minutes} events",
        f"1 plan with {MINIMUM} to {MAXIMUM} instances, of which each is taken to complete {RATE} "
        f"messages a minute of the script, {START_UP} minutes after it was added",
        *(f"minute {s.start:g}: {s.fault}" for s in script.faults),
        f"minute {script.quiet_from:g}: no more messages",
    ]


def as_html(seen: Seen, checks: Sequence[Check], where: str) -> str:
    failed = [each for each in checks if each.holds is False]
    unsaid = f", and {n} cannot be said here" if (n := sum(c.holds is None for c in checks)) else ""
    head = f"{len(failed)} of {len(checks)} checks do not hold{unsaid}"
    facts = {**versions(), "place": where, "begun": f"{seen.began:%Y-%m-%d %H:%M} UTC"}
    parts = (
        f"<h2>{head}</h2>",
        _table(("check", "", "evidence"), [_row(each) for each in checks]),
        "<h2>What was run</h2>",
        _table(("", ""), [map(_text, each) for each in facts.items()]),
        "".join(f"<li>{_text(each)}" for each in quantities(seen.script, seen.speed)),
        "<h2>What the app said was wrong</h2>",
        "".join(f"<li>{_text(each)}" for each in seen.conditions) or "nothing",
        "<h2>The decision log</h2>",
        _table(("minute", "kind", "instances", "reason"), _log(seen)),
    )
    style = "<style>td,th{text-align:left!important;vertical-align:top}</style>"
    return page("Proof of App Service Autoscaler", _picture(seen), style + "".join(parts))


def _row(check: Check) -> list[str]:
    word = f"<b style='color:{COLORS[check.holds]}'>{WORDS[check.holds]}</b>"
    return [_text(check.name), word, _text(check.evidence)]


def _log(seen: Seen) -> list[list[str]]:
    """Everything but decisions that request nothing."""
    told = [e for e in seen.entries if e.applies or e.kind is not EntryKind.DECISION]
    rows = [
        [
            f"{seen.minute(each.time):.1f}",
            str(each.kind),
            f"{each.current} → {each.desired}" if each.desired is not None else "",
            _text(each.reason),
        ]
        for each in told[:LOG_MAX]
    ]
    return rows + [["", "", "", f"{len(told) - LOG_MAX} more"]] * (len(told) > LOG_MAX)


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = "".join("<tr><td>" + "<td>".join(row) for row in rows)
    return f"<table><tr><th>{'<th>'.join(header)}{lines}</table>"


def _text(text: object) -> str:
    return html.escape(redacted(str(text)))


def _picture(seen: Seen) -> bytes:
    """Load, age and instances by minute, with the faults as bands."""
    with styled(13, 7) as figure:
        load, age, plan = figure.subplots(3, sharex=True)
        minutes = [each.minute for each in seen.samples]
        starts, rates = zip(*seen.script.load, strict=True)
        load.step([*starts, seen.script.minutes], [*rates, rates[-1]], where="post", color=LOAD)
        waiting: Any = load.twinx()
        waiting.plot(minutes, [each.waiting for each in seen.samples], color=BEST)
        waiting.set_ylabel("waiting", color=BEST)
        load.set_ylabel("messages a minute", color=LOAD)
        age.plot(minutes, [each.oldest for each in seen.samples], color=AGE)
        age.axhline(AGE_LIMIT, color=INK, linestyle="--", linewidth=0.9)
        age.set_ylabel("oldest waits\n(minutes)")
        capacities = [each.capacity for each in seen.samples]
        plan.step(minutes, capacities, where="post", color=MINE)
        orders = [e for e in seen.entries if e.applies]
        times = [seen.minute(each.time) for each in orders]
        plan.scatter(times, [each.desired for each in orders], s=18, color=AGE, label="ordered")
        plan.set_ylim(0, MAXIMUM + 1)
        plan.set_ylabel("instances")
        plan.set_xlabel("minute of the script")
        plan.legend(loc="upper right")
        for axes in (load, age, plan):
            for step in seen.script.faults:
                end = max(step.end, step.start + 0.3)
                axes.axvspan(step.start, end, color=INK, alpha=0.12, linewidth=0)
        for step in seen.script.faults:
            name = SHORT[step.fault]
            load.text(step.start, load.get_ylim()[1], name, rotation=20, fontsize=7, va="bottom")
        return png(figure)


SHORT = {
    Fault.POISON: "poison",
    Fault.RESTART: "restart",
    Fault.BY_HAND: "by hand",
    Fault.STOPPED: "workers stopped",
    Fault.NO_ROLE: "no role",
    Fault.THROTTLED: "throttled",
}
