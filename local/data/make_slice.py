"""Cut whole days out of the NASA-HTTP trace and count its requests per minute.

    python local/data/make_slice.py workload.tbz2 1995-07-11 3 nasa_http_1995-07-11_13.csv

`workload.tbz2` holds one text file of requests per second, separated by spaces, from
1995-07-01 00:00:00 -0400 on. Days are days of that time zone; the times written are UTC.
"""

import argparse
import csv
import tarfile
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

LOG_START = datetime(1995, 7, 1, tzinfo=timezone(-timedelta(hours=4)))
# The July log breaks off on the 28th and the gap before the August log is not padded:
# what comes after cannot be given a date.
LAST_DAY = date(1995, 7, 27)


def requests_per_second(archive: Path) -> list[int]:
    with tarfile.open(archive) as tar:
        log = tar.extractfile(tar.getmembers()[0])
        assert log is not None, f"{archive} holds no file"
        return [int(count) for count in log.read().split()]


def minutes_of(counts: list[int], first_day: date, days: int) -> list[tuple[str, int]]:
    first_second = (first_day - LOG_START.date()).days * 86_400
    seconds = range(first_second, first_second + days * 86_400, 60)
    return [(_utc(second), sum(counts[second : second + 60])) for second in seconds]


def _utc(second: int) -> str:
    time = (LOG_START + timedelta(seconds=second)).astimezone(UTC)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive", type=Path)
    parser.add_argument("first_day", type=date.fromisoformat)
    parser.add_argument("days", type=int)
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    if not LOG_START.date() <= options.first_day <= LAST_DAY - timedelta(days=options.days - 1):
        parser.error(f"the days must lie between {LOG_START.date()} and {LAST_DAY}")
    rows = minutes_of(requests_per_second(options.archive), options.first_day, options.days)
    with options.output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("time", "arrivals"))
        writer.writerows(rows)


if __name__ == "__main__":
    main()
