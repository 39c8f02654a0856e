"""How Spark's JVM is started on this machine."""

from __future__ import annotations

import os
import subprocess

import pytest
from pyspark.sql import SparkSession

from spark_jobs.errors import JobError
from spark_jobs.session import JAVA_OPTIONS, SMALL_HEAP, collector, cores, submitted


@pytest.mark.parametrize("chosen", ["", "-XX:+UseG1GC", "-XX:+UseParallelGC", SMALL_HEAP])
def test_the_jvm_starts_with_whatever_collector_the_environment_names(chosen: str) -> None:
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": chosen, "JDK_JAVA_OPTIONS": ""}
    options = [*JAVA_OPTIONS.split(), *collector(environment)]
    command = ["java", *options, "-XX:+PrintCommandLineFlags", "-version"]
    started = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert started.returncode == 0, started.stdout
    assert (chosen or SMALL_HEAP) in started.stdout


def test_what_the_environment_submits_is_heard() -> None:
    words = "--master 'local[3]' --driver-memory 1g --name x --conf spark.ui.enabled=true"
    assert submitted({"PYSPARK_SUBMIT_ARGS": f"{words} --conf a.b='c=d' pyspark-shell"}) == {
        "spark.master": "local[3]",
        "spark.app.name": "x",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "true",
        "a.b": "c=d",
    }
    assert submitted({}) == {}


@pytest.mark.parametrize("words", ["--master", "--conf 'a=b"])
def test_what_cannot_be_submitted_is_named(words: str) -> None:
    with pytest.raises(JobError, match="PYSPARK_SUBMIT_ARGS"):
        submitted({"PYSPARK_SUBMIT_ARGS": words})


def test_the_session_of_these_tests_is_as_it_was_submitted(spark: SparkSession) -> None:
    settings = spark.sparkContext.getConf()
    assert settings.get("spark.master") == "local[2,2]"
    assert settings.get("spark.sql.shuffle.partitions") == "1"
    assert cores(spark) == 2
