"""How Spark's JVM is started on this machine."""

from __future__ import annotations

import os
import subprocess

import pytest

from spark_jobs.session import SMALL_HEAP, light_java_options


@pytest.mark.parametrize("chosen", ["", "-XX:+UseG1GC", "-XX:+UseParallelGC", SMALL_HEAP])
def test_the_jvm_starts_with_whatever_collector_the_environment_names(chosen: str) -> None:
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": chosen, "JDK_JAVA_OPTIONS": ""}
    options = [part for text in light_java_options(environment) for part in text.split()]
    command = ["java", *options, "-XX:+PrintCommandLineFlags", "-version"]
    started = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert started.returncode == 0, started.stdout
    assert (chosen or SMALL_HEAP) in started.stdout
