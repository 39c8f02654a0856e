"""Spark starts on this machine with defaults that the environment can override."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from pyspark.sql import SparkSession

from spark_jobs import session
from spark_jobs.errors import JobError
from spark_jobs.session import with_defaults


def test_arguments_of_the_environment_override_the_defaults() -> None:
    given = "--master 'local[3]' --driver-memory 1g --conf spark.ui.enabled=true pyspark-shell"
    arguments = with_defaults({"PYSPARK_SUBMIT_ARGS": given})
    assert arguments.endswith(given)
    assert "--conf spark.ui.enabled=false" in arguments.removesuffix(given)
    assert with_defaults({}).endswith(" pyspark-shell")


CLUSTERS = ["--master yarn", "--master=spark://host:7077", "--conf spark.master=k8s://host"]


@pytest.mark.parametrize("given", CLUSTERS)
def test_a_cluster_gets_no_defaults_of_this_machine(given: str) -> None:
    arguments = with_defaults({"PYSPARK_SUBMIT_ARGS": given})
    assert arguments == f"--conf spark.excludeOnFailure.enabled=true {given}"


@pytest.mark.parametrize(
    ("given", "loopback"),
    [
        ({"PYSPARK_SUBMIT_ARGS": CLUSTERS[1]}, None),
        ({}, "127.0.0.1"),
        ({"SPARK_REMOTE": "local[2]"}, "127.0.0.1"),
    ],
)
def test_a_cluster_reaches_the_driver_by_the_address_of_its_machine(
    given: dict[str, str], loopback: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that binds to the loopback address serves executors of its own machine only. A
    server of Spark Connect that the client starts on this machine is prepared, too, and takes no
    arguments of ``spark-submit``."""
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda _: None)
    monkeypatch.setattr(session, "send_code", lambda _: None)
    of_spark = ("SPARK_LOCAL_IP", "PYSPARK_SUBMIT_ARGS", "PYSPARK_PYTHON", "PYSPARK_GATEWAY_PORT")
    plain = {name: value for name, value in os.environ.items() if name not in of_spark}
    with mock.patch.dict(os.environ, {**plain, **given}, clear=True):
        session.open_session()
        assert os.environ.get("SPARK_LOCAL_IP") == loopback
        assert os.environ["PYSPARK_PYTHON"] == sys.executable
        assert ("PYSPARK_SUBMIT_ARGS" in os.environ) == ("SPARK_REMOTE" not in given)


def test_a_java_home_without_java_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(JobError, match=r"^JAVA_HOME=/nowhere: has no program bin/java; unset it"):
        session.open_session()


def test_arguments_with_which_spark_does_not_start_are_an_error_of_one_line(tmp_path: Path) -> None:
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": "--master local[x] pyspark-shell"}
    environment.pop("SPARK_REMOTE", None)
    arguments = ["--input", "spark_jobs/sample", "--output", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-m", "spark_jobs.event_trends", *arguments],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    *_, last = done.stderr.splitlines()
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert last.startswith("event_trends: Spark does not start: ")


def test_arguments_that_cannot_be_split_are_an_error_that_names_their_variable() -> None:
    with pytest.raises(JobError, match="PYSPARK_SUBMIT_ARGS: No closing quotation"):
        with_defaults({"PYSPARK_SUBMIT_ARGS": "--conf 'a=b"})


def test_the_session_of_these_tests_has_the_settings_of_the_environment(
    each_spark: SparkSession,
) -> None:
    assert each_spark.conf.get("spark.master") == "local[2,2]"
    assert each_spark.conf.get("spark.sql.shuffle.partitions") == "1"
    assert each_spark.conf.get("spark.ui.enabled") == "false"


def test_the_code_for_tasks_exists_as_long_as_the_job_and_no_longer(tmp_path: Path) -> None:
    program = """
import os, sys
from spark_jobs.session import send_code

class Session:
    version = "4.0.0"

    def addArtifacts(self, path, *, pyfile):
        self.path = path

session = Session()
send_code(session)
print(os.path.exists(session.path))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "True\n", done.stderr
    assert list(tmp_path.iterdir()) == []
