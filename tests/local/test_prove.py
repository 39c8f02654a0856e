"""The proof: each check notices what it is for, and a short run leaves its report."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from local.prove.checks import Events, Messages, Sample, Seen, checks
from local.prove.report import anonymous, as_html
from local.prove.script import PART, WHOLE, Fault, Script, app_settings
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.settings import parse
from tests.builders import NOW
from tests.local.polling import until

ROOT = Path(__file__).parents[2]
MINUTE = timedelta(minutes=1)
NAMES = {"ResourceToScale": "workers", "Topic": "invoices", "Subscription": "billing"}
SENT = Counter({str(n): 1 for n in range(40)})


def entry(kind: EntryKind, minute: float, **fields: Any) -> LogEntry:
    name = f"{kind}-{minute:g}"
    return LogEntry("workers", NOW + MINUTE * minute, kind, name, **{"reason": "why"} | fields)


def order(minute: float, desired: int) -> LogEntry:
    given = {"desired": desired, "applies": True, "evidence": {"backlog": 1.0}}
    return entry(EntryKind.DECISION, minute, **given)


SEEN = Seen(
    script=WHOLE,
    samples=[Sample(float(n), 3 if 10 < n < 60 else 1, 0, 1.0) for n in range(121)],
    began=NOW,
    speed=1,
    entries=[
        order(10, 3),
        entry(EntryKind.POISON, 25),
        entry(EntryKind.MANUAL_CHANGE, 33),
        entry(EntryKind.FAILED, 48, reason="403: AuthorizationFailed"),
        entry(EntryKind.DEFERRED, 63, reason="429: TooManyRequests"),
        order(65, 1),
    ],
    puts=[3, 1],
    messages=Messages(40, SENT, 0, 0),
    events=Events(20, 1, 20, 1, 0),
    broken=(),
    last_epoch=3,
    alarms=["x-poison", "x-action-failed"],
    resumed=29,
)


def late(first: int, last: int, capacity: int) -> list[Sample]:
    """The looks, of which some see a message that waits for seven minutes."""
    return [
        replace(each, oldest=7.0, capacity=capacity) if first <= each.minute <= last else each
        for each in SEEN.samples
    ]


def without(kind: EntryKind) -> list[LogEntry]:
    return [each for each in SEEN.entries if each.kind is not kind]


def test_all_checks_hold_if_nothing_is_wrong() -> None:
    assert [each for each in checks(SEEN) if not each.holds] == []


@pytest.mark.parametrize(
    ("change", "check", "says"),
    [
        ({"broken": ["12:00 decided 9, which is outside 1 to 4"]}, "outside the limits", "9"),
        ({"puts": [3, 1, 1]}, "carried out twice", "carried out 3"),
        ({"puts": [4]}, "carried out twice", "4 instances, which was not decided"),
        ({"messages": Messages(41, SENT, 0, 0)}, "Every message", "41 sent, 40 completed"),
        ({"messages": Messages(40, SENT + Counter("7"), 0, 0)}, "Every message", "1 of them twice"),
        ({"events": Events(20, 1, 19, 1, 0)}, "Every event", "19 accounted for"),
        ({"events": Events(20, 1, 20, 0, 0)}, "Every event", "0 as dead letters"),
        ({"events": Events(20, 1, 20, 1, 1)}, "Every event", "1 gone"),
        ({"samples": late(12, 14, 3)}, "younger than the age limit", "late from minute 12 to 14"),
        ({"samples": []}, "younger than the age limit", ""),
        ({"entries": [*SEEN.entries, replace(order(5, 2), reason="")]}, "its reason", "Broken"),
        ({"entries": [*SEEN.entries, replace(order(5, 2), evidence={})]}, "its reason", "evidence"),
        ({"entries": without(EntryKind.POISON)}, Fault.POISON, "nothing in the log"),
        ({"entries": without(EntryKind.MANUAL_CHANGE)}, Fault.BY_HAND, "nothing in the log"),
        ({"entries": without(EntryKind.FAILED)}, Fault.NO_ROLE, "nothing in the log"),
        ({"resumed": None}, Fault.RESTART, "did not decide again"),
        ({"samples": late(119, 120, 2)}, "quiet time", "60 min without messages: 2"),
        ({"alarms": ["x-poison"]}, "alerts fired", f"none for: {Fault.NO_ROLE}"),
    ],
)  # fmt: skip
def test_a_check_names_what_is_wrong(change: dict[str, Any], check: str, says: str) -> None:
    found = [each for each in checks(replace(SEEN, **change)) if each.holds is False]
    assert any(check in each.name and says in each.evidence for each in found), found


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        (late(12, 14, 4), "the plan is at its maximum"),
        (late(41, 46, 1), "the workers were stopped"),
        (late(49, 55, 1), "the app had no role"),
    ],
)
def test_messages_may_be_late_only_where_the_plan_or_a_fault_leaves_no_choice(
    samples: list[Sample], why: str
) -> None:
    (age,) = [each for each in checks(replace(SEEN, samples=samples)) if "age limit" in each.name]
    assert age.holds, why


def test_what_cannot_be_seen_here_is_neither_right_nor_wrong() -> None:
    unmet = [e for e in without(EntryKind.DEFERRED) if e.kind is not EntryKind.FAILED]
    found = {c.name: c.holds for c in checks(replace(SEEN, alarms=None, entries=unmet))}
    assert found["The alerts fired for what was broken"] is None
    assert found[f"The app shows and survives: {Fault.THROTTLED}"] is None
    no_role = f"The app shows and survives: {Fault.NO_ROLE}"
    assert found[no_role] is False
    told = replace(SEEN, entries=unmet, conditions=["workers: no sample of capacity for 3 min"])
    assert {c.name: c.holds for c in checks(told)}[no_role]


def test_a_report_has_no_secret_and_if_anonymous_no_name() -> None:
    secret, host = "sig=c2VjcmV0c2VjcmV0c2VjcmV0", "shop.servicebus.windows.net"
    reason = f"workers: <b>invoices</b> at {host}, {NOW.year}, {secret}"
    seen = replace(SEEN, entries=[replace(SEEN.entries[0], reason=reason)], conditions=[reason])
    told = as_html(seen, checks(seen), "here")
    assert secret not in told
    assert "&lt;b&gt;invoices" in told, "what comes from outside is text"
    hidden = anonymous(seen, NAMES)
    told = as_html(hidden, checks(hidden), "here")
    assert not any(name in told for name in ("invoices", host, "workers:"))
    assert "data:image/png;base64," in told


@pytest.mark.parametrize("speed", [1, 12, 60])
def test_the_app_accepts_the_settings_at_any_speed(speed: float) -> None:
    settings, problems = parse(app_settings(speed))
    told = [each for each in problems if each.split(" ")[0] in app_settings(speed)]
    assert told == []
    assert settings.maximum_capacity == 4


@pytest.mark.parametrize("script", [WHOLE, PART])
def test_a_script_begins_and_ends_each_fault_before_its_quiet_end(script: Script) -> None:
    assert all(0 < s.start <= s.end < script.minutes for s in script.faults)
    assert script.messages(script.minutes) == script.messages(script.quiet_from)
    assert script.messages(2) == 2 * script.load[0][1]


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "local.prove", "--html", str(folder / "proof.html"), *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)


ON_TIME = ("younger than the age limit", "brings the plan to its minimum")
"""Checks that a slow machine may fail in a run of half a minute."""


def test_a_part_of_the_proof_holds_and_leaves_its_report(tmp_path: Path) -> None:
    output, errors = start(tmp_path, "--part", "--minutes", "0.6", "--anonymous").communicate(
        timeout=240
    )
    lines = output.splitlines()
    wrong = [each for each in lines if each.startswith("does not hold")]
    assert [each for each in wrong if not any(name in each for name in ON_TIME)] == [], errors
    assert sum(each.startswith("holds: ") for each in lines) >= 8, output + errors
    assert re.match(r"- \*\*\d+ \w+ \d+:\*\* the proof on ", lines[-1])
    assert "The decision log" in (tmp_path / "proof.html").read_text()


@pytest.mark.parametrize(
    ("how", "code", "says"),
    [(signal.SIGINT, 130, "There is no report"), (signal.SIGTERM, 130, "There is no report"),
     (signal.SIGKILL, -9, "")],
)  # fmt: skip
async def test_a_proof_that_is_stopped_leaves_no_process_and_no_report(
    how: signal.Signals, code: int, says: str, tmp_path: Path
) -> None:
    process = start(tmp_path, "--part", "--minutes", "5")
    children: list[psutil.Process] = []

    def host_runs() -> bool:
        children[:] = psutil.Process(process.pid).children(recursive=True)
        return any("local.functions_host" in each.cmdline() for each in children)

    await until(host_runs, 60)
    process.send_signal(how)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, says in errors) == (code, True), errors
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    assert not (tmp_path / "proof.html").exists()


def test_what_if_prints_quantities_and_starts_nothing(tmp_path: Path) -> None:
    output, errors = start(tmp_path, "--what-if", "--minutes", "20").communicate(timeout=60)
    assert "- 20 minutes, of a script of 120 minutes" in output
    assert all(str(fault) in output for fault in Fault)
    assert (errors, list(tmp_path.iterdir())) == ("", [])
