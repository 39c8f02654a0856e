"""Runs the job as a process on this machine, for development, which outlives the host."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from shared.sampling.unreadable import last_warning
from shared.trends.nightly.model import Job, JobPhase, JobRefused, JobStatus, Submission
from shared.values.redaction import redacted, redacting

JOB = (sys.executable, "-m", "spark_jobs.event_trends")
DETACHED = """
folder=$1; shift; echo $$ > "$folder/started"
(nice -n 5 "$@" > "$folder/log.txt" 2>&1; echo $? > "$folder/exit.new"
mv "$folder/exit.new" "$folder/exit") &
"""
"""Starts a command and ends at once. It writes the process group, the log and the exit code. The
app on the same machine has priority."""
SIGNALLED = range(129, 193)
"""The exit codes with which a shell says which signal ended a command."""
ERROR_LINES = 20
ERROR_BYTES = 8192


@redacting
class LocalSubmitter:
    """See JobSubmitter. Each run has its own folder, and its handle is the job's token. A lock that
    its processes hold shows whether it is alive, even if the process id is reused.
    """

    def __init__(self, folder: Path, command: Sequence[str] = JOB) -> None:
        self._folder = folder.absolute()
        self._command = tuple(command)

    async def submit(self, job: Job) -> Submission:
        return await asyncio.to_thread(self._submit, job)

    async def status(self, handle: str) -> JobStatus:
        return await asyncio.to_thread(self._status, handle)

    async def cancel(self, handle: str) -> None:
        """Send SIGTERM to the run's processes, or SIGKILL when called again."""
        await asyncio.to_thread(self._cancel, self._folder / handle)

    async def close(self) -> None: ...

    def _submit(self, job: Job) -> Submission:
        run = self._folder / job.token
        try:
            run.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise JobRefused(f"{run}: {error.strerror}") from error
        with (run / "lock").open("a") as lock:
            if _locks(lock) and not (run / "started").exists():
                subprocess.run(  # noqa: S603  the command is the app's own
                    ["/bin/sh", "-c", DETACHED, "sh", run, *self._command, *job.arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[lock.fileno()],
                    start_new_session=True,
                    check=True,
                )
        return Submission(job.token, _log(run).as_uri())

    def _status(self, handle: str) -> JobStatus:
        run = self._folder / handle
        if not (run / "started").exists():
            return JobStatus(JobPhase.GONE)
        alive, log_url = _alive(run), _log(run).as_uri()
        # The run writes its exit code before it releases the lock, so the lock is checked first.
        if (run / "exit").exists():
            code = int((run / "exit").read_text())
            if code == 0:
                warning = redacted(last_warning(_end_of(_log(run)).splitlines()))
                return JobStatus(JobPhase.SUCCEEDED, log_url, warning=warning)
            signalled = code in SIGNALLED
            how = f"the job ended (signal {code - 128})" if signalled else f"exit code {code}"
            return JobStatus(JobPhase.FAILED, log_url, f"{how}\n{_end_of(_log(run))}")
        if alive:
            return JobStatus(JobPhase.RUNNING, log_url)
        text = f"the process ended without an exit code\n{_end_of(_log(run))}"
        return JobStatus(JobPhase.FAILED, log_url, text)

    def _cancel(self, run: Path) -> None:
        if not _alive(run):
            return
        marker = run / "cancelled"
        kind = signal.SIGKILL if marker.exists() else signal.SIGTERM
        marker.touch()
        with suppress(ProcessLookupError):
            os.killpg(int((run / "started").read_text()), kind)


def _log(run: Path) -> Path:
    return run / "log.txt"


def _alive(run: Path) -> bool:
    """Whether a process holds the run's lock."""
    with (run / "lock").open("a") as lock:
        return not _locks(lock)


def _locks(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _end_of(log: Path) -> str:
    with suppress(FileNotFoundError), log.open("rb") as file:
        file.seek(max(log.stat().st_size - ERROR_BYTES, 0))
        lines = file.read().decode("utf-8", "replace").splitlines()
        return redacted("\n".join(lines[-ERROR_LINES:]))
    return ""
