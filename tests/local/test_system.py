"""The whole loop with real parts: trace → stand-ins → collector → rules → scaler → plan."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from rich.console import Console, RenderableType

from backtest.traces.reading import Trace, load_trace
from local.azure_apis.loopback_server import Request
from local.cli import LOG_FILE
from local.demo import profile
from local.demo.system import APP_DIR, LocalSystem, local_system
from local.demo.view import draw
from local.demo.watching import PartEnded, stopped_with
from local.functions_host.worker_deaths import DEATHS_MAX
from shared.autoscaling.deciding.decide import EntryKind
from shared.autoscaling.policy import RateEstimate, RateSource
from tests.local.amqp_rig import forget_open_sockets
from tests.local.polling import POLL_SECONDS, until

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
MINUTES = 20
STEP_SECONDS_MAX = 60
STEP_TRACE = [40.0] * 4 + [400.0] * 9 + [10.0] * 7
"""Low, then ten times as high, then almost no load: scales out and in within the time."""


def step_trace() -> Trace:
    bundled = load_trace(APP_DIR / "local" / "data" / "nasa_http_1995-07-11_13.csv")
    return Trace(bundled.start, tuple(STEP_TRACE), ())


PATIENT = {
    "SourceTimeoutSeconds": "60",
    "ArmTimeoutSeconds": "180",
    "ActionDeadlineSeconds": "600",
}
"""Limits that a slow machine does not exceed. Those of the demo would count as errors."""


SOON = {"ScaleOutCooldownSeconds": "3", "ScaleInCooldownSeconds": "3"}
"""Cooldowns of three minutes of the trace."""


class TraceClock:
    """A clock that only the test advances, until it lets it run on."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._running_since: float | None = None

    def __call__(self) -> float:
        since = self._running_since
        return self.seconds if since is None else self.seconds + time.monotonic() - since

    def run_on(self) -> None:
        self._running_since = time.monotonic()


async def follow(system: LocalSystem, clock: TraceClock, over: Callable[[], bool]) -> None:
    """Advance the trace by a minute whenever the app has decided in the current one.

    The app therefore decides in every minute of the trace, even on a slow machine.
    """
    system.seconds.start()
    while not over():
        decided = await decisions(system)
        clock.seconds += profile.SECONDS_PER_TRACE_MINUTE
        async with asyncio.timeout(STEP_SECONDS_MAX):
            while await decisions(system) == decided:  # noqa: ASYNC110  the log has to be polled
                await asyncio.sleep(POLL_SECONDS)


async def decisions(system: LocalSystem) -> int:
    return sum(line.kind is EntryKind.DECISION for line in await system.log())


@pytest.mark.timeout(600)
async def test_a_load_step_scales_out_and_in_and_every_decision_has_a_reason(
    tmp_path: Path,
) -> None:
    clock, settings_file = TraceClock(), tmp_path / "settings.json"
    async with local_system(
        step_trace(),
        MINUTES,
        settings_file=settings_file,
        monotonic=clock,
        other_settings={**PATIENT, **SOON},
    ) as system:
        await follow(system, clock, lambda: system.ended)
        summary = await system.summary()
        await check_log(system)
    assert (summary.errors, summary.poison) == (0, 0)
    assert summary.arrivals == pytest.approx(sum(STEP_TRACE), rel=0.01)
    assert summary.decisions >= MINUTES * 0.8
    assert summary.actions >= 2
    assert profile.MINIMUM_CAPACITY <= summary.capacity_min < summary.capacity_max
    assert summary.capacity_max <= profile.MAXIMUM_CAPACITY


async def test_a_plan_that_scales_asynchronously_shows_pieces_of_what_will_work(
    tmp_path: Path,
) -> None:
    clock, settings_file = TraceClock(), tmp_path / "settings.json"
    async with local_system(
        step_trace(),
        MINUTES,
        with_host=False,
        in_pieces=True,
        settings_file=settings_file,
        monotonic=clock,
    ) as system:
        system.arm.clock = lambda: NOON + timedelta(seconds=clock.seconds)
        system.seconds.start()
        plan = system.arm.plan(profile.PLAN)
        start, properties = plan.capacity, dict(plan.properties)
        body = json.dumps({"sku": {"capacity": start + 5}, "properties": properties}).encode()
        path = str(profile.PLAN)
        reply = system.arm.handle(Request("PUT", path, {}, {}, body, system.arm.clock()))
        assert reply.status == 202
        shown, working = [], []
        for _ in range(8):
            clock.seconds += 0.5
            system.traffic.advance()
            shown.append(system.arm.plan(profile.PLAN).capacity - start)
            working.append(system.workload.state.capacity.effective - start)
    assert shown == [2, 4, 5, 5, 5, 5, 5, 5]
    assert working == [0, 0, 0, 0, 0, 2, 4, 5]


async def test_a_first_hour_is_told_nothing_and_shows_what_it_has_learned(tmp_path: Path) -> None:
    clock, settings_file = TraceClock(), tmp_path / "settings.json"
    async with local_system(
        step_trace(), MINUTES, first_hour=True, settings_file=settings_file, monotonic=clock
    ) as system:
        told = json.loads(settings_file.read_text())["Values"]
        system.seconds.start()
        clock.seconds += 60
        system.traffic.advance()
        counted = system.arm.metrics.resources[profile.NAMESPACE_ID.lower()].values
        assert system.workload.minute == 1
        assert system.workload.state.capacity.effective == 1
        assert await system.estimate() is None
        shown = rendered(draw(system, [], [], None))
    assert "InstanceRatePerMinute" not in told
    assert told["ServiceBusNamespaceIds"] == profile.NAMESPACE_ID
    arrived = sum(sum(values) for values in counted["IncomingMessages", profile.TOPIC].values())
    assert arrived == 40
    assert "first hour of a new deployment · minute 1 of 20" in shown
    assert "not known yet: thresholds decide" in shown
    estimate = RateEstimate(RateSource.BACKLOG, 28.91, 20, 0.4)
    shown = rendered(draw(system, [], [], estimate))
    assert "28.91 a minute, estimated from the backlog ± 40%, not sure yet" in shown
    replayed = rendered(draw(replace(system, first_hour=False), [], [], estimate))
    assert "0.4818 a minute" in replayed, "in minutes of the trace, as the arrivals"


def rendered(view: RenderableType) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(view)
    return console.export_text()


async def check_log(system: LocalSystem) -> None:
    """Check that each change of the plan was decided, carried out once, and confirmed."""
    # Read first: a change that is carried out while the log is read may be missing from the log.
    targets = [put.capacity for put in system.arm.puts if put.accepted]
    lines = await system.log()
    decided = {line.epoch or 0: line for line in lines if line.applies}
    confirmed = {line.epoch or 0 for line in lines if line.kind is EntryKind.CONFIRMED}
    orders = iter([decided[epoch].desired for epoch in sorted(decided)])
    assert all(target in orders for target in targets), "a change was not decided, or out of order"
    assert confirmed & set(decided)
    assert all(line.reason and line.evidence for line in decided.values())
    out = {(line.desired or 0) > (line.current or 0) for line in decided.values()}
    assert out == {True, False}


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "local", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=APP_DIR, stdout=pipe, stderr=pipe, text=True)


WITHOUT_AMQP = """
import sys
sys.modules["proton"] = None
from {module} import main
sys.exit(main(sys.argv[1:]))
"""


def run_without_amqp(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as if the AMQP library were not installed."""
    command = [sys.executable, "-c", WITHOUT_AMQP.format(module=module), *arguments]
    return subprocess.run(
        command, cwd=APP_DIR, capture_output=True, text=True, timeout=90, check=False
    )


def test_without_the_amqp_library_the_demo_runs_and_says_in_one_line_what_is_off(
    tmp_path: Path,
) -> None:
    done = run_without_amqp("local.cli", "--json", "--minutes", "5", "--state", str(tmp_path))
    (notice,) = done.stderr.splitlines()
    assert notice.startswith("notice: AMQP is off")
    assert "the demo has no event hub" in notice
    assert "sudo apt-get install gcc python3." in notice
    summary = json.loads(done.stdout)
    assert (done.returncode, summary["errors"], summary["decisions"] > 0) == (0, 0, True)
    assert "metric_ingest" not in (tmp_path / LOG_FILE).read_text(), "nothing reads a hub"


def test_without_the_amqp_library_the_stand_in_names_the_package_to_install() -> None:
    done = run_without_amqp("local.amqp_broker.__main__", "--port", "0")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert "sudo apt-get install gcc python3." in done.stderr


async def test_a_signal_stops_the_demo_cleanly_with_its_summary(tmp_path: Path) -> None:
    process = start("--json", "--state", str(tmp_path))
    await until(lambda: running(tmp_path), 90)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=90)
    assert (process.returncode, errors) == (0, "")
    summary = json.loads(output)
    counted = {"arrivals", "drained", "backlog_max", "age_max_minutes", "capacity_min"}
    counted |= {"capacity_max", "actions", "decisions", "poison", "errors", "minutes"}
    assert (set(summary), summary["errors"]) == (counted, 0)
    assert not (tmp_path / "settings.json").exists()


def running(folder: Path) -> bool:
    """Whether the demo with this folder has read its plan."""
    log = folder / LOG_FILE
    return log.exists() and f"{profile.PLAN.name}: " in log.read_text()


def azurite_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return [each for each in psutil.Process(process.pid).children() if "node" in each.name()]


@pytest.mark.parametrize(
    ("during_start", "options"),
    [(True, ["--json"]), (False, [])],
)
async def test_the_demo_stops_and_says_why_when_azurite_has_ended(
    during_start: bool, options: list[str], tmp_path: Path
) -> None:
    process = start(*options, "--state", str(tmp_path))
    ready = during_start or "--without-host" in options
    await until(lambda: bool(azurite_of(process)) and (ready or running(tmp_path)), 90)
    azurite_of(process)[0].kill()
    output, errors = process.communicate(timeout=90)
    assert process.returncode == 1
    assert errors.endswith("Azurite ended (signal 9); the demo stops\n")
    assert "Traceback" not in output + errors
    assert not (tmp_path / "settings.json").exists()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the clients leave their sockets open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_the_demo_stops_and_says_why_when_the_functions_host_has_ended(
    tmp_path: Path,
) -> None:
    async def dying() -> None:
        settings = tmp_path / "settings.json"
        async with local_system(step_trace(), MINUTES, settings_file=settings) as system:
            assert system.host is not None
            for _ in range(DEATHS_MAX):
                await system.host.kill_worker()
            await asyncio.Event().wait()

    ended = r"^The functions host ended \(the worker has died 3 times in a row\)$"
    with pytest.raises(PartEnded, match=ended):
        await dying()
    forget_open_sockets()


async def test_an_error_that_a_dead_part_caused_does_not_hide_its_death() -> None:
    with pytest.raises(PartEnded, match="a part ended"):
        async with stopped_with(lambda: "a part ended"):
            raise ConnectionRefusedError
    with pytest.raises(ConnectionRefusedError):
        async with stopped_with(lambda: ""):
            raise ConnectionRefusedError


async def test_a_signal_during_the_start_stops_the_demo(tmp_path: Path) -> None:
    process = start("--json", "--state", str(tmp_path))
    await until(lambda: bool(azurite_of(process)), 90)
    (azurite,) = azurite_of(process)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=90)
    assert (process.returncode, output, errors) == (130, "", "Stopped during the start.\n")
    azurite.wait(90)


async def test_a_second_signal_ends_a_demo_that_does_not_stop(tmp_path: Path) -> None:
    process = start("--json", "--state", str(tmp_path))
    await until(lambda: running(tmp_path), 90)
    (azurite,) = azurite_of(process)
    azurite.suspend()

    def ended() -> bool:
        process.send_signal(signal.SIGINT)
        return process.poll() is not None

    try:
        await until(ended, 90)
        output, errors = process.communicate(timeout=90)
    finally:
        azurite.resume()
    assert (process.returncode, output, errors) == (-signal.SIGINT, "", "")
    azurite.wait(90)
