"""Opens a Spark session: of the cluster, of Spark Connect, or on this machine."""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
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
SMALL_JVM = f"{LOGGING} -XX:TieredStopAtLevel=1 -XX:InitialHeapSize=64m"
"""A local JVM only moves blocks, so optimizing its code takes more time than it saves."""
SMALL_HEAP = "-XX:+UseSerialGC"
"""The option for a simple garbage collector. The default collector, for large heaps, would keep
more memory than it frees.
"""
JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
SUBMIT = "PYSPARK_SUBMIT_ARGS"
OF_A_CLUSTER = {"spark.excludeOnFailure.enabled": "true"}
"""Otherwise Spark may give a task to the same broken executor four times, and the job fails."""
SETTLE_SECONDS = 2.0
SETTLINGS_MAX = 15
"""The executors of a cluster have half a minute to register, as Spark itself allows by default."""
PACKAGES = ("msgspec", "numpy", "pandas", "pyarrow")
"""The packages that tasks need, besides pyspark, which Spark gives them."""
PROBE = (
    "import sys; from importlib.util import find_spec;"
    "missing = [name for name in sys.argv[1:] if find_spec(name) is None];"
    "print('.'.join(map(str, sys.version_info[:2])), *missing)"
)
PROBE_SECONDS = 60
MASTER = re.compile(r"(?:--master[ =]|spark\.master=)(\S+)")


def open_session() -> SparkSession:
    """Returns the active session of a notebook or of spark-submit. If there is none, returns a
    session of the Spark Connect server in SPARK_REMOTE, or else a session on this machine. If a
    package or Java is missing, raises JobError, which says what to install.
    """
    remote = os.environ.get("SPARK_REMOTE", "")
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has started this process
    here = not remote or remote.startswith("local")
    if here and not submitted:
        check_places(os.environ)
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise JobError(
            "PySpark is not installed: pip install -r spark_jobs/requirements.txt"
        ) from error
    spark = SparkSession.getActiveSession()
    if spark is None:
        if not remote and not submitted:
            os.environ[SUBMIT] = with_defaults(os.environ)
        if here:
            _prepare_tasks(submitted=submitted)
        try:
            spark = SparkSession.builder.getOrCreate()
        except Exception as error:  # PySpark has no common class for errors of the JVM
            raise JobError(f"Spark does not start: {first_line(error)}") from error
    send_code(spark)
    return spark


def _prepare_tasks(*, submitted: bool) -> None:
    """Let tasks use the packages of this process, unless the environment names another Python."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master_of(os.environ).startswith("local"):  # other machines could not reach it
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        if not submitted:
            check_python(os.environ["PYSPARK_PYTHON"])


def with_defaults(environment: Mapping[str, str]) -> str:
    """Returns PYSPARK_SUBMIT_ARGS with the defaults for this machine in front, so that the
    variable's own arguments override the defaults. Raises JobError.
    """
    given = environment.get(SUBMIT) or "pyspark-shell"
    local = master_of(environment).startswith("local")
    settings = _of_this_machine(environment) if local else OF_A_CLUSTER
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


def _of_this_machine(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        "spark.app.name": "event_trends",
        "spark.master": "local[*]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": java_options(environment),
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(8 << 20),  # what a task gets at a time
        # A process keeps the memory of a batch for the next batch, because getting new pages takes
        # longer.
        "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(256 << 20),
        "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # the largest that glibc accepts
    }


def java_options(environment: Mapping[str, str]) -> str:
    """If the environment names a garbage collector, the options do not: a JVM refuses two."""
    named = any("GC" in environment.get(name, "") for name in JAVA_VARIABLES)
    return SMALL_JVM if named else f"{SMALL_JVM} {SMALL_HEAP}"


@cache
def cores(spark: SparkSession) -> int:
    """Returns the number of tasks that run at a time. The executors of a cluster register one after
    another, so there it is the number that stops growing.
    """
    count = parts_of_a_range(spark)
    is_local = str(spark.conf.get("spark.master", "")).startswith("local")
    for _ in range(0 if is_local else SETTLINGS_MAX):
        time.sleep(SETTLE_SECONDS)
        before, count = count, parts_of_a_range(spark)
        if count <= before:
            break
    return count


def parts_of_a_range(spark: SparkSession) -> int:
    """Returns the number of parts into which Spark divides a range: one for each known core."""
    from pyspark.sql import functions as F

    parts = spark.range(1 << 12).select(F.spark_partition_id().alias("part"))
    return 1 + int(parts.agg(F.max("part")).collect()[0][0])


@cache
def send_code(spark: SparkSession) -> None:
    """Make the job's modules available to tasks, wherever the driver was started."""
    if spark.version.startswith("3."):  # Spark 3 takes code from --py-files only
        return
    if not (ROOT / "spark_jobs").is_dir():  # an archive of --py-files, which tasks already have
        return
    code = Path(tempfile.mkdtemp(prefix="event_trends_")) / "event_trends_code.zip"
    atexit.register(shutil.rmtree, code.parent)  # Spark reads the file as long as the job runs
    with zipfile.ZipFile(code, "w") as archive:
        for pattern in CODE:
            for file in sorted(ROOT.glob(pattern)):
                archive.write(file, file.relative_to(ROOT))
    spark.addArtifacts(str(code), pyfile=True)


def check_places(environment: Mapping[str, str]) -> None:
    """Raises JobError if Java is missing, or if a variable names a place that Spark cannot use. The
    errors of Spark's launcher would not name the variable.
    """
    java, spark, java_home = (
        shutil.which("java"),
        *map(environment.get, ("SPARK_HOME", "JAVA_HOME")),
    )
    if java_home and not shutil.which("java", path=f"{java_home}/bin"):
        remedy = f"unset it to use {java}" if java else "set it to the folder of Java 17 or newer"
        raise JobError(f"JAVA_HOME={java_home}: has no program bin/java; {remedy}")
    if spark and not (Path(spark) / "bin" / "spark-submit").is_file():
        remedy = "unset it to use the Spark of the package pyspark"
        raise JobError(f"SPARK_HOME={spark}: has no program bin/spark-submit; {remedy}")
    if not (java_home or java or spark):
        raise JobError(
            "Spark needs Java 17 or newer, which is neither on PATH nor at JAVA_HOME"
            " (Debian and Ubuntu: sudo apt-get install openjdk-17-jre-headless;"
            " macOS: brew install openjdk@17)"
        )
    folders = environment.get("SPARK_LOCAL_DIRS") or ""
    problems = [_unwritable(Path(folder.strip())) for folder in folders.split(",") if folder]
    if problems and all(problems):  # Spark uses those that it can write
        raise JobError(
            f"SPARK_LOCAL_DIRS={folders}: {problems[0]}; name a folder for Spark's files"
        )


def _unwritable(folder: Path) -> str:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return f"cannot write there ({error.strerror})"
    return ""


def check_python(python: str) -> None:
    """Raises JobError if the Python of tasks cannot do their work."""
    if python == sys.executable:
        return
    where, remedy = f"PYSPARK_PYTHON={python}", f"unset it to use {sys.executable}"
    try:
        done = subprocess.run(  # noqa: S603  the command of the user
            [python, "-c", PROBE, *PACKAGES],
            capture_output=True, text=True, timeout=PROBE_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else "no answer"
        raise JobError(f"{where}: is not a Python that starts ({reason}); {remedy}") from error
    if done.returncode:
        raise JobError(f"{where}: is no Python 3 (exit code {done.returncode}); {remedy}")
    version, _, missing = done.stdout.strip().partition(" ")
    if version != (own := f"{sys.version_info.major}.{sys.version_info.minor}"):
        raise JobError(f"{where}: is Python {version}, and the job runs on {own}; {remedy}")
    if missing:
        raise JobError(
            f"{where}: has no {', '.join(missing.split())}; {remedy}, or install"
            " spark_jobs/requirements.txt there"
        )
