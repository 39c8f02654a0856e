"""One Spark session for all tests of the jobs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark_jobs.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="session", autouse=True)
def _submitted() -> Iterator[None]:
    """A session is small and quick to start, whoever opens it first; it compiles less, as tests run
    each plan once. Tasks are tried twice, as on a cluster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", QUICK_START)
        patch.setenv(
            "PYSPARK_SUBMIT_ARGS",
            "--master local[2,2] --conf spark.sql.shuffle.partitions=1"
            " --conf spark.driver.memory=1g pyspark-shell",
        )
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = open_session()
    yield session
    session.stop()
