"""A Spark session: that of the cluster, or one on this machine."""

from __future__ import annotations

import argparse
import io
import os
import shlex
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from spark_jobs.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[1]
LOGGING = Path(__file__).with_name("log4j2.properties")
PACKAGES = ("spark_jobs", "shared/__init__.py", "shared/sampling")
LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
    # a task's process keeps what a batch took for the next one: to get new pages takes longer
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # the most that glibc takes
}
JAVA_OPTIONS = (
    f"-Dlog4j2.configurationFile={LOGGING.as_uri()} -XX:TieredStopAtLevel=1 -XX:InitialHeapSize=64m"
)
"""A JVM that only hands blocks on is small: to optimize its code costs more than it ever saves."""
SMALL_HEAP = "-XX:+UseSerialGC"
"""The collector for large heaps keeps more memory than it frees."""
JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")


def open_session(local_settings: Mapping[str, str] | None = None) -> SparkSession:
    """That of a notebook or of spark-submit, of the Spark Connect server that SPARK_REMOTE names,
    or one on this machine; ``local_settings`` are for the bench.

    Raises JobError with what to install where something is missing.
    """
    remote = os.environ.get("SPARK_REMOTE", "")
    if not remote or remote.startswith("local"):
        _find_java()
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise JobError(
            "PySpark is not installed: pip install -r spark_jobs/requirements.txt"
        ) from error
    if spark := SparkSession.getActiveSession():
        send_code(spark)
        return spark
    settings = {"spark.app.name": "event_trends"}
    if remote.startswith("local"):
        _work_here()
    if not remote and "PYSPARK_GATEWAY_PORT" not in os.environ:  # both have settings of their own
        settings |= _settings(submitted(os.environ), local_settings or {})
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    send_code(spark)
    return spark


def _settings(given: Mapping[str, str], local_settings: Mapping[str, str]) -> dict[str, str]:
    """What is given goes before what this machine would have."""
    master = given.get("spark.master") or "local[*]"
    if not master.startswith("local"):
        return dict(given)
    _work_here()
    here = {
        "spark.master": master,
        "spark.driver.extraJavaOptions": " ".join([JAVA_OPTIONS, *collector(os.environ)]),
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
    }
    return {**LOCAL_SETTINGS, **here, **local_settings, **given}


def _work_here() -> None:
    """Tasks run with the interpreter and the packages that this process has."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


@cache
def cores(spark: SparkSession) -> int:
    """How many tasks run at a time: as many as Spark cuts a range into."""
    from pyspark.sql import functions as F

    parts = spark.range(1 << 12).select(F.spark_partition_id().alias("part"))
    return 1 + int(parts.agg(F.max("part")).collect()[0][0])


def submitted(environment: Mapping[str, str]) -> dict[str, str]:
    """What PYSPARK_SUBMIT_ARGS says of what is set here: PySpark lets a program go before it.

    Raises JobError.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--master", dest="spark.master")
    parser.add_argument("--name", dest="spark.app.name")
    parser.add_argument("--driver-memory", dest="spark.driver.memory")
    parser.add_argument("--conf", "-c", action="append", default=[])
    try:
        words = shlex.split(environment.get("PYSPARK_SUBMIT_ARGS", ""))
        named = vars(parser.parse_known_args(words)[0])
    except (argparse.ArgumentError, ValueError) as error:
        raise JobError(f"PYSPARK_SUBMIT_ARGS: {error}") from error
    settings = dict(text.partition("=")[::2] for text in named.pop("conf"))
    return {**settings, **{name: value for name, value in named.items() if value}}


def collector(environment: Mapping[str, str]) -> list[str]:
    """No JVM starts with two collectors: one that the environment names is left to it."""
    named = any("GC" in environment.get(name, "") for name in JAVA_VARIABLES)
    return [] if named else [SMALL_HEAP]


def send_code(spark: SparkSession) -> None:
    """Tasks import what the driver does, wherever it was started."""
    from pyspark.errors import PySparkRuntimeError

    if not (ROOT / "spark_jobs").is_dir():  # the cluster was given an archive that tasks have, too
        return
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for package in PACKAGES:
            path = ROOT / package
            files = [path] if path.is_file() else sorted(path.rglob("*.py"))
            for file in files:
                archive.write(file, file.relative_to(ROOT))
    folder = Path(tempfile.mkdtemp(prefix="event_trends_"))
    (folder / "event_trends_code.zip").write_bytes(content.getvalue())
    code = str(folder / "event_trends_code.zip")
    try:
        spark.addArtifacts(code, pyfile=True)
    except PySparkRuntimeError:  # Spark 3.5 has it by Spark Connect only
        spark.sparkContext.addPyFile(code)


def _find_java() -> None:
    """A cluster's driver has its own. The JVM's launcher alone would say much and help little."""
    if os.environ.get("JAVA_HOME") or shutil.which("java") or os.environ.get("SPARK_HOME"):
        return
    raise JobError(
        "Spark needs Java 17 or newer, which is neither on PATH nor at JAVA_HOME"
        " (Debian and Ubuntu: sudo apt-get install openjdk-17-jre-headless;"
        " macOS: brew install openjdk@17)"
    )
