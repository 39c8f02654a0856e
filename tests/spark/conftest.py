"""One Spark session for all tests of the jobs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark_jobs.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Small and quick to start; compiles less, as tests run each plan once."""
    os.environ["JDK_JAVA_OPTIONS"] = QUICK_START
    os.environ["PYSPARK_SUBMIT_ARGS"] = (
        "--conf spark.sql.shuffle.partitions=1 --conf spark.driver.memory=1g pyspark-shell"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = open_session()
    yield session
    session.stop()
