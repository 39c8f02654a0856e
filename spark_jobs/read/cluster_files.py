"""Files that Spark itself reaches, such as abfss:// on a cluster, by its own connectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

from spark_jobs.errors import BadInput
from spark_jobs.read.files import SourceFile, is_export

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class ClusterFiles:
    """Spark lists, splits, unpacks and reads; tasks get lines, not ranges of bytes."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._spark = spark
        self._root = root

    @property
    def name(self) -> str:
        return self._root

    def files(self) -> list[SourceFile]:
        """In order of paths. Raises BadInput."""
        listed = self._spark.read.format("binaryFile").option("recursiveFileLookup", "true")
        try:
            found = listed.load(self._root).select("path", "length").collect()
        except Exception as error:  # the JVM's
            raise BadInput(f"--input {self._root}: {reason_of(error)}") from error
        files = [SourceFile(plain_path(row.path), row.length) for row in found]
        return sorted((f for f in files if is_export(f.path)), key=lambda file: file.path)

    def read(self, path: str, start: int, end: int) -> bytes:
        raise NotImplementedError("Spark reads these files itself")

    def lines(self, files: Sequence[SourceFile]) -> DataFrame:
        """Columns path and line, which is binary."""
        from pyspark.sql import functions as F

        read = self._spark.read.option("lineSep", "\n").option("recursiveFileLookup", "true")
        text = read.text([file.path for file in files])
        return text.select(
            F.col("_metadata.file_path").alias("path"), F.col("value").cast("binary").alias("line")
        )


def plain_path(path: str) -> str:
    """As Spark tells it beside a line: encoded as a URL."""
    return unquote(path)


def reason_of(error: Exception) -> str:
    """What the JVM said first."""
    java = getattr(error, "java_exception", None)
    text = java.toString() if java is not None else str(error)
    first: str = text.splitlines()[0]
    return first.removeprefix("java.io.FileNotFoundException: ")
