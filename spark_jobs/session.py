"""Opens a Spark session: of the cluster, of Spark Connect, or on this machine."""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from spark_jobs.errors import JobError, first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[1]
CODE = ("spark_jobs/**/*.py", "shared/__init__.py", "shared/sampling/**/*.py")
LOGGING = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
SMALL_JVM = f"{LOGGING} -XX:TieredStopAtLevel=1 -XX:InitialHeapSize=64m -XX:+UseSerialGC"
"""A local JVM only moves blocks, so optimizing its code takes more time than it saves. The default
garbage collector, for large heaps, would keep more memory than it frees.
"""
SUBMIT = "PYSPARK_SUBMIT_ARGS"
OF_A_CLUSTER = {"spark.excludeOnFailure.enabled": "true"}
"""Otherwise Spark may give a task to the same broken executor four times, and the job fails."""
MASTER = re.compile(r"(?:--master[ =]|spark\.master=)(\S+)")


def open_session() -> SparkSession:
    """Returns the active session of a notebook or of spark-submit. If there is none, returns a
    session of the Spark Connect server in SPARK_REMOTE, or else a session on this machine. If Java
    is missing, raises JobError, which says what to install.
    """
    remote = os.environ.get("SPARK_REMOTE", "")
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has started this process
    here = not remote or remote.startswith("local")
    if here and not submitted:
        check_java(os.environ)
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    if spark is None:
        if not remote and not submitted:
            os.environ[SUBMIT] = with_defaults(os.environ)
        if here:
            # Tasks use the packages of this process, unless the environment names another Python.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            if master_of(os.environ).startswith("local"):  # other machines could not reach it
                os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        try:
            spark = SparkSession.builder.getOrCreate()
        except Exception as error:  # PySpark has no common class for errors of the JVM
            raise JobError(f"Spark does not start: {first_line(error)}") from error
    send_code(spark)
    return spark


def with_defaults(environment: Mapping[str, str]) -> str:
    """Returns PYSPARK_SUBMIT_ARGS with the defaults for this machine in front, so that the
    variable's own arguments override the defaults. Raises JobError.
    """
    given = environment.get(SUBMIT) or "pyspark-shell"
    local = master_of(environment).startswith("local")
    settings = _of_this_machine() if local else OF_A_CLUSTER
    options = [f"--conf {shlex.quote(f'{name}={value}')}" for name, value in settings.items()]
    return " ".join([*options, given])


def master_of(environment: Mapping[str, str]) -> str:
    """Returns the master that PYSPARK_SUBMIT_ARGS names, else that of this machine.

    Raises JobError.
    """
    try:
        words = shlex.split(environment.get(SUBMIT, ""))
    except ValueError as error:
        raise JobError(f"{SUBMIT}: {error}") from error
    master = MASTER.search(" ".join(words))
    return master[1] if master else "local[*]"


def _of_this_machine() -> dict[str, str]:
    return {
        "spark.app.name": "event_trends",
        "spark.master": "local[*]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": SMALL_JVM,
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(8 << 20),  # what a task gets at a time
        # A process keeps the memory of a batch for the next batch, because getting new pages takes
        # longer.
        "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(256 << 20),
        "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # the largest that glibc accepts
    }


@cache
def send_code(spark: SparkSession) -> None:
    """Make the job's modules available to tasks, wherever the driver was started."""
    archived = not (ROOT / "spark_jobs").is_dir()  # by --py-files, so tasks already have it
    if archived or spark.version.startswith("3."):  # Spark 3 takes code from --py-files only
        return
    code = Path(tempfile.mkdtemp(prefix="event_trends_")) / "event_trends_code.zip"
    atexit.register(shutil.rmtree, code.parent)  # Spark reads the file as long as the job runs
    with zipfile.ZipFile(code, "w") as archive:
        for pattern in CODE:
            for file in sorted(ROOT.glob(pattern)):
                archive.write(file, file.relative_to(ROOT))
    spark.addArtifacts(str(code), pyfile=True)


def check_java(environment: Mapping[str, str]) -> None:
    """Raises JobError if Java is missing. The errors of Spark's launcher do not say what to do."""
    java, java_home = shutil.which("java"), environment.get("JAVA_HOME")
    if java_home and not shutil.which("java", path=f"{java_home}/bin"):
        remedy = f"unset it to use {java}" if java else "set it to the folder of Java 17 or newer"
        raise JobError(f"JAVA_HOME={java_home}: has no program bin/java; {remedy}")
    if not (java_home or java or environment.get("SPARK_HOME")):
        raise JobError(
            "Spark needs Java 17 or newer, which is neither on PATH nor at JAVA_HOME"
            " (Debian and Ubuntu: sudo apt-get install openjdk-17-jre-headless;"
            " macOS: brew install openjdk@17)"
        )
