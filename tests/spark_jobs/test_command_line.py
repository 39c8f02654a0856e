"""The command line of the job: messages, exit codes, and one whole run."""

from __future__ import annotations

import io
import json
import random
import sys
import uuid
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.data.tables import TableServiceClient
from azure.storage.blob import BlobServiceClient

from shared.autoscaling import Observation, SeasonalFloor, Threshold
from shared.autoscaling.declaring import Throughput
from shared.autoscaling.store.rows import profile_of
from shared.sampling.series import Shape
from shared.trends.store.trends import trend_of
from shared.values.measurements import WeekProfile
from spark_jobs import azure_blobs, event_trends
from spark_jobs.engine import Engine
from spark_jobs.errors import JobError
from spark_jobs.job import names_in, run_job
from spark_jobs.options import Options, parse
from spark_jobs.publish.stores import LocalStore
from spark_jobs.read.sources import ClusterFiles, Files, read_controls, source_of
from tests.autoscaling.policies.test_single_metrics import seeing
from tests.spark_jobs.telemetry import FOLDER, event, pack, put

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from local.azurite import Azurite

OTEL = "py3.11:otel1.25:ext1.0"
TODAY = date(2017, 7, 1)


def started(*arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Returns the exit code and standard error of a run that publishes nothing."""
    output = tmp_path / "out"
    code = event_trends.main(["--output", str(output), *arguments])
    assert not (output / "manifests").exists()
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--date", "2017-07-02"], "--date 2017-07-02: is in the future (today is 2017-07-01"),
        (["--to", "2099-01-01"], "--to 2099-01-01: is in the future"),
        (["--from", "2017-05-02", "--to", "2017-05-01"], "is an empty range"),
        (["--date", "2017-05-02", "--to", "2017-05-03"], "use either --date, or --from and --to"),
        (["--output", ""], "--output: is empty"),
        (["--input", " "], "--input: is empty"),
        (["--date", "yesterday"], "'yesterday' is not a date such as 2017-05-15"),
        (["--time-zone", "Mars/Base"], "'Mars/Base' is not a time zone such as Europe/Amsterdam"),
        (["--profile", "a=b"], "needs --tables"),
    ],
)
def test_wrong_options_are_reported_before_anything_starts(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        parse(["--input", "x", "--output", "y", *arguments], TODAY)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_options_choose_dates() -> None:
    def of(*arguments: str) -> tuple[date | None, date | None, tuple[date, ...]]:
        options = parse(["--input", "x", "--output", "y", *arguments], TODAY)
        return options.since, options.until, options.holidays

    first = date(2017, 5, 15)
    assert of() == (None, None, ())
    assert of("--date", "2017-05-15") == (first, first, ())
    assert of("--from", "2017-05-15", "--holiday", "2017-05-15") == (first, None, (first,))


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("/no/such", "No such file or directory\n"),
        (300 * "x", "File name too long\n"),
        (
            "file://data/in",
            "names the machine data; write data/in for a relative path, or file:///data/in\n",
        ),
        ("EMPTY", "holds no file such as PT1H.json, *.jsonl or *.gz\n"),
    ],
)
def test_an_input_that_cannot_be_opened_is_named(
    name: str, error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    path = name.replace("EMPTY", str(tmp_path / "in"))
    code, told = started("--input", path, tmp_path=tmp_path, capsys=capsys)
    assert (code, told.startswith("event_trends: --input ")) == (1, True)
    assert told.endswith(f"{path}: {error}")


def test_a_file_that_is_gone_when_a_task_reads_it_is_named_with_the_machine(
    tmp_path: Path,
) -> None:
    with pytest.raises(JobError, match=f"gone.json: No such file or directory on {gethostname()}"):
        Files([str(tmp_path)]).read(str(tmp_path / "gone.json"), 0, 1)


def test_a_range_without_files_names_the_dates_that_have_files(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "in", "2017-05-15", [event("2017-05-15T09:00:00")])
    code, error = started(
        "--input", str(tmp_path / "in"), "--date", "2017-05-16", tmp_path=tmp_path, capsys=capsys
    )
    assert code == 1
    assert "no files of 2017-05-16 to 2017-05-16; there are files of 2017-05-15 to" in error


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("many", "could not convert string to float: 'many'"),
        ("1_0", "'1_0' is not a number in digits 0 to 9"),
        ("\u0663", "'\u0663' is not a number in digits 0 to 9"),
        ("1,200", "has more fields than the header; write 1200, not 1,200"),
    ],
)
def test_a_bad_control_is_an_error_that_names_file_and_line(
    value: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    control = tmp_path / "control.csv"
    control.write_text(f"date,value\n2017-05-15,{value}\n", encoding="utf-8")
    code, error = started(
        "--input", "x", "--control", str(control), tmp_path=tmp_path, capsys=capsys
    )
    assert code == 1
    assert f"--control {control}: line 2: {told}" in error


METRIC = {
    "interval": "PT12H",
    "namespace": "Microsoft.ServiceBus/namespaces",
    "value": [
        {
            "name": {"value": "IncomingMessages"},
            "timeseries": [
                {
                    "data": [
                        {"timeStamp": "2017-05-15T00:00:00Z", "total": 3.0},
                        {"timeStamp": "2017-05-15T12:00:00+00:00", "total": 4.0},
                        {"timeStamp": "2017-05-16T00:00:00Z", "total": None},
                    ]
                }
            ],
        }
    ],
}


def test_a_platform_metric_is_a_control(tmp_path: Path) -> None:
    """``az monitor metrics list`` prints null for an interval without a figure."""
    file = tmp_path / "control.json"
    for encoding in ("utf-16", "utf-8"):  # PowerShell 5.1 writes UTF-16
        file.write_text(json.dumps(METRIC, indent=2), encoding)
        for location in (str(file), file.as_uri()):
            assert read_controls(location) == {"": {"2017-05-15": 7.0}}
    file.write_text(json.dumps({"value": []}))
    with pytest.raises(JobError, match="holds 0 metrics; ask for one"):
        read_controls(str(file))
    with pytest.raises(JobError, match=r"--control file:///nowhere\.csv: .*No such file"):
        read_controls("file:///nowhere.csv")


def test_a_control_with_two_figures_for_a_day_is_refused(tmp_path: Path) -> None:
    """Of the hours of a day, the last one would otherwise count as the day."""
    file = tmp_path / "control.csv"
    file.write_text("date,event,value\n2017-05-15,A,3\n2017-05-15,B,4\n2017-05-15,A,5\n")
    with pytest.raises(JobError, match="line 4: a second figure for 2017-05-15; write one for"):
        read_controls(str(file))


def test_lines_that_cannot_be_read_are_reported_with_file_and_field(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {
        event("2017-01-15T09:00:00"): "bad_field, field time",
        event("2017-05-15T09:00:00", Name=7): "Name: expected text, found '7'",
        '{"category":"StorageWrite"}': "neither a known Type nor a known payload",
        event("2017-05-15T09:00:00", Type="AppPageViews"): "1 record of the table AppPageViews",
    }
    file = put(tmp_path / "in", "2017-05-15", told)
    code, error = started("--input", str(tmp_path / "in"), tmp_path=tmp_path, capsys=capsys)
    assert code == 1
    for message in told.values():
        (line,) = [line for line in error.splitlines() if message in line]
        assert str(file) in line


def test_an_option_that_names_nothing_is_an_error_that_says_what_there_is(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output folder is not bound to the wrong name."""
    data = tmp_path / "in"
    pack(put(data, "2017-05-15", [event("2017-05-15T09:00:00")]))
    for option, told in {
        "--event Ordr": "--event: no event is named Ordr; there are OrderPlaced",
        "--measurement amount": "--measurement amount: no record has it; there are Amount",
        "--dimension Tenant": "--dimension Tenant: no record has it; there are tenant",
    }.items():
        code, error = started(
            "--input", str(data), *option.split(), tmp_path=tmp_path, capsys=capsys
        )
        assert (code, error) == (1, f"event_trends: {told}\n")
    options = ["--event", "OrderPlaced", "--event", "Ordr", "--output", str(tmp_path / "out")]
    control = data / "control.csv"
    control.write_text("date,event,value\n2017-05-15,Odr,3\n")
    assert event_trends.main(["--input", str(data), *options, "--control", str(control)]) == 0
    out, error = capsys.readouterr()
    assert "OrderPlaced" in out
    assert "warning: --event: no event is named Ordr; there are OrderPlaced\n" in error
    assert f"warning: --control {control}: no event is named Odr;" in error
    assert "not read" not in error


def test_a_measurement_that_no_record_has_any_more_is_a_warning(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output folder is bound to it already."""
    arguments = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    for measurements in ({"Amount": 1}, {}):
        time = "2017-05-15T09:00:00"
        put(tmp_path / "in", "2017-05-15", [event(time, Measurements=measurements)])
        assert event_trends.main([*arguments, "--measurement", "Amount", "--no-pictures"]) == 0
    assert "warning: --measurement Amount: no record has it\n" in capsys.readouterr().err


def test_metrics_in_a_container_of_their_own_are_the_control_of_events(
    spark: SparkSession,
    azurite: Azurite,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Azure writes a container for each table, with the same names of blobs in all of them. On the
    last day, half of the requests came, and so half of the events. The export may have lost a part
    of both."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string)
    blobs = BlobServiceClient.from_connection_string(azurite.connection_string)
    events, metrics = (blobs.create_container(f"{n}-{uuid.uuid4().hex}") for n in "em")
    for number in range(29):
        day, sent = date(2017, 5, 1) + timedelta(days=number), 60 if number == 28 else 120
        path = f"resourceId=/X/y={day:%Y}/m={day:%m}/d={day:%d}/h=09/m=00/PT1H.json"
        lines = [
            event(f"{day}T09:{n % 60:02d}:{n // 60:02d}", OperationId=f"{n}") for n in range(sent)
        ]
        events.upload_blob(path, "\n".join(lines))
        total = {"Type": "AppMetrics", "ItemCount": 10 * sent}
        metrics.upload_blob(path, event(f"{day}T09:00:00", "requests/duration", **total))
    metrics.upload_blob("x.csv", "a,b")
    inputs = ["--input", str(events.url), "--input", str(metrics.url)]

    def judged(*some: str) -> tuple[str, str]:
        output = str(tmp_path / uuid.uuid4().hex)
        assert event_trends.main([*some, "--output", output, "--json", "--no-pictures"]) == 0
        out, err = capsys.readouterr()
        assert (f"1 file not read because of the name, such as {metrics.url}/x.csv" in err) == (
            str(metrics.url) in some
        )
        rows = [json.loads(line) for line in out.splitlines()]
        assert [row["event"] for row in rows] == ["OrderPlaced"] * len(rows)
        return (rows[-1]["verdict"], rows[-1]["reason"]) if rows else ("", err)

    verdict, reason = judged(*inputs[:2])
    assert (verdict, "without a control series" in reason) == ("events lost", True)
    verdict, reason = judged(*inputs)
    assert verdict == "uncertain"
    assert "the control series changed by a similar share; it comes from the same export" in reason
    assert judged(*inputs, *inputs) == (verdict, reason), "a file that is named twice is read once"
    _, told = judged("--input", str(metrics.url), "--measurement", "Amount")
    assert "holds metrics, but no event, request or trace" in told


def test_inputs_that_spark_opens_belong_together_and_to_no_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Their dates are below the inputs, too."""
    for name in ("2026-11-25/events", "2026-11-25/metrics"):
        put(tmp_path / name, "2017-05-15", [event("2017-05-15T09:00:00", name)])
    names = [(tmp_path / "2026-11-25" / name).as_uri() for name in ("events", "metrics")]
    source = ClusterFiles(spark, names)
    done = run_job(
        source, LocalStore(tmp_path / "out"), Engine(spark), Options(Shape(), "run", TODAY)
    )
    assert set(done.manifest.entries) == {"2017-05-15"}
    assert [trend.event for trend in done.trends] == ["2026-11-25/events", "2026-11-25/metrics"]
    for scheme in ("abfss", "abfs", "wasbs", "hdfs", "s3a", "gs", "dbfs"):
        both = [f"{scheme}://{name}@a.dfs.core.windows.net" for name in "em"]
        assert source_of(both, lambda: spark) == ClusterFiles(spark, both)
    with pytest.raises(JobError, match="is opened by Spark and cannot be read together with /in"):
        source_of(["abfss://c@a.dfs.core.windows.net", "/in"], lambda: spark)


def test_a_refused_storage_account_is_an_error_without_its_key(
    azurite: Azurite,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong_key = azurite.connection_string.replace("Eby8vdM0", "AAAAAAAA")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", wrong_key)
    url = f"{BlobServiceClient.from_connection_string(wrong_key).url}secret"
    code, error = started("--input", url, tmp_path=tmp_path, capsys=capsys)
    assert code == 1
    assert error.startswith(f"event_trends: --input {url}: ")
    assert "AAAAAAAA" not in error


class NoIdentity:
    """A login that fails, and counts how often it was tried."""

    tried = 0

    def get_token(self, *_scopes: str, **_options: object) -> None:
        NoIdentity.tried += 1
        raise ClientAuthenticationError("DefaultAzureCredential failed.\nAttempted credentials:")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--input", "https://account.blob.core.windows.net/telemetry"],
        ["--input", ".", "--tables", "https://account.table.core.windows.net"],
    ],
)
def test_without_a_login_to_azure_the_job_ends_at_once_and_says_what_to_do(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(azure_blobs, "DefaultAzureCredential", NoIdentity)
    monkeypatch.setattr(NoIdentity, "tried", 0)
    code, error = started(*arguments, tmp_path=tmp_path, capsys=capsys)
    assert code == 1
    assert error == (
        "event_trends: no login to Azure works: run `az login`, or give the cluster an identity:"
        " DefaultAzureCredential failed.\n"
    )
    assert NoIdentity.tried == 1, "a client waits for over a minute before it gives up"


def test_a_nightly_run_reads_blobs_and_writes_pictures_and_tables(
    each_spark: SparkSession,
    azurite: Azurite,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = date(2017, 5, 1)
    days = [str(first + timedelta(days=n)) for n in range(36)]
    for day in days:
        rate_fell = day >= "2017-05-31"
        for hour in (9, 15):
            kept = 6 if rate_fell else 12
            times = [f"{day}T{hour:02d}:{n:02d}:00" for n in range(kept)]
            weight = 20 if rate_fell else 10
            lines = [event(t, OperationId=f"{t}", ItemCount=weight) for t in times]
            pack(put(tmp_path / "in", day, lines, hour))
    blobs = BlobServiceClient.from_connection_string(azurite.connection_string)
    container = blobs.create_container(f"telemetry-{uuid.uuid4().hex}")
    for path in (tmp_path / "in").rglob("*.gz"):
        container.upload_blob(f"in/{path.relative_to(tmp_path / 'in')}", path.read_bytes())
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string)

    code = event_trends.main(
        ["--input", f"{container.url}/in", "--output", str(tmp_path / "out"), "--json",
         "--measurement", "Amount", "--tables", "AZURE_STORAGE_CONNECTION_STRING",
         "--profile", "OrderPlaced=workers"]
    )  # fmt: skip

    assert code == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["date"] for row in found] == days
    assert found[30]["verdict"] == "sampling changed"
    assert (found[29]["adjusted_count"], found[30]["adjusted_count"]) == (240, 240)
    tables = TableServiceClient.from_connection_string(azurite.connection_string)
    ours = "event eq 'OrderPlaced'"  # other tests write to this table, too
    rows = [trend_of(row) for row in tables.get_table_client("Trends").query_entities(ours)]
    assert [trend.date for trend in rows] == days
    profile = profile_of(tables.get_table_client("Scaling").get_entity("workers", "profile"))
    assert profile is not None
    assert profile.items_per_minute[9] == 2
    assert profile.items_per_minute[3] == 0
    floor = SeasonalFloor(Threshold("backlog", 100, 10), rate_per_instance_minute=0.5)
    assert [floor(monday(hour, profile)).capacity for hour in (3, 8, 9)] == [1, 1, 4]
    (page,) = (path.read_text() for path in (tmp_path / "out").rglob("OrderPlaced-*"))
    assert "<svg" in page
    assert "http://127" not in page


def test_names_that_the_output_cannot_show_do_not_end_a_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "in", "2017-05-15", [event("2017-05-15T09:00:00", "caf\u00e9 \u4e2d")])
    printed = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", printed)
    arguments = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    assert event_trends.main([*arguments, "--no-pictures"]) == 0
    printed.seek(0)
    assert "caf\u00e9 \\u4e2d" in printed.read()


def monday(hour: int, profile: WeekProfile) -> Observation:
    """Returns what the scaling rules observe on a Monday: a resource with an empty queue."""
    now = datetime(2017, 6, 12, hour, 30, tzinfo=UTC)
    return seeing([0], capacity=1, now=now, profile=profile, throughput=Throughput(None, 0))


def test_spark_reads_an_input_that_only_it_reaches(
    each_spark: SparkSession, tmp_path: Path
) -> None:
    """Such as abfss on a cluster. Here it is Spark's own file system of this machine."""
    line = event("2017-05-15T09:00:00", ItemCount=3)
    put(tmp_path / "in", "2017-05-15", [line, line, line[:40]], hour=9)
    pack(put(tmp_path / "in", "2017-05-16", [line, event("2017-05-16T09:00:00")], hour=9))
    source = ClusterFiles(each_spark, [(tmp_path / "in").as_uri()])
    assert [FOLDER.split("/")[0] in file.path for file in source.files()] == [True, True]
    store = LocalStore(tmp_path / "out")
    done = run_job(source, store, Engine(each_spark), Options(Shape("Amount"), "run", TODAY))
    figures = [(t.date, t.records, t.duplicates_removed, t.quarantined) for t in done.trends]
    assert figures == [("2017-05-15", 1, 2, 1), ("2017-05-16", 1, 0, 0)]
    assert names_in(source, source.files(), "--measurement Amout") == "there are Amount"
    with pytest.raises(JobError, match="does not exist"):
        ClusterFiles(each_spark, [(tmp_path / "none").as_uri()]).files()


def test_weights_are_trusted_by_an_option_or_if_the_ids_show_that_nothing_was_dropped(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the last day, a tenth of the events is left. Few ids prove nothing."""
    rng = random.Random(1)
    for number in range(29):
        day, sent = date(2017, 5, 1) + timedelta(days=number), 12 if number == 28 else 120
        lines = [
            event(f"{day}T09:{n % 60:02d}:{n // 60:02d}", OperationId=f"{n}", SDKVersion=OTEL)
            for n in range(sent)
        ]
        requests = [
            event(f"{day}T10:00:00", f"GET {n % 5}", Type="AppRequests", SDKVersion=OTEL)
            for n in range(250)
        ]
        ids = [
            json.dumps({**json.loads(line), "OperationId": f"{rng.getrandbits(128):032x}"})
            for line in lines + requests
        ]
        put(tmp_path / "few", str(day), lines)
        put(tmp_path / "many", str(day), ids)

    def last_verdict(folder: str, *options: str) -> str:
        paths = ["--input", str(tmp_path / folder), "--output", str(tmp_path / uuid.uuid4().hex)]
        only = ("--json", "--no-pictures", "--event", "OrderPlaced")
        assert event_trends.main([*paths, *only, *options]) == 0
        verdict: str = json.loads(capsys.readouterr().out.splitlines()[-1])["verdict"]
        return verdict

    assert last_verdict("few") == "uncertain"
    assert last_verdict("few", "--trust-weights") == "events lost"
    assert last_verdict("many") == "events lost"
