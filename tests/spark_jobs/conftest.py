"""Spark sessions for the tests of the job: one of Spark itself, and one of Spark Connect."""

from __future__ import annotations

import socket
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark_jobs.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CONNECT = "org.apache.spark.sql.connect.SparkConnectPlugin"


@pytest.fixture(scope="session")
def connect_port() -> int:
    """The port at which the first session that a test opens serves Spark Connect, too."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def serve_connect(patch: pytest.MonkeyPatch, port: int) -> None:
    """Make the next session start fast, compile little, as tests run each plan once, and try each
    task twice. Patch this only in tests of this folder: another process cannot use the port."""
    patch.setenv("JDK_JAVA_OPTIONS", QUICK_START)
    patch.setenv(
        "PYSPARK_SUBMIT_ARGS",
        "--master local[2,2] --conf spark.sql.shuffle.partitions=1"
        f" --conf spark.driver.memory=1g --conf spark.plugins={CONNECT}"
        f" --conf spark.connect.grpc.binding.port={port} pyspark-shell",
    )


@pytest.fixture(autouse=True)
def _sessions_of_a_test_serve_connect(monkeypatch: pytest.MonkeyPatch, connect_port: int) -> None:
    serve_connect(monkeypatch, connect_port)


@pytest.fixture(scope="session")
def classic_session(connect_port: int) -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        serve_connect(patch, connect_port)
        warnings.simplefilter("ignore")
        session = open_session()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def connect_session(classic_session: SparkSession, connect_port: int) -> Iterator[SparkSession]:
    connect = pytest.importorskip(
        "pyspark.sql.connect.session", reason="needs pyspark[connect]", exc_type=ImportError
    )
    session = connect.SparkSession.builder.remote(f"sc://127.0.0.1:{connect_port}").create()
    yield session
    session.stop()


@pytest.fixture
def spark(classic_session: SparkSession) -> SparkSession:
    """The session of Spark itself, for rules that do not depend on the kind of session."""
    return classic_session


@pytest.fixture(params=["classic", "connect"])
def each_spark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """The session that the job uses in this test, which runs once with each kind of session."""
    session: SparkSession = request.getfixturevalue(f"{request.param}_session")
    if request.param == "connect":
        monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    return session
