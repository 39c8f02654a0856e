"""A standalone Spark cluster on this machine: a master and two workers, each a process of its own.

The programs are those of the PySpark package. The workers have different host addresses, work
folders and disks. A worker runs executors as its children.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import pyspark

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
MASTER_HOST = "127.0.0.1"
WORKER_HOSTS = ("127.0.0.2", "127.0.0.3")
WAIT_SECONDS = 120
POLL_SECONDS = 0.05


def free_port() -> int:
    with socket.socket() as free:
        free.bind((MASTER_HOST, 0))
        port: int = free.getsockname()[1]
    return port


def fetched(url: str) -> Any:
    """Returns the JSON at a URL, or None while nothing answers there."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return json.load(response)
    except (OSError, ValueError):
        return None


def wait_for(what: str, found: Callable[[], Any], alive: Callable[[], bool]) -> Any:
    """Returns what ``found`` returns as soon as that is true."""
    until = time.monotonic() + WAIT_SECONDS
    while not (value := found()):
        assert alive(), f"a process ended before there was {what}"
        assert time.monotonic() < until, f"there was no {what} after {WAIT_SECONDS} s"
        time.sleep(POLL_SECONDS)
    return value


@dataclass
class Cluster:
    """``with Cluster(folder)`` starts it and ends all of its processes.

    ``disks`` gives a worker, by its number, a small disk: the path of the folder to mount it at,
    and its size in bytes. Only that worker and its executors see it.
    """

    folder: Path
    disks: Mapping[int, tuple[Path, int]] = field(default_factory=dict)
    cores: int = 1
    """The number of tasks that a worker runs at a time."""
    master_port: int = field(default_factory=free_port)
    page_port: int = field(default_factory=free_port)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"spark://{MASTER_HOST}:{self.master_port}"

    @property
    def workers(self) -> Sequence[subprocess.Popen[bytes]]:
        return self.processes[1:]

    def __enter__(self) -> Cluster:
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in reversed(self.processes):
            kill_tree(process.pid)
            process.wait(timeout=WAIT_SECONDS)

    def _start(self) -> None:
        master = ["--port", str(self.master_port), "--webui-port", str(self.page_port)]
        self._run("master.Master", MASTER_HOST, master)
        wait_for("a master", self._state, self._alive)
        for number, host in enumerate(WORKER_HOSTS):
            work = self.folder / f"work-{number}"
            options = ["--cores", str(self.cores), "--memory", "1g", "--webui-port", "0"]
            options += ["--work-dir", str(work), self.url]
            self._run("worker.Worker", host, options, number)
        wait_for("two workers", lambda: self.workers_alive() == len(WORKER_HOSTS), self._alive)

    def _run(self, program: str, host: str, options: Sequence[str], number: int = -1) -> None:
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{program}"]
        command += ["--host", host, *options]
        if number in self.disks:
            mount_at, size_bytes = self.disks[number]
            command = on_a_small_disk(mount_at, size_bytes, command)
        disk = self.folder / f"disk-{number}"
        for folder in (self.folder / "logs", disk):
            folder.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(disk),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_START,
        }
        for name in ("JDK_JAVA_OPTIONS", "PYSPARK_SUBMIT_ARGS", "PYTHONPATH"):
            environment.pop(name, None)  # those of the tests
        with (self.folder / "logs" / f"{program}-{number}.txt").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    command, cwd=self.folder, env=environment, stdout=log, stderr=log,
                    start_new_session=True,
                )
            )  # fmt: skip

    def _alive(self) -> bool:
        return all(process.poll() is None for process in self.processes)

    def _state(self) -> Any:
        return fetched(f"http://{MASTER_HOST}:{self.page_port}/json/")

    def workers_alive(self) -> int:
        state = self._state() or {"workers": []}
        return sum(worker["state"] == "ALIVE" for worker in state["workers"])

    def lose_worker(self, number: int) -> None:
        """Kills a worker with its executors, as the loss of its machine would."""
        kill_tree(self.workers[number].pid)
        self.workers[number].wait(timeout=WAIT_SECONDS)

    def workers_running(self) -> int:
        return sum(worker.poll() is None for worker in self.workers)


def children(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []


def kill_tree(pid: int) -> None:
    """Kills a process and all that it started, and leaves none of them time to say goodbye."""
    for process in [*children(pid), *([psutil.Process(pid)] if psutil.pid_exists(pid) else [])]:
        with contextlib.suppress(psutil.Error):
            process.kill()


def on_a_small_disk(mount_at: Path, size_bytes: int, command: Sequence[str]) -> list[str]:
    """Runs a command that alone sees a disk of this size at a path."""
    mount_at.mkdir(parents=True, exist_ok=True)
    mount = f"mount -t tmpfs -o size={size_bytes} tmpfs {shlex.quote(str(mount_at))}"
    script = f'{mount} && exec "$@"'
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", *command]


def can_mount() -> bool:
    """Whether this machine lets a process mount a disk that only it sees."""
    if shutil.which("unshare") is None:
        return False
    command = on_a_small_disk(Path("/tmp"), 1 << 20, ["true"])
    return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0


@dataclass
class Job:
    """The nightly job as a process of its own, which is the driver."""

    cluster: Cluster | None
    arguments: Sequence[str]
    folder: Path
    """The working directory of the driver."""
    events: Path
    """Where Spark logs what happened, if there is a cluster."""
    conf: Mapping[str, str] = field(default_factory=dict)
    page_port: int = field(default_factory=free_port)

    def start(self) -> Job:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        for name in ("JDK_JAVA_OPTIONS", "PYSPARK_SUBMIT_ARGS", "SPARK_LOCAL_IP"):
            environment.pop(name, None)
        if self.cluster is not None:
            environment["PYSPARK_SUBMIT_ARGS"] = self._submit_args(self.cluster)
        command = [sys.executable, "-W", "ignore", "-m", "spark_jobs.event_trends"]
        self.process = subprocess.Popen(
            [*command, *self.arguments], cwd=self.folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        return self

    def _submit_args(self, cluster: Cluster) -> str:
        self.events.mkdir(parents=True, exist_ok=True)
        conf = {
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.driver.host": MASTER_HOST,
            "spark.driver.extraJavaOptions": QUICK_START,
            "spark.executor.extraJavaOptions": QUICK_START,
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.port": str(self.page_port),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": self.events.as_uri(),
            **self.conf,
        }
        options = [f"--conf {shlex.quote(f'{name}={value}')}" for name, value in conf.items()]
        return " ".join([f"--master {cluster.url}", *options, "pyspark-shell"])

    def done(self) -> tuple[int, str, str]:
        """Returns the exit code, standard output and standard error."""
        try:
            out, error = self.process.communicate(timeout=280)
        finally:
            kill_tree(self.process.pid)
        return self.process.returncode, out, error

    def kill(self) -> None:
        """Kills the driver as a lost machine would."""
        kill_tree(self.process.pid)
        self.process.communicate()

    def alive(self) -> bool:
        return self.process.poll() is None

    def _page(self, what: str) -> Any:
        address = f"http://{MASTER_HOST}:{self.page_port}/api/v1/applications"
        applications = fetched(address) or []
        return fetched(f"{address}/{applications[0]['id']}/{what}") if applications else []

    def stages(self, status: str = "active") -> list[dict[str, Any]]:
        return self._page(f"stages?status={status}") or []

    def happened(self, event: str) -> list[dict[str, Any]]:
        """Returns what Spark has logged of one kind of event, in order."""
        lines = [line for log in self.events.iterdir() for line in log.read_text().splitlines()]
        return [e for e in map(json.loads, lines) if e["Event"] == f"SparkListener{event}"]

    def failures(self) -> list[dict[str, Any]]:
        """Returns the reasons why attempts of tasks failed."""
        reasons = [event["Task End Reason"] for event in self.happened("TaskEnd")]
        return [reason for reason in reasons if reason["Reason"] != "Success"]
